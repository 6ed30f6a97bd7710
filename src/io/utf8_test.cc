#include "io/utf8.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error_testing.h"
#include "core/text.h"

namespace millrace {
namespace {

// Character by character, which utf8_length does only where it must.
size_t plain_length_of(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && code_point_at(text, at).bytes > 0) at += code_point_at(text, at).bytes;
  return at;
}

TEST(Utf8Test, LengthIsThatOfWholeCharacters) {
  const std::string good = "plain é€😀 and so on, plain again for more than sixteen bytes é";
  EXPECT_EQ(utf8_length(""), 0u);
  EXPECT_EQ(utf8_length(good), good.size());
  // Every byte at every place of a text.
  for (size_t at = 0; at < good.size(); ++at)
    for (int byte = 0; byte < 256; ++byte) {
      std::string text = good;
      text[at] = static_cast<char>(byte);
      ASSERT_EQ(utf8_length(text), plain_length_of(text)) << at << " " << byte;
    }
  for (size_t size = 0; size < good.size(); ++size)
    ASSERT_EQ(utf8_length(good.substr(0, size)), plain_length_of(good.substr(0, size))) << size;
}

TEST(Utf8Test, FaultSaysWhereAndWhat) {
  EXPECT_FALSE(utf8_fault("fine é", {"a.txt"}, "mend it"));
  const auto fault = utf8_fault("fine\nné caf\xE9 au lait", {"a.txt", 3, 5, 100}, "mend it");
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->fields().where, "a.txt:4:7 (byte 112)");
  EXPECT_EQ(fault->fields().got, "bytes E9 20 61 75");
  EXPECT_EQ(fault->fields().remedy, "mend it");
  for (const char* character : {"a", "\u00E9", "\u20AC", "\U0001F600"})
    for (int count = 0; count < 30; ++count) {
      std::string text;
      for (int i = 0; i < count; ++i) text += character;
      const std::string where = fmt::format("a.txt:1:{} (byte {})", count + 1, text.size());
      EXPECT_EQ(utf8_fault(text + "\xE9", {"a.txt"}, "")->fields().where, where);
    }
}

// What stands in the file is longer than what was read of it.
TEST(Utf8Test, PlacesCountDoubledQuotes) {
  TextPlace place{"a.csv", 3, 5, 100};
  place.form = TextPlace::Form::doubled_quotes;
  EXPECT_EQ(utf8_fault("\"a\"\n\"b\" \xE9", place, "")->fields().where, "a.csv:4:7 (byte 112)");
  place.form = TextPlace::Form::escaped;
  EXPECT_EQ(utf8_fault("a\nb\xE9", place, "")->fields().where, "a.csv:3:5 (byte 100)");
}

TEST(Utf8Test, Utf16IsNamed) {
  refuse_utf16("", "a.txt");
  refuse_utf16("\xFF", "a.txt");
  refuse_utf16("\xEF\xBB\xBF text", "a.txt");
  for (const std::string mark : {"\xFF\xFE", "\xFE\xFF"}) {
    const ErrorFields e = error_of([&] { refuse_utf16(mark + "a", "a.txt"); });
    EXPECT_EQ(e.what, "the file is UTF-16");
    EXPECT_EQ(e.where, "a.txt:1:1 (byte 0)");
    EXPECT_NE(e.remedy.find("iconv -f UTF-16"), std::string::npos);
    EXPECT_EQ(e.code, ErrorCode::config);
  }
}

}  // namespace
}  // namespace millrace
