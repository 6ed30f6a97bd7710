// The files of tokenizers as targets, and text that goes through one and back.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "data/byte_bpe.h"
#include "data/sentence_piece.h"
#include "data/tokenizer.h"
#include "data/tokenizer_folder.h"
#include "data/word_tokenizer.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/fuzz.h"

namespace millrace::fuzz {
namespace {

void check_round_trip(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, {"input.txt"}, ids);
  for (const int32_t id : ids) require(id >= 0 && id < tokenizer.vocab_size(), "id out of range");
  require(tokenizer.decode(ids) == text, "decode(encode(text)) is another text");
}

void check_json_round_trip(const Tokenizer& tokenizer) {
  const std::string json = tokenizer.file().bytes;
  try {
    const auto again = tokenizer_from_json(json, "written");
    require(again->file().bytes == json && again->vocab_size() == tokenizer.vocab_size(),
            "the tokenizer changed when written and read");
  } catch (const Error&) {
    throw Broken("a tokenizer file that was written cannot be read");
  }
}

Verdict run_tokenizer_json(std::string_view bytes) {
  return verdict_of("tokenizer.json", [&] {
    const auto tokenizer = tokenizer_from_json(bytes, "tokenizer.json");
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < std::min<int64_t>(tokenizer->vocab_size(), 300); ++id) {
      ids.push_back(id);
    }
    check_round_trip(*tokenizer, tokenizer->decode(ids));
    check_json_round_trip(*tokenizer);
  });
}

Verdict run_byte_bpe(std::string_view bytes) {
  return verdict_of("tokenizer.json", [&] {
    const auto tokenizer = make_byte_bpe_tokenizer(bytes, "tokenizer.json");
    const std::string_view text =
        "It's 1234 aé😀 \n\n  <|end|>  hello\xFF<|endaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    std::vector<int32_t> ids;
    tokenizer->encode(text, {"input.txt"}, ids);
    for (const int32_t id : ids)
      require(id >= 0 && id < tokenizer->vocab_size(), "id out of range");
    // What is put in front or taken off around an added token does not come back.
    const auto root = nlohmann::json::parse(bytes);
    const std::string dumped = root.dump(-1, ' ', true);
    if (dumped.find("strip\":true") == dumped.npos &&
        dumped.find("\"byte_fallback\":true") == dumped.npos &&
        dumped.find("\"add_prefix_space\":false") != dumped.npos)
      require(tokenizer->decode(ids) == text, "decode(encode(text)) is another text");
  });
}

// What was accepted must encode and decode anything: the tables were checked before.
Verdict run_sentence_piece_model(std::string_view bytes) {
  return verdict_of("tokenizer.model", [&] {
    const auto tokenizer = make_sentence_piece_tokenizer(std::string(bytes), "tokenizer.model");
    require(tokenizer->file().bytes == bytes, "the file is not the one that was read");
    std::string text = "It's  1234 aé😀\t\n\n  ab<x> abcA\xFF <0x41> ";
    for (int i = 0; i < 3; ++i) text += text + repeated("ab", 40);
    std::vector<int32_t> ids;
    tokenizer->encode(text, {"input.txt"}, ids);
    for (const int32_t id : ids)
      require(id >= 0 && id < tokenizer->vocab_size(), "id out of range");
    tokenizer->decode(ids);
    std::vector<int32_t> again;
    const size_t cut = tokenizer->last_cut(text);
    tokenizer->encode(text.substr(0, cut), {"input.txt"}, again);
    tokenizer->encode(text.substr(cut), {"input.txt"}, again);
    require(again == ids, "the ids of two parts are not those of the whole");
  });
}

Verdict run_tokenizer_config(std::string_view bytes) {
  return verdict_of("tokenizer_config.json", [&] {
    const PromptForm form = read_prompt_form(bytes, kTokenizerConfigFile);
    const DeclaredTokens declared = read_declared_tokens(bytes, kTokenizerConfigFile);
    const auto tokenizer = make_byte_bpe_tokenizer(byte_bpe_json(), "tokenizer.json");
    tokenizer->declare(declared);
    const auto written =
        companions_of(*tokenizer, false, form, {{kTokenizerConfigFile, std::string(bytes)}});
    require(read_prompt_form(written.at(kTokenizerConfigFile), "written") == form,
            "it reads differently when written again");
    const std::vector<int32_t> ends = tokenizer->end_ids();
    tokenizer->declare(read_declared_tokens(written.at(kGenerationConfigFile), "written"));
    require(tokenizer->end_ids() == ends, "other tokens end a text when written again");
  });
}

