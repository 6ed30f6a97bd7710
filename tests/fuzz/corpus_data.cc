// Examples for the readers of data: byte-level BPE files and separated values.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/text.h"
#include "tests/fuzz/fuzz.h"

namespace millrace::fuzz {
namespace {

using Json = nlohmann::json;

Json bpe_file() {
  Json vocabulary;
  char32_t next = 0x100;
  for (char32_t b = 0; b < 256; ++b) {
    const bool plain = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    std::string token;
    append_utf8(plain ? b : next++, token);
    vocabulary[token] = b;
  }
  vocabulary["aa"] = 256;
  vocabulary["he"] = 257;
  return {{"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"added_tokens",
           {{{"id", 258}, {"content", "<|end|>"}}, {{"id", 259}, {"content", "<|endoftext|>"}}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"a a", "h e"}}}}};
}

std::string with(const char* pointer, Json value) {
  Json json = bpe_file();
  json[Json::json_pointer(pointer)] = std::move(value);
  return json.dump();
}

Json split(const char* expression, const char* behavior = "Isolated") {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", behavior}},
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
}

Json opens_with(const Json& id) {
  return {{"type", "TemplateProcessing"},
          {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
          {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {id}}}}}}};
}

// As Llama 2 has it; `spaces`: by a normalizer, else by Metaspace.
Json character_file(bool spaces) {
  Json vocabulary{{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int b = 0; b < 256; ++b) vocabulary[fmt::format("<0x{:02X}>", b)] = 3 + b;
  int id = 259;
  for (const char* token : {"▁", "h", "e", "l", "o", "a", "aa", "he", "▁he", "ll", "中"})
    vocabulary[token] = id++;
  const Json replace{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}},
      back{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  Json file{{"added_tokens",
             {{{"id", 1}, {"content", "<s>"}, {"normalized", false}},
              {{"id", 2}, {"content", "</s>"}, {"normalized", false}},
              {{"id", 300}, {"content", "<|end|>"}, {"normalized", false}}}},
            {"decoder",
             {{"type", "Sequence"},
              {"decoders",
               {back,
                {{"type", "ByteFallback"}},
                {{"type", "Fuse"}},
                {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
            {"model",
             {{"type", "BPE"},
              {"byte_fallback", true},
              {"vocab", vocabulary},
              {"merges", {"a a", "h e", "▁ he", "l l"}}}}};
  if (spaces)
    file["normalizer"] = {{"type", "Sequence"},
                          {"normalizers", {{{"type", "Prepend"}, {"prepend", "▁"}}, replace}}};
  else
    file["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", false}};
  return file;
}
std::string altered(Json file, const char* pointer, Json value) {
  file[Json::json_pointer(pointer)] = std::move(value);
  return file.dump();
}

}  // namespace

std::string byte_bpe_json() { return bpe_file().dump(); }

std::vector<Example> byte_bpe_examples() {
  const Json spaces = character_file(true), meta = character_file(false);
  Json no_byte = spaces;
  no_byte["model"]["vocab"].erase("<0x41>");
  return {
      accepted(spaces.dump()),
      accepted(meta.dump()),
      accepted(altered(meta, "/pre_tokenizer/split", true)),
      accepted(altered(meta, "/pre_tokenizer/prepend_scheme", "never")),
      accepted(altered(spaces, "/model/vocab/o▁h", 290)),  // words are not apart
      refused(altered(spaces, "/normalizer/normalizers/0/prepend", "_"), {"normalizer", "Prepend"}),
      refused(altered(spaces, "/normalizer", nullptr), {"normalizer", "neither"}),
      refused(altered(spaces, "/normalizer", {{"type", "NFC"}}), {"normalizer", "NFC"}),
      refused(altered(spaces, "/added_tokens/0/normalized", true), {"added_tokens[0].normalized"}),
      refused(altered(spaces, "/model/ignore_merges", true), {"model.ignore_merges"}),
      refused(altered(spaces, "/decoder", {{"type", "ByteLevel"}}), {"decoder", "ByteFallback"}),
      refused(altered(spaces, "/pre_tokenizer", meta["pre_tokenizer"]), {"pre_tokenizer"}),
      refused(altered(meta, "/pre_tokenizer/replacement", "_"), {"pre_tokenizer", "Metaspace"}),
      refused(altered(meta, "/pre_tokenizer/prepend_scheme", 1), {"pre_tokenizer"}),
      refused(no_byte.dump(), {"256 bytes", "0x41"}),
      accepted(with("/pre_tokenizer", {{"type", "Sequence"},
                                       {"pretokenizers",
                                        {{{"type", "Digits"}, {"individual_digits", true}},
                                         {{"type", "ByteLevel"}, {"add_prefix_space", false}}}}})),
      refused(with("/pre_tokenizer", {{"type", "Digits"}}), {"Digits"}),
      accepted(bpe_file().dump()),
      accepted(with("/model/merges/0", Json::array({"a", "a"}))),
      accepted(with("/model/ignore_merges", true)),
      accepted(with("/pre_tokenizer/add_prefix_space", true)),
      accepted(with("/added_tokens/0/lstrip", true)),
      accepted(with("/pre_tokenizer", split(R"(\p{L}+|\s)"))),
      accepted(with("/pre_tokenizer", split("x*"))),
      accepted(with("/model/vocab/\u4e2d", 300)),  // no byte is written so; never made
      accepted(with("/post_processor", opens_with(97))),
      accepted(with("/post_processor", Json{{"type", "ByteLevel"}})),
      refused(with("/post_processor", opens_with(70000)), {"special_tokens", "70000"}),
      refused(with("/post_processor", opens_with("a")), {"special_tokens", "an id from 0"}),
      refused("[]", {"an object", "tokenizer.json"}),
      refused("{", {"JSON", "byte 2"}),
      refused("{}", {"tokenizer.json: model"}),
      refused(with("/model", 1), {"an object", "number"}),
      refused(with("/model/type", "WordPiece"), {"`WordPiece`"}),
      refused(with("/model/vocab/a", 1e300), {"an id from 0"}),
      refused(with("/model/vocab/a", 98), {"id 98 twice"}),
      refused(with("/model/vocab", Json::object()), {"256 bytes", "0x00"}),
      refused(with("/model/merges", 1), {"model.merges", "a list"}),
      refused(with("/model/merges/0", "a"), {"model.merges[0]"}),
      refused(with("/model/merges/0", "a b c"), {"model.merges[0]"}),
      refused(with("/model/merges/0", "a b"), {"make a third"}),
      refused(with("/model/dropout", 0.1), {"model.dropout"}),
      refused(with("/model/byte_fallback", true), {"byte_fallback"}),
      refused(with("/normalizer", Json{{"type", "NFC"}}), {"normalizer"}),
      refused(with("/added_tokens", 1), {"added_tokens", "a list"}),
      refused(with("/added_tokens/0", 1), {"added_tokens[0]"}),
      refused(with("/added_tokens/0/content", ""), {"added_tokens[0].content"}),
      refused(with("/added_tokens/0/id", 97), {"token 97"}),
      refused(with("/added_tokens/0/id", -1), {"added_tokens[0].id"}),
      refused(with("/added_tokens/0/single_word", true), {"single_word"}),
      refused(with("/pre_tokenizer", nullptr), {"pre_tokenizer", "an object"}),
      refused(with("/pre_tokenizer/type", "Whitespace"), {"`Whitespace`"}),
      refused(with("/pre_tokenizer/use_regex", 1), {"use_regex", "true or false"}),
      refused(with("/pre_tokenizer", split("(a")), {"not a regular expression"}),
      refused(with("/pre_tokenizer", split("a", "Removed")), {"Isolated"}),
  };
}

std::vector<Example> csv_examples() {
  return {
      accepted(""),
      accepted("a,b\n1,2\n"),
      accepted("a,b\r\n1,2"),
      accepted("\"a,\"\"x\"\"\nb\",c\n\n"),
      accepted("\"\""),
      accepted(",,\n,"),
      accepted("a\"b,c\n"),
      accepted("\"x\"\r\n\"y\""),
      accepted(std::string("a\0b,c", 5)),
      refused("\"", {"no end", "data.csv:1 (byte 0)"}),
      refused("a\nb,\"c\nd", {"no end", "data.csv:2 (byte 4)"}),
      refused("\"a\"b", {"follows a quoted field", "(byte 3)"}),
      refused("\"a\" ,b", {"follows a quoted field"}),
      refused("x,\"a\"\"", {"no end"}),
  };
}

}  // namespace millrace::fuzz
