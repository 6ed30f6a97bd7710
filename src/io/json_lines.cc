#include "io/json_lines.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/text.h"
#include "io/quote.h"

namespace millrace {
namespace {

static_assert(std::endian::native == std::endian::little, "plain_length counts from the low byte");

constexpr int kMaxDepth = 256;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// How many bytes from `text` on are plain characters of a string: ASCII, and neither a quote, a
// backslash nor a control character. Eight at a time: a byte's highest bit is set where the byte is
// none of them, or where a lower one of the eight is; only the lowest is asked for.
size_t plain_length(const char* text, size_t size) {
  constexpr uint64_t kEach = 0x0101010101010101;
  size_t at = 0;
  for (; at + 8 <= size; at += 8) {
    uint64_t eight;
    std::memcpy(&eight, text + at, 8);
    const uint64_t control = eight - kEach * 0x20;
    const uint64_t quote = (eight ^ kEach * '"') - kEach;
    const uint64_t backslash = (eight ^ kEach * '\\') - kEach;
    const uint64_t marks = (eight | control | quote | backslash) & kEach * 0x80;
    if (marks != 0) return at + static_cast<size_t>(std::countr_zero(marks)) / 8;
  }
  for (; at < size; ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x20 || byte >= 0x80 || byte == '"' || byte == '\\') break;
  }
  return at;
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

// One line. Every function begins at the thing it reads and ends behind it.
class JsonLines::Scanner {
 public:
  Scanner(std::string_view line, const TextPlace& place, std::vector<Key>& keys,
          std::vector<std::string>& fields, std::vector<size_t>& begins)
      : line_(line), place_(place), keys_(keys), fields_(fields), begins_(begins) {}

