#include "data/byte_bpe.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <queue>

#include "core/error.h"
#include "core/text.h"
#include "data/bpe_file.h"
#include "data/bpe_tables.h"
#include "data/character_form.h"
#include "data/unicode_class.h"
#include "data/word_splitter.h"
#include "io/quote.h"

namespace millrace {
namespace {

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

using Json = nlohmann::json;
using bpe::AddedTokens, bpe::Merges, bpe::Words, bpe::kNoRank;

// --- tokens as bytes

// GPT-2 writes a byte as a printable character: those that are printable in Latin-1 as themselves,
// the others, in order, from U+0100 on.
std::array<char32_t, 256> byte_characters() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (char32_t b = 0; b < 256; ++b) {
    const bool printable =
        (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
    characters[b] = printable ? b : next++;
  }
  return characters;
}

// The bytes that a token of the file stands for; false when it has a character that stands for
// none.
bool to_bytes(std::string_view token, std::string& bytes) {
  static const std::array<int16_t, 0x180> byte_of = [] {
    std::array<int16_t, 0x180> table;
    table.fill(-1);
    const auto characters = byte_characters();
    for (size_t b = 0; b < 256; ++b) table[characters[b]] = static_cast<int16_t>(b);
    return table;
  }();
  bytes.clear();
  for (size_t at = 0; at < token.size();) {
    const CodePoint c = code_point_at(token, at);
    if (c.bytes == 0 || c.value >= byte_of.size() || byte_of[c.value] < 0) return false;
    bytes += static_cast<char>(byte_of[c.value]);
    at += c.bytes;
  }
  return true;
}

// --- merging

// The ids of words that are not tokens, by the word: of few words a text has many.
struct WordCache {
  static constexpr size_t kMostBytes = 23, kMostIds = 7, kPlaces = 1 << 14;
  struct Place {
    std::array<char, kMostBytes> bytes;
    uint8_t length = 0;
    std::array<int32_t, kMostIds> ids;
    uint8_t count = 0;
  };
  std::vector<Place> places = std::vector<Place>(kPlaces);
  std::vector<int32_t> ids;  // of the word at hand
};

class ByteBpeTokenizer : public Tokenizer {
 public:
  ByteBpeTokenizer(std::string_view text, const std::string& source_name) : json_(text) {
    const BpeFile file(text, source_name);
    const Json& model = file.object(file.root(), "model");
    if (const std::string type = file.string(model, "type"); type != "BPE")
      throw file.refuse("model.type", "`BPE`", quote(type));
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json& value = BpeFile::get(model, key); !value.is_null() && value != "")
        throw file.refuse(fmt::format("model.{}", key), "null", BpeFile::show(value));
    whole_words_first_ = file.flag(model, "ignore_merges");
    if (file.flag(model, "byte_fallback")) {
      characters_.emplace(file);
      if (whole_words_first_)
        throw file.refuse("model.ignore_merges", "false beside byte_fallback", "true");
    } else if (const Json& value = BpeFile::get(file.root(), "normalizer"); !value.is_null()) {
      throw file.refuse("normalizer", "null: byte-level BPE takes text as it is",
                        BpeFile::show(value));
    }
    read_vocabulary(file, file.object(model, "vocab"));
    read_added_tokens(file);
    read_opening(file, BpeFile::get(file.root(), "post_processor"));
    read_merges(file, BpeFile::get(model, "merges"));
    if (characters_)
      take_form();
    else
      read_splitter(file);
    if (!splitter_ || !splitter_->letters_end_at_space()) letters_end_at_space_ = false;
    itself_ = std::vector<std::atomic<uint8_t>>(tokens_.size());
  }

