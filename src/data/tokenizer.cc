#include "data/tokenizer.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/text.h"
#include "data/byte_bpe.h"
#include "data/code_point_table.h"
#include "data/sentence_piece.h"
#include "data/tokenizer_folder.h"
#include "data/word_tokenizer.h"
#include "io/json_parser.h"
#include "io/quote.h"
#include "io/utf8.h"

namespace millrace {
namespace {

// The largest published ones take 30 MB.
constexpr int64_t kMaxTokenizerBytes = int64_t{64} << 20;

// Calls use(code point, byte offset) for every character.
template <typename Use>
void for_each_code_point(std::string_view text, const TextPlace& place, Use use) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (c.bytes == 0)
      throw Error(
          *utf8_fault(text, place, "convert the text to UTF-8, or use data.tokenizer=byte"));
    use(c.value, at);
    at += c.bytes;
  }
}

// U+00E9 `é`, the sign itself left out where it would not print.
std::string show(char32_t c) {
  std::string text = fmt::format("U+{:04X}", static_cast<uint32_t>(c));
  if (c < 0x20 || (c >= 0x7F && c < 0xA0)) return text;
  text += " `";
  append_utf8(c, text);
  return text + "`";
}

constexpr const char* kOwnFile = "tokenizer.json";

class ByteTokenizer : public Tokenizer {
 public:
  explicit ByteTokenizer(bool with_end) : with_end_(with_end) {
    if (with_end) set_ends(256, 256);
  }
  std::string name() const override { return "byte"; }
  int64_t vocab_size() const override { return with_end_ ? 257 : 256; }
  bool takes_any_bytes() const override { return true; }
  void encode(std::string_view text, const TextPlace&, std::vector<int32_t>& out) const override {
    out.reserve(out.size() + text.size());
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      check_token_id(id, vocab_size());
      if (id < 256) text += static_cast<char>(static_cast<uint8_t>(id));
    }
    return text;
  }
  size_t last_cut(std::string_view text) const override { return text.size(); }
  TokenizerFile file() const override {
    nlohmann::json json{{"type", "byte"}};
    if (with_end_) json["end"] = true;
    return {kOwnFile, json.dump() + "\n"};
  }

 private:
  bool with_end_;
};

class CharTokenizer : public Tokenizer {
 public:
  // Strictly increasing code points.
  CharTokenizer(std::vector<char32_t> vocabulary, bool with_end)
      : vocabulary_(std::move(vocabulary)), with_end_(with_end) {
    for (size_t i = 0; i < vocabulary_.size(); ++i)
      ids_.set(vocabulary_[i], static_cast<int32_t>(i));
    const auto end = static_cast<int32_t>(vocabulary_.size());
    if (with_end) set_ends(end, end);
  }
  std::string name() const override { return "char"; }
  int64_t vocab_size() const override {
    return static_cast<int64_t>(vocabulary_.size()) + (with_end_ ? 1 : 0);
  }

  void encode(std::string_view text, const TextPlace& place,
              std::vector<int32_t>& out) const override {
    for_each_code_point(text, place, [&](char32_t c, size_t at) {
      const int32_t id = ids_.get(c);
      if (id < 0) unknown(c, text, place, at);
      out.push_back(id);
    });
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      check_token_id(id, vocab_size());
      if (static_cast<size_t>(id) < vocabulary_.size())
        append_utf8(vocabulary_[static_cast<size_t>(id)], text);
    }
    return text;
  }
  // Behind the last whole character.
  size_t last_cut(std::string_view text) const override {
    size_t at = text.size();
    while (at > 0 && text.size() - at < 3 && (text[at - 1] & 0xC0) == 0x80) --at;
    if (at == 0) return text.size();  // not UTF-8: encode() says so
    const size_t lead = at - 1;
    const auto byte = static_cast<unsigned char>(text[lead]);
    const size_t wants = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    return text.size() - lead < wants ? lead : text.size();
  }
  TokenizerFile file() const override {
    std::string characters;
    for (const char32_t c : vocabulary_) append_utf8(c, characters);
    nlohmann::json json{{"type", "char"}, {"vocabulary", characters}};
    if (with_end_) json["end"] = true;
    return {kOwnFile, json.dump() + "\n"};
  }

 private:
  [[noreturn]] void unknown(char32_t c, std::string_view text, const TextPlace& place,
                            size_t at) const {
    throw Error({.code = ErrorCode::config,
                 .what = "a character is not in the vocabulary: " + show(c),
                 .where = place.inside(text, at),
                 .expected = fmt::format("one of the {} characters of the training text",
                                         vocabulary_.size()),
                 .got = show(c),
                 .remedy = "take the character out of this text, put it into the training text, or "
                           "train with data.tokenizer=byte"});
  }

  std::vector<char32_t> vocabulary_;
  bool with_end_;
  CodePointTable<int32_t> ids_{-1};
};

