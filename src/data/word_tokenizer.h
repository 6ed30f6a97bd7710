// Whole words as tokens, for models that copy words from their input (See et al. 2017, "Get To The
// Point: Summarization with Pointer-Generator Networks"). A word is a run of letters, numbers and
// marks, with apostrophes and hyphens between its letters; every other sign is a word by itself, as
// is a line end and a byte that is not UTF-8. Other white space only separates.
//
// The most frequent words are the vocabulary. The rarer ones have ids behind it, "open" ones, so
// that a corpus is stored once whatever becomes of them: an ordinary model reads them as <unk>, a
// copying one numbers those of an example from the size of the vocabulary on.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe_tables.h"
#include "data/tokenizer.h"

namespace millrace {

// How often the words of a text occur. Neither the order in which texts are added nor how they are
// cut between words matters.
class WordCounts {
 public:
  struct Word {
    std::string_view text;  // as long as nothing is added
    int64_t count;          // in training texts
  };
  // Words of texts that are not for training are known, but not counted.
  void add(std::string_view text, bool training);
  void add(const WordCounts& other);
  void add_word(std::string_view word, int64_t count);  // one as it is
  size_t size() const { return words_.size(); }
  Word operator[](size_t i) const;  // in no order that means anything

 private:
  struct Entry {
    size_t begin, size;  // of bytes_
    uint64_t hash;
    int64_t count;
  };
  std::string bytes_;
  std::vector<Entry> words_;
  std::vector<uint32_t> places_;  // open addressing; 0: free, else 1 + index of a word
};

struct WordOptions {
  int64_t vocab_size = 50000;  // with <unk>, <s> and </s>
  int64_t min_frequency = 2;
  bool lower_case = false;  // character by character, in all alphabets that have cases
};

class WordTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kUnknown = 0, kStart = 1, kEnd = 2, kFirstWord = 3;

  // `words`: every one once, the most frequent first.
  WordTokenizer(std::span<const std::string_view> words, int64_t vocab_size, bool lower_case);
  // The same vocabulary; the other words of these texts are known behind it, so that they can be
  // copied. Error (config) when they are more than a file can hold.
  std::unique_ptr<WordTokenizer> knowing(const WordCounts& texts) const;

  std::string name() const override { return "word"; }
  int64_t vocab_size() const override { return vocab_size_; }
  int64_t open_size() const { return kFirstWord + static_cast<int64_t>(words_.size()); }
  // The word of an open id; "<unk>", "<s>", "</s>" for the first three.
  std::string_view word(int32_t id) const;

  void encode(std::string_view text, const TextPlace& place,
              std::vector<int32_t>& out) const override;
  // Rare words get their open id; one that was never seen is <unk>.
  void encode_open(std::string_view text, std::vector<int32_t>& out) const;
  void encode_stored(std::string_view text, const TextPlace&,
                     std::vector<int32_t>& out) const override {
    encode_open(text, out);
  }
  int64_t stored_size() const override { return open_size(); }
  int32_t unknown_id() const override { return kUnknown; }
  // Rewrites open ids from vocab_size() on to vocab_size() + k, where rare[k] is the open id.
  // `rare` is one example's: words that are not in it yet are put behind.
  void extend(std::span<int32_t> ids, std::vector<int32_t>& rare) const;
  void encode_extended(std::string_view text, const TextPlace&, std::vector<std::string>& rare,
                       std::vector<int32_t>& out) const override;

  // Words with single spaces between them, but none before . , ; : ! ? ) ] } % nor behind ( [ {,
  // nor beside a line end. <s> and </s> leave nothing.
  std::string decode(std::span<const int32_t> ids) const override;
  std::string decode_extended(std::span<const int32_t> ids,
                              std::span<const std::string> rare) const override;
  std::string decode_stored(std::span<const int32_t> ids) const override;

  // Before the last space, tab or line end: no word has one inside.
  size_t last_cut(std::string_view text) const override;
  TokenizerFile file() const override { return file_of(words_.size()); }
  TokenizerFile vocabulary_file() const override {
    return file_of(static_cast<size_t>(vocab_size_ - kFirstWord));
  }

 private:
  TokenizerFile file_of(size_t count) const;  // of the first words
  template <typename Use>
  void for_each_id(std::string_view text, Use use) const;

  std::string bytes_;  // of all words
  std::vector<std::string_view> words_;
  bpe::Words ids_;
  int64_t vocab_size_;
  bool lower_case_;
};

// Error (config) when there are no words, or more than a file can hold.
std::unique_ptr<WordTokenizer> make_word_tokenizer(const WordCounts& counts,
                                                   const WordOptions& options);
// Reads what file() gave; takes nothing on trust.
std::unique_ptr<WordTokenizer> word_tokenizer_from_json(std::string_view json,
                                                        const std::string& source_name);

}  // namespace millrace
