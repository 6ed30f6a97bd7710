#include "data/word_tokenizer.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "core/error.h"
#include "core/text.h"
#include "data/code_point_table.h"
#include "data/unicode_class.h"
#include "io/json_parser.h"
#include "io/quote.h"

namespace millrace {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
constexpr const char* kCutWords = "set data.tokenizer to one that cuts words into pieces";

// --- signs

enum class Sign : uint8_t { other, letter, number, mark, space, line_end, not_ascii };

constexpr bool is_word_sign(Sign sign) {
  return sign == Sign::letter || sign == Sign::number || sign == Sign::mark;
}

constexpr std::array<Sign, 256> kSigns = [] {
  std::array<Sign, 256> signs{};
  for (size_t c = 0; c < 256; ++c) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) signs[c] = Sign::letter;
    if (c >= '0' && c <= '9') signs[c] = Sign::number;
    if ((c >= 0x09 && c <= 0x0D) || c == ' ') signs[c] = Sign::space;
    if (c >= 0x80) signs[c] = Sign::not_ascii;
  }
  signs['\n'] = Sign::line_end;
  return signs;
}();
Sign quick_sign(char c) { return kSigns[static_cast<uint8_t>(c)]; }

bool is_mark(char32_t c) {
  static const CodePointTable<bool> table = [] {
    CodePointTable<bool> marks(false);
#define MR_MARKS(first, last) \
  for (char32_t mark = first; mark <= last; ++mark) marks.set(mark, true);
#define MR_LOWER(first, last, step, to)
#include "data/word_signs.inc"
#undef MR_MARKS
#undef MR_LOWER
    return marks;
  }();
  return table.get(c);
}

char32_t lower(char32_t c) {
  static const CodePointTable<char32_t> table = [] {
    CodePointTable<char32_t> lower_cases(0);
#define MR_MARKS(first, last)
#define MR_LOWER(first, last, step, to)                      \
  for (char32_t upper = first; upper <= last; upper += step) \
    lower_cases.set(upper, to + (upper - first));
#include "data/word_signs.inc"
#undef MR_MARKS
#undef MR_LOWER
    return lower_cases;
  }();
  const char32_t found = table.get(c);
  return found == 0 ? c : found;
}

struct SignAt {
  Sign sign;
  char32_t value;
  size_t bytes;
};
SignAt sign_at(std::string_view text, size_t at) {
  const Sign quick = quick_sign(text[at]);
  if (quick != Sign::not_ascii) return {quick, static_cast<uint8_t>(text[at]), 1};
  const CodePoint c = code_point_at(text, at);
  if (c.bytes == 0) return {Sign::other, 0, 1};
  switch (unicode_class(c.value)) {
    case UnicodeClass::letter:
      return {Sign::letter, c.value, c.bytes};
    case UnicodeClass::number:
      return {Sign::number, c.value, c.bytes};
    case UnicodeClass::space:
      return {Sign::space, c.value, c.bytes};
    default:
      return {is_mark(c.value) ? Sign::mark : Sign::other, c.value, c.bytes};
  }
}

bool joins_letters(char32_t c) { return c == '\'' || c == '-' || c == 0x2019 || c == 0x2010; }

// --- words

// Where the word ends whose first sign, a letter, number or mark, is at `at`.
size_t word_end(std::string_view text, size_t at) {
  bool behind_letter = false;
  while (at < text.size()) {
    if (const Sign quick = quick_sign(text[at]); is_word_sign(quick)) {
      behind_letter = quick == Sign::letter;
      ++at;
      continue;
    }
    const SignAt here = sign_at(text, at);
    if (is_word_sign(here.sign)) {
      // A mark belongs to what it stands on.
      behind_letter = here.sign == Sign::letter || (here.sign == Sign::mark && behind_letter);
    } else if (!behind_letter || !joins_letters(here.value) || at + here.bytes == text.size() ||
               sign_at(text, at + here.bytes).sign != Sign::letter) {
      return at;
    }
    at += here.bytes;
  }
  return at;
}

