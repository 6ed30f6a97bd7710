// The steps have the paper's numbers, conditions its signs: m, the measure; *v*, a vowel in it; *d,
// a double consonant at its end; *o, consonant-vowel-consonant at its end.
#include "train/porter_stemmer.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {
namespace {

// For every letter whether it is a consonant; y is one unless it follows one.
std::vector<bool> consonants(std::string_view word) {
  std::vector<bool> result;
  result.reserve(word.size());
  for (const char c : word) {
    const bool vowel = std::string_view("aeiou").find(c) != std::string_view::npos;
    result.push_back(c == 'y' ? result.empty() || !result.back() : !vowel);
  }
  return result;
}

// m: how often a consonant follows a vowel.
int measure(std::string_view stem) {
  const std::vector<bool> consonant = consonants(stem);
  int m = 0;
  for (size_t i = 1; i < consonant.size(); ++i) m += consonant[i] && !consonant[i - 1] ? 1 : 0;
  return m;
}

bool has_vowel(std::string_view stem) {
  const std::vector<bool> consonant = consonants(stem);
  return std::find(consonant.begin(), consonant.end(), false) != consonant.end();
}

bool ends_with_consonant(std::string_view stem) { return !stem.empty() && consonants(stem).back(); }

bool ends_with_double_consonant(std::string_view stem) {
  return stem.size() >= 2 && stem.back() == stem[stem.size() - 2] && ends_with_consonant(stem);
}

// *o: the last consonant is not w, x or y. NLTK: vowel-consonant, if that is all, counts too.
bool ends_with_short_syllable(std::string_view stem) {
  const std::vector<bool> consonant = consonants(stem);
  const size_t size = stem.size();
  if (size == 2) return !consonant[0] && consonant[1];
  return size >= 3 && consonant[size - 3] && !consonant[size - 2] && consonant[size - 1] &&
         std::string_view("wxy").find(stem.back()) == std::string_view::npos;
}

// The first ending of the list that the word has decides: it becomes the other one if the stem's
// measure is over `least`, else the word stays as it is.
struct Rule {
  std::string_view ending, becomes;
};
std::string replace_ending(std::string word, std::span<const Rule> rules, int least) {
  for (const auto& [ending, becomes] : rules) {
    if (!word.ends_with(ending)) continue;
    const size_t stem = word.size() - ending.size();
    if (measure(std::string_view(word).substr(0, stem)) > least)
      word.replace(stem, word.npos, becomes);
    break;
  }
  return word;
}

std::string step_1a(std::string word) {
  if (word.ends_with("ies")) {
    word.resize(word.size() - (word.size() == 4 ? 1 : 2));  // NLTK: dies, die; but flies, fli
  } else if (word.ends_with("sses")) {
    word.resize(word.size() - 2);
  } else if (word.ends_with("s") && !word.ends_with("ss")) {
    word.pop_back();
  }
  return word;
}

std::string step_1b(std::string word) {
  const std::string_view all = word;
  if (word.ends_with("ied")) {  // NLTK: died, die; but spied, spi
    word.resize(word.size() - (word.size() == 4 ? 1 : 2));
    return word;
  }
  if (word.ends_with("eed")) {
    if (measure(all.substr(0, all.size() - 3)) > 0) word.pop_back();
    return word;
  }
  size_t ending = 0;
  if (word.ends_with("ed")) ending = 2;
  if (word.ends_with("ing")) ending = 3;
  if (ending == 0 || !has_vowel(all.substr(0, all.size() - ending))) return word;
  word.resize(word.size() - ending);
  if (word.ends_with("at") || word.ends_with("bl") || word.ends_with("iz")) {
    word += 'e';
  } else if (ends_with_double_consonant(word)) {
    if (std::string_view("lsz").find(word.back()) == std::string_view::npos) word.pop_back();
  } else if (measure(word) == 1 && ends_with_short_syllable(word)) {
    word += 'e';
  }
  return word;
}

// NLTK: y after a consonant that is not the first letter, where the paper wants any vowel.
std::string step_1c(std::string word) {
  const auto stem = std::string_view(word).substr(0, word.size() - 1);
  if (word.ends_with("y") && stem.size() > 1 && ends_with_consonant(stem)) word.back() = 'i';
  return word;
}

// NLTK: alli comes first, and what it leaves goes through the step again; bli instead of abli;
// fulli; logi, whose l belongs to the stem.
std::string step_2(std::string word) {
  static constexpr Rule kRules[] = {
      {"ational", "ate"}, {"tional", "tion"}, {"enci", "ence"},   {"anci", "ance"},
      {"izer", "ize"},    {"bli", "ble"},     {"entli", "ent"},   {"eli", "e"},
      {"ousli", "ous"},   {"ization", "ize"}, {"ation", "ate"},   {"ator", "ate"},
      {"alism", "al"},    {"iveness", "ive"}, {"fulness", "ful"}, {"ousness", "ous"},
      {"aliti", "al"},    {"iviti", "ive"},   {"biliti", "ble"},  {"fulli", "ful"}};
  if (word.ends_with("alli")) {
    if (measure(std::string_view(word).substr(0, word.size() - 4)) == 0) return word;
    word.resize(word.size() - 2);
    return step_2(std::move(word));
  }
  if (word.ends_with("logi")) {
    if (measure(std::string_view(word).substr(0, word.size() - 3)) > 0) word.pop_back();
    return word;
  }
  return replace_ending(std::move(word), kRules, 0);
}

std::string step_3(std::string word) {
  static constexpr Rule kRules[] = {{"icate", "ic"}, {"ative", ""},  {"alize", "al"},
                                    {"iciti", "ic"}, {"ical", "ic"}, {"ful", ""},
                                    {"ness", ""}};
  return replace_ending(std::move(word), kRules, 0);
}

std::string step_4(std::string word) {
  static constexpr Rule kRules[] = {
      {"al", ""},   {"ance", ""}, {"ence", ""},  {"er", ""},   {"ic", ""},  {"able", ""},
      {"ible", ""}, {"ant", ""},  {"ement", ""}, {"ment", ""}, {"ent", ""}, {"ou", ""},
      {"ism", ""},  {"ate", ""},  {"iti", ""},   {"ous", ""},  {"ive", ""}, {"ize", ""}};
  if (word.ends_with("ion")) {
    const auto stem = std::string_view(word).substr(0, word.size() - 3);
    if (measure(stem) > 1 && (stem.ends_with('s') || stem.ends_with('t'))) word.resize(stem.size());
    return word;
  }
  return replace_ending(std::move(word), kRules, 1);
}

std::string step_5a(std::string word) {
  if (!word.ends_with("e")) return word;
  const auto stem = std::string_view(word).substr(0, word.size() - 1);
  const int m = measure(stem);
  if (m > 1 || (m == 1 && !ends_with_short_syllable(stem))) word.pop_back();
  return word;
}

std::string step_5b(std::string word) {
  if (word.ends_with("ll") && measure(std::string_view(word).substr(0, word.size() - 1)) > 1)
    word.pop_back();
  return word;
}

// NLTK: words that the rules do wrong.
std::string_view irregular_stem(std::string_view word) {
  static constexpr Rule kStems[] = {
      {"sky", "sky"},        {"skies", "sky"},        {"dying", "die"},
      {"lying", "lie"},      {"tying", "tie"},        {"news", "news"},
      {"innings", "inning"}, {"inning", "inning"},    {"outings", "outing"},
      {"outing", "outing"},  {"cannings", "canning"}, {"canning", "canning"},
      {"howe", "howe"},      {"proceed", "proceed"},  {"exceed", "exceed"},
      {"succeed", "succeed"}};
  for (const auto& [whole, stem] : kStems)
    if (word == whole) return stem;
  return {};
}

}  // namespace

std::string porter_stem(std::string word) {
  if (const std::string_view stem = irregular_stem(word); !stem.empty()) return std::string(stem);
  if (word.size() <= 2) return word;
  for (const auto step : {step_1a, step_1b, step_1c, step_2, step_3, step_4, step_5a, step_5b})
    word = step(std::move(word));
  return word;
}

}  // namespace millrace