class IdTokenizer : public Tokenizer {
 public:
  explicit IdTokenizer(int64_t vocab_size) : vocab_size_(vocab_size) {}
  std::string name() const override { return "ids"; }
  int64_t vocab_size() const override { return vocab_size_; }
  void encode(std::string_view text, const TextPlace& place,
              std::vector<int32_t>& out) const override {
    for (size_t at = 0; at < text.size();) {
      if (text[at] == ' ' || text[at] == '\n') {
        ++at;
        continue;
      }
      int32_t id = -1;
      const auto [end, fault] = std::from_chars(text.data() + at, text.data() + text.size(), id);
      if (fault != std::errc() || id < 0 || id >= vocab_size_)
        throw Error(
            {.code = ErrorCode::config,
             .what = "a text that is not token ids",
             .where = place.inside(text, at),
             .expected = fmt::format("numbers from 0 to {} with spaces between", vocab_size_ - 1),
             .got = quote(text.substr(at, 20), 20),
             .remedy = "name a tokenizer in data.tokenizer to train on text"});
      out.push_back(id);
      at = static_cast<size_t>(end - text.data());
    }
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      check_token_id(id, vocab_size_);
      text += fmt::format("{}{}", text.empty() ? "" : " ", id);
    }
    return text;
  }
  size_t last_cut(std::string_view text) const override {
    return text.find_last_of(" \n") + 1;  // npos + 1 == 0
  }
  TokenizerFile file() const override {
    return {kOwnFile, nlohmann::json{{"type", "ids"}, {"vocab_size", vocab_size_}}.dump() + "\n"};
  }

 private:
  int64_t vocab_size_;
};

}  // namespace

void check_token_id(int32_t id, int64_t vocab_size) {
  if (id >= 0 && id < vocab_size) return;
  throw Error({.what = "token id outside the vocabulary",
               .expected = fmt::format("0 to {}", vocab_size - 1),
               .got = std::to_string(id),
               .remedy = "use the tokenizer that the model was trained with"});
}

void Tokenizer::declare(const DeclaredTokens& tokens) {
  if (const int32_t start = special_id(tokens.start_text); start >= 0)
    start_id_ = start;
  else if (is_special(tokens.start))
    start_id_ = tokens.start;
  std::vector<int32_t> ends;
  if (const int32_t end = special_id(tokens.end_text); end >= 0) ends.push_back(end);
  for (const int32_t id : tokens.ends)
    if (is_special(id) && std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
  if (!ends.empty()) end_ids_ = std::move(ends);
}

std::unique_ptr<Tokenizer> make_byte_tokenizer(bool with_end) {
  return std::make_unique<ByteTokenizer>(with_end);
}

void CharacterSet::add(std::string_view text, const TextPlace& place) {
  seen_.resize(kLastCodePoint / 64 + 1);
  for_each_code_point(text, place,
                      [&](char32_t c, size_t) { seen_[c / 64] |= uint64_t{1} << c % 64; });
}

void CharacterSet::add(const CharacterSet& other) {
  seen_.resize(kLastCodePoint / 64 + 1);
  for (size_t i = 0; i < other.seen_.size(); ++i) seen_[i] |= other.seen_[i];
}

std::vector<char32_t> CharacterSet::sorted() const {
  std::vector<char32_t> list;
  for (size_t word = 0; word < seen_.size(); ++word) {
    for (uint64_t bits = seen_[word]; bits != 0; bits &= bits - 1) {
      list.push_back(static_cast<char32_t>(64 * word) +
                     static_cast<char32_t>(std::countr_zero(bits)));
    }
  }
  return list;
}

std::unique_ptr<Tokenizer> make_char_tokenizer(std::vector<char32_t> vocabulary, bool with_end) {
  return std::make_unique<CharTokenizer>(std::move(vocabulary), with_end);
}

std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view text, const TextPlace& place) {
  CharacterSet characters;
  characters.add(text, place);
  return make_char_tokenizer(characters.sorted());
}