// Calls use(word) for every word.
template <typename Use>
void for_each_word(std::string_view text, Use use) {
  for (size_t at = 0; at < text.size();) {
    const SignAt here = sign_at(text, at);
    const size_t end = is_word_sign(here.sign) ? word_end(text, at) : at + here.bytes;
    if (here.sign != Sign::space) use(text.substr(at, end - at));
    at = end;
  }
}

// The word in lower case: itself, or what it is made into in `buffer`.
std::string_view lower(std::string_view word, std::string& buffer) {
  const auto may_change = [](char c) { return (c >= 'A' && c <= 'Z') || (c & 0x80) != 0; };
  if (std::none_of(word.begin(), word.end(), may_change)) return word;
  buffer.clear();
  for (size_t at = 0; at < word.size();) {
    if ((word[at] & 0x80) == 0) {
      const char c = word[at++];
      buffer += c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
      continue;
    }
    const CodePoint c = code_point_at(word, at);
    if (c.bytes == 0)
      buffer += word[at];
    else
      append_utf8(lower(c.value), buffer);
    at += std::max<size_t>(c.bytes, 1);
  }
  return buffer;
}

bool is_utf8(std::string_view word) { return code_point_at(word, 0).bytes > 0; }

// `rare` and where its words stand, for the length of a call.
template <typename Word>
class Rare {
 public:
  explicit Rare(std::vector<Word>& words) : words_(words) {
    for (size_t k = 0; k < words.size(); ++k) places_.emplace(words[k], static_cast<int32_t>(k));
  }
  int32_t place_of(const Word& word) {
    const auto [found, is_new] = places_.emplace(word, static_cast<int32_t>(words_.size()));
    if (is_new) words_.push_back(word);
    return found->second;
  }

 private:
  std::vector<Word>& words_;
  std::unordered_map<Word, int32_t> places_;
};

// A text that is put together word by word.
class Sentence {
 public:
  void add(std::string_view word) {
    constexpr std::string_view kClosing = ".,;:!?)]}%", kOpening = "([{";
    const bool is_sign = word.size() == 1;
    const bool closes = is_sign && (word == "\n" || kClosing.find(word[0]) != kClosing.npos);
    if (!text_.empty() && !is_open_ && !closes) text_ += ' ';
    text_ += word;
    is_open_ = is_sign && (word == "\n" || kOpening.find(word[0]) != kOpening.npos);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  bool is_open_ = false;  // the next word stands right behind
};

Error refuse(const char* where, const std::string& expected, const std::string& got,
             const std::string& remedy) {
  return Error({.code = ErrorCode::config,
                .what = "no vocabulary of words can be made",
                .where = where,
                .expected = expected,
                .got = got,
                .remedy = remedy});
}

void check_fits_a_file(std::span<const std::string_view> words) {
  // Beside its bytes a word takes quotes and a comma; few need more, and they are single signs.
  constexpr int64_t kOthers = 4096;
  int64_t bytes = kOthers;
  for (const std::string_view word : words) bytes += static_cast<int64_t>(word.size()) + 3;
  if (bytes > kMaxFileBytes)
    throw refuse("data.train",
                 "different words that fit into a file of " + human_bytes(kMaxFileBytes),
                 fmt::format("{} words, {}", words.size(), human_bytes(bytes)), kCutWords);
}

}  // namespace

// --- counting

void WordCounts::add(std::string_view text, bool training) {
  for_each_word(text, [&](std::string_view word) { add_word(word, training ? 1 : 0); });
}

void WordCounts::add(const WordCounts& other) {
  for (size_t i = 0; i < other.size(); ++i) add_word(other[i].text, other[i].count);
}

WordCounts::Word WordCounts::operator[](size_t i) const {
  const Entry& entry = words_[i];
  return {std::string_view(bytes_).substr(entry.begin, entry.size), entry.count};
}

