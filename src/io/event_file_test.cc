#include "io/event_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace millrace {
namespace {

// "0a 1f" -> bytes.
std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

// Records as tensorboard 2.21's RecordWriter makes them of its Event messages.
const std::string kVersionAt2 =
    from_hex("1800000000000000a37f4b220900000000000000401a0d627261696e2e4576656e743a32ff2ee0e7");
const std::string kStartAtStep7 =
    from_hex("0f000000000000006d532b0909000000000000004010073a020801d1715dcb");
const std::string kLoss = from_hex(
    "2100000000000000017becf609000008c0a3cdd94110ac022a130a110a0a747261696e2f6c6f7373150000204001d2"
    "b225");
const std::string kText = from_hex(
    "2c00000000000000f4aecc4509000000000000004010072a1f0a1d0a0174420c08071200420661202262220a4a0a0a"
    "060a047465787420027b696369");

uint32_t unmasked(std::string_view four) {
  uint32_t masked = 0;
  std::memcpy(&masked, four.data(), 4);
  return std::rotl(masked - 0xA282EAD8u, 15);
}

// The events of a file; every length and checksum is looked at.
std::vector<std::string> events_of(const std::string& file) {
  std::vector<std::string> events;
  for (size_t at = 0; at < file.size();) {
    uint64_t length = 0;
    if (file.size() - at < 16) {
      ADD_FAILURE() << "a record is cut at byte " << at;
      break;
    }
    std::memcpy(&length, file.data() + at, 8);
    EXPECT_EQ(unmasked(std::string_view(file).substr(at + 8, 4)), crc32c(file.substr(at, 8)));
    if (file.size() - at - 16 < length) {
      ADD_FAILURE() << "a record is cut at byte " << at;
      break;
    }
    events.push_back(file.substr(at + 12, length));
    EXPECT_EQ(unmasked(std::string_view(file).substr(at + 12 + length, 4)), crc32c(events.back()));
    at += length + 16;
  }
  return events;
}

class EventFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "millrace-events-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

// RFC 3720, appendix B.4, and the check value of the CRC catalogue.
TEST(Crc32c, PublishedVectors) {
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising += static_cast<char>(i);
    falling += static_cast<char>(31 - i);
  }
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(rising), 0x46DD794Eu);
  EXPECT_EQ(crc32c(falling), 0x113FDB5Cu);
  EXPECT_EQ(crc32c(from_hex("01c00000000000000000000000000000140000000000040000000014"
                            "0000001828000000000000000200000000000000")),
            0xD9963A56u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST_F(EventFileTest, KnownBytes) {
  EventFile file(folder_, 7, 2.0);
  file.scalar("train/loss", 300, 1731628800.125, 2.5);
  file.text("t", 7, 2.0, "a \"b\"\n");  // nothing is escaped
  file.close();
  EXPECT_EQ(read_file(file.path()), kVersionAt2 + kStartAtStep7 + kLoss + kText);
}

TEST_F(EventFileTest, NameHoldsTheTimeAndIsNew) {
  const EventFile first(folder_ / "new" / "folder", 0, 1731628800.9);
  const EventFile second(folder_ / "new" / "folder", 0, 1731628800.9);
  EXPECT_TRUE(first.path().filename().string().starts_with("events.out.tfevents.1731628800."));
  EXPECT_NE(first.path(), second.path());
  const EventFile early(folder_, 0, 5.5);
  EXPECT_TRUE(early.path().filename().string().starts_with("events.out.tfevents.0000000005."));
}

TEST_F(EventFileTest, ScalarsOfOneStepAreOneRecord) {
  EventFile file(folder_, 0, 2.0);
  file.scalars({{"b", 1}, {"a", -2}}, 3, 4.0);
  file.scalars({}, 4, 4.0);
  file.flush();
  const auto events = events_of(read_file(file.path()));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2], from_hex("090000000000001040"  // wall_time 4
                                "1003"                // step 3
                                "2a14"                // summary
                                "0a080a016115000000c0"
                                "0a080a0162150000803f"));
}

float written_value(const fs::path& folder, double value) {
  EventFile file(folder, 0, 2.0);
  file.scalar("x", 1, 2.0, value);
  file.close();
  const std::string event = events_of(read_file(file.path())).back();
  float result = 0;
  std::memcpy(&result, event.data() + event.size() - 4, 4);
  return result;
}

