#include "train/text_signs.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(TextSigns, WhiteSpaceIsPythons) {
  for (const char* space : {" ", "\t", "\n", "\v", "\f", "\r", "\x1C", "\x1F", "\u0085", "\u00A0",
                            "\u1680", "\u2000", "\u200A", "\u2028", "\u202F", "\u205F", "\u3000"})
    EXPECT_TRUE(text_sign_at(space, 0).space) << space;
  for (const char* other : {"a", "\x1B", "\x7F", "\u00AD", "\u180E", "\u200B", "\u2060", "\uFEFF"})
    EXPECT_FALSE(text_sign_at(other, 0).space) << other;
}

TEST(TextSigns, BytesThatAreNoUtf8AreSignsOfTheirOwn) {
  const std::string_view text = "\u00E9\x85\xE2\x82z";  // é, a lone byte, a broken-off sign, z
  const char32_t wanted[] = {0xE9, 0xDC85, 0xDCE2, 0xDC82, 'z'};
  size_t at = 0;
  for (const char32_t value : wanted) {
    const TextSign sign = text_sign_at(text, at);
    EXPECT_EQ(sign.value, value);
    EXPECT_FALSE(sign.space);
    at += sign.bytes;
  }
  EXPECT_EQ(at, text.size());
}

}  // namespace
}  // namespace millrace
