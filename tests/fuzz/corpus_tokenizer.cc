// Examples for the readers of tokenizers: SentencePiece models and files of words.
#include <limits>

#include "data/sentence_piece_testing.h"
#include "tests/fuzz/fuzz.h"

namespace millrace::fuzz {
namespace {

using namespace sentence_piece_testing;

std::string pieces() {
  return start_pieces() + piece("\u2581", -3) + piece("a", -2) + piece("b", -2) + piece("ab", -1) +
         piece("\u2581ab", -0.5f) + piece("abc", -4, 5) + piece("<x>", 0, 4);
}
std::string with_rules(std::string blob) { return pieces() + normalizer(text(2, blob)); }
// The table of one rule, with one unit of 32 bits put in, and what is behind the table.
std::string with_unit(size_t at, uint32_t unit, std::string_view replacements) {
  std::string blob = rules({{"A", "a"}});
  std::memcpy(blob.data() + 4 + 4 * at, &unit, 4);
  blob.resize(4 + 4 * 3 * 256);
  return with_rules(blob.append(replacements));
}

}  // namespace

std::vector<std::string> sentence_piece_words() {
  return {piece("a", -1),
          piece("ab", -2, 5),
          piece("abab", -1, 4),
          piece("\n", -1),
          piece("\u2581a", 1e30f),
          trainer(kUnigram),
          trainer(kBpe, integer(24, 1)),
          trainer(kBpe, text(46, "a") + text(44, "?")),
          normalizer(integer(3, 0) + integer(4, 0)),
          normalizer(integer(5, 0)),
          text(4, "self test"),
          text(5, integer(3, 1)),
          integer(9, 1),
          varint(~uint64_t{0}),
          "\x08\x01",
          "\x80",
          std::string(4, '\xFF')};
}

std::vector<Example> sentence_piece_model_examples() {
  const float infinite = std::numeric_limits<float>::infinity();
  return {
      accepted(pieces()),
      accepted(pieces() + trainer(kBpe)),
      accepted(pieces() + trainer(kBpe) + normalizer(integer(3, 0) + integer(4, 0))),
      accepted(pieces() + trainer(kUnigram, integer(24, 1)) + normalizer(integer(5, 0))),
      accepted(with_rules(rules({{"A", "a"}}))),
      accepted(with_rules(rules({{"A", ""}})) + trainer(kBpe)),
      accepted(with_rules("")),
      accepted(trainer(kBpe) + trainer(kUnigram) + pieces()),  // the later one counts
      accepted(pieces() + text(4, "no self test is run")),
      accepted(pieces() + integer(1000, 5) + real(1001, 1)),  // fields of a later version
      accepted(pieces() + piece("\n", 0, 4)),
      accepted(start_pieces() + byte_pieces() + piece("a", -1) + trainer(kBpe, integer(35, 1))),
      accepted(start_pieces() + text(1, text(1, "a"))),  // score 0, type 1
      // A rule that leads back to itself: the library would follow it to the end of every line.
      accepted(with_unit(256 + 'A', ('A' ^ 0) << 10 | 1 << 8 | 'A', std::string(1, '\0'))),
      refused("", {"one for the unknown", "none"}),
      refused(start_pieces(), {"at least one that is text"}),
      refused(piece("a"), {"one for the unknown"}),
      refused(pieces() + piece("?", 0, 2), {"pieces[10]", "one piece for the unknown"}),
      refused(pieces() + piece("ab"), {"pieces[10]", "`ab` twice"}),
      refused(pieces() + piece("<s>"), {"`<s>` twice"}),
      refused(pieces() + piece(""), {"pieces[10]", "an empty one"}),
      refused(pieces() + text(1, ""), {"pieces[10]", "an empty one"}),
      refused(pieces() + piece(std::string(1, '\0')), {"without zero bytes"}),
      refused(pieces() + piece(std::string(1025, 'a')), {"at most 1024 bytes", "1025 bytes"}),
      refused(pieces() + piece("c", infinite), {"a finite score", "inf"}),
      refused(pieces() + piece("c", 0, 0), {"from 1 to 6", "0"}),
      refused(pieces() + piece("c", 0, 7), {"from 1 to 6", "7"}),
      refused(pieces() + piece("<0x41>", 0, 6), {"byte_fallback", "`<0x41>`"}),
      refused(pieces() + piece("<0x4g>", 0, 6) + trainer(1, integer(35, 1)), {"<0x00> to <0xFF>"}),
      refused(pieces() + trainer(1, integer(35, 1)), {"all 256 bytes", "<0x00>"}),
      refused(pieces() + trainer(3), {"trainer_spec.model_type", "3"}),
      refused(pieces() + trainer(0), {"trainer_spec.model_type", "0"}),
      refused(pieces() + text(5, text(2, "rules")), {"denormalizer_spec"}),
      refused(pieces() + integer(1, 5), {"field 1 of type 2", "type 0"}),
      refused(pieces() + text(1, text(2, "ab")), {"field 2 of type 5", "type 2"}),
      refused(pieces() + "\x0B", {"a known type", "type 3"}),
      refused(pieces() + "\x02\x01" + "a", {"field number 0"}),
      refused(pieces() + "\x0A\x05" + "a", {"a field of 5 bytes", "1 bytes"}),
      refused(pieces() + "\x0D" + "a", {"a field of 4 bytes", "1 bytes"}),
      refused(pieces() + "\x0A" + varint(~uint64_t{0}), {"a field of 18446744073709551615 bytes"}),
      refused(pieces() + std::string(11, '\xFF'), {"without an end"}),
      refused(pieces() + "\x80", {"without an end"}),
      refused(with_rules("abc"), {"precompiled_charsmap", "3 bytes"}),
      refused(with_rules(std::string(8, '\xFF')), {"4294967295 are a table"}),
      refused(with_rules(std::string("\x08\0\0\0", 4) + "12345678"), {"12 bytes, of which 8"}),
      refused(with_rules(std::string("\x06\0\0\0", 4) + "123456789"), {"of which 6"}),
      refused(with_unit(0, 0x400 << 10, std::string(1, '\0')), {"768 units", "unit 0"}),
      refused(with_unit(256 + 'A', ('A' ^ 512u ^ 1024u) << 10, std::string(1, '\0')),
              {"768 units", "unit 321"}),
      refused(with_unit(512, 1u << 31 | 2, std::string("a\0", 2)), {"inside 2 bytes", "at 2"}),
      refused(with_unit(512, 1u << 31, "a"), {"a zero byte at the end"}),
      refused(with_unit(512, 1u << 31, std::string(1025, 'a') + '\0'), {"at most 1024 bytes"}),
  };
}

std::vector<Example> tokenizer_config_examples() {
  return {
      accepted("{}"),
      accepted(R"({"add_bos_token": true, "tokenizer_class": "LlamaTokenizer"})"),
      accepted(R"({"add_bos_token": false})"),
      accepted(R"({"add_bos_token": true, "add_eos_token": true})"),
      refused(R"({"add_eos_token": "yes"})", {"`add_eos_token`", "\"yes\""}),
      accepted(R"({"add_bos_token": null})"),
      accepted(R"({"bos_token_id": 258, "eos_token_id": [259, 258, 97, -1, 1000000000000]})"),
      accepted(R"({"eos_token_id": null, "eos_token": {"content": "<|end|>"}, "bos_token": 1})"),
      refused(R"({"eos_token_id": "2"})", {"`eos_token_id`", "\"2\""}),
      refused(R"({"eos_token_id": [2, 2.5]})", {"`eos_token_id`", "2.5"}),
      refused(R"({"bos_token_id": true})", {"`bos_token_id`", "true"}),
      refused("", {"JSON"}),
      refused(R"({"add_bos_token": 1e999})", {"JSON"}),
      refused("[]", {"an object", "array"}),
      refused(R"({"add_bos_token": 1})", {"`add_bos_token`", "1"}),
  };
}

std::vector<Example> word_json_examples() {
  const auto file = [](std::string_view vocab_size, std::string_view words,
                       std::string_view lower_case = "false") {
    return R"({"type":"word","lower_case":)" + std::string(lower_case) + R"(,"vocab_size":)" +
           std::string(vocab_size) + R"(,"words":[)" + std::string(words) + "]}";
  };
  return {
      accepted(file("4", R"("the")")),
      accepted(file("5", R"("the","don't",255,"\n",".","\u0000","水","x-y")")),
      accepted(file("4", R"("the","水","é")", "true")),
      accepted(R"({"words":["a"],"vocab_size":4,"lower_case":true,"type":"word","more":[[1]]})"),
      refused("", {"JSON"}),
      refused("[]", {"an object", "array"}),
      refused("{}", {"`type`"}),
      refused(R"({"type":"char"})", {"`char`"}),
      refused(R"({"type":"word","type":"word"})", {"`type` twice"}),
      refused(file("3", R"("the")"), {"from 4 to 4", "3"}),
      refused(file("5", R"("the")"), {"from 4 to 4", "5"}),
      refused(file("-4", R"("the")"), {"`vocab_size`"}),
      refused(file("4", R"("the","the")"), {"`the` twice"}),
      refused(file("4", R"("The")", "true"), {"lower case"}),
      refused(file("4", R"("the cat")"), {"one word", "words[0]"}),
      refused(file("4", R"("")"), {"one word"}),
      refused(file("4", R"("a'")"), {"one word"}),
      refused(file("4", "127"), {"a byte from 128 to 255"}),
      refused(file("4", "[]"), {"a word or a byte"}),
      refused(file("4", "1e999"), {"too large"}),
  };
}

}  // namespace millrace::fuzz
