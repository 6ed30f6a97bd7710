#include "io/gguf.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

namespace millrace {
namespace {

template <typename T>
T at(const std::string& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// The bytes of a small file, each where the format has it. PyPI's `gguf` reads whole models
// (tests/outside/gguf_file.py).
TEST(Gguf, BytesAreWhereTheFormatHasThem) {
  const fs::path path = fs::temp_directory_path() / fmt::format("millrace_{}.gguf", getpid());
  {
    OutputFile file(path, OutputFile::Mode::truncate);
    const GgufEntry metadata[] = {
        {"k", uint32_t{7}}, {"list", std::vector<std::string>{"ab", ""}}, {"yes", true}};
    const GgufTensor tensors[] = {
        {"half", {2, 3}, DType::f16, [] { return std::vector<float>{1, 2, 3, 4, 5, -0.5f}; }},
        {"full", {2}, DType::f32, [] {
           return std::vector<float>{0.25f, 8};
         }}};
    write_gguf(file, metadata, tensors);
    file.close();
  }
  const std::string bytes = read_file(path);
  fs::remove(path);
  EXPECT_EQ(bytes.substr(0, 4), "GGUF");
  EXPECT_EQ(at<uint32_t>(bytes, 4), 3u);
  EXPECT_EQ(at<uint64_t>(bytes, 8), 2u) << "tensors";
  EXPECT_EQ(at<uint64_t>(bytes, 16), 3u) << "entries";
  EXPECT_EQ(at<uint64_t>(bytes, 24), 1u);
  EXPECT_EQ(bytes[32], 'k');
  EXPECT_EQ(at<uint32_t>(bytes, 33), 4u) << "a uint32";
  EXPECT_EQ(at<uint32_t>(bytes, 37), 7u);
  const size_t list = 41 + 8 + 4;
  EXPECT_EQ(at<uint32_t>(bytes, list), 9u) << "an array";
  EXPECT_EQ(at<uint32_t>(bytes, list + 4), 8u) << "of strings";
  EXPECT_EQ(at<uint64_t>(bytes, list + 8), 2u);
  EXPECT_EQ(bytes.substr(list + 16 + 8, 2), "ab");
  const size_t yes = list + 16 + 8 + 2 + 8;
  EXPECT_EQ(at<uint32_t>(bytes, yes + 8 + 3), 7u) << "a bool, of one byte";
  const size_t half = yes + 8 + 3 + 4 + 1;
  EXPECT_EQ(at<uint32_t>(bytes, half + 8 + 4), 2u) << "dimensions";
  EXPECT_EQ(at<uint64_t>(bytes, half + 16), 3u) << "the innermost first";
  EXPECT_EQ(at<uint64_t>(bytes, half + 24), 2u);
  EXPECT_EQ(at<uint32_t>(bytes, half + 32), 1u) << "f16";
  EXPECT_EQ(at<uint64_t>(bytes, half + 36), 0u);
  const size_t full = half + 44;
  EXPECT_EQ(at<uint64_t>(bytes, full + 8 + 4 + 4 + 8 + 4), 32u) << "the next multiple of 32";
  const size_t data = (full + 36 + 31) / 32 * 32;
  EXPECT_EQ(bytes.size(), data + 64);
  EXPECT_EQ(at<uint16_t>(bytes, data), 0x3C00) << "1 in 16 bits";
  EXPECT_EQ(at<uint16_t>(bytes, data + 10), 0xB800) << "-0.5";
  EXPECT_EQ(at<float>(bytes, data + 32), 0.25f);
  EXPECT_EQ(at<float>(bytes, data + 36), 8.0f);
}

}  // namespace
}  // namespace millrace