void WordCounts::add_word(std::string_view word, int64_t count) {
  if (2 * (words_.size() + 1) > places_.size()) {
    places_.assign(std::max<size_t>(1024, 2 * places_.size()), 0);
    for (size_t i = 0; i < words_.size(); ++i) {
      size_t at = words_[i].hash & (places_.size() - 1);
      while (places_[at] != 0) at = (at + 1) & (places_.size() - 1);
      places_[at] = static_cast<uint32_t>(i + 1);
    }
  }
  const uint64_t hash = XXH3_64bits(word.data(), word.size());
  size_t at = hash & (places_.size() - 1);
  for (; places_[at] != 0; at = (at + 1) & (places_.size() - 1)) {
    Entry& entry = words_[places_[at] - 1];
    if (entry.hash != hash || std::string_view(bytes_).substr(entry.begin, entry.size) != word)
      continue;
    entry.count += count;
    return;
  }
  if (words_.size() == INT32_MAX) {
    throw Error({.code = ErrorCode::config,
                 .what = "the text has too many different words",
                 .where = "data.train",
                 .expected = fmt::format("at most {}", INT32_MAX),
                 .got = "more",
                 .remedy = kCutWords});
  }
  words_.push_back({bytes_.size(), word.size(), hash, count});
  bytes_ += word;
  places_[at] = static_cast<uint32_t>(words_.size());
}

// --- the tokenizer

WordTokenizer::WordTokenizer(std::span<const std::string_view> words, int64_t vocab_size,
                             bool lower_case)
    : ids_(words.size()), vocab_size_(vocab_size), lower_case_(lower_case) {
  set_ends(kStart, kEnd);
  size_t total = 0;
  for (const std::string_view word : words) total += word.size();
  bytes_.reserve(total);  // views look into it
  words_.reserve(words.size());
  for (const std::string_view word : words) {
    bytes_ += word;
    words_.push_back(std::string_view(bytes_).substr(bytes_.size() - word.size()));
    ids_.set(words_.back(), kFirstWord + static_cast<int32_t>(words_.size()) - 1);
  }
}

std::unique_ptr<WordTokenizer> WordTokenizer::knowing(const WordCounts& texts) const {
  std::set<std::string> others;  // in an order that the file gives no other
  std::string buffer;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string_view word = lower_case_ ? lower(texts[i].text, buffer) : texts[i].text;
    if (ids_.get(word) < 0) others.emplace(word);
  }
  std::vector<std::string_view> words = words_;
  words.insert(words.end(), others.begin(), others.end());
  check_fits_a_file(words);
  return std::make_unique<WordTokenizer>(words, vocab_size_, lower_case_);
}

std::string_view WordTokenizer::word(int32_t id) const {
  check_token_id(id, open_size());
  constexpr std::array<std::string_view, kFirstWord> kOthers = {"<unk>", "<s>", "</s>"};
  const auto at = static_cast<size_t>(id);
  return id < kFirstWord ? kOthers[at] : words_[at - kFirstWord];
}

// Calls use(word, open id or -1).
template <typename Use>
void WordTokenizer::for_each_id(std::string_view text, Use use) const {
  std::string buffer;
  for_each_word(text, [&](std::string_view word) {
    if (lower_case_) word = lower(word, buffer);
    use(word, ids_.get(word));
  });
}

void WordTokenizer::encode(std::string_view text, const TextPlace&,
                           std::vector<int32_t>& out) const {
  for_each_id(text, [&](std::string_view, int32_t id) {
    out.push_back(id >= 0 && id < vocab_size_ ? id : kUnknown);
  });
}

void WordTokenizer::encode_open(std::string_view text, std::vector<int32_t>& out) const {
  for_each_id(text, [&](std::string_view, int32_t id) { out.push_back(std::max(id, kUnknown)); });
}

void WordTokenizer::extend(std::span<int32_t> ids, std::vector<int32_t>& rare) const {
  Rare places(rare);
  for (int32_t& id : ids) {
    check_token_id(id, open_size());
    if (id >= vocab_size_) id = static_cast<int32_t>(vocab_size_) + places.place_of(id);
  }
}

void WordTokenizer::encode_extended(std::string_view text, const TextPlace&,
                                    std::vector<std::string>& rare,
                                    std::vector<int32_t>& out) const {
  Rare places(rare);
  for_each_id(text, [&](std::string_view word, int32_t id) {
    const bool is_rare = id < 0 || id >= vocab_size_;
    out.push_back(is_rare ? static_cast<int32_t>(vocab_size_) + places.place_of(std::string(word))
                          : id);
  });
}