TEST_F(EventFileTest, ValuesThatAreNotFiniteStayAsTheyAre) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::isnan(written_value(folder_, std::nan(""))));
  EXPECT_EQ(written_value(folder_, infinity), std::numeric_limits<float>::infinity());
  EXPECT_EQ(written_value(folder_, -infinity), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(written_value(folder_, -1e300), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(written_value(folder_, std::numeric_limits<float>::max()),
            std::numeric_limits<float>::max());
  EXPECT_EQ(written_value(folder_, 0.1), 0.1f);
}

TEST_F(EventFileTest, BytesThatAreNotUtf8AreReplaced) {
  EventFile file(folder_, 0, 2.0);
  file.text("t\xff", 1, 2.0, "ü\xC3 \xED\xA0\x80\xE2\x82");
  file.close();
  const std::string event = events_of(read_file(file.path())).back();
  EXPECT_NE(event.find("t\xEF\xBF\xBD"), std::string::npos);
  // One for the half letter, three for the surrogate, two for the cut sign.
  EXPECT_NE(event.find("ü\uFFFD \uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"), std::string::npos);
  for (const char bad : {'\xff', '\xED', '\xE2'}) EXPECT_EQ(event.find(bad), std::string::npos);
}

// What is on disk at any time is whole records, and nothing that was written changes.
TEST_F(EventFileTest, GrowsByWholeRecords) {
  EventFile file(folder_, 0, 2.0);
  std::string before = read_file(file.path());
  size_t growths = 0;
  for (int i = 1; i <= 3000; ++i) {
    file.scalar(std::string(static_cast<size_t>(i % 90), 'x'), i, 2.0, i);
    if (i % 1000 == 0) file.flush();
    if (const std::string now = read_file(file.path()); now.size() != before.size()) {
      ++growths;
      ASSERT_TRUE(now.starts_with(before));
      events_of(now);
      before = now;
    }
  }
  EXPECT_EQ(events_of(before).size(), 3002u);
  EXPECT_GT(growths, 3u);  // the buffer also empties by itself
}

TEST_F(EventFileTest, DestructorWritesTheRest) {
  fs::path path;
  {
    EventFile file(folder_, 0, 2.0);
    path = file.path();
    file.scalar("x", 1, 2.0, 1);
  }
  EXPECT_EQ(events_of(read_file(path)).size(), 3u);
}

TEST_F(EventFileTest, AFailedWriteEndsTheFile) {
  EventFile file(folder_, 0, 2.0);
  const auto size = static_cast<rlim_t>(fs::file_size(file.path()));
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_action = signal(SIGXFSZ, SIG_IGN);
  const rlimit narrow = {size + 5, before.rlim_max};  // within the next record
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &narrow), 0);
  file.scalar("x", 1, 2.0, 1);
  EXPECT_THROW(file.flush(), Error);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, old_action);
  EXPECT_THROW(file.scalar("x", 2, 2.0, 1), Error);
  EXPECT_THROW(file.flush(), Error);
  EXPECT_THROW(file.close(), Error);
  EXPECT_EQ(fs::file_size(file.path()), size + 5);  // nothing follows the cut record
}

TEST_F(EventFileTest, RefusesAFolderThatCannotBe) {
  write_file(folder_ / "a", "file");
  EXPECT_THROW(EventFile(folder_ / "a" / "b", 0, 2.0), Error);
}

// tests/outside/event_file.py names a folder and reads these files with tensorboard itself.
TEST_F(EventFileTest, WritesFilesForTensorboard) {
  const char* named = std::getenv("MILLRACE_OUTSIDE_DIR");
  const fs::path folder = named ? named : folder_;
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  {
    EventFile file(folder / "run", 0, 1000);
    for (int step = 1; step <= 2000; ++step) {
      file.scalars({{"train/loss", 5.0 / step}, {"train/grad_norm", step * 0.25}}, step,
                   1000 + step);
    }
    file.scalar("odd/values", 1, 1001, nan);
    file.scalar("odd/values", 2, 1002, infinity);
    file.scalar("odd/values", 3, 1003, -infinity);
    file.scalar("odd/values", 4, 1004, 1e300);
    file.scalar("odd/values", int64_t{1} << 40, 1005, -0.0);
    file.scalar("größe 寸法", 1, 1001, 7);
    file.text("sample", 1000, 2000, "Once upon a time,\n\"é\" \xff <b>end</b>");
    file.text("sample", 2000, 3000, "");
    file.close();
    // Version and start, 2000 steps, five odd values, one name, two texts.
    EXPECT_EQ(events_of(read_file(file.path())).size(), 2u + 2000 + 5 + 1 + 2);
  }
  {  // killed after step 30, continued from the state after step 20
    EventFile file(folder / "killed", 0, 1000);
    for (int step = 1; step <= 30; ++step) file.scalar("train/loss", step, 1000 + step, step);
    file.text("sample", 15, 1015, "before");
    file.text("sample", 25, 1025, "lost");
    file.close();
    EventFile again(folder / "killed", 21, 2000);
    for (int step = 21; step <= 40; ++step) again.scalar("train/loss", step, 2000 + step, -step);
    again.close();
    EXPECT_EQ(events_of(read_file(file.path())).size(), 2u + 30 + 2);
    EXPECT_EQ(events_of(read_file(again.path())).size(), 2u + 20);
  }
}

}  // namespace
}  // namespace millrace
