// Examples for the readers of texts and of tokenizer files.
#include "core/text.h"
#include "tests/fuzz/fuzz.h"

namespace millrace::fuzz {
namespace {

std::string all_code_points(char32_t first, char32_t last) {
  std::string text;
  for (char32_t c = first; c <= last; ++c) {
    if (c < 0xD800 || c > 0xDFFF) append_utf8(c, text);
  }
  return text;
}

std::string zero() { return std::string(1, '\0'); }

}  // namespace

std::vector<Example> tokenizer_json_examples() {
  return {
      accepted(R"({"type":"byte"})"),
      accepted(R"({"type":"char","vocabulary":"\n !abc"})"),
      accepted(R"({"type":"char","vocabulary":"a"})"),
      accepted(R"({"vocabulary":"aé€😀","type":"char"})"),
      accepted(R"({"type":"char","vocabulary":"\u0000\u001f\"\\"})"),
      accepted(R"({"type":"char","vocabulary":"\u00e9\ud83d\ude00"})"),
      accepted("{\"type\":\"char\",\"vocabulary\":\"\x7F\xEF\xBF\xBF\xF4\x8F\xBF\xBF\"}"),
      accepted(" \t\r\n{ \"type\" : \"byte\" } \n"),
      accepted(R"({"type":"byte","vocabulary":7})"),
      accepted(R"({"type":"byte","note":[1,{"a":null}],"x":1e300})"),
      accepted(R"({"type":"\u0062yte"})"),
      accepted("{\"type\":\"char\",\"vocabulary\":\"" + all_code_points(0x80, 0x10FFFF) + "\"}"),
      // not JSON
      refused(R"({"type":"ids","vocab_size":"\u007f"})", {"vocab_size", "\"?\""}),
      refused(R"({"type":"\u007f"})", {"`char`", "\"?\""}),
      refused("", {"not a tokenizer file", "tokenizer.json", "expected: JSON"}),
      refused(" ", {"expected: JSON"}),
      refused("{", {"expected: JSON", "byte 2"}),
      refused("}", {"expected: JSON", "byte 1"}),
      refused("{}}", {"expected: JSON"}),
      refused("{}{}", {"expected: JSON"}),
      refused("{\"type\"}", {"expected: JSON"}),
      refused("{\"type\":}", {"expected: JSON"}),
      refused("{\"type\":\"byte\",}", {"expected: JSON"}),
      refused("{'type':'byte'}", {"expected: JSON"}),
      refused("{type:\"byte\"}", {"expected: JSON"}),
      refused("{\"type\":\"byte\"} // end", {"expected: JSON"}),
      refused("/* */{\"type\":\"byte\"}", {"expected: JSON"}),
      refused("{\"type\":\"byte\"", {"expected: JSON"}),
      refused("{\"type\":\"byte}", {"expected: JSON"}),
      refused("{\"type\":\"by\nte\"}", {"expected: JSON"}),
      refused("{\"type\":\"\\x62yte\"}", {"expected: JSON"}),
      refused("{\"type\":\"\\ud800\"}", {"expected: JSON"}),
      refused("{\"type\":\"\\udc00\"}", {"expected: JSON"}),
      refused("{\"type\":\"\\ud800\\u0041\"}", {"expected: JSON"}),
      refused("{\"type\":\"\\u12\"}", {"expected: JSON"}),
      refused("{\"type\":\"\xff\"}", {"expected: JSON"}),
      refused("{\"type\":\"\xC0\xAF\"}", {"expected: JSON"}),
      refused("{\"type\":\"\xED\xA0\x80\"}", {"expected: JSON"}),
      refused("{\"type\":\"\xF4\x90\x80\x80\"}", {"expected: JSON"}),
      refused("\xFF\xFE{\"type\":\"byte\"}", {"expected: JSON"}),
      refused("\xEF\xBB", {"expected: JSON"}),
      refused("{\"type\":01}", {"expected: JSON"}),
      refused("{\"type\":+1}", {"expected: JSON"}),
      refused("{\"type\":.5}", {"expected: JSON"}),
      refused("{\"type\":1.}", {"expected: JSON"}),
      refused("{\"type\":NaN}", {"expected: JSON"}),
      refused("{\"type\":Infinity}", {"expected: JSON"}),
      refused("{\"type\":tru}", {"expected: JSON"}),
      refused(repeated("[", 100'000), {"expected: JSON"}),
      refused(repeated("{\"a\":", 100'000), {"expected: JSON"}),
      // not an object, or without what is needed
      refused("null", {"expected: an object", "null"}),
      refused("[]", {"expected: an object", "array"}),
      refused("7", {"expected: an object", "number"}),
      refused("\"byte\"", {"expected: an object", "string"}),
      refused("true", {"expected: an object", "boolean"}),
      refused(repeated("[", 10'000) + repeated("]", 10'000), {"expected: an object"}),
      refused("{}", {"a string `type`", "none"}),
      refused(R"({"Type":"byte"})", {"a string `type`", "none"}),
      refused(R"({"type":null})", {"a string `type`", "null"}),
      refused(R"({"type":7})", {"a string `type`", "number"}),
      refused(R"({"type":["byte"]})", {"a string `type`", "array"}),
      refused(R"({"type":{"a":{"b":1}}})", {"a string `type`", "object"}),
      accepted(R"({"type":"ids","vocab_size":7})"),
      accepted(R"({"type":"byte","end":true})"),
      accepted(R"({"type":"char","vocabulary":"ab","end":true})"),
      refused(R"({"type":"ids"})", {"vocab_size"}),
      refused(R"({"type":"ids","vocab_size":-1})", {"vocab_size"}),
      refused(R"({"type":"byte","end":1})", {"`end`"}),
      refused(R"({"type":""})", {"type `char`, `byte`"}),
      refused(R"({"type":"Byte"})", {"type `char`, `byte`", "Byte"}),
      refused(R"({"type":"byte\u0000"})", {"type `char`, `byte`"}),
      refused(R"({"type":"bpe","vocabulary":"a"})", {"type `char`, `byte`", "bpe"}),
      refused("{\"type\":\"" + repeated("x", 100'000) + "\"}", {"type `char`, `byte`", "xxx"}),
      refused(R"({"type":"\u001b[31m"})", {"type `char`, `byte`"}),
      refused(R"({"type":"char"})", {"a string `vocabulary`", "none"}),
      refused(R"({"type":"char","vocabulary":null})", {"a string `vocabulary`", "null"}),
      refused(R"({"type":"char","vocabulary":["a","b"]})", {"a string `vocabulary`", "array"}),
      refused(R"({"type":"char","vocabulary":{"a":0}})", {"a string `vocabulary`", "object"}),
      refused(R"({"type":"char","vocabulary":97})", {"a string `vocabulary`", "number"}),
      refused(R"({"type":"char","vocabulary":""})", {"at least one character", "none"}),
      refused(R"({"type":"char","vocabulary":"aa"})", {"increasing order", "U+0061 `a`"}),
      refused(R"({"type":"char","vocabulary":"ba"})",
              {"increasing order", "U+0061 `a` after U+0062 `b`"}),
      refused(R"({"type":"char","vocabulary":"é\u0000"})",
              {"increasing order", "U+0000 after U+00E9"}),
      refused(R"({"type":"char","vocabulary":"z\u009b"})" + zero(), {"expected: JSON"}),
      // what a lenient reader would take
      refused(R"({"type":"byte","x":1e999})", {"expected: JSON"}),
      refused(R"({"type":"byte","x":-1e999})", {"expected: JSON"}),
      refused(R"({"type":"byte"})" + zero() + "rest", {"expected: JSON"}),
      refused(R"({"type":"char","type":"byte"})", {"every key once, `type` once", "twice"}),
      refused(R"({"type":"byte","x":1,"\u0078":2})", {"`x` once", "twice"}),
      accepted(R"({"type":"byte","x":{"a":1,"a":2}})"),
      refused("{\"type\":\"byte\",\"x\":\"" + repeated("x", 64 << 20) + "\"}",
              {"at most 64.0 MiB"}),
      refused("[" + repeated("[],", 100'000) + "0]", {"expected: an object"}),
      refused("[" + repeated("[[[[0]]]],", 100'000) + "0]", {"expected: an object"}),
      refused(R"({"type":"char","vocabulary":"a","vocabulary":"b"})",
              {"every key once, `vocabulary` once", "twice"}),
  };
}

std::vector<Example> utf8_examples() {
  return {
      accepted(""),
      accepted("plain text\n"),
      accepted("one\r\ntwo\ttabs"),
      accepted(zero()),
      accepted("größe, naïve, 水, 😀"),
      accepted("e\xCC\x81 and \xC3\xA9"),                        // the same sign in two ways
      accepted("\xEF\xBB\xBFwith a mark"),                       // byte order mark
      accepted("\xE2\x80\xAE right to left \xE2\x80\xAC"),       // overrides
      accepted("👩‍👩‍👧‍👦"),                     // one sign of seven code points
      accepted("\x01\x02\x1b[31m\x7f"),                          // controls
      accepted("\xC2\x80\xC2\x9B"),                              // controls of the second block
      accepted("\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80"),  // edges of the lengths
      accepted("\xEF\xBF\xBE\xEF\xBF\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"),
      accepted(all_code_points(0, 0x10FFFF)),
      accepted(repeated("a", 1'000'000)),
      accepted(repeated("\xCC\x81", 10'000)),
      refused("\x80", {"not UTF-8", "input.txt:1:1 (byte 0)", "bytes 80", "data.tokenizer=byte"}),
      refused("\xFF", {"not UTF-8", "bytes FF"}),
      refused("\xFE\xFF", {"not UTF-8", "bytes FE FF"}),
      refused("a\n\nb\xFF", {"input.txt:3:2 (byte 4)"}),
      refused("é\xC3", {"input.txt:1:2 (byte 2)", "bytes C3"}),
      refused("\xC3(", {"bytes C3 28"}),
      refused("\xC0\x80", {"bytes C0 80"}),
      refused("\xC1\xBF", {"bytes C1 BF"}),
      refused("\xE0\x80\x80", {"bytes E0 80 80"}),
      refused("\xE0\x9F\xBF", {"bytes E0 9F BF"}),
      refused("\xE2\x82", {"bytes E2 82"}),
      refused("\xE2\x28\xA1", {"bytes E2 28 A1"}),
      refused("\xED\xA0\x80", {"bytes ED A0 80"}),
      refused("\xED\xBF\xBF", {"bytes ED BF BF"}),
      refused("\xED\xA0\xBD\xED\xB8\x80", {"bytes ED A0 BD ED"}),  // a pair of surrogates
      refused("\xF0\x80\x80\x80", {"bytes F0 80 80 80"}),
      refused("\xF0\x8F\xBF\xBF", {"bytes F0 8F BF BF"}),
      refused("\xF0\x9F\x98", {"bytes F0 9F 98"}),
      refused("\xF0\x28\x8C\xBC", {"bytes F0 28 8C BC"}),
      refused("\xF4\x90\x80\x80", {"bytes F4 90 80 80"}),
      refused("\xF5\x80\x80\x80", {"bytes F5 80 80 80"}),
      refused("\xF8\x88\x80\x80\x80", {"bytes F8 88 80 80"}),
      refused("\xFC\x84\x80\x80\x80\x80", {"bytes FC 84 80 80"}),
      refused(repeated("x", 1'000'000) + "\x80", {"input.txt:1:1000001 (byte 1000000)"}),
      refused(std::string("h\0i\0\xFF", 5), {"input.txt:1:5 (byte 4)"}),
      refused("caf\xE9 latin", {"input.txt:1:4 (byte 3)", "bytes E9 20"}),
  };
}

}  // namespace millrace::fuzz
