// Examples for the readers of records: JSON lines, token files, trajectories.
#include <cstring>

#include "tests/fuzz/fuzz.h"

namespace millrace::fuzz {
namespace {

// A record of which this is a further value.
std::string record(std::string_view value) {
  return "{\"text\":\"x\",\"a\":{\"b\":\"y\"},\"v\":" + std::string(value) + "}\n";
}

std::string int32(int32_t value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return bytes;
}
// A file of llm.c.
std::string headed(int32_t magic, int32_t version, int32_t tokens, const std::string& ids) {
  std::string bytes = int32(magic) + int32(version) + int32(tokens);
  bytes.resize(1024);
  return bytes + ids;
}

// Offsets of 64 bits and values of 32 bits, in this order.
std::string ragged(std::string_view values, std::string_view offsets,
                   const std::vector<int64_t>& numbers, int floats, const char* unit = "\1\1\1\1") {
  const size_t bytes = numbers.size() * 8;
  std::string data(bytes, '\0');
  if (bytes > 0) std::memcpy(data.data(), numbers.data(), bytes);
  const std::string header =
      "{\"offsets\":{\"dtype\":\"I64\",\"shape\":" + std::string(offsets) +
      ",\"data_offsets\":[0," + std::to_string(bytes) + "]},\"values\":{\"dtype\":\"F32\"," +
      "\"shape\":" + std::string(values) + ",\"data_offsets\":[" + std::to_string(bytes) + "," +
      std::to_string(bytes + 4 * static_cast<size_t>(floats)) + "]}}";
  return with_length(header, data + repeated({unit, 4}, floats));
}

}  // namespace

std::vector<Example> json_lines_examples() {
  return {
      accepted(""),
      accepted("\n \t\r\n\n"),
      accepted(record("null") + record("[1,2.5e-3,{}]") + "\r\n" + record("true")),
      accepted(" { \"a\" : { \"c\" : 1 , \"b\" : \"\" } , \"text\" : \"\" } \r\n"),
      accepted("\xEF\xBB\xBF" + record("false")),
      accepted(record(R"("\"\\\/\b\f\n\r\t\u0000\u00e9\ud83d\uDE00")")),
      accepted(R"({"te\u0078t":"\ud83d\ude00é€😀","\u0061":{"\u0062":"\n"}})"),
      accepted(record(R"({"text":1,"text":2,"a":[],"a":{}})")),
      accepted(record(repeated("[", 255) + repeated("]", 255))),
      accepted(record("1.7976931348623157e308")),
      accepted(record("0e999999999999999999999999")),
      accepted(record("-1e-999999999999999999999999")),
      accepted(record(repeated("1", 309))),
      accepted(record("\"" + repeated("long ", 1000) + "\"")),
      refused("1", {"not a JSON object", "data.jsonl:1:1 (byte 0)"}),
      refused("[{\"text\":\"x\",\"a\":{\"b\":\"y\"}}]", {"not a JSON object"}),
      refused("\xEF\xBB{}", {"not a JSON object"}),
      refused(record("1") + "{}", {"missing", "data.jsonl:2:1 (byte 33)", "`text`"}),
      refused("{\"text\":\"x\"}", {"missing", "`a.b`"}),
      refused("{\"text\":\"x\",\"a\":{}}", {"missing", "`a.b`"}),
      refused("{\"text\":\"x\",\"a\":[{\"b\":\"y\"}]}", {"missing", "an object"}),
      refused("{\"text\":\"x\",\"a.b\":\"y\"}", {"missing", "`a.b`"}),
      refused("{\"text\":1,\"a\":{\"b\":\"y\"}}", {"not a string", ":9 (byte 8)", "`text`"}),
      refused("{\"text\":\"x\",\"a\":{\"b\":null}}", {"not a string", "`a.b`"}),
      refused("{\"text\":\"x\",\"text\":\"x\",\"a\":{\"b\":\"y\"}}", {"twice", "`text`"}),
      refused("{\"text\":\"x\",\"a\":{\"b\":\"y\"},\"a\":1}", {"twice", "`a`"}),
      refused("{\"text\":\"x\",\"a\":{\"b\":\"y\",\"\\u0062\":\"y\"}}", {"twice", "`a.b`"}),
      refused(record("1") + "x", {"data.jsonl:2:1"}),
      refused(record("1") + record("1}"), {"follows the record"}),
      refused(record(""), {"a value"}),
      refused(record("01"), {"`,` or `}`"}),
      refused(record("-"), {"a digit"}),
      refused(record("1."), {"a digit"}),
      refused(record("1e+"), {"a digit"}),
      refused(record(".5"), {"a value"}),
      refused(record("1e309"), {"a double"}),
      refused(record("1.7976931348623159e308"), {"a double"}),
      refused(record("-" + repeated("1", 310)), {"a double"}),
      refused(record("tru"), {"true, false or null"}),
      refused(record("NaN"), {"a value"}),
      refused(record("[1,]"), {"a value"}),
      refused(record("[1 2]"), {"`,` or `]`"}),
      refused(record("{1:2}"), {"a key in quotes"}),
      refused(record("{\"a\":1,}"), {"a key in quotes"}),
      refused(record("{\"a\" 1}"), {"`:` behind the key"}),
      refused(record("1 // comment"), {"`,` or `}`"}),
      refused("{\"text\":\"x\",\"a\":{\"b\":\"y\"},\"v\":\"\n\"}",
              {"has an end", ":1:31 (byte 30)"}),
      refused(record("\"\t\""), {"control characters"}),
      refused(record("\"\xff\""), {"UTF-8"}),
      refused(record("\"\xc0\x80\""), {"UTF-8"}),
      refused(record("\"\xed\xa0\x80\""), {"UTF-8"}),
      refused(record(R"("\x")"), {"one of"}),
      refused(record(R"("\u12g4")"), {"hexadecimal"}),
      refused(record(R"("\ud800")"), {"surrogate pair"}),
      refused(record(R"("\udc00")"), {"surrogate pair"}),
      refused(record(R"("\ud800\u0041")"), {"surrogate pair"}),
      refused(record(repeated("[", 256) + repeated("]", 256)), {"too deep", "256"}),
      refused(repeated("{\"a\":", 10'000), {"too deep", "data.jsonl:1:1281"}),
      refused(record(repeated("{\"a\":", 10'000)), {"too deep"}),
      refused(record(std::string("\"\0\"", 3)), {"control characters"}),
      refused(record("1") + record("1") + std::string("\0", 1), {"data.jsonl:3:1"}),
      refused(record("1").substr(0, 32) + std::string("\0x", 2), {"follows the record"}),
  };
}

std::vector<Example> token_file_examples() {
  return {
      accepted(""),
      accepted(std::string("\1\0\2\0\3\0", 6)),
      accepted(std::string("\x50\xc4", 2)),  // 50256, the last of the vocabulary
      accepted(std::string(2048, '\1')),
      accepted(headed(20240520, 1, 0, "")),
      accepted(headed(20240520, 1, 3, std::string("\1\0\2\0\3\0", 6))),
      accepted(headed(20240801, 7, 2, int32(1) + int32(50256))),
      refused("\1", {"whole token ids", "a multiple of 2 bytes"}),
      refused(std::string("\1\0\x51\xc4", 4), {"outside the vocabulary", "(byte 2)", "50257"}),
      // Not a header that is known, so it is read as ids.
      refused(headed(20240522, 1, 3, ""), {"outside the vocabulary", "(byte 0)", "55434"}),
      refused(headed(20240520, 1, 2, "\1\1\xff\xff"), {"(byte 1026)", "65535"}),
      refused(headed(20240801, 7, 2, int32(1) + int32(-1)), {"(byte 1028)", "4294967295"}),
      refused(headed(20240520, 2, 0, ""), {"version", "(byte 4)"}),
      refused(headed(20240801, 1, 0, ""), {"version", "expected: 7"}),
      refused(headed(20240520, 1, -1, ""), {"less than no tokens"}),
      refused(headed(20240520, 1, 2, "\1\1\1"), {"1028 bytes, for 2 ids", "1027 bytes"}),
      refused(headed(20240801, 7, 2, "\1\1\1\1"), {"1032 bytes, for 2 ids"}),
      refused(headed(20240801, 7, 2147483647, "\1\1\1\1"), {"8589935612 bytes"}),
      refused(headed(20240520, 1, 0, "").substr(0, 1023), {"inside its header"}),
      refused(int32(20240520), {"inside its header"}),
  };
}

std::vector<Example> trajectory_table_examples() {
  return {
      accepted(""),
      accepted("# nothing\n\n \t\r\n"),
      accepted("10 1 0.5 1\n10 2 5 6\n20 1 1.5 2\n20 2 7 8\n30 1 2.5 3\n"),
      accepted("780\t1.0\t8.46\t3.59\n790\t1.0\t9.57\t3.79\n810\t1.0\t9.57\t3.79"),
      accepted("1e3, 7 ,1,2\r\n1010.0,7.0,-1e-3,4.5E2\r\n"),
      accepted("5 1 0 0 1 2 3\n# between\n0 1 0 0 1 2 3\n12 2 0 0 0 0 0\n"),
      accepted("-4611686018427387903 1 0 0\n4611686018427387903 1 0 0\n"),
      accepted("1 -4611686018427387903 3.4028234e38 1e-300\n"),
      accepted("frame,id,x,y\n1,1,0,0\n"),
      accepted("\n# a scene\n frame id x y\n"),
      refused("1,1,0,0\nframe,id,x,y\n", {"not a number", "data.txt:2:1 (byte 8)"}),
      refused(",frame,id,x,y\n0,1,1,0,0\n", {"not a number", "data.txt:1:1 (byte 0)"}),
      refused("1 1 0 0\n2 1 0\n", {"columns", "data.txt:2:1 (byte 8)", "expected: 4"}),
      refused("1 1 0\n", {"columns", "at least 4"}),
      refused("1 1 0 0\n2 1 0 0 0\n", {"columns", "got:      5"}),
      refused("1.5 1 0 0", {"the frame"}),
      refused("1 b 0 0", {"the agent", ":3 (byte 2)"}),
      refused("1 4611686018427387904 0 0", {"the agent"}),
      refused("1e999 1 0 0", {"the frame"}),
      refused("1 1 nan 0", {"a finite number", "`nan 0`"}),
      refused("1 1 0 -inf", {"a finite number"}),
      refused("1 1 0 1e39", {"a finite number"}),
      refused("1 1 0 1e999", {"a finite number"}),
      refused("1,,1,0,0", {"`,1,0,0`"}),
      refused("1,1,0,0,", {"the end of the line"}),
      refused("1 1 0 0 # end", {"`# end`"}),
      refused(std::string("1 1 0 0\0", 8), {"a finite number"}),
      refused("1 1 0 0\n2 1 0 0\n1.0 1.0 5 5\n", {"twice", "line 1 and on line 3"}),
  };
}

std::vector<Example> class_table_examples() {
  return {
      accepted(""),
      accepted("10 1 0.5 1 0\n20 1 5 6 2\n30 1 5 6 -1\n"),
      accepted("10,1,0.5,1,\n20,1,5,6,2.0\n30,1,5,6, \n"),
      accepted("10,1,0.5,1, ,7\n20,1,0.5,1,1,7\n"),
      refused("10 1 0.5 1\n", {"columns", "at least 5", "column 5"}),
      refused("10 1 0 0 3\n", {"a class, 0 to 2", "`3`", "model.classes=4", "data.txt:1:10"}),
      refused("10 1 0 0 0.5\n", {"a class, 0 to 2", "`0.5`"}),
      refused("10 1 0 0 nan\n", {"a class, 0 to 2", "`nan`"}),
      refused("10,1,,0,1\n", {"a finite number"}),
      refused("10 1 0 0 1\n20 1 0 0\n", {"columns", "expected: 5"}),
  };
}

std::vector<Example> ragged_safetensors_examples() {
  return {
      accepted(ragged("[3,2]", "[3]", {0, 2, 3}, 6)),
      accepted(ragged("[3,1]", "[4]", {0, 1, 2, 3}, 3)),
      accepted(ragged("[0,2]", "[1]", {0}, 0)),
      accepted(ragged("[0,9223372036854775807]", "[1]", {0}, 0)),
      refused("", {"too short"}),
      refused(with_length("{}", ""), {"missing", "`values`"}),
      refused(ragged("[6]", "[3]", {0, 2, 3}, 6), {"shape", "[6]"}),
      refused(ragged("[3,2]", "[3,1]", {0, 2, 3}, 6), {"shape", "[3, 1]"}),
      refused(ragged("[3,0]", "[3]", {0, 2, 3}, 0), {"no channels"}),
      refused(ragged("[3,2]", "[0]", {}, 6), {"do not cover", "none"}),
      refused(ragged("[3,2]", "[1]", {0}, 6), {"do not cover", "from 0 to 0"}),
      refused(ragged("[3,2]", "[2]", {1, 3}, 6), {"do not cover", "from 1 to 3"}),
      refused(ragged("[3,2]", "[2]", {0, 4}, 6), {"do not cover", "from 0 to 4"}),
      refused(ragged("[3,2]", "[3]", {0, 4, 3}, 6), {"do not increase", "[2]"}),
      refused(ragged("[3,2]", "[4]", {0, 1, 1, 3}, 6), {"do not increase", "more than 1"}),
      refused(ragged("[3,2]", "[3]", {0, -1, 3}, 6), {"do not increase", "-1"}),
      refused(ragged("[3,2]", "[3]", {0, 2, 3}, 6, "\xff\xff\xff\x7f"),
              {"not finite", "`values`[0, 0]"}),
      refused(with_length(R"({"offsets":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                          R"("values":{"dtype":"F32","shape":[0,1],"data_offsets":[4,4]}})",
                          "\1\1\1\1"),
              {"wrong type", "F32"}),
      refused(with_length(R"({"offsets":{"dtype":"I16","shape":[1],"data_offsets":[0,2]},)"
                          R"("values":{"dtype":"U8","shape":[0,1],"data_offsets":[2,2]}})",
                          std::string(2, '\0')),
              {"floating-point", "U8"}),
  };
}

}  // namespace millrace::fuzz