  std::string name() const override {
    return characters_ ? "BPE with byte_fallback" : "byte-level BPE";
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  std::vector<int32_t> opening() const override { return opening_; }
  TokenizerFile file() const override { return {"tokenizer.json", json_}; }
  TokenizerFile vocabulary_file() const override {
    Json root = parse_json(json_);
    root.erase("post_processor");
    return {"tokenizer.json", root.dump()};
  }

  void encode(std::string_view text, const TextPlace&, std::vector<int32_t>& out) const override {
    const Borrowed cache(*this);
    size_t at = 0;
    while (at < text.size()) {
      AddedTokens::Match match = added_.empty()
                                     ? AddedTokens::Match{text.size(), text.size(), nullptr}
                                     : added_.find(text, at);
      if (match.token && match.token->strip_left) match.begin = strip_left(text, at, match.begin);
      if (match.token && match.token->strip_right) match.end = strip_right(text, match.end);
      encode_part(text.substr(at, match.begin - at), at == 0, *cache.get(), out);
      if (match.token) out.push_back(match.token->id);
      at = match.end;
    }
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      check_token_id(id, vocab_size());
      text += tokens_[static_cast<size_t>(id)];
    }
    if (characters_) characters_->strip(text);
    return text;
  }

  // A word of letters ends before a space, and words are looked for from left to right.
  size_t last_cut(std::string_view text) const override {
    if (!letters_end_at_space_) return 0;
    for (size_t at = text.size(); at-- > 1;)
      if (text[at] == ' ' && is_ascii_letter(text[at - 1])) return at;
    return 0;
  }

 private:
  int32_t special_id(std::string_view text) const override {
    const auto found = special_.find(text);
    return found == special_.end() ? -1 : found->second;
  }
  bool is_special(int32_t id) const override {
    return std::ranges::any_of(special_, [&](const auto& token) { return token.second == id; });
  }

  // A cache for the length of a call: threads encode at the same time.
  class Borrowed {
   public:
    explicit Borrowed(const ByteBpeTokenizer& of) : of_(of) {
      const std::lock_guard lock(of_.mutex_);
      if (of_.caches_.empty()) {
        cache_ = std::make_unique<WordCache>();
      } else {
        cache_ = std::move(of_.caches_.back());
        of_.caches_.pop_back();
      }
    }
    ~Borrowed() {
      const std::lock_guard lock(of_.mutex_);
      of_.caches_.push_back(std::move(cache_));
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    WordCache* get() const { return cache_.get(); }

   private:
    const ByteBpeTokenizer& of_;
    std::unique_ptr<WordCache> cache_;
  };

  void put_token(const BpeFile& file, int32_t id, std::string bytes, const std::string& key) {
    const auto at = static_cast<size_t>(id);
    if (at >= tokens_.size()) {
      tokens_.resize(at + 1);
      known_.resize(at + 1);
    }
    if (known_[at]) throw file.refuse(key, "every id once", fmt::format("id {} twice", id));
    known_[at] = true;
    tokens_[at] = std::move(bytes);
  }

  // The bytes that merging sees of a token of the file; false: it never meets it.
  bool to_word(std::string_view token, std::string& word) const {
    if (!characters_) return to_bytes(token, word) && !token.empty();
    word = token;
    return !token.empty();
  }

  void read_vocabulary(const BpeFile& file, const Json& vocabulary) {
    std::string bytes;
    std::vector<bool> mergeable;
    for (const auto& [token, value] : vocabulary.items()) {
      const std::string key = "model.vocab." + quote(token);
      const int32_t id = file.id(value, key);
      const bool is_word = to_word(token, bytes);
      put_token(file, id, is_word ? bytes : token, key);
      mergeable.resize(tokens_.size());
      mergeable[static_cast<size_t>(id)] = is_word;
    }
    size_t total = 0;
    for (size_t id = 0; id < tokens_.size(); ++id) total += mergeable[id] ? tokens_[id].size() : 0;
    word_bytes_.reserve(total);  // the table looks into it
    words_ = Words(vocabulary.size());
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (!mergeable[id]) continue;
      const size_t begin = word_bytes_.size();
      word_bytes_ += tokens_[id];
      words_.set(std::string_view(word_bytes_).substr(begin), static_cast<int32_t>(id));
    }
    for (size_t b = 0; b < 256; ++b) {
      const char byte = static_cast<char>(b);
      byte_ids_[b] = characters_ ? words_.get(CharacterForm::byte_token(static_cast<uint8_t>(b)))
                                 : words_.get({&byte, 1});
      if (byte_ids_[b] < 0)
        throw file.refuse("model.vocab", "a token for each of the 256 bytes",
                          fmt::format("none for byte 0x{:02X}", b));
    }
  }