  void record() {
    if (line_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
    skip_space();
    if (peek() != '{') refuse("the line is not a JSON object", at_, "`{`");
    const size_t begin = at_;
    object(&keys_[0], 1);
    skip_space();
    if (at_ != line_.size()) refuse("something follows the record", at_, "the end of the line");
    for (const Key& key : keys_) {
      if (!key.seen && !key.fields.empty())
        refuse("a field is missing", begin, "a string", key.path);
      for (size_t i = 1; i < key.fields.size(); ++i) {
        fields_[key.fields[i]] = fields_[key.fields[0]];
        begins_[key.fields[i]] = begins_[key.fields[0]];
      }
    }
  }

 private:
  // Zero behind the end, which fits nowhere; nor does a zero byte in the line.
  char peek() const { return at_ < line_.size() ? line_[at_] : '\0'; }
  void skip_space() {
    while (is_space(peek())) ++at_;
  }

  // `path`: the field it is about, when it is about one.
  [[noreturn]] void refuse(const char* what, size_t at, const char* expected,
                           std::string_view path = {}) const {
    throw Error({.code = ErrorCode::config,
                 .what = what,
                 .where = place_.inside(line_, at) + (path.empty() ? "" : ": " + quote(path)),
                 .expected = expected,
                 .got = at < line_.size() ? quote(line_.substr(at, 40), 40) : "the end of the line",
                 .remedy = "mend the record, or pass over such with data.on_bad_record=skip"});
  }
  [[noreturn]] void not_json(const char* expected) const {
    refuse("the record is not JSON", at_, expected);
  }

  // `key`: what is asked for here, or null.
  void value(const Key* key, int depth) {
    const char c = peek();
    if (key != nullptr && !key->fields.empty() && c != '"')
      refuse("a field is not a string", at_, "a string", key->path);
    if (key != nullptr && !key->inner.empty() && c != '{')
      refuse("a field is missing", at_, "an object, which is to hold it",
             keys_[key->inner[0]].path);
    switch (c) {
      case '"':
        if (key == nullptr) return string(nullptr);
        begins_[key->fields[0]] = at_ + 1;
        return string(&fields_[key->fields[0]]);
      case '{':
        return object(key, depth);
      case '[':
        return list(depth);
      case 't':
        return word("true");
      case 'f':
        return word("false");
      case 'n':
        return word("null");
      default:
        if (c == '-' || is_digit(c)) return number();
        not_json("a value");
    }
  }

  void object(const Key* key, int depth) {
    check_depth(depth);
    ++at_;
    skip_space();
    if (peek() == '}') {
      ++at_;
      return;
    }
    for (;;) {
      if (peek() != '"') not_json("a key in quotes");
      const Key* inner = nullptr;
      if (key == nullptr) {
        string(nullptr);
      } else {
        const size_t begin = at_;
        string(&name_);
        inner = find(*key, begin);
      }
      skip_space();
      if (peek() != ':') not_json("`:` behind the key");
      ++at_;
      skip_space();
      value(inner, depth + 1);
      skip_space();
      const char c = peek();
      if (c != ',' && c != '}') not_json("`,` or `}`");
      ++at_;
      if (c == '}') return;
      skip_space();
    }
  }

  void list(int depth) {
    check_depth(depth);
    ++at_;
    skip_space();
    if (peek() == ']') {
      ++at_;
      return;
    }
    for (;;) {
      value(nullptr, depth + 1);
      skip_space();
      const char c = peek();
      if (c != ',' && c != ']') not_json("`,` or `]`");
      ++at_;
      if (c == ']') return;
      skip_space();
    }
  }

  void check_depth(int depth) const {
    if (depth > kMaxDepth) refuse("the record nests too deep", at_, "at most 256 levels");
  }

  // The key called name_ in the object of `key`, or null; `begin` is where it stands.
  const Key* find(const Key& key, size_t begin) {
    for (const size_t i : key.inner) {
      if (keys_[i].name != name_) continue;
      if (keys_[i].seen) refuse("a field is there twice", begin, "one", keys_[i].path);
      keys_[i].seen = true;
      return &keys_[i];
    }
    return nullptr;
  }

  // Decoded into `out`, or only checked when there is none.
  void string(std::string* out) {
    const size_t open = at_++;
    if (out != nullptr) out->clear();
    size_t kept = at_;  // what stands behind it and before at_ is still to be put out, as it is
    auto keep = [&] {
      if (out != nullptr) out->append(line_, kept, at_ - kept);
    };
    for (;;) {
      at_ += plain_length(line_.data() + at_, line_.size() - at_);
      if (at_ == line_.size()) {
        at_ = open;
        not_json("a string that has an end");
      }
      const auto byte = static_cast<unsigned char>(line_[at_]);
      if (byte >= 0x80) {
        // Such characters seldom come alone.
        do {
          const size_t length = code_point_at(line_, at_).bytes;
          if (length == 0) not_json("UTF-8");
          at_ += length;
        } while (at_ < line_.size() && static_cast<unsigned char>(line_[at_]) >= 0x80);
      } else if (byte == '"') {
        keep();
        ++at_;
        return;
      } else if (byte == '\\') {
        keep();
        const char32_t c = escaped();
        if (out != nullptr) append_utf8(c, *out);
        kept = at_;
      } else {
        not_json("control characters as escapes");
      }
    }
  }

  char32_t escaped() {
    const size_t begin = at_++;
    const char c = peek();
    if (c != 'u') {
      constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
      const size_t i = kLetters.find(c);
      if (i == kLetters.npos) {
        at_ = begin;
        not_json("one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u");
      }
      ++at_;
      return static_cast<unsigned char>(kMeanings[i]);
    }
    at_ = begin;
    const char32_t first = unit();
    if (first < 0xD800 || first > 0xDFFF) return first;
    if (first < 0xDC00 && line_.substr(at_, 2) == "\\u") {
      const char32_t second = unit();
      if (second >= 0xDC00 && second <= 0xDFFF)
        return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    }
    at_ = begin;
    not_json("both halves of a surrogate pair");
  }

  // \u and four hexadecimal digits.
  char32_t unit() {
    const std::string_view digits = line_.substr(at_ + 2, 4);
    uint16_t value = 0;
    const char* end = digits.data() + digits.size();
    // from_chars takes no sign here, but it would take fewer digits.
    if (digits.size() < 4 || std::from_chars(digits.data(), end, value, 16).ptr != end)
      not_json("four hexadecimal digits behind \\u");
    at_ += 6;
    return value;
  }

  void word(std::string_view expected) {
    if (line_.substr(at_, expected.size()) != expected) not_json("true, false or null");
    at_ += expected.size();
  }

  std::string_view digits() {
    const size_t begin = at_;
    while (is_digit(peek())) ++at_;
    if (at_ == begin) not_json("a digit");
    return line_.substr(begin, at_ - begin);
  }

  void number() {
    const size_t begin = at_;
    if (peek() == '-') ++at_;
    const size_t first = at_;
    if (peek() == '0') {
      ++at_;
    } else {
      digits();
    }
    const std::string_view whole = line_.substr(first, at_ - first);
    std::string_view fraction;
    if (peek() == '.') {
      ++at_;
      fraction = digits();
    }
    int64_t exponent = 0;
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      const bool negative = peek() == '-';
      if (negative || peek() == '+') ++at_;
      for (const char digit : digits()) {
        constexpr int64_t kEnough = int64_t{1} << 56;  // no line is that long
        exponent = std::min(kEnough, exponent * 10 + (digit - '0'));
      }
      if (negative) exponent = -exponent;
    }
    // JSON sets no limit, but what is no finite double means different things to different readers.
    // The number is below 10^magnitude, so only a large one needs converting; and a small one must
    // not be, because from_chars says of it too that it is out of range.
    int64_t magnitude = exponent + std::ssize(whole);
    if (whole == "0") {
      const size_t zeros = std::min(fraction.find_first_not_of('0'), fraction.size());
      magnitude = exponent - static_cast<int64_t>(zeros);
    }
    constexpr int64_t kLargest = 309;  // the largest double is 1.8e308
    if (magnitude < kLargest) return;
    double value = 0;
    const auto [end, error] = std::from_chars(line_.data() + begin, line_.data() + at_, value);
    if (error != std::errc() || !std::isfinite(value)) {
      at_ = begin;
      not_json("a number that fits a double");
    }
  }

