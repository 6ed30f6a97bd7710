#include "io/safetensors.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace millrace {
namespace {

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span<const T>(values));
}

std::string with_length(uint64_t length, const std::string& rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + rest;
}
std::string make_file(const std::string& header, size_t data) {
  return with_length(header.size(), header + std::string(data, '\1'));
}

class SafetensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "millrace-safetensors-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ / "a.safetensors";
  }
  void TearDown() override { fs::remove_all(folder_); }

  FileDigest write_as(const fs::path& path, const std::vector<TensorToWrite>& tensors,
                      const std::map<std::string, std::string>& metadata) {
    OutputFile file(path, OutputFile::Mode::truncate);
    write_safetensors(file, tensors, metadata);
    return file.digest();
  }
  void put(const std::string& bytes) {
    OutputFile file(path_, OutputFile::Mode::truncate);
    file.write(bytes);
  }
  // The Error of opening `path_`, or an empty one when it opens.
  ErrorFields open_error() {
    try {
      SafetensorsFile file(path_);
      for (const auto& entry : file.entries()) (void)file.bytes(entry);
    } catch (const Error& error) {
      return error.fields();
    }
    return {};
  }

  fs::path folder_, path_;
};

TEST_F(SafetensorsTest, RoundTrip) {
  const std::vector<float> weight = {1, -2, 3.5f, 0, 5, 6};
  const std::vector<int64_t> steps = {7, -8};
  const std::vector<uint8_t> mask = {1, 0, 1};
  const std::vector<TensorToWrite> tensors = {
      {"mask", "BOOL", {3}, bytes_of(mask)},
      {"weight", "F32", {2, 3}, bytes_of(weight)},
      {"empty", "F32", {0, 4}, {}},
      {"schritt \"ü\"\n", "I64", {2}, bytes_of(steps)},
      {"scalar", "F32", {}, std::as_bytes(std::span(weight)).first(4)},
  };
  write_as(path_, tensors, {{"format", "pt"}, {"note", "a \"quoted\" text"}});

  const SafetensorsFile file(path_);
  EXPECT_EQ(file.path(), path_);
  EXPECT_EQ(file.metadata(),
            (std::map<std::string, std::string>{{"format", "pt"}, {"note", "a \"quoted\" text"}}));
  ASSERT_EQ(file.entries().size(), 5u);
  EXPECT_EQ(file.entries()[0].name, "schritt \"ü\"\n");  // the widest type first
  EXPECT_EQ(file.entries().back().name, "mask");
  for (const TensorToWrite& tensor : tensors) {
    const auto* entry = file.find(tensor.name);
    ASSERT_NE(entry, nullptr) << tensor.name;
    EXPECT_EQ(entry->dtype, tensor.dtype);
    EXPECT_EQ(entry->shape, tensor.shape);
    const auto bytes = file.bytes(*entry);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), tensor.bytes.begin(), tensor.bytes.end()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) %
                  static_cast<uintptr_t>(safetensors_dtype_bytes(tensor.dtype)),
              0u);
  }
  EXPECT_EQ(file.to_f32(*file.find("weight")), weight);
  EXPECT_EQ(file.to_f32(*file.find("scalar")), std::vector<float>{1});
  EXPECT_EQ(file.to_f32(*file.find("empty")), std::vector<float>{});
  EXPECT_EQ(file.find("weight")->numel(), 6);
  EXPECT_EQ(file.find("weigh"), nullptr);
}

TEST_F(SafetensorsTest, NoTensorsAtAll) {
  write_as(path_, {}, {});
  EXPECT_EQ(read_file(path_), with_length(8, "{}      "));
  EXPECT_TRUE(SafetensorsFile(path_).entries().empty());
  write_as(path_, {}, {{"a", "b"}});
  EXPECT_EQ(SafetensorsFile(path_).metadata().at("a"), "b");
}

// The bytes another reader must find; the header is padded with spaces to a multiple of 8.
TEST_F(SafetensorsTest, KnownBytes) {
  const std::vector<uint8_t> values = {1, 2};
  write_as(path_, {{"x", "U8", {2}, bytes_of(values)}}, {});
  EXPECT_EQ(read_file(path_),
            with_length(56, R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}   )"
                            "\1\2"));
}

