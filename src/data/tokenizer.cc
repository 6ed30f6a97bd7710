#include "data/tokenizer.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/text.h"
#include "data/byte_bpe.h"
#include "data/code_point_table.h"
#include "io/quote.h"

namespace millrace {
namespace {

// The largest published ones take 30 MB.
constexpr int64_t kMaxTokenizerBytes = int64_t{64} << 20;

// file:line:column (byte offset), the column counted in characters.
std::string place(const std::string& source_name, std::string_view text, size_t at) {
  const std::string_view before = text.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 == 0
  const auto column = 1 + std::count_if(before.begin() + static_cast<ptrdiff_t>(line_start),
                                        before.end(), [](char c) { return (c & 0xC0) != 0x80; });
  return fmt::format("{}:{}:{} (byte {})", source_name, line, column, at);
}

[[noreturn]] void not_utf8(std::string_view text, const std::string& source_name, size_t at) {
  std::string bytes;
  for (const char c : text.substr(at, 4)) {
    bytes += fmt::format("{}{:02X}", bytes.empty() ? "" : " ", static_cast<unsigned char>(c));
  }
  throw Error({.code = ErrorCode::config,
               .what = "the text is not UTF-8",
               .where = place(source_name, text, at),
               .expected = "UTF-8, which the char tokenizer reads",
               .got = "bytes " + bytes,
               .remedy = "convert the text to UTF-8, or use data.tokenizer=byte"});
}

// Calls use(code point, byte offset) for every character.
template <typename Use>
void for_each_code_point(std::string_view text, const std::string& source_name, Use use) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (c.bytes == 0) not_utf8(text, source_name, at);
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

class ByteTokenizer : public Tokenizer {
 public:
  std::string name() const override { return "byte"; }
  int64_t vocab_size() const override { return 256; }
  void encode(std::string_view text, const std::string&, std::vector<int32_t>& out) const override {
    out.reserve(out.size() + text.size());
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      check_token_id(id, vocab_size());
      text += static_cast<char>(static_cast<uint8_t>(id));
    }
    return text;
  }
  std::string to_json() const override { return nlohmann::json{{"type", "byte"}}.dump() + "\n"; }
};

class CharTokenizer : public Tokenizer {
 public:
  // Strictly increasing code points.
  explicit CharTokenizer(std::vector<char32_t> vocabulary) : vocabulary_(std::move(vocabulary)) {
    for (size_t i = 0; i < vocabulary_.size(); ++i)
      ids_.set(vocabulary_[i], static_cast<int32_t>(i));
  }
  std::string name() const override { return "char"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(vocabulary_.size()); }

  void encode(std::string_view text, const std::string& source_name,
              std::vector<int32_t>& out) const override {
    for_each_code_point(text, source_name, [&](char32_t c, size_t at) {
      const int32_t id = ids_.get(c);
      if (id < 0) unknown(c, text, source_name, at);
      out.push_back(id);
    });
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      check_token_id(id, vocab_size());
      append_utf8(vocabulary_[static_cast<size_t>(id)], text);
    }
    return text;
  }
  std::string to_json() const override {
    std::string characters;
    for (const char32_t c : vocabulary_) append_utf8(c, characters);
    return nlohmann::json{{"type", "char"}, {"vocabulary", characters}}.dump() + "\n";
  }

 private:
  [[noreturn]] void unknown(char32_t c, std::string_view text, const std::string& source_name,
                            size_t at) const {
    throw Error({.code = ErrorCode::config,
                 .what = "a character is not in the vocabulary: " + show(c),
                 .where = place(source_name, text, at),
                 .expected = fmt::format("one of the {} characters of the training text",
                                         vocabulary_.size()),
                 .got = show(c),
                 .remedy = "take the character out of this text, put it into the training text, or "
                           "train with data.tokenizer=byte"});
  }

  std::vector<char32_t> vocabulary_;
  CodePointTable<int32_t> ids_{-1};
};

}  // namespace

void check_token_id(int32_t id, int64_t vocab_size) {
  if (id >= 0 && id < vocab_size) return;
  throw Error({.what = "token id outside the vocabulary",
               .expected = fmt::format("0 to {}", vocab_size - 1),
               .got = std::to_string(id),
               .remedy = "use the tokenizer that the model was trained with"});
}

void check_utf8(std::string_view text, const std::string& source_name) {
  for_each_code_point(text, source_name, [](char32_t, size_t) {});
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view training_text,
                                               const std::string& source_name) {
  std::vector<uint64_t> seen(kLastCodePoint / 64 + 1);  // a bit for each
  for_each_code_point(training_text, source_name,
                      [&](char32_t c, size_t) { seen[c / 64] |= uint64_t{1} << c % 64; });
  std::vector<char32_t> vocabulary;
  for (size_t word = 0; word < seen.size(); ++word) {
    for (uint64_t bits = seen[word]; bits != 0; bits &= bits - 1) {
      vocabulary.push_back(static_cast<char32_t>(64 * word) +
                           static_cast<char32_t>(std::countr_zero(bits)));
    }
  }
  return std::make_unique<CharTokenizer>(std::move(vocabulary));
}

std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view json,
                                               const std::string& source_name) {
  const auto refuse = [&](const std::string& expected, const std::string& got) -> Error {
    return Error({.what = "not a tokenizer file",
                  .where = source_name,
                  .expected = expected,
                  .got = got,
                  .remedy = "restore the file from the run that wrote it"});
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
    root = nlohmann::json::parse(json, keep);
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
  if (*type == "byte") return make_byte_tokenizer();
  if (*type != "char") {
    throw refuse("type `char` or `byte`", type->dump(-1, ' ', /*ensure_ascii=*/true).substr(0, 40));
  }
  const auto characters = root.find("vocabulary");
  if (characters == root.end() || !characters->is_string()) {
    throw refuse("a string `vocabulary`",
                 characters == root.end() ? "none" : characters->type_name());
  }
  std::vector<char32_t> vocabulary;
  for_each_code_point(characters->get_ref<const std::string&>(), source_name,
                      [&](char32_t c, size_t) {
                        if (!vocabulary.empty() && c <= vocabulary.back()) {
                          throw refuse("a vocabulary in increasing order",
                                       show(c) + " after " + show(vocabulary.back()));
                        }
                        vocabulary.push_back(c);
                      });
  if (vocabulary.empty()) throw refuse("at least one character in `vocabulary`", "none");
  return std::make_unique<CharTokenizer>(std::move(vocabulary));
}

std::unique_ptr<Tokenizer> read_tokenizer(const fs::path& file) {
  return tokenizer_from_json(read_file(file, kMaxTokenizerBytes), file.string());
}

}  // namespace millrace
