#include "train/bleu.h"

#include <algorithm>
#include <cmath>

#include "train/text_signs.h"

namespace millrace {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  size_t at = text.find(from);
  if (at == text.npos) return;
  std::string result;
  size_t done = 0;
  for (; at != text.npos; at = text.find(from, done)) {
    result.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  text = result.append(text, done);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_no_digit(char c) { return !is_digit(c); }
bool is_point(char c) { return c == '.' || c == ','; }
bool is_dash(char c) { return c == '-'; }
// Punctuation of ASCII that is a word wherever it stands: all but apostrophe, comma, dash and
// point.
bool is_mark(char c) {
  return (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') || c == '/' || (c >= ':' && c <= '@') ||
         (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

// Puts spaces before, between and behind two neighbours that are of these kinds, from left to
// right; one is never in two pairs, which is visible in the result: of "a,,b" only the first comma
// is preceded by something. Bytes do what characters would: what is neither digit nor point nor
// dash has no byte that is.
template <typename First, typename Second>
std::string space_pairs(std::string_view text, First first, Second second, std::string_view before,
                        std::string_view between, std::string_view behind) {
  std::string result;
  result.reserve(text.size() * 2);
  for (size_t i = 0; i < text.size(); ++i) {
    if (i + 1 < text.size() && first(text[i]) && second(text[i + 1])) {
      result.append(before)
          .append(1, text[i])
          .append(between)
          .append(1, text[i + 1])
          .append(behind);
      ++i;
    } else {
      result += text[i];
    }
  }
  return result;
}

std::string_view without_space_at_end(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const TextSign sign = text_sign_at(text, at);
    at += sign.bytes;
    if (!sign.space) end = at;
  }
  return text.substr(0, end);
}

std::vector<std::string> split_at_space(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const TextSign sign = text_sign_at(text, at);
    if (!sign.space) {
      if (!inside) words.emplace_back();
      words.back().append(text, at, sign.bytes);
    }
    inside = !sign.space;
    at += sign.bytes;
  }
  return words;
}

}  // namespace

std::vector<std::string> tokenize_13a(std::string_view text) {
  std::string line(without_space_at_end(text));
  replace_all(line, "<skipped>", "");
  replace_all(line, "-\n", "");
  replace_all(line, "\n", " ");
  // One after the other: &amp;lt; is < in the end.
  replace_all(line, "&quot;", "\"");
  replace_all(line, "&amp;", "&");
  replace_all(line, "&lt;", "<");
  replace_all(line, "&gt;", ">");

  std::string spaced = " ";
  for (const char c : line) {
    if (is_mark(c))
      spaced.append({' ', c, ' '});
    else
      spaced += c;
  }
  spaced += ' ';
  spaced = space_pairs(spaced, is_no_digit, is_point, "", " ", " ");
  spaced = space_pairs(spaced, is_point, is_no_digit, " ", " ", "");
  spaced = space_pairs(spaced, is_digit, is_dash, "", " ", " ");
  return split_at_space(spaced);
}

void Bleu::add(std::string_view hypothesis, std::string_view reference) {
  const NumberedWords words = number_words(tokenize_13a(hypothesis), tokenize_13a(reference));
  count_ngrams(words.hypothesis, words.reference, counts_);
}

double Bleu::score() const { return score_up_to(counts_.size()); }
double Bleu::sentence_score() const { return score_up_to(orders_present()); }

size_t Bleu::orders_present() const {
  return static_cast<size_t>(std::ranges::count_if(
      counts_, [](const NgramCounts& counts) { return counts.hypothesis > 0; }));
}

double Bleu::score_up_to(size_t orders) const {
  // Nothing shared is 0, not smoothed; so is a length without any n-gram: its precision is 0.
  if (counts_[0].shared == 0 || orders > orders_present()) return 0;
  double smooth = 1, sum_of_logs = 0;
  for (size_t n = 0; n < orders; ++n) {
    const auto all = static_cast<double>(counts_[n].hypothesis);
    // Chen and Cherry 2014, method 3: lengths without a match get 1/2, 1/4, ... of one.
    if (counts_[n].shared == 0) smooth *= 2;
    sum_of_logs +=
        std::log(counts_[n].shared > 0 ? 100 * static_cast<double>(counts_[n].shared) / all
                                       : 100 / (smooth * all));
  }
  // Of single words a text has as many as it is long.
  const auto hypothesis = static_cast<double>(counts_[0].hypothesis);
  const auto reference = static_cast<double>(counts_[0].reference);
  const double brevity = hypothesis < reference ? std::exp(1 - reference / hypothesis) : 1;
  return brevity * std::exp(sum_of_logs / static_cast<double>(orders));
}

}  // namespace millrace
