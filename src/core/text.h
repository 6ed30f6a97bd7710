// Text for people: sizes, counts, durations, UTF-8, and the nearest word to a mistyped one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

std::string human_bytes(int64_t bytes);     // 1.50 GiB, 612 KiB, 17 B
std::string human_count(double count);      // 124.4 M, 10.0 k, 65
std::string human_seconds(double seconds);  // 812 us, 12.4 ms, 3.21 s, 2m 05s, 1h 12m
std::string with_commas(int64_t count);     // 1,234,567
// "8GiB", "512 MB", "1e9", "4096" -> bytes; -1 when it is not a size.
int64_t parse_bytes(std::string_view text);
// The UTF-8 character at `at` (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
inline constexpr char32_t kLastCodePoint = 0x10FFFF;
struct CodePoint {
  char32_t value = 0;
  size_t bytes = 0;  // 0: the bytes are not UTF-8
};
CodePoint code_point_at(std::string_view text, size_t at);
void append_utf8(char32_t code_point, std::string& out);
// The candidate within edit distance 3 (and under half its length) of `word`, or empty.
std::string nearest(std::string_view word, std::span<const std::string> candidates);
// true when stderr/stdout (fd) is a terminal that wants colour (NO_COLOR, TERM=dumb,
// CLICOLOR_FORCE).
bool wants_colour(int fd);

}  // namespace millrace
