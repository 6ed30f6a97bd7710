#include "io/token_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "core/error.h"

namespace millrace {
namespace {

template <typename Number>
std::vector<std::byte> bytes_of(const std::vector<Number>& numbers) {
  const auto bytes = std::as_bytes(std::span(numbers));
  return {bytes.begin(), bytes.end()};
}

// A file of llm.c with room for `data` bytes of ids.
std::vector<std::byte> headed(int32_t magic, int32_t version, int32_t tokens, size_t data) {
  std::vector<int32_t> head(256);
  head[0] = magic;
  head[1] = version;
  head[2] = tokens;
  std::vector<std::byte> file = bytes_of(head);
  file.resize(file.size() + data);
  return file;
}

TokenFileHeader header_of(const std::vector<std::byte>& file, int hint = 0) {
  const size_t first = std::min(file.size(), static_cast<size_t>(kTokenHeaderBytes));
  return read_token_header(std::span(file).first(first), std::ssize(file), hint, "a.bin");
}

ErrorFields refusal(const std::vector<std::byte>& file, int hint = 0) {
  try {
    header_of(file, hint);
  } catch (const Error& e) {
    return e.fields();
  }
  return {};
}

void expect_header(const TokenFileHeader& got, int64_t offset, int width, int64_t tokens) {
  EXPECT_EQ(got.offset, offset);
  EXPECT_EQ(got.width, width);
  EXPECT_EQ(got.tokens, tokens);
}

TEST(TokenFileTest, PlainIdsAreAsWideAsTold) {
  const std::vector<std::byte> file(12);
  expect_header(header_of(file), 0, 2, 6);
  expect_header(header_of(file, 2), 0, 2, 6);
  expect_header(header_of(file, 4), 0, 4, 3);
  expect_header(header_of(std::vector<std::byte>(4096), 4), 0, 4, 1024);
  expect_header(header_of({}), 0, 2, 0);
  expect_header(header_of(std::vector<std::byte>(2)), 0, 2, 1);
  EXPECT_EQ(refusal(std::vector<std::byte>(3)).expected, "a multiple of 2 bytes");
  EXPECT_EQ(refusal(std::vector<std::byte>(6), 4).got, "6 bytes");
}

TEST(TokenFileTest, HeadersOfTheTwoFormats) {
  expect_header(header_of(headed(20240520, 1, 3, 6)), 1024, 2, 3);
  expect_header(header_of(headed(20240520, 1, 3, 6), 4), 1024, 2, 3);  // the header knows better
  expect_header(header_of(headed(20240801, 7, 3, 12)), 1024, 4, 3);
  expect_header(header_of(headed(20240520, 1, 0, 0)), 1024, 2, 0);
  // Beyond 4 GiB; only the beginning is looked at.
  const int32_t most = std::numeric_limits<int32_t>::max();
  expect_header(read_token_header(headed(20240801, 7, most, 0), 1024 + 4 * int64_t{most}, 0, "a"),
                1024, 4, most);
}

TEST(TokenFileTest, RefusesHeadersThatDoNotFit) {
  EXPECT_EQ(refusal(headed(20240520, 2, 3, 6)).where, "a.bin (byte 4)");
  EXPECT_EQ(refusal(headed(20240801, 1, 3, 12)).expected, "7");
  EXPECT_EQ(refusal(headed(20240520, 1, -1, 0)).where, "a.bin (byte 8)");
  EXPECT_EQ(refusal(headed(20240520, 1, 3, 5)).got, "1029 bytes");
  EXPECT_EQ(refusal(headed(20240520, 1, 3, 8)).got, "1032 bytes");
  EXPECT_EQ(refusal(headed(20240801, 7, 3, 6)).expected, "1036 bytes, for 3 ids of 4 bytes");
  std::vector<std::byte> cut = headed(20240520, 1, 0, 0);
  for (const size_t size : {4u, 6u, 8u, 12u, 1022u}) {
    cut.resize(size);
    EXPECT_EQ(refusal(cut).what, "the file ends inside its header") << size;
    cut.resize(1024);
  }
}

TEST(TokenFileTest, WidensAndChecks) {
  std::vector<int32_t> ids = {7};
  widen_tokens(bytes_of<uint16_t>({0, 258, 65535}), 2, 65536, "a.bin", 0, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{7, 0, 258, 65535}));
  widen_tokens(bytes_of<uint32_t>({65536, 2147483647}), 4, int64_t{1} << 31, "a.bin", 0, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{7, 0, 258, 65535, 65536, 2147483647}));
  widen_tokens({}, 4, 1, "a.bin", 0, ids);
  // From an address that no uint32 could stand at.
  std::vector<std::byte> shifted = bytes_of<uint32_t>({1, 2});
  shifted.insert(shifted.begin(), std::byte{9});
  ids.clear();
  widen_tokens(std::span(shifted).subspan(1), 4, 3, "a.bin", 0, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 2}));
}

TEST(TokenFileTest, NamesTheFirstIdOutsideTheVocabulary) {
  std::vector<int32_t> ids = {7};
  auto refused = [&](const std::vector<std::byte>& bytes, int width) -> ErrorFields {
    try {
      widen_tokens(bytes, width, 100, "a.bin", 1024, ids);
    } catch (const Error& e) {
      return e.fields();
    }
    return {};
  };
  const ErrorFields narrow = refused(bytes_of<uint16_t>({99, 100, 65535}), 2);
  EXPECT_EQ(narrow.where, "a.bin (byte 1026)");
  EXPECT_EQ(narrow.got, "100");
  EXPECT_EQ(refused(bytes_of<uint16_t>({100}), 2).got, "100");
  const ErrorFields wide = refused(bytes_of<uint32_t>({0, 1, 4294967295}), 4);
  EXPECT_EQ(wide.where, "a.bin (byte 1032)");
  EXPECT_EQ(wide.got, "4294967295");
  EXPECT_EQ(ids, std::vector<int32_t>{7});
}

}  // namespace
}  // namespace millrace
