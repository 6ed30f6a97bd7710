// Damage: an input is a seed with a few changes, from single bits to whole lines and words of the
// format. Each is a function of (seed, index) alone, so that any of them can be made again.
#include <algorithm>
#include <array>
#include <cstring>

#include "tests/fuzz/fuzz.h"

namespace millrace::fuzz {
namespace {

constexpr size_t kLongestInput = 1 << 16;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

struct Range {
  size_t at = 0, size = 0;
};

class Mutator {
 public:
  Mutator(const Target& target, RandomStream* random) : target_(target), random_(*random) {}

  std::string some_seed() {
    if (target_.generate != nullptr && chance(2)) return target_.generate(random_);
    const auto& seeds = chance(4) ? target_.bad : target_.good;
    return seeds[random_.below(seeds.size())];
  }

  void change(std::string* text) {
    switch (random_.below(14)) {
      case 0:  // a bit
        if (!text->empty()) {
          char& c = (*text)[random_.below(text->size())];
          c = static_cast<char>(c ^ 1 << random_.below(8));
        }
        break;
      case 1:  // a byte
        if (!text->empty()) (*text)[random_.below(text->size())] = any_byte();
        break;
      case 2: {  // some bytes more
        std::string bytes;
        for (uint64_t i = 0, count = 1 + random_.below(4); i < count; ++i) bytes += any_byte();
        text->insert(position(*text), bytes);
        break;
      }
      case 3:  // a part less
        erase(text, part(*text));
        break;
      case 4: {  // a part twice, elsewhere
        const Range r = part(*text);
        const std::string copy = text->substr(r.at, r.size);
        text->insert(position(*text), copy);
        break;
      }
      case 5: {  // the front of this and the back of another
        const std::string other = unframed(some_seed());
        text->resize(position(*text));
        text->append(other.substr(position(other)));
        break;
      }
      case 6:  // the end is missing
        text->resize(position(*text));
        break;
      case 7:
      case 8:  // a word of the format, between or over what is there
        replace(text, chance(2) ? Range{position(*text), 0} : token(*text), some_word());
        break;
      case 9:
      case 10:
        change_number(text);
        break;
      case 11:
        move_pieces(text, token(*text), token(*text));
        break;
      case 12:
        move_pieces(text, line(*text), line(*text));
        break;
      default:
        // Many times the same: depth, length, and whatever is quadratic.
        if (chance(8)) {
          const Range r = chance(2) ? token(*text) : part(*text);
          const std::string unit = chance(2) ? text->substr(r.at, r.size) : some_word();
          if (!unit.empty()) {
            const size_t longest =
                (kLongestInput - std::min(kLongestInput, text->size())) / unit.size();
            std::string all;
            for (uint64_t i = 0, count = random_.below(longest >> random_.below(12)); i < count;
                 ++i) {
              all += unit;
            }
            text->insert(r.at, all);
          }
        } else {
          erase(text, token(*text));
        }
        break;
    }
    if (text->size() > kLongestInput) text->resize(kLongestInput);
  }

  bool chance(uint64_t one_in) { return random_.below(one_in) == 0; }
  std::string unframed(const std::string& bytes) const {
    return target_.has_length && bytes.size() > 8 ? bytes.substr(8) : bytes;
  }

 private:
  char any_byte() {
    static constexpr std::string_view kLikely("\0\x01\x04\t\n\r\x1b \"'\\{}[]:,#-~\x7f\x80\xc0\xff",
                                              25);
    return chance(2) ? kLikely[random_.below(kLikely.size())]
                     : static_cast<char>(random_.below(256));
  }
  const std::string& some_word() { return target_.words[random_.below(target_.words.size())]; }
  size_t position(const std::string& text) { return random_.below(text.size() + 1); }
  Range part(const std::string& text) {
    const size_t at = position(text);
    return {at,
            random_.below(std::min<size_t>(text.size() - at, size_t{1} << random_.below(8)) + 1)};
  }
  // A quoted text, a word, a number, a run of spaces or a sign.
  Range token(const std::string& text) {
    if (text.empty()) return {};
    size_t begin = random_.below(text.size()), end = begin + 1;
    const char c = text[begin];
    if (c == '"') {
      const size_t close = text.find('"', end);
      if (close != text.npos && close - begin < 100) end = close + 1;
    } else if (is_word(c) || c == ' ') {
      auto alike = [&](char other) { return c == ' ' ? other == ' ' : is_word(other); };
      while (begin > 0 && alike(text[begin - 1])) --begin;
      while (end < text.size() && alike(text[end])) ++end;
    }
    return {begin, end - begin};
  }
  Range line(const std::string& text) {
    if (text.empty()) return {};
    const size_t at = random_.below(text.size());
    const size_t begin = at == 0 ? 0 : text.rfind('\n', at - 1) + 1, end = text.find('\n', at);
    return {begin, (end == text.npos ? text.size() : end + 1) - begin};
  }