TEST_F(SafetensorsTest, OrderInTheHeaderIsFree) {
  put(make_file(R"({"b":{"data_offsets":[4,6],"shape":[2],"dtype":"I8"},)"
                R"("__metadata__":{},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                6));
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.entries()[0].name, "a");
  EXPECT_EQ(file.entries()[1].name, "b");
  EXPECT_EQ(file.bytes(*file.find("b")).size(), 2u);
}

TEST_F(SafetensorsTest, EveryDtype) {
  for (const auto& [dtype, size] : std::vector<std::pair<std::string, size_t>>{{"F64", 8},
                                                                               {"F32", 4},
                                                                               {"F16", 2},
                                                                               {"BF16", 2},
                                                                               {"I64", 8},
                                                                               {"I32", 4},
                                                                               {"I16", 2},
                                                                               {"I8", 1},
                                                                               {"U8", 1},
                                                                               {"BOOL", 1},
                                                                               {"U16", 2},
                                                                               {"U32", 4},
                                                                               {"U64", 8},
                                                                               {"F8_E4M3", 1},
                                                                               {"F8_E5M2", 1}}) {
    EXPECT_EQ(safetensors_dtype_bytes(dtype), static_cast<int64_t>(size));
    put(make_file(fmt::format(R"({{"x":{{"dtype":"{}","shape":[3],"data_offsets":[0,{}]}}}})",
                              dtype, 3 * size),
                  3 * size));
    EXPECT_EQ(open_error().what, "") << dtype;
  }
  EXPECT_EQ(safetensors_dtype_bytes("F4"), 0);
}

TEST_F(SafetensorsTest, ConvertsHalf) {
  // Bits and values from the table of IEEE 754 binary16.
  const std::vector<uint16_t> bits = {0x0000, 0x8000, 0x3C00, 0xC000, 0x7BFF, 0x0400,
                                      0x0001, 0x83FF, 0x3555, 0x7C00, 0xFC00, 0x7E01};
  write_as(path_, {{"x", "F16", {12}, bytes_of(bits)}}, {});
  const SafetensorsFile file(path_);
  const std::vector<float> values = file.to_f32(*file.find("x"));
  const std::vector<float> expected = {0.0f,     -0.0f,    1.0f,        -2.0f,      65504.0f,
                                       0x1p-14f, 0x1p-24f, -0x3FFp-24f, 0x1.554p-2f};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(values[i], expected[i]) << i;
  EXPECT_TRUE(std::signbit(values[1]));
  EXPECT_EQ(values[9], std::numeric_limits<float>::infinity());
  EXPECT_EQ(values[10], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(values[11]));
}

TEST_F(SafetensorsTest, ConvertsBfloat) {
  const std::vector<uint16_t> bits = {0x3F80, 0xC040, 0x7F80, 0x0001, 0x7FC0};
  write_as(path_, {{"x", "BF16", {5}, bytes_of(bits)}}, {});
  const SafetensorsFile file(path_);
  const std::vector<float> values = file.to_f32(*file.find("x"));
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], -3.0f);
  EXPECT_EQ(values[2], std::numeric_limits<float>::infinity());
  EXPECT_EQ(values[3], 0x1p-133f);
  EXPECT_TRUE(std::isnan(values[4]));
}

TEST_F(SafetensorsTest, ConvertsDouble) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> fine = {0.1, -infinity, std::nan(""), 1e-300};
  const std::vector<double> large = {1, 1e39};
  write_as(path_, {{"fine", "F64", {4}, bytes_of(fine)}, {"large", "F64", {2}, bytes_of(large)}},
           {});
  const SafetensorsFile file(path_);
  const std::vector<float> values = file.to_f32(*file.find("fine"));
  EXPECT_EQ(values[0], 0.1f);
  EXPECT_EQ(values[1], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(values[2]));
  EXPECT_EQ(values[3], 0.0f);
  try {
    file.to_f32(*file.find("large"));
    FAIL() << "1e39 fits no float";
  } catch (const Error& error) {
    EXPECT_NE(error.fields().where.find("`large`"), std::string::npos);
    EXPECT_EQ(error.fields().got, "1e+39");
  }
}