Verdict run_word_json(std::string_view bytes) {
  return verdict_of("tokenizer.json", [&] {
    const auto tokenizer = word_tokenizer_from_json(bytes, "tokenizer.json");
    for (int32_t id = WordTokenizer::kFirstWord; id < tokenizer->open_size(); ++id) {
      std::vector<int32_t> ids;
      tokenizer->encode_open(tokenizer->word(id), ids);
      require(ids == std::vector{id}, "a word is not encoded as itself");
    }
    const auto again = word_tokenizer_from_json(tokenizer->file().bytes, "tokenizer.json");
    require(again->file() == tokenizer->file(), "the tokenizer changed when written and read");
  });
}

Verdict run_utf8(std::string_view bytes) {
  check_round_trip(*make_byte_tokenizer(), bytes);
  static const auto kAscii = make_char_tokenizer(" abcdefghijklmnopqrstuvwxyz\n", {"ascii"});
  verdict_of("input.txt", [&] { check_round_trip(*kAscii, bytes); });  // a sign may be unknown
  const Verdict verdict = verdict_of("input.txt", [&] {
    const auto tokenizer = make_char_tokenizer(bytes, {"input.txt"});
    check_round_trip(*tokenizer, bytes);
  });
  // Written again, characters are the same bytes: none was read from a form that is not allowed.
  std::string again;
  for (size_t at = 0; at < bytes.size();) {
    const CodePoint c = code_point_at(bytes, at);
    if (c.bytes == 0) break;
    append_utf8(c.value, again);
    at += c.bytes;
  }
  require(bytes.starts_with(again), "a character changed when written again");
  require(verdict.accepted == (again.size() == bytes.size()), "two readers of UTF-8 disagree");
  return verdict;
}

}  // namespace

std::vector<Target> tokenizer_targets() {
  const std::vector<std::string> tokenizer_words = {
      "\"type\"", "\"char\"", "\"byte\"", "\"vocabulary\"", "\"abc\"", "a", "é", "😀"};
  const std::vector<std::string> bpe_words = {
      "\"model\"",    "\"vocab\"",     "\"merges\"",   "\"added_tokens\"", "\"pre_tokenizer\"",
      "\"Split\"",    "\"ByteLevel\"", "\"Sequence\"", "\"Regex\"",        "\"content\"",
      "\"lstrip\"",   "\"rstrip\"",    "\"id\"",       "\"use_regex\"",    "\"ignore_merges\"",
      "\"Isolated\"", "\"behavior\"",  "\"a a\"",      "[\"a\",\"a\"]",    "Ġ",
      "\"Digits\"",   "\"Metaspace\"", "\"Prepend\"",  "\"Replace\"",      "\"byte_fallback\"",
      "\"first\"",    "\"Strip\"",     "\"Fuse\"",     "\u2581",           "\"normalized\""};
  const std::vector<std::string> word_words = {"\"type\"",
                                               "\"word\"",
                                               "\"words\"",
                                               "\"vocab_size\"",
                                               "\"lower_case\"",
                                               "\"the\"",
                                               "\"don't\"",
                                               "\"A\"",
                                               "255",
                                               "\"\\n\"",
                                               "é"};
  const std::vector<std::string> utf8_words = {"é",
                                               "€",
                                               "😀",
                                               "\xEF\xBB\xBF",
                                               "\xED\x9F\xBF",
                                               "\xEE\x80\x80",
                                               "\xED\xA0\x80",
                                               "\xC0\x80",
                                               "\xE0\x80\x80",
                                               "\xF0\x80\x80\x80",
                                               "\xF4\x8F\xBF\xBF",
                                               "\xF4\x90\x80\x80",
                                               "\xF8\x88\x80\x80\x80",
                                               "\xE2\x82",
                                               "\xC2\x80",
                                               "\xDF\xBF",
                                               "\xE0\xA0\x80",
                                               "\xEF\xBF\xBF",
                                               "\xF0\x90\x80\x80",
                                               "e\xCC\x81",
                                               "\n",
                                               "a"};
  return {{"tokenizer_json", run_tokenizer_json, tokenizer_json_examples, tokenizer_words},
          {"utf8", run_utf8, utf8_examples, utf8_words},
          {"byte_bpe", run_byte_bpe, byte_bpe_examples, bpe_words},
          {"sentence_piece_model", run_sentence_piece_model, sentence_piece_model_examples,
           sentence_piece_words()},
          {"word_json", run_word_json, word_json_examples, word_words},
          {"tokenizer_config",
           run_tokenizer_config,
           tokenizer_config_examples,
           {"\"add_bos_token\"", "\"add_eos_token\"", "true", "false", "null", "\"eos_token_id\"",
            "\"bos_token_id\"", "\"eos_token\"", "\"content\"", "[258,259]", "\"<|end|>\""}}};
}

}  // namespace millrace::fuzz
