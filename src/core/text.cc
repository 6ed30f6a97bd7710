#include "core/text.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "core/error.h"

namespace millrace {
namespace {

// Three significant digits for 0 <= value < 1024; the thresholds are where rounding adds a digit.
std::string three_digits(double value) {
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// Optimal string alignment distance: insert, delete, replace, swap two neighbours.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

}  // namespace

std::string human_bytes(int64_t bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  const char* sign = bytes < 0 ? "-" : "";
  double value = std::fabs(static_cast<double>(bytes));
  if (value < 1024) return fmt::format("{} B", bytes);
  size_t unit = 0;
  for (value /= 1024; value >= 1023.5 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{}{} {}", sign, three_digits(value), kUnits[unit]);
}

std::string human_count(double count) {
  static constexpr std::array<const char*, 6> kUnits = {"k", "M", "G", "T", "P", "E"};
  if (!std::isfinite(count)) return fmt::format("{}", count);
  const char* sign = count < 0 ? "-" : "";
  double value = std::fabs(count);
  if (value < 999.95) {
    return fmt::format("{}{:.{}f}", sign, value, value == std::floor(value) ? 0 : 1);
  }
  size_t unit = 0;
  for (value /= 1000; value >= 999.95 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  if (value >= 1e6) return fmt::format("{:.3g}", count);
  return fmt::format("{}{:.1f} {}", sign, value, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (!std::isfinite(seconds)) return fmt::format("{} s", seconds);
  if (seconds < 0) return "-" + human_seconds(-seconds);
  if (seconds == 0) return "0 s";
  if (seconds < 999.5e-9) return three_digits(seconds * 1e9) + " ns";
  if (seconds < 999.5e-6) return three_digits(seconds * 1e6) + " us";
  if (seconds < 999.5e-3) return three_digits(seconds * 1e3) + " ms";
  if (seconds < 59.95) return three_digits(seconds) + " s";
  if (seconds >= 1e15) return fmt::format("{:.3g} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  const int64_t minutes = (whole + 30) / 60;
  return fmt::format("{}h {:02}m", minutes / 60, minutes % 60);
}

std::string with_commas(int64_t count) {
  std::string text = std::to_string(count);
  const int64_t first_digit = count < 0 ? 1 : 0;
  for (int64_t at = std::ssize(text) - 3; at > first_digit; at -= 3) {
    text.insert(static_cast<size_t>(at), ",");
  }
  return text;
}

int64_t parse_bytes(std::string_view text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  // "8G" is left out on purpose: half the world reads it as GB and half as GiB.
  static constexpr std::array<Unit, 12> kUnits = {{{"", 1},
                                                   {"b", 1},
                                                   {"kb", 1e3},
                                                   {"mb", 1e6},
                                                   {"gb", 1e9},
                                                   {"tb", 1e12},
                                                   {"pb", 1e15},
                                                   {"kib", 0x1p10},
                                                   {"mib", 0x1p20},
                                                   {"gib", 0x1p30},
                                                   {"tib", 0x1p40},
                                                   {"pib", 0x1p50}}};
  auto trim = [](std::string_view s) {
    const size_t first = s.find_first_not_of(" \t");
    if (first == s.npos) return std::string_view();
    return s.substr(first, s.find_last_not_of(" \t") - first + 1);
  };
  text = trim(text);
  // from_chars would also take "inf", "nan" and a sign.
  if (text.empty() || !(text[0] == '.' || (text[0] >= '0' && text[0] <= '9'))) return -1;
  double value = 0;
  const auto number = std::from_chars(text.data(), text.data() + text.size(), value);
  if (number.ec != std::errc()) return -1;
  const auto length = static_cast<size_t>(number.ptr - text.data());
  const std::string name = lower(trim(text.substr(length)));
  const auto unit =
      std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& u) { return u.name == name; });
  if (unit == kUnits.end()) return -1;

  int64_t exact = 0;  // plain digits keep all 63 bits
  const auto digits = std::from_chars(text.data(), number.ptr, exact);
  if (digits.ptr == number.ptr) {
    if (digits.ec != std::errc() ||
        __builtin_mul_overflow(exact, static_cast<int64_t>(unit->bytes), &exact)) {
      return -1;
    }
    return exact;
  }
  value *= unit->bytes;
  if (!(value < 0x1p63)) return -1;
  if (unit->bytes == 1 && value != std::floor(value)) return -1;
  return static_cast<int64_t>(value);
}

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> char32_t {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
  };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xC2 || first > 0xF4) return {};
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  char32_t value = first & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3F);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (value < kLeast[length] || value > kLastCodePoint || surrogate) return {};
  return {value, length};
}

void append_utf8(char32_t c, std::string& out) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(static_cast<uint8_t>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  constexpr size_t kLimit = 3;
  const std::string* best = nullptr;
  size_t best_distance = kLimit + 1;
  for (const std::string& candidate : candidates) {
    const size_t gap =
        std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size());
    if (gap > kLimit) continue;  // also keeps a hostile megabyte word from costing anything
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance && 2 * distance < candidate.size()) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best ? *best : std::string();
}

bool wants_colour(int fd) {
  auto variable = [](const char* name) -> std::string_view {
    const char* value = std::getenv(name);
    return value ? value : "";
  };
  if (!variable("NO_COLOR").empty()) return false;
  const std::string_view force = variable("CLICOLOR_FORCE");
  if (!force.empty() && force != "0") return true;
  const std::string_view term = variable("TERM");
  return !term.empty() && term != "dumb" && isatty(fd) == 1;
}

}  // namespace millrace