std::unique_ptr<Tokenizer> make_id_tokenizer(int64_t vocab_size) {
  return std::make_unique<IdTokenizer>(vocab_size);
}

std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view json,
                                               const std::string& source_name) {
  const auto refuse = [&](const std::string& expected, const std::string& got) -> Error {
    return Error({.code = ErrorCode::config,
                  .what = "not a tokenizer file",
                  .where = source_name,
                  .expected = expected,
                  .got = got,
                  .remedy = "fetch the file again, or restore it from the run that wrote it"});
  };
  if (static_cast<int64_t>(json.size()) > kMaxTokenizerBytes) {
    throw refuse("at most " + human_bytes(kMaxTokenizerBytes),
                 human_bytes(static_cast<int64_t>(json.size())));
  }
  // The parser would take a zero byte for the end of the text.
  if (const size_t at = json.find('\0'); at != json.npos) {
    throw refuse("JSON", fmt::format("a zero byte at {}", at));
  }
  std::set<std::string> keys;
  // Of a second key of the same name the parser would keep one. What lies deeper is of no use, and
  // kept it would cost a hundred times its size.
  auto keep = [&](int depth, nlohmann::json::parse_event_t event, const nlohmann::json& value) {
    if (depth == 1 && event == nlohmann::json::parse_event_t::key &&
        !keys.insert(value.get<std::string>()).second) {
      throw refuse(fmt::format("every key once, {} once", quote(value.get<std::string>())),
                   "it twice");
    }
    return depth <= 1;
  };
  nlohmann::json root;
  try {
    root = parse_json(json, keep);
  } catch (const nlohmann::json::parse_error& e) {
    throw refuse("JSON", fmt::format("a fault at byte {}", e.byte));
  } catch (const nlohmann::json::exception&) {  // 1e999
    throw refuse("JSON", "a number that is too large");
  }
  if (!root.is_object()) throw refuse("an object", root.type_name());
  if (root.contains("model")) return make_byte_bpe_tokenizer(json, source_name);
  const auto type = root.find("type");
  if (type == root.end() || !type->is_string()) {
    throw refuse("a string `type`", type == root.end() ? "none" : type->type_name());
  }
  const auto end = root.find("end");
  if (end != root.end() && !end->is_boolean())
    throw refuse("true or false as `end`", end->type_name());
  const bool with_end = end != root.end() && end->get<bool>();
  if (*type == "byte") return make_byte_tokenizer(with_end);
  if (*type == "word") return word_tokenizer_from_json(json, source_name);
  if (*type == "ids") {
    const auto size = root.find("vocab_size");
    if (size == root.end() || !size->is_number_integer() || *size < 1 || *size > (1 << 24))
      throw refuse("a `vocab_size` from 1 to 2^24",
                   size == root.end() ? "none" : printable(size->dump(), 40));
    return make_id_tokenizer(size->get<int64_t>());
  }
  if (*type != "char") {
    throw refuse("type `char`, `byte`, `word` or `ids`", printable(type->dump(), 40));
  }
  const auto characters = root.find("vocabulary");
  if (characters == root.end() || !characters->is_string()) {
    throw refuse("a string `vocabulary`",
                 characters == root.end() ? "none" : characters->type_name());
  }
  std::vector<char32_t> vocabulary;
  for_each_code_point(characters->get_ref<const std::string&>(), {source_name},
                      [&](char32_t c, size_t) {
                        if (!vocabulary.empty() && c <= vocabulary.back()) {
                          throw refuse("a vocabulary in increasing order",
                                       show(c) + " after " + show(vocabulary.back()));
                        }
                        vocabulary.push_back(c);
                      });
  if (vocabulary.empty()) throw refuse("at least one character in `vocabulary`", "none");
  return std::make_unique<CharTokenizer>(std::move(vocabulary), with_end);
}

std::unique_ptr<Tokenizer> read_tokenizer(const fs::path& file) {
  std::string bytes = read_file(file, kMaxTokenizerBytes);
  auto tokenizer = file.extension() == ".model"
                       ? make_sentence_piece_tokenizer(std::move(bytes), file.string())
                       : tokenizer_from_json(bytes, file.string());
  tokenizer->declare(declared_tokens(file.parent_path()));
  return tokenizer;
}

}  // namespace millrace