std::string WordTokenizer::decode(std::span<const int32_t> ids) const {
  return decode_extended(ids, {});
}

std::string WordTokenizer::decode_extended(std::span<const int32_t> ids,
                                           std::span<const std::string> rare) const {
  Sentence sentence;
  for (const int32_t id : ids) {
    check_token_id(id, vocab_size_ + static_cast<int64_t>(rare.size()));
    if (id == kStart || id == kEnd) continue;
    sentence.add(id < vocab_size_ ? word(id)
                                  : std::string_view(rare[static_cast<size_t>(id - vocab_size_)]));
  }
  return sentence.take();
}

std::string WordTokenizer::decode_stored(std::span<const int32_t> ids) const {
  Sentence sentence;
  for (const int32_t id : ids)
    if (id != kStart && id != kEnd) sentence.add(word(id));
  return sentence.take();
}

size_t WordTokenizer::last_cut(std::string_view text) const {
  const size_t at = text.find_last_of(" \t\n");
  return at == text.npos ? 0 : at;
}

TokenizerFile WordTokenizer::file_of(size_t count) const {
  auto words = nlohmann::json::array();
  for (const std::string_view word : std::span(words_).first(count)) {
    // A byte that is not UTF-8 cannot be a string there.
    if (is_utf8(word))
      words.push_back(word);
    else
      words.push_back(static_cast<uint8_t>(word[0]));
  }
  const nlohmann::json json{{"type", "word"},
                            {"lower_case", lower_case_},
                            {"vocab_size", vocab_size_},
                            {"words", std::move(words)}};
  return {"tokenizer.json", json.dump() + "\n"};
}

std::unique_ptr<WordTokenizer> make_word_tokenizer(const WordCounts& counts,
                                                   const WordOptions& options) {
  if (options.vocab_size <= WordTokenizer::kFirstWord || options.vocab_size > INT32_MAX) {
    throw refuse("data.vocab_size",
                 fmt::format("{} to {}", WordTokenizer::kFirstWord + 1, INT32_MAX),
                 std::to_string(options.vocab_size), "choose another size");
  }
  if (options.min_frequency < 1) {
    throw refuse("data.min_frequency", "at least 1", std::to_string(options.min_frequency),
                 "choose another frequency");
  }
  WordCounts lower_counts;
  if (options.lower_case) {
    std::string buffer;
    for (size_t i = 0; i < counts.size(); ++i)
      lower_counts.add_word(lower(counts[i].text, buffer), counts[i].count);
  }
  const WordCounts& source = options.lower_case ? lower_counts : counts;
  std::vector<WordCounts::Word> sorted;
  for (size_t i = 0; i < source.size(); ++i) sorted.push_back(source[i]);
  std::sort(sorted.begin(), sorted.end(), [](const WordCounts::Word& a, const WordCounts::Word& b) {
    return a.count != b.count ? a.count > b.count : a.text < b.text;
  });
  std::vector<std::string_view> words;
  int64_t vocab_size = WordTokenizer::kFirstWord;
  for (const WordCounts::Word& word : sorted) {
    words.push_back(word.text);
    if (word.count >= options.min_frequency && vocab_size < options.vocab_size) ++vocab_size;
  }
  if (vocab_size == WordTokenizer::kFirstWord) {
    if (options.min_frequency == 1) throw refuse("data.train", "a word", "none", "give a text");
    throw refuse("data.min_frequency",
                 fmt::format("words that occur {} times", options.min_frequency), "none",
                 "give more text, or set data.min_frequency=1");
  }
  check_fits_a_file(words);
  return std::make_unique<WordTokenizer>(words, vocab_size, options.lower_case);
}

// --- the file

