// Tokenizers: text to token ids and back. `byte` has the 256 bytes as its vocabulary and takes
// anything; `char` has the characters (Unicode code points) of its training text; `ids` are numbers
// that others have made; byte-level BPE comes from a tokenizer.json (byte_bpe.h), SentencePiece
// from a .model or the training text (sentence_piece.h), words from the training text
// (word_tokenizer.h).
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "io/text_place.h"

namespace millrace {

// What a model folder keeps of a tokenizer.
struct TokenizerFile {
  std::string name;  // "tokenizer.json"
  std::string bytes;
  bool operator==(const TokenizerFile&) const = default;
};

// Which tokens the files beside a tokenizer say open and close texts. Ids that are no special
// tokens of it are passed over: what a model's config says may be a default that nobody looked at.
struct DeclaredTokens {
  int32_t start = -1;
  std::vector<int32_t> ends = {};
  std::string start_text = {}, end_text = {};  // as they are written; these count more
  bool operator==(const DeclaredTokens&) const = default;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;
  virtual int64_t vocab_size() const = 0;
  // Appends the ids of `text` to `out`, in linear time; any number of threads at once. `place` is
  // for the message when the text holds what this tokenizer does not know.
  virtual void encode(std::string_view text, const TextPlace& place,
                      std::vector<int32_t>& out) const = 0;
  // Whether a text may be any bytes. All others are made for Unicode characters, byte-level BPE
  // too: its words are cut by what characters they hold, and bytes that are none were never learned
  // from.
  virtual bool takes_any_bytes() const { return false; }
  // Error when an id is outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  // What a corpus is stored as: rare words may have ids of their own behind the vocabulary, which
  // models that do not copy read as unknown_id().
  virtual void encode_stored(std::string_view text, const TextPlace& place,
                             std::vector<int32_t>& out) const {
    encode(text, place, out);
  }
  virtual int64_t stored_size() const { return vocab_size(); }
  virtual int32_t unknown_id() const { return -1; }
  virtual std::string decode_stored(std::span<const int32_t> ids) const { return decode(ids); }
  // For models that copy: words outside the vocabulary, seen before or not, get vocab_size() + k,
  // where rare[k] is the word. `rare` is one example's.
  virtual void encode_extended(std::string_view text, const TextPlace& place,
                               std::vector<std::string>& /*rare*/,
                               std::vector<int32_t>& out) const {
    encode(text, place, out);
  }
  virtual std::string decode_extended(std::span<const int32_t> ids,
                                      std::span<const std::string> /*rare*/) const {
    return decode(ids);
  }
  // A token as it stands behind others, with the space before it where it has one: of two of them
  // the second.
  std::string token_text(int32_t id) const {
    const int32_t twice[] = {id, id};
    return decode(twice).substr(decode({twice, 1}).size());
  }
  // What opens and closes a record; -1: it has no such token.
  int32_t start_id() const { return start_id_; }
  int32_t end_id() const { return end_ids_.empty() ? -1 : end_ids_[0]; }
  // All that may close a text; the first is the one that is put there.
  const std::vector<int32_t>& end_ids() const { return end_ids_; }
  bool is_end(int32_t id) const { return std::ranges::find(end_ids_, id) != end_ids_.end(); }
  // What is declared takes the place of what the tokenizer alone says.
  void declare(const DeclaredTokens& tokens);
  // What the file itself says to put before a text; it need not be what opens a record.
  virtual std::vector<int32_t> opening() const { return {}; }
  // The last place at which `text` may be cut, whatever follows it: the ids of the two parts are
  // those of the whole. 0: none in sight.
  virtual size_t last_cut(std::string_view text) const = 0;
  virtual TokenizerFile file() const = 0;
  // Without rare words, and without what is put around a text: where two of these are equal, a
  // model reads the same ids.
  virtual TokenizerFile vocabulary_file() const { return file(); }

 protected:
  void set_ends(int32_t start, int32_t end) {
    start_id_ = start;
    end_ids_.assign(end >= 0 ? 1 : 0, end);
  }

 private:
  // Tokens that text does not become by itself: by what they are written as, or -1, and by id.
  virtual int32_t special_id(std::string_view /*text*/) const { return -1; }
  virtual bool is_special(int32_t /*id*/) const { return false; }
  int32_t start_id_ = -1;
  std::vector<int32_t> end_ids_;
};

// `with_end`: one token more, behind the others, opens and closes records.
std::unique_ptr<Tokenizer> make_byte_tokenizer(bool with_end = false);

// Which characters a text has.
class CharacterSet {
 public:
  // Error with file, line, column and byte offset at the first byte that is not strict UTF-8
  // (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
  void add(std::string_view text, const TextPlace& place);
  void add(const CharacterSet& other);
  std::vector<char32_t> sorted() const;

 private:
  std::vector<uint64_t> seen_;  // a bit for each
};
// Increasing code points.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::vector<char32_t> vocabulary,
                                               bool with_end = false);
// The characters of a text.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view text, const TextPlace& place);

// A text is numbers with spaces between.
std::unique_ptr<Tokenizer> make_id_tokenizer(int64_t vocab_size);

// Reads what file() gave, or a tokenizer.json of Hugging Face; takes nothing on trust.
std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view json,
                                               const std::string& source_name);
// The same, or a model of SentencePiece when the name ends in .model; with the start and end tokens
// that its folder declares (tokenizer_folder.h).
std::unique_ptr<Tokenizer> read_tokenizer(const fs::path& file);
// The files that a folder may keep a tokenizer in.
inline constexpr std::array<const char*, 2> kTokenizerFiles = {"tokenizer.json", "tokenizer.model"};

void check_token_id(int32_t id, int64_t vocab_size);

}  // namespace millrace
