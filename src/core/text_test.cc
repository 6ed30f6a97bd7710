#include "core/text.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <optional>

namespace millrace {
namespace {

TEST(TextTest, HumanBytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(17), "17 B");
  EXPECT_EQ(human_bytes(-17), "-17 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(612 * 1024), "612 KiB");
  EXPECT_EQ(human_bytes(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(human_bytes(-(int64_t{3} << 29)), "-1.50 GiB");
  EXPECT_EQ(human_bytes(10235), "10.0 KiB");          // 9.995 KiB must not become "10.00"
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.00 MiB");  // nor this "1024 KiB"
  EXPECT_EQ(human_bytes(std::numeric_limits<int64_t>::max()), "8.00 EiB");
  EXPECT_EQ(human_bytes(std::numeric_limits<int64_t>::min()), "-8.00 EiB");
}

TEST(TextTest, HumanCount) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(65), "65");
  EXPECT_EQ(human_count(0.5), "0.5");
  EXPECT_EQ(human_count(-65), "-65");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(999.96), "1.0 k");
  EXPECT_EQ(human_count(10'000), "10.0 k");
  EXPECT_EQ(human_count(124'439'808), "124.4 M");
  EXPECT_EQ(human_count(999'960), "1.0 M");
  EXPECT_EQ(human_count(-3.5e12), "-3.5 T");
  EXPECT_EQ(human_count(1e300), "1e+300");
  EXPECT_EQ(human_count(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(human_count(std::numeric_limits<double>::infinity()), "inf");
}

TEST(TextTest, HumanSeconds) {
  EXPECT_EQ(human_seconds(0), "0 s");
  EXPECT_EQ(human_seconds(45e-9), "45.0 ns");
  EXPECT_EQ(human_seconds(812e-6), "812 us");
  EXPECT_EQ(human_seconds(12.4e-3), "12.4 ms");
  EXPECT_EQ(human_seconds(999.7e-6), "1.00 ms");
  EXPECT_EQ(human_seconds(3.21), "3.21 s");
  EXPECT_EQ(human_seconds(59.97), "1m 00s");
  EXPECT_EQ(human_seconds(125), "2m 05s");
  EXPECT_EQ(human_seconds(3599.6), "1h 00m");
  EXPECT_EQ(human_seconds(72 * 60), "1h 12m");
  EXPECT_EQ(human_seconds(7199), "2h 00m");
  EXPECT_EQ(human_seconds(100 * 3600), "100h 00m");
  EXPECT_EQ(human_seconds(-3.21), "-3.21 s");
  EXPECT_EQ(human_seconds(1e300), "1e+300 s");
  EXPECT_EQ(human_seconds(std::numeric_limits<double>::quiet_NaN()), "nan s");
}

TEST(TextTest, WithCommas) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(-999), "-999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(-100000), "-100,000");
  EXPECT_EQ(with_commas(1234567), "1,234,567");
  EXPECT_EQ(with_commas(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(TextTest, ParseBytesAccepts) {
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("8GiB"), int64_t{8} << 30);
  EXPECT_EQ(parse_bytes("8gib"), int64_t{8} << 30);
  EXPECT_EQ(parse_bytes(" 512 MB "), 512'000'000);
  EXPECT_EQ(parse_bytes("1e9"), 1'000'000'000);
  EXPECT_EQ(parse_bytes("1.5KiB"), 1536);
  EXPECT_EQ(parse_bytes(".5 KiB"), 512);
  EXPECT_EQ(parse_bytes("1.1KiB"), 1126);  // rounded down to whole bytes
  EXPECT_EQ(parse_bytes("17 B"), 17);
  EXPECT_EQ(parse_bytes("2TiB"), int64_t{2} << 40);
  EXPECT_EQ(parse_bytes("1PB"), 1'000'000'000'000'000);
  EXPECT_EQ(parse_bytes("9007199254740993"), 9007199254740993);  // not a double
  EXPECT_EQ(parse_bytes("9223372036854775807"), std::numeric_limits<int64_t>::max());
}

TEST(TextTest, ParseBytesRefuses) {
  for (const char* text : {"",
                           " ",
                           "GiB",
                           "-1",
                           "-8GiB",
                           "+5",
                           "nan",
                           "inf",
                           "infinity",
                           "8 G",
                           "8GiBs",
                           "8 Gi B",
                           "0x10",
                           "1e",
                           "1e400",
                           "1e19",
                           "9223372036854775808",
                           "8192 PiB",
                           "1.5",
                           "1.5 B",
                           "--1",
                           "1,5 GB",
                           "8GiB 2",
                           "auto"}) {
    EXPECT_EQ(parse_bytes(text), -1) << text;
  }
}

TEST(TextTest, Nearest) {
  const std::vector<std::string> words = {"model", "training", "data", "lr", "batch_size"};
  EXPECT_EQ(nearest("modle", words), "model");
  EXPECT_EQ(nearest("model", words), "model");
  EXPECT_EQ(nearest("trainnig", words), "training");
  EXPECT_EQ(nearest("batchsize", words), "batch_size");
  EXPECT_EQ(nearest("bach_sze", words), "batch_size");
  EXPECT_EQ(nearest("dta", words), "data");
  EXPECT_EQ(nearest("lx", words), "");    // 1 is not under half of 2
  EXPECT_EQ(nearest("daxy", words), "");  // 2 is not under half of 4
  EXPECT_EQ(nearest("train", words), "training");
  EXPECT_EQ(nearest("trai", words), "");  // distance 4
  EXPECT_EQ(nearest("", words), "");
  EXPECT_EQ(nearest("model", {}), "");
  EXPECT_EQ(nearest(std::string(10'000'000, 'x'), words), "");
  const std::vector<std::string> tie = {"beta1", "beta2"};
  EXPECT_EQ(nearest("beta3", tie), "beta1");  // the first of equals
}

// Sets an environment variable for the length of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = getenv(name)) old_ = old;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Variable() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(TextTest, WantsColour) {
  const Variable no_color("NO_COLOR", nullptr), force("CLICOLOR_FORCE", nullptr);
  const Variable term("TERM", "xterm");
  const int file = open("/dev/null", O_WRONLY);
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(file, 0);
  ASSERT_GE(terminal, 0);
  EXPECT_FALSE(wants_colour(file));
  EXPECT_TRUE(wants_colour(terminal));
  {
    const Variable dumb("TERM", "dumb");
    EXPECT_FALSE(wants_colour(terminal));
  }
  {
    const Variable none("TERM", nullptr);
    EXPECT_FALSE(wants_colour(terminal));
  }
  {
    const Variable zero("CLICOLOR_FORCE", "0");
    EXPECT_FALSE(wants_colour(file));
  }
  const Variable one("CLICOLOR_FORCE", "1");
  EXPECT_TRUE(wants_colour(file));
  const Variable refuse("NO_COLOR", "1");
  EXPECT_FALSE(wants_colour(file));
  EXPECT_FALSE(wants_colour(terminal));
  const Variable empty("NO_COLOR", "");  // empty counts as unset
  EXPECT_TRUE(wants_colour(file));
  close(file);
  close(terminal);
}

TEST(TextTest, Utf8Length) {
  EXPECT_EQ(code_point_at("a", 0).bytes, 1u);
  EXPECT_EQ(code_point_at("ü!", 0).bytes, 2u);
  EXPECT_EQ(code_point_at("€", 0).bytes, 3u);
  EXPECT_EQ(code_point_at("😀", 0).bytes, 4u);
  EXPECT_EQ(code_point_at("\u00A0\xff", 0).bytes, 2u);
  for (const char* bad :
       {"\x80", "\xC1\x80", "\xC3", "\xC3z", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE2\x82",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xF0\x9F\x98", "\xFF"}) {
    EXPECT_EQ(code_point_at(bad, 0).bytes, 0u) << bad;
  }
}

}  // namespace
}  // namespace millrace
