#include "io/json_lines.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/rng.h"
#include "core/text.h"

namespace millrace {
namespace {

using Fields = std::vector<std::string>;

std::vector<Fields> read(std::string_view text, const Fields& names = {"text"}) {
  JsonLines lines(text, names, {"a.jsonl"});
  std::vector<Fields> all;
  for (Fields fields; lines.next(fields);) all.push_back(fields);
  return all;
}

// What is said about the first record, or "".
ErrorFields refusal(std::string_view text, const Fields& names = {"text"}) {
  try {
    read(text, names);
  } catch (const Error& e) {
    return e.fields();
  }
  return {};
}

TEST(JsonLinesTest, FieldsByName) {
  EXPECT_EQ(read(R"({"text":"a"})"), (std::vector<Fields>{{"a"}}));
  EXPECT_EQ(read("{\"text\":\"a\"}\r\n\n \t\r\n {\"x\":1, \"text\" : \"\"} \n"),
            (std::vector<Fields>{{"a"}, {""}}));
  EXPECT_EQ(read(R"({"target":"b","source":"a"})", {"source", "target"}),
            (std::vector<Fields>{{"a", "b"}}));
  EXPECT_EQ(read(R"({"text":"a"})", {"text", "text"}), (std::vector<Fields>{{"a", "a"}}));
  EXPECT_EQ(read(R"({"m":{"x":[{"c":"no"}],"c":"yes","d":{"c":"no"}},"c":"top"})", {"c", "m.c"}),
            (std::vector<Fields>{{"top", "yes"}}));
  EXPECT_EQ(read(R"({"":{"":"a"}})", {"."}), (std::vector<Fields>{{"a"}}));
  EXPECT_EQ(read("\xEF\xBB\xBF{\"text\":\"a\"}"), (std::vector<Fields>{{"a"}}));
  EXPECT_EQ(read(""), (std::vector<Fields>{}));
}

TEST(JsonLinesTest, StringsAreDecoded) {
  EXPECT_EQ(read(R"({"text":"\"\\\/\b\f\n\r\t\u0041\u00e9\u20AC\ud83d\uDE00\u0000z"})"),
            (std::vector<Fields>{{std::string("\"\\/\b\f\n\r\tAé€😀\0z", 20)}}));
  EXPECT_EQ(read("{\"text\":\"plain, long enough for eight: é, €, 😀.\x7f\"}"),
            (std::vector<Fields>{{"plain, long enough for eight: é, €, 😀.\x7f"}}));
  EXPECT_EQ(read(R"({"te\u0078t":"a"})"), (std::vector<Fields>{{"a"}}));
}

TEST(JsonLinesTest, TellsWhereItIs) {
  const Fields names = {"text"};
  JsonLines lines("{\"text\":\"a\"}\n\n{\"text\":\"b\"}\n", names, {"a.jsonl", 10, 1, 100});
  Fields fields;
  ASSERT_TRUE(lines.next(fields));
  EXPECT_EQ(lines.place().line, 10);
  EXPECT_EQ(lines.place().byte, 100);
  ASSERT_TRUE(lines.next(fields));
  EXPECT_EQ(lines.place().line, 12);
  EXPECT_EQ(lines.place().byte, 114);
  EXPECT_EQ(lines.place().file, "a.jsonl");
  // Of a text with escapes only the begin is known.
  EXPECT_EQ(lines.place(0).inside(fields[0], 0), "a.jsonl:12:10 (byte 123)");
  EXPECT_EQ(lines.place(0).inside("a\nb", 2), "a.jsonl:12:10 (byte 123)");
  EXPECT_FALSE(lines.next(fields));
}

TEST(JsonLinesTest, RefusesAndGoesOnBehind) {
  const Fields names = {"text"};
  JsonLines lines("{\"text\":\"a\"}\n{\"é\":1,\"text\":2}\n{\"text\":\"b\"}\n{", names,
                  {"a.jsonl"});
  Fields fields;
  ASSERT_TRUE(lines.next(fields));
  try {
    lines.next(fields);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.fields().where, "a.jsonl:2:15 (byte 28): `text`");
    EXPECT_EQ(e.fields().got, "`2}`");
  }
  EXPECT_EQ(lines.place().line, 2);
  ASSERT_TRUE(lines.next(fields));
  EXPECT_EQ(fields, Fields{"b"});
  try {
    lines.next(fields);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.fields().where, "a.jsonl:4:2 (byte 45)");
    EXPECT_EQ(e.fields().got, "the end of the line");
  }
  EXPECT_FALSE(lines.next(fields));
}