  void read_added_tokens(const BpeFile& file) {
    const Json& list = BpeFile::get(file.root(), "added_tokens");
    if (list.is_null()) return;
    if (!list.is_array()) throw file.refuse("added_tokens", "a list", list.type_name());
    int32_t start = -1, end = -1;  // where no other file declares them
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string key = fmt::format("added_tokens[{}]", i);
      if (!list[i].is_object()) throw file.refuse(key, "an object", list[i].type_name());
      const std::string content = file.string(list[i], "content");
      const int32_t id = file.id(BpeFile::get(list[i], "id"), key + ".id");
      if (content.empty()) throw file.refuse(key + ".content", "a text", "an empty one");
      if (file.flag(list[i], "single_word"))
        throw file.refuse(key + ".single_word", "false", "true");
      // GPT-2's end of text is also a word of its vocabulary, under the same id.
      const auto at = static_cast<size_t>(id);
      if (at >= tokens_.size() || !known_[at])
        put_token(file, id, content, key + ".id");
      else if (tokens_[at] != content)
        throw file.refuse(key, fmt::format("{}, which is token {}", quote(tokens_[at]), id),
                          quote(content));
      if (characters_ && characters_->normalizes() && file.flag(list[i], "normalized"))
        throw file.refuse(key + ".normalized", "false, beside a normalizer", "true");
      special_[content] = id;
      const bool rstrip = file.flag(list[i], "rstrip");
      added_.add(content, {id, file.flag(list[i], "lstrip"), rstrip});
      if (content.find(' ') != content.npos || (rstrip && is_ascii_letter(content.back())))
        letters_end_at_space_ = false;
      for (const char* name : {"<|begin_of_text|>", "<s>", "<bos>"})
        if (content == name && start < 0) start = id;
      for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"})
        if (content == name && end < 0) end = id;
    }
    set_ends(start >= 0 ? start : end, end);
  }

  // The special tokens that a template has before its text: Llama 3 has one, GPT-2 has no template.
  void read_opening(const BpeFile& file, const Json& processor) {
    if (!processor.is_object()) return;
    const Json &type = BpeFile::get(processor, "type"),
               &list = BpeFile::get(processor, "processors");
    if (type == "Sequence" && list.is_array())
      for (const Json& part : list)
        if (part.is_object() && BpeFile::get(part, "type") != "Sequence") read_opening(file, part);
    if (type != "TemplateProcessing") return;
    for (const Json& part : BpeFile::get(processor, "single")) {
      const Json& special = part.is_object() ? BpeFile::get(part, "SpecialToken") : Json();
      if (!special.is_object()) return;
      const std::string key = "post_processor.special_tokens", name = file.string(special, "id");
      const Json& token = file.object(file.object(processor, "special_tokens"), name.c_str());
      for (const Json& value : BpeFile::get(token, "ids")) {
        const int32_t id = file.id(value, key);
        if (id >= vocab_size() || !known_[static_cast<size_t>(id)])
          throw file.refuse(key, "tokens of the vocabulary", BpeFile::show(value));
        opening_.push_back(id);
      }
    }
  }