TEST_F(SafetensorsTest, ConvertRefusesIntegers) {
  const std::vector<int32_t> values = {1};
  write_as(path_, {{"ids", "I32", {1}, bytes_of(values)}}, {});
  const SafetensorsFile file(path_);
  try {
    file.to_f32(*file.find("ids"));
    FAIL() << "I32 was converted";
  } catch (const Error& error) {
    EXPECT_EQ(error.fields().got, "I32");
  }
}

// A misaligned F32 (the header has an odd length) must still convert.
TEST_F(SafetensorsTest, ConvertsMisaligned) {
  std::string header = R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  header.resize(header.size() % 2 ? header.size() : header.size() + 1, ' ');
  put(with_length(header.size(), header + std::string("\0\0\x80\x3f", 4)));
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.to_f32(*file.find("x")), std::vector<float>{1.0f});
}

constexpr const char* kGood = R"("good":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";

TEST_F(SafetensorsTest, ErrorsNameTheTensor) {
  put(make_file(R"({"h.0.attn":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4));
  const ErrorFields fields = open_error();
  EXPECT_EQ(fields.where, path_.string() + ": tensor `h.0.attn`");
  EXPECT_EQ(fields.got, "`F33`");
}

TEST_F(SafetensorsTest, HostileNamesDoNotReachTheTerminal) {
  put(make_file("{\"\\u001b[31m" + std::string(5000, 'x') + R"(":{"dtype":"F33"}})", 0));
  const ErrorFields fields = open_error();
  EXPECT_EQ(fields.where.find('\x1b'), std::string::npos);
  EXPECT_LT(fields.where.size(), path_.string().size() + 120);
}

TEST_F(SafetensorsTest, RefusesImpossibleLengths) {
  const std::string header = std::string("{") + kGood + "}";
  const std::string rest = header + "\1\1\1\1";
  put(with_length(header.size(), rest));
  ASSERT_EQ(open_error().what, "");
  for (uint64_t length : {rest.size() + 1, size_t{100'000'001}, size_t{1} << 62, size_t{1} << 63,
                          ~size_t{0}, ~size_t{0} - 7}) {
    put(with_length(length, rest));
    EXPECT_EQ(open_error().what, "the header length is impossible") << length;
  }
  // Over the cap although the file is long enough; sparse, so it costs no disk.
  put(with_length(100'000'001, "{"));
  fs::resize_file(path_, 200'000'000);
  EXPECT_EQ(open_error().what, "the header length is impossible");
}

TEST_F(SafetensorsTest, RefusesZeroBytesInTheHeader) {
  std::string header = std::string("{") + kGood + "}";
  header += std::string("\0garbage", 8);
  put(make_file(header, 4));
  EXPECT_NE(open_error().got.find("a zero byte"), std::string::npos);
}

TEST_F(SafetensorsTest, RefusesDeepNestingAndHighRank) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string header = "{\"x\":";
    for (int i = 0; i < 100'000; ++i) header += open;
    put(make_file(header, 0));
    EXPECT_NE(open_error().what, "") << open;
  }
  std::string shape = "1";
  for (int i = 0; i < 64; ++i) shape += ",1";
  put(make_file(R"({"x":{"dtype":"U8","shape":[)" + shape + R"(],"data_offsets":[0,1]}})", 1));
  EXPECT_NE(open_error().what.find("too many numbers"), std::string::npos);
}

TEST_F(SafetensorsTest, RefusesMissingFolderAndEmpty) {
  EXPECT_NE(open_error().what, "");
  put("");
  EXPECT_EQ(open_error().what, "the file is too short");
  EXPECT_THROW(SafetensorsFile file(folder_), Error);
}

TEST_F(SafetensorsTest, RefusesEveryTruncation) {
  const std::vector<float> values = {1, 2, 3};
  write_as(path_, {{"x", "F32", {3}, bytes_of(values)}}, {{"format", "pt"}});
  const std::string whole = read_file(path_);
  for (size_t length = 0; length < whole.size(); ++length) {
    put(whole.substr(0, length));
    EXPECT_NE(open_error().what, "") << length;
  }
  put(whole);
  EXPECT_EQ(open_error().what, "");
}

// A flipped bit may give another valid file (a letter of a name), but never a crash, never another
// exception than Error, and never a tensor outside the file.
TEST_F(SafetensorsTest, SurvivesEveryBitFlip) {
  const std::vector<float> values = {1, 2, 3};
  const std::vector<uint8_t> mask = {1, 0};
  write_as(path_, {{"x", "F32", {3, 1}, bytes_of(values)}, {"m", "BOOL", {2}, bytes_of(mask)}},
           {{"format", "pt"}});
  const std::string whole = read_file(path_);
  const size_t header_end = whole.size() - 14;
  int refused = 0;
  for (size_t bit = 0; bit < header_end * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    put(flipped);
    try {
      const SafetensorsFile file(path_);
      int64_t total = 0;
      for (const auto& entry : file.entries()) {
        total += static_cast<int64_t>(file.bytes(entry).size());
      }
      EXPECT_EQ(total, 14);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, static_cast<int>(header_end) * 4);  // most flips are seen
}

TEST_F(SafetensorsTest, StreamsTensorsWhenTheirTurnComes) {
  const std::vector<float> values = {1, 2, 3};
  TensorToWrite streamed{"streamed", "F32", {3}, {}, [&](const TensorToWrite::Put& put) {
                           put(bytes_of(values).first(4));
                           put(bytes_of(values).subspan(4));
                         }};
  const FileDigest digest =
      write_as(path_, {{"x", "F32", {3}, bytes_of(values), {}}, streamed}, {});
  EXPECT_EQ(digest, digest_of_file(path_));
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.to_f32(*file.find("streamed")), values);
  EXPECT_EQ(file.to_f32(*file.find("x")), values);
}

TEST_F(SafetensorsTest, RefusesToWriteWhereItCannot) {
  const std::vector<uint8_t> values = {1};
  const std::vector<TensorToWrite> tensors = {{"x", "U8", {1}, bytes_of(values)}};
  EXPECT_THROW(write_as(folder_ / "no" / "x", tensors, {}), Error);
  fs::create_directory(path_);
  EXPECT_THROW(write_as(path_, tensors, {}), Error);
  try {
    write_as(folder_ / "b", tensors, {{"bad", "\xff"}});
    FAIL() << "metadata that is not UTF-8 was written";
  } catch (const Error& error) {
    EXPECT_NE(error.fields().what.find("UTF-8"), std::string::npos);
  }
  EXPECT_EQ(fs::file_size(folder_ / "b"), 0u);  // refused before the first byte
}

TEST(SafetensorsDeathTest, WriterChecksItsCaller) {
  const std::vector<uint8_t> values = {1, 2};
  const fs::path path = ::testing::TempDir() + "half-written";
  auto write = [&](std::vector<TensorToWrite> tensors) {
    OutputFile file(path, OutputFile::Mode::truncate);
    write_safetensors(file, tensors, {});
  };
  EXPECT_DEATH(write({{"x", "U8", {3}, bytes_of(values)}}), "x has 2 bytes for \\[3\\]");
  EXPECT_DEATH(write({{"x", "F7", {2}, bytes_of(values)}}), "dtype F7");
  EXPECT_DEATH(write({{"x", "U8", {2}, bytes_of(values)}, {"x", "U8", {2}, bytes_of(values)}}),
               "tensor name x");
  EXPECT_DEATH(write({{"x", "U8", {3}, {}, [&](const auto& put) { put(bytes_of(values)); }}}),
               "x: 2 bytes for 3");
  EXPECT_DEATH(write({{"__metadata__", "U8", {2}, bytes_of(values)}}), "tensor name");
}

}  // namespace
}  // namespace millrace