  std::string_view line_;
  const TextPlace& place_;
  std::vector<Key>& keys_;
  std::vector<std::string>& fields_;
  std::vector<size_t>& begins_;
  std::string name_;
  size_t at_ = 0;
};

JsonLines::JsonLines(std::string_view text, std::span<const std::string> names, TextPlace place)
    : text_(text),
      keys_(1),
      begins_(names.size()),
      next_line_(place.line),
      first_byte_(place.byte),
      record_(std::move(place)) {
  for (size_t field = 0; field < names.size(); ++field) {
    const std::string& path = names[field];
    size_t here = 0;
    for (size_t begin = 0; begin <= path.size();) {
      const size_t end = std::min(path.find('.', begin), path.size());
      const std::string name = path.substr(begin, end - begin);
      const auto known = std::find_if(keys_[here].inner.begin(), keys_[here].inner.end(),
                                      [&](size_t i) { return keys_[i].name == name; });
      if (known != keys_[here].inner.end()) {
        here = *known;
      } else {
        keys_[here].inner.push_back(keys_.size());
        here = keys_.size();
        keys_.push_back({name, path.substr(0, end), {}, {}});
      }
      begin = end + 1;
    }
    keys_[here].fields.push_back(field);
  }
}

bool JsonLines::next(std::vector<std::string>& fields) {
  while (at_ < text_.size()) {
    const size_t begin = at_;
    const int64_t number = next_line_++;
    at_ = std::min(text_.find('\n', begin), text_.size() - 1) + 1;
    std::string_view line = text_.substr(begin, at_ - begin);
    if (line.ends_with('\n')) line.remove_suffix(1);
    if (std::all_of(line.begin(), line.end(), is_space)) continue;

    record_.line = number;
    record_.byte = first_byte_ + static_cast<int64_t>(begin);
    fields.resize(begins_.size());
    for (Key& key : keys_) key.seen = false;
    line_ = line;
    Scanner(line, record_, keys_, fields, begins_).record();
    return true;
  }
  fields.clear();
  return false;
}

TextPlace JsonLines::place(size_t field) const {
  TextPlace here = record_;
  here.advance(line_.substr(0, begins_[field]));
  here.form = TextPlace::Form::escaped;
  return here;
}

}  // namespace millrace