  void read_merges(const BpeFile& file, const Json& list) {
    if (!list.is_array()) throw file.refuse("model.merges", "a list", list.type_name());
    merges_ = Merges(list.size());
    std::string left, right;
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string key = fmt::format("model.merges[{}]", i);
      std::string_view a, b;
      if (list[i].is_string()) {
        const std::string_view both = list[i].get_ref<const std::string&>();
        const size_t space = both.find(' ');
        if (space == both.npos || both.find(' ', space + 1) != both.npos)
          throw file.refuse(key, "two tokens with a space between", BpeFile::show(list[i]));
        a = both.substr(0, space);
        b = both.substr(space + 1);
      } else if (list[i].is_array() && list[i].size() == 2 && list[i][0].is_string() &&
                 list[i][1].is_string()) {
        a = list[i][0].get_ref<const std::string&>();
        b = list[i][1].get_ref<const std::string&>();
      } else {
        throw file.refuse(key, "two tokens", BpeFile::show(list[i]));
      }
      const bool are_words = to_word(a, left) && to_word(b, right);
      const int32_t l = are_words ? words_.get(left) : -1, r = are_words ? words_.get(right) : -1,
                    both = l >= 0 && r >= 0 ? words_.get(left + right) : -1;
      if (both < 0)
        throw file.refuse(key, "two tokens of the vocabulary that make a third",
                          BpeFile::show(list[i]));
      merges_.set(l, r, {static_cast<uint32_t>(i), both});
    }
  }

  void read_splitter(const BpeFile& file) {
    const Json& whole = file.object(file.root(), "pre_tokenizer");
    std::vector<const Json*> stages;
    if (file.string(whole, "type") == "Sequence") {
      const Json& list = BpeFile::get(whole, "pretokenizers");
      if (!list.is_array())
        throw file.refuse("pre_tokenizer.pretokenizers", "a list", list.type_name());
      for (const Json& stage : list) {
        if (!stage.is_object())
          throw file.refuse("pre_tokenizer.pretokenizers", "objects", stage.type_name());
        stages.push_back(&stage);
      }
    } else {
      stages.push_back(&whole);
    }
    bool bytes = false;
    std::optional<bool> each_digit;  // digits stand apart: each, or a run of them
    for (const Json* stage : stages) {
      const std::string type = file.string(*stage, "type");
      if (type == "ByteLevel") {
        bytes = true;
        add_space_ = file.flag(*stage, "add_prefix_space", true);
        if (!file.flag(*stage, "use_regex", true)) continue;
        if (splitter_)
          throw file.refuse("pre_tokenizer", "one expression",
                            "a Split and a ByteLevel with its own");
        splitter_ = make_gpt2_splitter();
      } else if (type == "Digits" && stage == stages[0] && stages.size() > 1) {
        each_digit = file.flag(*stage, "individual_digits");
      } else if (type == "Split" && !splitter_ && !bytes && !each_digit) {
        const Json& pattern = file.object(*stage, "pattern");
        if (file.string(*stage, "behavior") != "Isolated" || file.flag(*stage, "invert"))
          throw file.refuse("pre_tokenizer Split", "behavior `Isolated`, not inverted",
                            BpeFile::show(*stage));
        splitter_ = make_splitter(file.string(pattern, "Regex"), file.name());
      } else {
        throw file.refuse("pre_tokenizer", "ByteLevel, or one Split or Digits and then ByteLevel",
                          quote(type));
      }
    }
    if (!bytes) throw file.refuse("pre_tokenizer", "ByteLevel", "none");
    if (add_space_ && stages.size() > 1)
      throw file.refuse("pre_tokenizer", "add_prefix_space false behind another stage", "true");
    if (each_digit) splitter_ = make_digit_splitter(*each_digit, std::move(splitter_));
  }

  // Everything of the file has been read: tokens become what they stand for.
  void take_form() {
    splitter_ = characters_->splitter(tokens_, words_.get(CharacterForm::kMark) >= 0);
    for (std::string& token : tokens_) token = CharacterForm::shown(token);
  }

  static bool is_space_before(std::string_view text, size_t end, size_t& begin) {
    // The start of the character that ends at `end`.
    begin = end - 1;
    while (begin > 0 && end - begin < 4 && (text[begin] & 0xC0) == 0x80) --begin;
    const CodePoint c = code_point_at(text, begin);
    return c.bytes == end - begin && unicode_class(c.value) == UnicodeClass::space;
  }
  static size_t strip_left(std::string_view text, size_t from, size_t begin) {
    for (size_t before = 0; begin > from && is_space_before(text, begin, before);) begin = before;
    return std::max(begin, from);
  }
  static size_t strip_right(std::string_view text, size_t end) {
    while (end < text.size()) {
      const CodePoint c = code_point_at(text, end);
      if (c.bytes == 0 || unicode_class(c.value) != UnicodeClass::space) break;
      end += c.bytes;
    }
    return end;
  }

  // Text without added tokens. `is_first`: nothing stands before it.
  void encode_part(std::string_view text, bool is_first, WordCache& cache,
                   std::vector<int32_t>& out) const {
    if (text.empty()) return;
    std::string spaced;
    if (characters_) {
      spaced = characters_->spelled(text, is_first);
      text = spaced;
    } else if (add_space_ && text[0] != ' ') {
      spaced = " " + std::string(text);
      text = spaced;
    }
    for (size_t at = 0; at < text.size();) {
      const size_t end = splitter_ ? splitter_->word_end(text, at) : text.size();
      encode_word(text.substr(at, end - at), cache, out);
      at = end;
    }
  }

  void encode_word(std::string_view word, WordCache& cache, std::vector<int32_t>& out) const {
    if (const int32_t id = words_.get(word); id >= 0 && is_itself(id, word, cache)) {
      out.push_back(id);
      return;
    }
    if (word.size() > WordCache::kMostBytes) {
      merge(word, cache.ids);
      out.insert(out.end(), cache.ids.begin(), cache.ids.end());
      return;
    }
    WordCache::Place& place =
        cache.places[XXH3_64bits(word.data(), word.size()) % WordCache::kPlaces];
    if (place.length != word.size() || std::memcmp(place.bytes.data(), word.data(), word.size())) {
      merge(word, cache.ids);
      if (cache.ids.size() > WordCache::kMostIds) {
        out.insert(out.end(), cache.ids.begin(), cache.ids.end());
        return;
      }
      std::copy(word.begin(), word.end(), place.bytes.begin());
      place.length = static_cast<uint8_t>(word.size());
      std::copy(cache.ids.begin(), cache.ids.end(), place.ids.begin());
      place.count = static_cast<uint8_t>(cache.ids.size());
    }
    out.insert(out.end(), place.ids.begin(), place.ids.begin() + place.count);
  }

  // A word that is a token need not be what merging makes of it. Found out once.
  bool is_itself(int32_t id, std::string_view word, WordCache& cache) const {
    enum : uint8_t { unknown, yes, no };
    if (whole_words_first_) return true;
    std::atomic<uint8_t>& known = itself_[static_cast<size_t>(id)];
    uint8_t answer = known.load(std::memory_order_relaxed);
    if (answer == unknown) {
      merge(word, cache.ids);
      answer = cache.ids.size() == 1 ? yes : no;
      known.store(answer, std::memory_order_relaxed);
    }
    return answer == yes;
  }

  void merge(std::string_view word, std::vector<int32_t>& ids) const {
    ids.clear();
    for (size_t at = 0, size = 1; at < word.size(); at += size) {
      if (characters_) {
        size = std::max<size_t>(1, code_point_at(word, at).bytes);
        if (const int32_t id = words_.get(word.substr(at, size)); id >= 0) {
          ids.push_back(id);
          continue;
        }
      }
      for (const char c : word.substr(at, size))
        ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    }
    // The simple way looks at all pairs for every merge; a run without spaces may be of any length.
    if (ids.size() <= 48)
      merge_few(ids);
    else
      merge_many(ids);
  }

  void merge_few(std::vector<int32_t>& ids) const {
    std::array<Merges::Merge, 48> pairs;
    size_t count = ids.size();
    for (size_t i = 0; i + 1 < count; ++i) pairs[i] = merges_.get(ids[i], ids[i + 1]);
    while (count > 1) {
      size_t best = 0;
      for (size_t i = 1; i + 1 < count; ++i)
        if (pairs[i].rank < pairs[best].rank) best = i;
      if (pairs[best].rank == kNoRank) break;
      ids[best] = pairs[best].id;
      --count;
      for (size_t i = best + 1; i < count; ++i) ids[i] = ids[i + 1];
      for (size_t i = best + 1; i + 1 < count; ++i) pairs[i] = pairs[i + 1];
      if (best + 1 < count) pairs[best] = merges_.get(ids[best], ids[best + 1]);
      if (best > 0) pairs[best - 1] = merges_.get(ids[best - 1], ids[best]);
    }
    ids.resize(count);
  }

  // The same with a heap of pairs over a linked list.
  void merge_many(std::vector<int32_t>& ids) const {
    struct Pair {
      uint32_t rank;
      uint32_t at;  // of the left one
      int32_t left, right, id;
      bool operator>(const Pair& other) const {
        return std::pair(rank, at) > std::pair(other.rank, other.at);
      }
    };
    constexpr uint32_t kEnd = ~uint32_t{0};
    MR_CHECK(ids.size() < kEnd, "a word of {} bytes", ids.size());
    const auto count = static_cast<uint32_t>(ids.size());
    std::vector<uint32_t> next(count), before(count);
    for (uint32_t i = 0; i < count; ++i) {
      next[i] = i + 1 < count ? i + 1 : kEnd;
      before[i] = i > 0 ? i - 1 : kEnd;
    }
    std::priority_queue<Pair, std::vector<Pair>, std::greater<>> pairs;
    auto consider = [&](uint32_t at) {
      if (at == kEnd || next[at] == kEnd) return;
      const int32_t left = ids[at], right = ids[next[at]];
      if (const Merges::Merge m = merges_.get(left, right); m.rank != kNoRank)
        pairs.push({m.rank, at, left, right, m.id});
    };
    for (uint32_t i = 0; i < count; ++i) consider(i);
    while (!pairs.empty()) {
      const Pair pair = pairs.top();
      pairs.pop();
      const uint32_t right = next[pair.at];
      if (ids[pair.at] != pair.left || right == kEnd || ids[right] != pair.right) continue;
      ids[pair.at] = pair.id;
      ids[right] = -1;  // gone
      next[pair.at] = next[right];
      if (next[right] != kEnd) before[next[right]] = pair.at;
      consider(before[pair.at]);
      consider(pair.at);
    }
    std::erase(ids, -1);
  }

  std::string json_;
  std::vector<std::string> tokens_;  // bytes by id; empty where an id is not used
  std::vector<bool> known_;
  std::string word_bytes_;  // of the tokens that merging can make
  Words words_{0};
  Merges merges_{0};
  AddedTokens added_;
  std::array<int32_t, 256> byte_ids_{};
  std::unique_ptr<WordSplitter> splitter_;  // null: the text is one word
  bool whole_words_first_ = false, add_space_ = false, letters_end_at_space_ = true;
  std::optional<CharacterForm> characters_;              // none: bytes
  std::map<std::string, int32_t, std::less<>> special_;  // the added tokens
  std::vector<int32_t> opening_;
  mutable std::vector<std::atomic<uint8_t>> itself_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<WordCache>> caches_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_bpe_tokenizer(std::string_view tokenizer_json,
                                                   const std::string& source_name) {
  return std::make_unique<ByteBpeTokenizer>(tokenizer_json, source_name);
}

}  // namespace millrace
