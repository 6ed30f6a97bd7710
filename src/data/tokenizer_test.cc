#include "data/tokenizer.h"

#include <gtest/gtest.h>

#include "core/error_testing.h"

namespace millrace {
namespace {

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, {"a.txt"}, ids);
  return ids;
}

TEST(ByteTokenizer, TakesEveryByte) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const auto tokenizer = make_byte_tokenizer();
  const std::vector<int32_t> ids = encode(*tokenizer, all);
  ASSERT_EQ(ids.size(), 256u);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(ids[static_cast<size_t>(i)], i);
  EXPECT_EQ(tokenizer->decode(ids), all);
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_EQ(tokenizer->name(), "byte");
}

TEST(CharTokenizer, VocabularyIsTheSortedCharacters) {
  const auto tokenizer = make_char_tokenizer("ba\nab", {"a.txt"});
  EXPECT_EQ(tokenizer->vocab_size(), 3);
  EXPECT_EQ(encode(*tokenizer, "\nab"), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(tokenizer->name(), "char");
}

TEST(CharTokenizer, EncodeAppends) {
  const auto tokenizer = make_char_tokenizer("ab", {"a.txt"});
  std::vector<int32_t> ids = {7};
  tokenizer->encode("ba", {"a.txt"}, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{7, 1, 0}));
}

TEST(CharTokenizer, RoundTripsAllLengthsOfUtf8) {
  // The first and the last code point of each length, the neighbours of the surrogates, and NUL.
  const std::string text(
      "\0 \x7F \u0080 \u07FF \u0800 \uD7FF \uE000 \uFFFF \U00010000 \U0010FFFF "
      "\u00E9\u6C34\U0001F600",
      1 + 1 + 1 + 1 + 2 + 1 + 2 + 1 + 3 + 1 + 3 + 1 + 3 + 1 + 3 + 1 + 4 + 1 + 4 + 1 + 2 + 3 + 4);
  const auto tokenizer = make_char_tokenizer(text, {"a.txt"});
  EXPECT_EQ(tokenizer->vocab_size(), 14);  // 13 characters and the space
  const std::vector<int32_t> ids = encode(*tokenizer, text);
  EXPECT_EQ(ids.size(), 23u);
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_EQ(ids[0], 0);
  EXPECT_EQ(ids[18], 13);
}

TEST(CharTokenizer, RefusesWhatIsNotUtf8) {
  const std::string_view bad[] = {
      "\x80",              // continuation alone
      "\xC3",              // cut short at the end
      "\xE6\xB0",          // cut short at the end
      "\xF0\x9F\x98",      // cut short at the end
      "\xC3(",             // cut short in the middle
      "\xC0\x80",          // overlong NUL
      "\xC1\xBF",          // overlong
      "\xE0\x9F\xBF",      // overlong
      "\xF0\x8F\xBF\xBF",  // overlong
      "\xED\xA0\x80",      // first surrogate
      "\xED\xBF\xBF",      // last surrogate
      "\xF4\x90\x80\x80",  // U+110000
      "\xF5\x80\x80\x80",
      "\xF8\x88\x80\x80\x80",
      "\xFE",
      "\xFF",
  };
  for (const std::string_view bytes : bad) {
    const std::string text = "one\n\u00E9\u00E9x" + std::string(bytes);
    const ErrorFields e = error_of([&] { make_char_tokenizer(text, {"b.txt"}); });
    EXPECT_EQ(e.code, ErrorCode::config);
    EXPECT_EQ(e.where, "b.txt:2:4 (byte 9)") << testing::PrintToString(bytes);
    EXPECT_NE(e.remedy.find("data.tokenizer=byte"), std::string::npos);
    error_of([&] { CharacterSet().add(text, {"b.txt"}); });
    error_of([&] { encode(*make_char_tokenizer("one\n\u00E9x", {"a.txt"}), text); });
  }
  EXPECT_EQ(error_of([] { CharacterSet().add("\xC3(", {"b"}); }).got, "bytes C3 28");
}

TEST(CharTokenizer, NamesAnUnknownCharacter) {
  const auto tokenizer = make_char_tokenizer("abc \n\u00E9", {"a.txt"});
  ErrorFields e = error_of([&] { encode(*tokenizer, "abc\n\u00E9a\u6C34b"); });
  EXPECT_EQ(e.code, ErrorCode::config);
  EXPECT_EQ(e.where, "a.txt:2:3 (byte 7)");
  EXPECT_EQ(e.got, "U+6C34 `\u6C34`");
  EXPECT_FALSE(e.remedy.empty());
  e = error_of([&] { encode(*tokenizer, "d"); });  // below the last known character
  EXPECT_EQ(e.where, "a.txt:1:1 (byte 0)");
  EXPECT_EQ(e.got, "U+0064 `d`");
  EXPECT_EQ(error_of([&] { encode(*tokenizer, "\t"); }).got, "U+0009");
}

TEST(Tokenizer, DecodeRefusesIdsOutsideTheVocabulary) {
  const auto byte = make_byte_tokenizer(), chars = make_char_tokenizer("ab", {"a.txt"});
  for (const Tokenizer* tokenizer : {byte.get(), chars.get()}) {
    const auto size = static_cast<int32_t>(tokenizer->vocab_size());
    for (const int32_t id : {-1, size, INT32_MAX, INT32_MIN}) {
      EXPECT_EQ(error_of([&] { tokenizer->decode(std::vector{id}); }).got, std::to_string(id));
    }
    EXPECT_EQ(tokenizer->decode({}), "");
  }
}

TEST(Tokenizer, JsonRoundTrip) {
  const std::string text = "\"quoted\" \\ \n\t \u00E9\u6C34\U0001F600" + std::string(1, '\0');
  const auto chars = make_char_tokenizer(text, {"a.txt"});
  const auto copy = tokenizer_from_json(chars->file().bytes, "tokenizer.json");
  EXPECT_EQ(copy->name(), "char");
  EXPECT_EQ(copy->vocab_size(), chars->vocab_size());
  EXPECT_EQ(encode(*copy, text), encode(*chars, text));
  EXPECT_EQ(copy->file().bytes, chars->file().bytes);
  const auto byte = tokenizer_from_json(make_byte_tokenizer()->file().bytes, "tokenizer.json");
  EXPECT_EQ(byte->name(), "byte");
}

}  // namespace
}  // namespace millrace