TEST(JsonLinesTest, SaysWhatIsWrongWithAField) {
  EXPECT_EQ(refusal(R"({"x":"text"})").what, "a field is missing");
  EXPECT_EQ(refusal(R"({"x":{"text":"a"}})").what, "a field is missing");
  EXPECT_EQ(refusal(R"({"text":null})").what, "a field is not a string");
  EXPECT_EQ(refusal(R"({"text":["a"]})").what, "a field is not a string");
  EXPECT_EQ(refusal(R"({"text":"a","text":"a"})").what, "a field is there twice");
  EXPECT_EQ(refusal(R"({"text":"a","t\u0065xt":"a"})").what, "a field is there twice");
  const Fields path = {"a.b"};
  EXPECT_EQ(refusal(R"({"a":{"b":"x"},"a":{}})", path).what, "a field is there twice");
  EXPECT_EQ(refusal(R"({"a":{"b":"x","b":"x"}})", path).what, "a field is there twice");
  EXPECT_EQ(refusal(R"({"a":[{"b":"x"}]})", path).what, "a field is missing");
  EXPECT_EQ(refusal(R"({"a":"b"})", path).where, "a.jsonl:1:6 (byte 5): `a.b`");
  EXPECT_EQ(refusal(R"({"a.b":"x"})", path).where, "a.jsonl:1:1 (byte 0): `a.b`");
  EXPECT_EQ(refusal(R"({"a":{"b":"x"}})", path).what, "");
  // Beside the fields a key may be there twice.
  EXPECT_EQ(refusal(R"({"a":{"b":"x"},"x":1,"x":{"a":1,"a":2}})", path).what, "");
}

TEST(JsonLinesTest, NestsToALimit) {
  auto nested = [](int lists) {
    const auto n = static_cast<size_t>(lists);
    return "{\"text\":\"a\",\"x\":" + std::string(n, '[') + std::string(n, ']') + "}";
  };
  EXPECT_EQ(refusal(nested(255)).what, "");
  EXPECT_EQ(refusal(nested(256)).what, "the record nests too deep");
  EXPECT_EQ(refusal("{\"x\":" + std::string(1'000'000, '[')).what, "the record nests too deep");
}

