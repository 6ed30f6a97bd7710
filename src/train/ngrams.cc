#include "train/ngrams.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace millrace {
namespace {

// The signs from one place on, as many as the longest n-gram has or the text leaves.
struct Window {
  std::span<const uint32_t> signs;
  int64_t NgramCounts::*text;
};

bool before(const Window& a, const Window& b) {
  return std::lexicographical_compare(a.signs.begin(), a.signs.end(), b.signs.begin(),
                                      b.signs.end());
}

size_t common_signs(const Window& a, const Window& b) {
  const auto ends =
      std::mismatch(a.signs.begin(), a.signs.end(), b.signs.begin(), b.signs.end()).first;
  return static_cast<size_t>(ends - a.signs.begin());
}

}  // namespace

// The windows of both texts are sorted once; those that begin with the same n-gram then stand
// together, whatever n is. (Shorter ones are not among them: they come before or after.)
void count_ngrams(std::span<const uint32_t> hypothesis, std::span<const uint32_t> reference,
                  std::span<NgramCounts> counts) {
  std::vector<Window> windows;
  windows.reserve(hypothesis.size() + reference.size());
  for (size_t i = 0; i < hypothesis.size(); ++i)
    windows.push_back({hypothesis.subspan(i, std::min(counts.size(), hypothesis.size() - i)),
                       &NgramCounts::hypothesis});
  for (size_t i = 0; i < reference.size(); ++i)
    windows.push_back({reference.subspan(i, std::min(counts.size(), reference.size() - i)),
                       &NgramCounts::reference});
  std::sort(windows.begin(), windows.end(), before);

  std::vector<NgramCounts> open(counts.size());  // of the n-grams that the last window begins with
  auto close_longer_than = [&](size_t length) {
    for (size_t n = length; n < counts.size(); ++n) {
      counts[n].hypothesis += open[n].hypothesis;
      counts[n].reference += open[n].reference;
      counts[n].shared += std::min(open[n].hypothesis, open[n].reference);
      open[n] = {};
    }
  };
  for (size_t i = 0; i < windows.size(); ++i) {
    if (i > 0) close_longer_than(common_signs(windows[i - 1], windows[i]));
    for (size_t n = 0; n < windows[i].signs.size(); ++n) ++(open[n].*windows[i].text);
  }
  close_longer_than(0);
}

NumberedWords number_words(std::span<const std::string> hypothesis,
                           std::span<const std::string> reference) {
  std::unordered_map<std::string_view, uint32_t> numbers;
  auto numbered = [&](std::span<const std::string> words) {
    std::vector<uint32_t> result;
    result.reserve(words.size());
    for (const std::string& word : words)
      result.push_back(
          numbers.try_emplace(word, static_cast<uint32_t>(numbers.size())).first->second);
    return result;
  };
  NumberedWords result;
  result.hypothesis = numbered(hypothesis);
  result.reference = numbered(reference);
  return result;
}

}  // namespace millrace
