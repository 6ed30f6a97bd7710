#include "io/unified_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "io/quote.h"

namespace millrace {

namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return lines;
}

struct DiffLine {
  char sign;  // ' ', '-' or '+'
  std::string_view text;
};

using Lines = std::span<const std::string_view>;

// The longest common subsequence, by a table. Texts too large for it differ as a whole.
void diff_between(Lines before, Lines after, std::vector<DiffLine>* out) {
  constexpr size_t kMaxCells = size_t{1} << 22;
  const size_t rows = before.size(), columns = after.size();
  const bool fits = (rows + 1) <= kMaxCells / (columns + 1);
  std::vector<uint32_t> table(fits ? (rows + 1) * (columns + 1) : 0);
  auto longest = [&](size_t i, size_t j) -> uint32_t& { return table[i * (columns + 1) + j]; };
  for (size_t i = fits ? rows : 0; i-- > 0;)
    for (size_t j = columns; j-- > 0;)
      longest(i, j) = before[i] == after[j] ? longest(i + 1, j + 1) + 1
                                            : std::max(longest(i + 1, j), longest(i, j + 1));
  size_t i = 0, j = 0;
  while (i < rows || j < columns) {
    if (fits && i < rows && j < columns && before[i] == after[j]) {
      out->push_back({' ', before[i++]});
      ++j;
    } else if (j == columns || (i < rows && (!fits || longest(i + 1, j) >= longest(i, j + 1)))) {
      out->push_back({'-', before[i++]});
    } else {
      out->push_back({'+', after[j++]});
    }
  }
}

// "3,7", as the head of a hunk counts lines; "2,0" is behind line 2.
std::string hunk_range(size_t lines_before, size_t count) {
  if (count == 1) return std::to_string(lines_before + 1);
  return fmt::format("{},{}", count == 0 ? lines_before : lines_before + 1, count);
}

}  // namespace

std::string unified_diff(std::string_view before, std::string_view after,
                         const std::string& before_name, const std::string& after_name) {
  if (before == after) return "";
  constexpr size_t kContext = 3;
  const std::vector<std::string_view> a = lines_of(before), b = lines_of(after);
  size_t front = 0, back = 0;
  const size_t shorter = std::min(a.size(), b.size());
  while (front < shorter && a[front] == b[front]) ++front;
  while (back < shorter - front && a[a.size() - 1 - back] == b[b.size() - 1 - back]) ++back;
  std::vector<DiffLine> lines;
  for (size_t i = 0; i < front; ++i) lines.push_back({' ', a[i]});
  diff_between(Lines(a).subspan(front, a.size() - front - back),
               Lines(b).subspan(front, b.size() - front - back), &lines);
  for (size_t i = a.size() - back; i < a.size(); ++i) lines.push_back({' ', a[i]});

  std::string out =
      fmt::format("--- {}\n+++ {}\n", printable(before_name, 4096), printable(after_name, 4096));
  size_t old_line = 0, new_line = 0, done = 0;  // lines before `done`
  auto pass = [&](size_t end) {
    for (; done < end; ++done) {
      old_line += lines[done].sign != '+' ? 1 : 0;
      new_line += lines[done].sign != '-' ? 1 : 0;
    }
  };
  auto next_change = [&](size_t from) {
    while (from < lines.size() && lines[from].sign == ' ') ++from;
    return from;
  };
  for (size_t change = next_change(0); change < lines.size();) {
    pass(std::max(done, change - std::min(change, kContext)));
    // Changes whose contexts would touch are one hunk.
    size_t last = change, next = change;
    while (next < lines.size() && next - last <= 2 * kContext + 1) {
      last = next;
      next = next_change(next + 1);
    }
    const size_t begin = done, end = std::min(lines.size(), last + 1 + kContext);
    const size_t old_begin = old_line, new_begin = new_line;
    pass(end);
    out += fmt::format("@@ -{} +{} @@\n", hunk_range(old_begin, old_line - old_begin),
                       hunk_range(new_begin, new_line - new_begin));
    for (size_t i = begin; i < end; ++i) {
      out += lines[i].sign;
      out += lines[i].text;
      if (!lines[i].text.ends_with('\n')) out += "\n\\ No newline at end of file\n";
    }
    change = next;
  }
  return out;
}

}  // namespace millrace