// Lines of which each says whether it is JSON, by the judgement of another reader.
TEST(JsonLinesTest, AgreesWithAnotherReader) {
  const char* values[] = {"0",
                          "-0",
                          "-",
                          "01",
                          "-01",
                          "1.",
                          "1.5",
                          ".5",
                          "1e5",
                          "1E+5",
                          "1e-5",
                          "1e",
                          "1e+",
                          "+1",
                          "1.7976931348623157e308",
                          "1.7976931348623159e308",
                          "17976931348623157e292",
                          "0.00017976931348623159e312",
                          "1e308",
                          "1e309",
                          "-1e309",
                          "0e999999999999999999999",
                          "0.0e999",
                          "1e-999999999999999999999",
                          "1e999999999999999999999",
                          "0.1e310",
                          "0.01e310",
                          "0x1",
                          "1_0",
                          "nan",
                          "NaN",
                          "inf",
                          "Infinity",
                          "-inf",
                          "true",
                          "tru",
                          "truee",
                          "True",
                          "null",
                          "nul",
                          "false",
                          "[",
                          "]",
                          "[]",
                          "[1,]",
                          "[,1]",
                          "[1 2]",
                          "[1,2]",
                          "{",
                          "{}",
                          "{,}",
                          "{\"a\"}",
                          "{\"a\":}",
                          "{\"a\":1,}",
                          "{a:1}",
                          "{'a':1}",
                          "{\"a\":1 \"b\":2}",
                          "{1:2}",
                          "\"",
                          "\"\\\"",
                          "\"\\x\"",
                          "\"\\u12\"",
                          "\"\\u12g4\"",
                          "\"\\u-123\"",
                          "\"\\u 123\"",
                          "\"\\ud800\"",
                          "\"\\udc00\"",
                          "\"\\ud800\\u0041\"",
                          "\"\\ud800\\ud800\"",
                          "\"\\ud800x\"",
                          "\"\\udc00\\udc00\"",
                          "\"\\ud800\\ue000\"",
                          "\"\\ud800\\udc00\"",
                          "\"\\udbff\\udfff\"",
                          "\"\t\"",
                          "\"\x1f\"",
                          "\"\x7f\"",
                          "\"\xff\"",
                          "\"\xc0\x80\"",
                          "\"\xe0\x80\x80\"",
                          "\"\xed\xa0\x80\"",
                          "\"\xf4\x90\x80\x80\"",
                          "\"\xf4\x8f\xbf\xbf\"",
                          "\"\xc3\"",
                          "1 // c",
                          "/**/1",
                          "",
                          " ",
                          "\f1",
                          "\xc2\xa0"
                          "1",
                          "\"12345678\xff\"",
                          "\"1234567\x01\"",
                          "\"1234567\x1f\"",
                          "\"1234567 \"",
                          "\"12345678901234567\"",
                          "1,\"text\":\"y\""};
  int taken = 0;
  for (const std::string value : values) {
    const std::string line = "{\"text\":\"x\",\"v\":" + value + "}";
    const bool is_json = nlohmann::json::accept(line) && value.find("text") == value.npos;
    EXPECT_EQ(refusal(line).what.empty(), is_json) << line;
    taken += is_json ? 1 : 0;
    // As the field itself.
    const auto alone = nlohmann::json::parse("{\"text\":" + value + "}", nullptr, false);
    const bool is_text = alone.is_object() && alone["text"].is_string() && is_json;
    const std::string field = "{\"text\":" + value + "}";
    EXPECT_EQ(refusal(field).what.empty(), is_text) << field;
    if (is_text) {
      EXPECT_EQ(read(field)[0][0], alone["text"].get<std::string>());
    }
  }
  EXPECT_GT(taken, 20);
  const std::string small = "{\"text\":\"x\",\"v\":0." + std::string(1000, '0') + "1e400}";
  EXPECT_TRUE(nlohmann::json::accept(small) && refusal(small).what.empty());
  for (const std::string line : {"1", "\"text\"", "[]", "[{\"text\":\"a\"}]", "null", "x",
                                 "{\"text\":\"a\"}{}", "{\"text\":\"a\"} x", "\xEF\xBB{}"})
    EXPECT_FALSE(refusal(line).what.empty()) << line;
  // A zero byte ends no line.
  EXPECT_FALSE(refusal(std::string("{\"text\":\"a\"}\0", 13)).what.empty());
  EXPECT_FALSE(refusal(std::string("{\"text\":\"a\0\"}", 13)).what.empty());
}

// Wherever a line breaks off, that is seen, and nothing behind its end is read.
TEST(JsonLinesTest, HalfALineIsNone) {
  const std::string line =
      R"({"a":{"b":[true,false,null,-1.5e+3,{}]},"text":"\u00e9\ud83d\ude00é\n","z":[]})";
  ASSERT_EQ(refusal(line).what, "");
  for (size_t size = 1; size < line.size(); ++size) {
    const std::vector<char> exact(line.begin(), line.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_NE(refusal({exact.data(), size}).what, "") << size;
  }
}

// Strings of all lengths and with anything at any place, written in two ways.
TEST(JsonLinesTest, StringsComeBack) {
  RandomStream random(1, RandomUse::test);
  std::string lines;
  std::vector<Fields> all;
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (uint64_t size = random.below(40); text.size() < size;) {
      constexpr char32_t kLast[] = {0x1F, 0x7F, 0x7F, 0x7F, 0x7FF, 0xD7FF, kLastCodePoint};
      char32_t c = static_cast<char32_t>(random.below(kLast[random.below(std::size(kLast))] + 1));
      if (c < 0xD800 || c > 0xDFFF) append_utf8(c, text);
    }
    nlohmann::json record{{"a", random.below(100)}, {"text", text}, {"z", {text, text}}};
    lines += record.dump(-1, ' ', random.below(2) == 0) + "\n";
    all.push_back({text});
  }
  EXPECT_EQ(read(lines), all);
}

}  // namespace
}  // namespace millrace