namespace {

using Json = nlohmann::json;

class File {
 public:
  File(std::string_view text, const std::string& name) : name_(name) {
    if (static_cast<int64_t>(text.size()) > kMaxFileBytes) {
      throw refuse("at most " + human_bytes(kMaxFileBytes),
                   human_bytes(static_cast<int64_t>(text.size())));
    }
    // The parser would take a zero byte for the end of the text.
    if (const size_t at = text.find('\0'); at != text.npos)
      throw refuse("JSON", fmt::format("a zero byte at {}", at));
    std::set<std::string> keys;
    // Of a second key of the same name the parser would keep one.
    auto keep = [&](int depth, Json::parse_event_t event, const Json& value) {
      if (depth == 1 && event == Json::parse_event_t::key &&
          !keys.insert(value.get<std::string>()).second)
        throw refuse("every key once", quote(value.get<std::string>()) + " twice");
      return depth <= 2;
    };
    try {
      root_ = parse_json(text, keep);
    } catch (const Json::parse_error& e) {
      throw refuse("JSON", fmt::format("a fault at byte {}", e.byte));
    } catch (const Json::exception&) {  // 1e999
      throw refuse("JSON", "a number that is too large");
    }
    if (!root_.is_object()) throw refuse("an object", root_.type_name());
  }
  Error refuse(const std::string& expected, const std::string& got) const {
    return Error({.what = "not a file of a word tokenizer",
                  .where = name_,
                  .expected = expected,
                  .got = got,
                  .remedy = "restore the file from the run that wrote it"});
  }
  const Json& get(const char* key, Json::value_t type) const {
    static const Json kNull;
    const auto found = root_.find(key);
    const Json& value = found == root_.end() ? kNull : *found;
    if (value.type() != type)
      throw refuse(fmt::format("a {} `{}`", Json(type).type_name(), key), value.type_name());
    return value;
  }

 private:
  std::string name_;
  Json root_;
};

// The word that an entry of the list stands for.
std::string word_of(const File& file, const Json& entry, size_t i, bool lower_case) {
  const auto refuse = [&](const std::string& expected) {
    return file.refuse(fmt::format("{} as words[{}]", expected, i),
                       printable(entry.dump(-1, ' ', /*ensure_ascii=*/true), 60));
  };
  if (entry.is_number_unsigned()) {
    const auto byte = entry.get<uint64_t>();
    if (byte < 0x80 || byte > 0xFF) throw refuse("a byte from 128 to 255");
    return std::string(1, static_cast<char>(static_cast<uint8_t>(byte)));
  }
  if (!entry.is_string()) throw refuse("a word or a byte");
  const auto& word = entry.get_ref<const std::string&>();
  size_t count = 0;
  bool is_whole = false;
  for_each_word(word, [&](std::string_view part) {
    ++count;
    is_whole = part.size() == word.size();
  });
  if (count != 1 || !is_whole) throw refuse("one word");
  std::string buffer;
  if (lower_case && lower(word, buffer) != word) throw refuse("a word in lower case");
  return word;
}

}  // namespace

std::unique_ptr<WordTokenizer> word_tokenizer_from_json(std::string_view json,
                                                        const std::string& source_name) {
  const File file(json, source_name);
  if (const Json& type = file.get("type", Json::value_t::string); type != "word")
    throw file.refuse("type `word`", quote(type.get_ref<const std::string&>(), 40));
  const bool lower_case = file.get("lower_case", Json::value_t::boolean).get<bool>();
  const Json& list = file.get("words", Json::value_t::array);
  const auto vocab_size = file.get("vocab_size", Json::value_t::number_unsigned).get<uint64_t>();
  if (vocab_size <= WordTokenizer::kFirstWord ||
      vocab_size > list.size() + WordTokenizer::kFirstWord) {
    throw file.refuse(fmt::format("a vocab_size from {} to {}", WordTokenizer::kFirstWord + 1,
                                  list.size() + WordTokenizer::kFirstWord),
                      std::to_string(vocab_size));
  }
  std::vector<std::string> words;
  for (size_t i = 0; i < list.size(); ++i) words.push_back(word_of(file, list[i], i, lower_case));
  const std::vector<std::string_view> views(words.begin(), words.end());
  std::vector<std::string_view> sorted = views;
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    throw file.refuse("every word once", quote(*twice, 40) + " twice");
  return std::make_unique<WordTokenizer>(views, static_cast<int64_t>(vocab_size), lower_case);
}

}  // namespace millrace
