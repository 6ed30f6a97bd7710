#include "data/word_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/text.h"
#include "data/unicode_class.h"
#include "io/quote.h"

namespace millrace {
namespace {

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// A character's class and its length in bytes.
struct Sign {
  UnicodeClass kind;
  size_t bytes;
};

std::array<UnicodeClass, 128> ascii_classes() {
  std::array<UnicodeClass, 128> classes{};
  for (char32_t c = 0; c < 128; ++c) classes[c] = unicode_class(c);
  return classes;
}

inline Sign sign_at(std::string_view text, size_t at) {
  static const std::array<UnicodeClass, 128> ascii = ascii_classes();
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {ascii[first], 1};
  const CodePoint c = code_point_at(text, at);
  if (c.bytes == 0) return {UnicodeClass::other, 1};
  return {unicode_class(c.value), c.bytes};
}

// The end of the run of one class that goes on at `at`.
size_t run_end(std::string_view text, size_t at, UnicodeClass kind, size_t most = ~size_t{0}) {
  for (; at < text.size() && most > 0; --most) {
    const Sign sign = sign_at(text, at);
    if (sign.kind != kind) break;
    at += sign.bytes;
  }
  return at;
}

bool is_line_end(char c) { return c == '\r' || c == '\n'; }

// \s+(?!\S)|\s+ : white space, but for its last sign where a word follows, if it has another.
size_t space_end(std::string_view text, size_t at) {
  size_t end = at, last = at;
  while (end < text.size()) {
    const Sign sign = sign_at(text, end);
    if (sign.kind != UnicodeClass::space) break;
    last = end;
    end += sign.bytes;
  }
  return end == text.size() || last == at ? end : last;
}

// The length of 's, 't, 're, 've, 'm, 'll or 'd at `at`, where a ' stands; 0: none. `fold`: of
// either case, and the long s, which folds to s.
size_t contraction(std::string_view text, size_t at, bool fold) {
  auto letter = [&](size_t i) -> char {
    if (at + i >= text.size()) return 0;
    const char c = text[at + i];
    return fold && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char a = letter(1), b = letter(2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
  if (fold && text.substr(at + 1).starts_with("\u017F")) return 3;
  return 0;
}

class Gpt2Splitter : public WordSplitter {
 public:
  size_t word_end(std::string_view text, size_t at) const override {
    if (text[at] == '\'')
      if (const size_t length = contraction(text, at, false)) return at + length;
    Sign sign = sign_at(text, at);
    if (text[at] == ' ' && at + 1 < text.size()) {
      const Sign next = sign_at(text, at + 1);
      if (next.kind != UnicodeClass::space) {
        ++at;
        sign = next;
      }
    }
    if (sign.kind == UnicodeClass::space) return space_end(text, at);
    return run_end(text, at + sign.bytes, sign.kind);
  }
};

class Llama3Splitter : public WordSplitter {
 public:
  size_t word_end(std::string_view text, size_t at) const override {
    if (text[at] == '\'')
      if (const size_t length = contraction(text, at, true)) return at + length;
    const Sign sign = sign_at(text, at);
    if (sign.kind == UnicodeClass::letter) return run_end(text, at, UnicodeClass::letter);
    if (sign.kind == UnicodeClass::number) return run_end(text, at, UnicodeClass::number, 3);
    const size_t next = at + sign.bytes;
    const Sign after = next < text.size() ? sign_at(text, next) : Sign{UnicodeClass::space, 0};
    if (!is_line_end(text[at]) && after.kind == UnicodeClass::letter)
      return run_end(text, next, UnicodeClass::letter);
    const bool spaced = text[at] == ' ' && after.kind == UnicodeClass::other && after.bytes > 0;
    if (sign.kind == UnicodeClass::other || spaced) {
      size_t end = run_end(text, spaced ? next : at, UnicodeClass::other);
      while (end < text.size() && is_line_end(text[end])) ++end;
      return end;
    }
    const size_t spaces = run_end(text, at, UnicodeClass::space);
    for (size_t end = spaces; end > at; --end)
      if (is_line_end(text[end - 1])) return end;
    return space_end(text, at);
  }
};

class DigitSplitter : public WordSplitter {
 public:
  DigitSplitter(bool each, std::unique_ptr<WordSplitter> between)
      : each_(each), between_(std::move(between)) {}
  size_t word_end(std::string_view text, size_t at) const override {
    const Sign sign = sign_at(text, at);
    if (sign.kind == UnicodeClass::number)
      return each_ ? at + sign.bytes : run_end(text, at, UnicodeClass::number);
    const size_t end = between_ ? between_->word_end(text, at) : text.size();
    // A digit ends the text of a word that reaches it or that it looks at: behind the white space
    // after its end.
    for (size_t i = at; i < text.size();) {
      const Sign next = sign_at(text, i);
      if (next.kind == UnicodeClass::number)
        return between_ ? between_->word_end(text.substr(0, i), at) : i;
      if (i >= end && next.kind != UnicodeClass::space) break;
      i += next.bytes;
    }
    return end;
  }
  bool letters_end_at_space() const override { return between_ != nullptr; }

 private:
  bool each_;
  std::unique_ptr<WordSplitter> between_;
};

// Any other expression. What lies between two matches is a word too.
class ExpressionSplitter : public WordSplitter {
 public:
  ExpressionSplitter(const std::string& expression, const std::string& where) {
    int fault = 0;
    PCRE2_SIZE at = 0;
    code_.reset(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C,
                      &fault, &at, nullptr));
    if (!code_) {
      unsigned char text[256];
      pcre2_get_error_message(fault, text, sizeof text);
      throw Error({.code = ErrorCode::config,
                   .what = "not a regular expression: " + quote(expression),
                   .where = where,
                   .expected = "an expression that PCRE2 reads",
                   .got = fmt::format("{} at byte {}", reinterpret_cast<char*>(text), at),
                   .remedy = "use a tokenizer.json of a published model"});
    }
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // slower without, nothing else
  }
  bool letters_end_at_space() const override { return false; }  // who knows
  size_t word_end(std::string_view text, size_t at) const override {
    // Kept by the thread: made anew for every word it would cost more than the match.
    thread_local const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
        pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
    // An empty match would not get on.
    const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), at, PCRE2_NOTEMPTY, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) return text.size();
    if (found < 0)
      throw Error({.what = "the tokenizer's regular expression gave up",
                   .where = fmt::format("byte {} of {}", at, text.size()),
                   .expected = "a match or none",
                   .got = fmt::format("PCRE2 error {}", found),
                   .remedy = "use a tokenizer.json of a published model"});
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
    return ends[0] > at ? ends[0] : ends[1];
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
};

}  // namespace

std::unique_ptr<WordSplitter> make_gpt2_splitter() { return std::make_unique<Gpt2Splitter>(); }

std::unique_ptr<WordSplitter> make_digit_splitter(bool each,
                                                  std::unique_ptr<WordSplitter> between) {
  return std::make_unique<DigitSplitter>(each, std::move(between));
}

std::unique_ptr<WordSplitter> make_splitter(const std::string& expression,
                                            const std::string& where) {
  if (expression == kGpt2) return std::make_unique<Gpt2Splitter>();
  if (expression == kLlama3) return std::make_unique<Llama3Splitter>();
  return std::make_unique<ExpressionSplitter>(expression, where);
}

std::string splitter_name(std::string_view expression) {
  return expression == kGpt2 ? "gpt-2" : expression == kLlama3 ? "llama-bpe" : "";
}

}  // namespace millrace
