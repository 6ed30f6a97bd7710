#include "core/utf8_stream.h"

#include <gtest/gtest.h>

#include "core/text.h"

namespace millrace {
namespace {

// Byte by byte; every piece that comes out is whole characters.
std::string streamed(std::string_view text) {
  Utf8Stream stream;
  std::string all;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string piece = stream.add(text.substr(i, 1));
    for (size_t at = 0; at < piece.size();) {
      const CodePoint c = code_point_at(piece, at);
      EXPECT_GT(c.bytes, 0u) << "after byte " << i;
      at += std::max<size_t>(1, c.bytes);
    }
    all += piece;
  }
  return all + stream.finish();
}

TEST(Utf8Stream, WholeCharactersComeThroughUnchanged) {
  for (const char* text :
       {"", "plain", "é€", "\xF0\x9F\x99\x82 and \xF4\x8F\xBF\xBF", "\xED\x9F\xBF\xEE\x80\x80"})
    EXPECT_EQ(streamed(text), text);
}

TEST(Utf8Stream, NothingIsHeldBackLongerThanNeeded) {
  Utf8Stream stream;
  EXPECT_EQ(stream.add("a"), "a");
  EXPECT_EQ(stream.add("\xE2\x82"), "");
  EXPECT_EQ(stream.add("\xAC"
                       "b"),
            "\xE2\x82\xAC"
            "b");
  EXPECT_EQ(stream.finish(), "");
}

// One replacement for each maximal part, as the Unicode standard (3.9) recommends.
TEST(Utf8Stream, FaultsAreReplaced) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(streamed("\xFF"), r);
  EXPECT_EQ(streamed("a\x80z"), "a" + r + "z");
  EXPECT_EQ(streamed("\xC0\xAF"), r + r);
  EXPECT_EQ(streamed("\xE2\x82"), r);              // ends inside a character
  EXPECT_EQ(streamed("\xE2\x82z"), r + "z");       // the character is broken off
  EXPECT_EQ(streamed("\xED\xA0\x80"), r + r + r);  // a surrogate
  EXPECT_EQ(streamed("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(streamed("\xF0\x9F\x99\xC3\xA9"), r + "\xC3\xA9");
}

}  // namespace
}  // namespace millrace