  static void erase(std::string* text, Range r) { text->erase(r.at, r.size); }
  static void replace(std::string* text, Range r, const std::string& by) {
    text->replace(r.at, r.size, by);
  }
  // Swaps two pieces, or copies one over or beside the other.
  void move_pieces(std::string* text, Range a, Range b) {
    if (b.at < a.at) std::swap(a, b);
    if (a.at + a.size > b.at) return;
    const std::string first = text->substr(a.at, a.size), second = text->substr(b.at, b.size);
    switch (random_.below(4)) {
      case 0:
        replace(text, b, first);
        replace(text, a, second);
        break;
      case 1:
        replace(text, b, first);
        break;
      case 2:
        text->insert(b.at, first);
        break;
      default:
        erase(text, a);
        break;
    }
  }
  void change_number(std::string* text) {
    std::vector<Range> numbers;
    for (size_t i = 0; i < text->size(); ++i) {
      if (!is_digit((*text)[i])) continue;
      const size_t begin = i;
      while (i < text->size() && is_digit((*text)[i])) ++i;
      numbers.push_back({begin, i - begin});
    }
    if (numbers.empty()) return;
    const Range r = numbers[random_.below(numbers.size())];
    std::string digits = text->substr(r.at, r.size);
    if (r.size < 18 && chance(2)) {  // nearby: an offset or a size that is just wrong
      const int64_t value = std::stoll(digits);
      digits = std::to_string(chance(2) ? value * 2
                                        : value + static_cast<int64_t>(random_.below(9)) - 4);
    } else {
      static const std::array<const char*, 16> kEdges = {"0",
                                                         "1",
                                                         "-1",
                                                         "2147483648",
                                                         "4294967296",
                                                         "9007199254740993",
                                                         "4611686018427387904",
                                                         "9223372036854775807",
                                                         "9223372036854775808",
                                                         "18446744073709551615",
                                                         "18446744073709551616",
                                                         "340282366920938463463374607431768211456",
                                                         "1e308",
                                                         "1e309",
                                                         "1.5",
                                                         "1e-400"};
      digits = kEdges[random_.below(kEdges.size())];
    }
    replace(text, r, digits);
  }

  const Target& target_;
  RandomStream& random_;
};

// The largest number in the text that could be a size.
size_t largest_number(const std::string& text) {
  size_t largest = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    size_t value = 0;
    while (i < text.size() && is_digit(text[i]) && value < 10'000) {
      value = value * 10 + static_cast<size_t>(text[i++] - '0');
    }
    if (value < 10'000) largest = std::max(largest, value);
  }
  return largest;
}

}  // namespace

std::string make_input(const Target& target, uint64_t seed, uint64_t index) {
  RandomStream random(seed, RandomUse::test, index);
  Mutator mutator(target, &random);
  std::string bytes = mutator.some_seed();
  static constexpr std::array<int, 8> kChanges = {1, 1, 1, 2, 2, 3, 5, 16};
  const int changes = mutator.chance(16) ? 0 : kChanges[random.below(kChanges.size())];
  if (!target.has_length || bytes.size() < 8 || mutator.chance(8)) {
    for (int i = 0; i < changes; ++i) mutator.change(&bytes);
    return target.repair != nullptr && !mutator.chance(8) ? target.repair(bytes) : bytes;
  }
  // The text behind the length is damaged and gets a true length again; otherwise nearly every
  // input would be refused for that. Half of the time as many bytes follow as the text seems to
  // say.
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  std::string text = bytes.substr(8, std::min<uint64_t>(length, bytes.size() - 8));
  std::string rest = bytes.substr(8 + text.size());
  for (int i = 0; i < changes; ++i) mutator.change(&text);
  if (mutator.chance(2)) rest.resize(largest_number(text), '\1');
  return with_length(text, rest);
}

}  // namespace millrace::fuzz
