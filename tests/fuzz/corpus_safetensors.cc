// Examples for the reader of safetensors.
#include "tests/fuzz/fuzz.h"

namespace millrace::fuzz {
namespace {

std::string file(std::string_view header, int data) {
  return with_length(header, repeated("\1", data));
}
// A length that is not the header's.
std::string lying(uint64_t length, std::string_view rest) {
  std::string bytes;
  for (int i = 0; i < 64; i += 8) bytes += static_cast<char>(length >> i & 0xFF);
  return bytes.append(rest);
}

const std::string kGood = R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";

}  // namespace

std::vector<Example> safetensors_examples() {
  return {
      accepted(file(kGood, 4)),
      accepted(file("{}", 0)),
      accepted(file("{}     ", 0)),
      accepted(file("{ \t\r\n}", 0)),
      accepted(file(R"({"__metadata__":{}})", 0)),
      accepted(file(R"({"__metadata__":{"format":"pt","":""}})", 0)),
      accepted(file(R"({"":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1)),
      accepted(file(
          R"({"\u00e9\ud83d\ude00\u0000":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1)),
      accepted(
          file(R"({"x":{"data_offsets":[0,0],"shape":[0,9223372036854775807],"dtype":"F64"}})", 0)),
      accepted(file(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                    R"("b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                    0)),
      accepted(file(R"({"b":{"dtype":"I16","shape":[2],"data_offsets":[1,5]},)"
                    R"("a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})",
                    5)),
      accepted(file(
          R"({"x":{"dtype":"F64","shape":[2,1],"data_offsets":[0,16]},"__metadata__":{"a":"b"}})",
          16)),
      accepted(file(R"({"x":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},)"
                    R"("y":{"dtype":"F16","shape":[1,1,1],"data_offsets":[6,8]}})",
                    8)),
      accepted(file(
          R"({"x":{"dtype":"F8_E4M3","shape":[1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1)),
      // a double that no float holds is refused by to_f32 only
      accepted(with_length(R"({"x":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})",
                           "\xff\xff\xff\xff\xff\xff\xef\x7f")),
      // lengths
      refused("", {"too short", "at least 8 bytes"}),
      refused("1234567", {"too short"}),
      refused(lying(0, kGood), {"not a JSON object", "an empty header"}),
      refused(lying(1, kGood), {"not JSON"}),
      refused(lying(kGood.size() - 1, kGood), {"not JSON"}),
      refused(lying(kGood.size() + 1, kGood), {"length is impossible"}),
      refused(lying(100'000'001, kGood), {"length is impossible", "100000000"}),
      refused(lying(uint64_t{1} << 32, kGood), {"length is impossible"}),
      refused(lying(uint64_t{1} << 63, kGood), {"length is impossible"}),
      refused(lying(~uint64_t{0}, kGood), {"length is impossible"}),
      refused(lying(~uint64_t{0} - 7, kGood), {"length is impossible"}),
      refused(lying(kGood.size() + 4, kGood + "\1\1\1\1"),
              {"not JSON"}),  // the data is in the header
      // bytes that end a text for some
      refused(with_length(kGood + std::string("\0 ", 2), "\1\1\1\1"), {"a zero byte"}),
      refused(with_length("{" + std::string(1, '\0') + "}", ""), {"a zero byte at 9"}),
      refused(with_length("{\x1a}", ""), {"not JSON"}),
      refused(with_length("{\xfe\xff}", ""), {"not JSON"}),
      // deep, long, many
      refused(file("{\"x\":" + repeated("[", 100'000), 0), {"malformed"}),
      refused(file(repeated("{\"x\":", 100'000), 0), {"tensor `x`"}),
      refused(file(R"({"x":{"dtype":"U8","shape":[1)" + repeated(",1", 64) +
                       R"(],"data_offsets":[0,1]}})",
                   1),
              {"too many numbers", "64 dimensions"}),
      refused(file("{\"" + repeated("n", 100'000) + "\":1}", 0), {"tensor `nnn", "…"}),
      refused(file("{\"\\u001b[31m\":1}", 0), {"tensor `?[31m`"}),
      refused(file(R"({"x":{"dtype":"U8","shape":[1e999],"data_offsets":[0,1]}})", 1),
              {"not JSON"}),
      refused(
          file(R"({"x":{"dtype":"U8","shape":[-9223372036854775809],"data_offsets":[0,1]}})", 1),
          {"malformed"}),
      refused(file(R"({"x":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}})", 0), {"malformed"}),
      // not a JSON object
      refused(file("", 0), {"not a JSON object"}),
      refused(file(" {}", 0), {"not a JSON object"}),
      refused(file("\xEF\xBB\xBF{}", 0), {"not a JSON object"}),
      refused(file("[]", 0), {"not a JSON object"}),
      refused(file("null", 0), {"not a JSON object"}),
      refused(file("\"x\"", 0), {"not a JSON object"}),
      refused(file("{", 0), {"not JSON"}),
      refused(file("{}{}", 0), {"not JSON"}),
      refused(file("{}x", 0), {"not JSON"}),
      refused(file("{,}", 0), {"not JSON"}),
      refused(file("{a:1}", 0), {"not JSON"}),
      refused(file("{'a':1}", 0), {"not JSON"}),
      refused(file("{} // comment", 0), {"not JSON"}),
      refused(file("{\"a\xff\":{}}", 0), {"not JSON"}),
      refused(file("{\"a\xc0\x80\":{}}", 0), {"not JSON"}),
      refused(file("{\"a\xed\xa0\x80\":{}}", 0), {"not JSON"}),
      refused(file(R"({"\ud800":{}})", 0), {"not JSON"}),
      refused(file("{\"a\nb\":{}}", 0), {"not JSON"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4],}})", 4), {"not JSON"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[1,],"data_offsets":[0,4]}})", 4), {"not JSON"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}})", 4), {"not JSON"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[01],"data_offsets":[0,4]}})", 4), {"not JSON"}),
      // not the grammar of the header
      refused(file(R"({"x":1})", 0), {"malformed"}),
      refused(file(R"({"x":null})", 0), {"malformed"}),
      refused(file(R"({"x":true})", 0), {"malformed"}),
      refused(file(R"({"x":"F32"})", 0), {"malformed"}),
      refused(file(R"({"x":[]})", 0), {"malformed"}),
      refused(file(R"({"x":{}})", 0), {"`dtype` is missing"}),
      refused(file(R"({"x":{"shape":[1],"data_offsets":[0,4]}})", 4), {"`dtype` is missing"}),
      refused(file(R"({"x":{"dtype":"F32","data_offsets":[0,4]}})", 4), {"`shape` is missing"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[1]}})", 4), {"`data_offsets` is missing"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"z":1}})", 4),
              {"unknown field"}),
      refused(file(R"({"x":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4),
              {"unknown dtype"}),
      refused(file(R"({"x":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})", 4),
              {"unknown dtype"}),
      refused(file(R"({"x":{"dtype":"","shape":[1],"data_offsets":[0,4]}})", 4), {"unknown dtype"}),
      refused(file(R"({"x":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", 4),
              {"`dtype` is malformed"}),
      refused(file(R"({"x":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}})", 4),
              {"`dtype` is malformed"}),
      refused(file(R"({"x":{"dtype":null,"shape":[1],"data_offsets":[0,4]}})", 4),
              {"`dtype` is malformed"}),
      refused(file(R"({"x":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4),
              {"`shape` is malformed"}),
      refused(file(R"({"x":{"dtype":"F32","shape":"1","data_offsets":[0,4]}})", 4),
              {"`shape` is malformed"}),
      refused(file(R"({"x":{"dtype":"F32","shape":{"a":1},"data_offsets":[0,4]}})", 4),
              {"`shape` is malformed"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4),
              {"`shape` is malformed"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[{}],"data_offsets":[0,4]}})", 4),
              {"`shape` is malformed"}),
      refused(file(R"({"x":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", 4),
              {"`shape` is malformed"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4),
              {"`shape` is malformed"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4),
              {"`shape` is malformed"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}})", 4),
              {"`shape` is malformed"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 4),
              {"`data_offsets` is malf"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4), {"incomplete"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[]}})", 4), {"incomplete"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4), {"too many"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":4}})", 4),
              {"`data_offsets` is malformed"}),
      // duplicates
      refused(file(R"({"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                   R"("x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                   0),
              {"appears twice"}),
      refused(file(R"({"x":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1),
              {"appears twice"}),
      refused(file(R"({"__metadata__":{},"__metadata__":{}})", 0), {"appears twice"}),
      refused(file(R"({"__metadata__":{"a":"1","a":"2"}})", 0), {"appears twice"}),
      refused(file(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                   R"("\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                   0),
              {"appears twice"}),
      // metadata
      refused(file(R"({"__metadata__":[]})", 0), {"malformed"}),
      refused(file(R"({"__metadata__":"x"})", 0), {"malformed"}),
      refused(file(R"({"__metadata__":{"a":1}})", 0), {"malformed"}),
      refused(file(R"({"__metadata__":{"a":{"b":"c"}}})", 0), {"malformed"}),
      refused(file(R"({"__metadata__":{"a":["b"]}})", 0), {"malformed"}),
      refused(file(R"({"__metadata__":{"a":null}})", 0), {"malformed"}),
      // sizes
      refused(file(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
              {"do not fit the shape"}),
      refused(file(R"({"x":{"dtype":"F64","shape":[1],"data_offsets":[0,4]}})", 4),
              {"do not fit the shape"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4),
              {"do not fit the shape"}),
      refused(file(R"({"x":{"dtype":"F32","shape":[0],"data_offsets":[0,4]}})", 4),
              {"do not fit the shape"}),
      refused(
          file(R"({"x":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
          {"too large"}),
      refused(
          file(R"({"x":{"dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,0]}})", 0),
          {"too large"}),
      refused(file(R"({"x":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,0]}})", 0),
              {"too large"}),
      refused(
          file(R"({"x":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,0]}})", 0),
          {"malformed"}),
      refused(
          file(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[18446744073709551612,0]}})", 0),
          {"too large"}),
      refused(
          file(
              R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]}})",
              1),
          {"hole"}),
      // layout
      refused(file(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3), {"ends before"}),
      refused(file(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 5),
              {"belong to no tensor"}),
      refused(file("{}", 1), {"belong to no tensor"}),
      refused(file(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", 5), {"hole"}),
      refused(file(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                   R"("y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                   3),
              {"overlaps"}),
      refused(file(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                   R"("y":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                   2),
              {"overlaps"}),
      refused(file(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                   R"("y":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
                   5),
              {"hole"}),
      refused(file(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                   R"("y":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
                   4),
              {"overlaps"}),
  };
}

}  // namespace millrace::fuzz
