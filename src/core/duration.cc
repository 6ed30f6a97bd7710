#include "core/duration.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

namespace millrace {
namespace {

struct Word {
  std::string_view name;
  Duration::Unit unit;
  double factor;
};
constexpr std::array<Word, 16> kWords = {{{"", Duration::Unit::steps, 1},
                                          {"step", Duration::Unit::steps, 1},
                                          {"steps", Duration::Unit::steps, 1},
                                          {"token", Duration::Unit::tokens, 1},
                                          {"tokens", Duration::Unit::tokens, 1},
                                          {"epoch", Duration::Unit::epochs, 1},
                                          {"epochs", Duration::Unit::epochs, 1},
                                          {"s", Duration::Unit::seconds, 1},
                                          {"second", Duration::Unit::seconds, 1},
                                          {"seconds", Duration::Unit::seconds, 1},
                                          {"min", Duration::Unit::seconds, 60},
                                          {"minute", Duration::Unit::seconds, 60},
                                          {"minutes", Duration::Unit::seconds, 60},
                                          {"h", Duration::Unit::seconds, 3600},
                                          {"hour", Duration::Unit::seconds, 3600},
                                          {"hours", Duration::Unit::seconds, 3600}}};

}  // namespace

std::string Duration::str() const {
  switch (unit) {
    case Unit::steps:
      return fmt::format("{} step{}", count, count == 1 ? "" : "s");
    case Unit::tokens:
      return fmt::format("{} tokens", count);
    case Unit::epochs:
      return fmt::format("{} epoch{}", count, count == 1 ? "" : "s");
    case Unit::seconds:
      break;
  }
  if (count >= 60 && count / 60 * 60 == count) return fmt::format("{} minutes", count / 60);
  return fmt::format("{} seconds", count);
}

bool parse_duration(std::string_view text, Duration* duration) {
  std::string digits;  // without the _ of 1_000_000
  size_t at = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    const bool exponent_sign = c == '+' && at > 0 && (text[at - 1] == 'e' || text[at - 1] == 'E');
    if ((c >= '0' && c <= '9') || c == '.' || exponent_sign ||
        ((c == 'e' || c == 'E') && at + 1 < text.size() &&
         (text[at + 1] == '+' || (text[at + 1] >= '0' && text[at + 1] <= '9')))) {
      digits += c;
    } else if (c != '_' || digits.empty()) {
      break;
    }
  }
  double count = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) return false;
  while (at < text.size() && text[at] == ' ') ++at;
  for (const Word& word : kWords) {
    if (text.substr(at) != word.name) continue;
    count *= word.factor;
    if (!(count >= 0 && count <= 1e15)) return false;
    *duration = {count, word.unit};
    return true;
  }
  return false;
}

}  // namespace millrace
