#include "doctor/terminal_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/text.h"

namespace millrace {
namespace {

constexpr int kLabel = 8;  // columns of the labels

// East Asian wide characters and pictographs take two columns (Unicode annex 11, roughly).
int columns_of(char32_t c) {
  const bool wide = (c >= 0x1100 && c <= 0x115F) || (c >= 0x2E80 && c <= 0xA4CF) ||
                    (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xF900 && c <= 0xFAFF) ||
                    (c >= 0xFE30 && c <= 0xFE6F) || (c >= 0xFF00 && c <= 0xFF60) ||
                    (c >= 0x1F000 && c <= 0x1FAFF) || (c >= 0x20000 && c <= 0x3FFFD);
  return wide ? 2 : 1;
}

// The bytes of `text` that fit into `columns`, and how many these take.
std::pair<size_t, int> measure(std::string_view text, int columns) {
  size_t at = 0;
  int taken = 0;
  while (at < text.size()) {
    const CodePoint c = code_point_at(text, at);
    const int width = c.bytes == 0 ? 1 : columns_of(c.value);
    if (taken + width > columns) break;
    taken += width;
    at += std::max<size_t>(c.bytes, 1);
  }
  return {at, taken};
}

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return !(low <= high); }
  // 0 at `low`, 1 at `high`. Halved first: the distance of two doubles may be none.
  double place(double value) const {
    const double all = high / 2 - low / 2;
    return all > 0 ? std::clamp((value / 2 - low / 2) / all, 0.0, 1.0) : 0.5;
  }
};

bool is_point(const std::pair<double, double>& p) {
  return std::isfinite(p.first) && std::isfinite(p.second);
}

// Dots, two columns and four rows of them in a character (U+2800).
class Canvas {
 public:
  Canvas(int width, int height)
      : width_(width), height_(height), cells_(static_cast<size_t>(width * height)) {}
  void dot(int x, int y) {  // from the lower left
    static constexpr uint8_t kBits[4][2] = {{0x40, 0x80}, {0x04, 0x20}, {0x02, 0x10}, {0x01, 0x08}};
    cell(x / 2, y / 4) |= kBits[y % 4][x % 2];
  }
  uint8_t& cell(int x, int y) {
    return cells_[static_cast<size_t>((height_ - 1 - y) * width_ + x)];
  }

 private:
  int width_, height_;
  std::vector<uint8_t> cells_;
};

}  // namespace

std::string Paint::operator()(Colour colour, std::string_view text) const {
  if (!on_ || colour == plain || text.empty()) return std::string(text);
  return fmt::format("\033[{}m{}\033[0m", static_cast<int>(colour), text);
}

int columns_of(std::string_view text) {
  return measure(text, std::numeric_limits<int>::max()).second;
}

std::string fit(std::string_view text, int columns) {
  columns = std::max(columns, 0);
  auto [bytes, taken] = measure(text, columns);
  if (bytes < text.size() && columns > 0) {
    std::tie(bytes, taken) = measure(text, columns - 1);
    return std::string(text.substr(0, bytes)) + "…" +
           std::string(static_cast<size_t>(columns - 1 - taken), ' ');
  }
  return std::string(text.substr(0, bytes)) +
         std::string(static_cast<size_t>(columns - taken), ' ');
}

std::string bar(double share, int columns) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  if (!(share > 0) || columns <= 0) return "";
  const auto eighths = static_cast<int>(std::lround(std::min(share, 1.0) * columns * 8));
  std::string text;
  for (int i = 0; i < eighths / 8; ++i) text += "█";
  return text + kEighths[eighths % 8];
}

std::vector<std::string> draw_plot(const Plot& plot, int width, int height, const Paint& paint) {
  const int w = std::max(width - kLabel - 1, 1), h = std::max(height - 2, 1);
  Range x, y;
  for (const Points* points : {&plot.curve, &plot.marks})
    for (const auto& p : *points)
      if (is_point(p)) {
        x.add(p.first);
        y.add(p.second);
      }
  if (plot.from_zero && !y.empty()) y.add(0);

  Canvas canvas(w, h);
  std::vector<Range> dots(static_cast<size_t>(2 * w));  // by column
  for (const auto& p : plot.curve)
    if (is_point(p))
      dots[static_cast<size_t>(std::lround(x.place(p.first) * (2 * w - 1)))].add(
          std::round(y.place(p.second) * (4 * h - 1)));
  int before = -1;
  for (int i = 0; i < 2 * w; ++i) {
    const Range& here = dots[static_cast<size_t>(i)];
    if (here.empty()) continue;
    for (int k = static_cast<int>(here.low); k <= static_cast<int>(here.high); ++k)
      canvas.dot(i, k);
    // A straight line from the last column that has something.
    if (before >= 0) {
      const Range& last = dots[static_cast<size_t>(before)];
      const double from = (last.low + last.high) / 2, to = (here.low + here.high) / 2;
      int y_before = static_cast<int>(std::lround(from));
      for (int j = before + 1; j <= i; ++j) {
        const auto y_now =
            static_cast<int>(std::lround(from + (to - from) * (j - before) / (i - before)));
        // Steep parts have no holes.
        const int towards = y_now > y_before ? 1 : -1;
        for (int k = y_now; k != y_before; k -= towards) canvas.dot(j, k);
        canvas.dot(j, y_now);
        y_before = y_now;
      }
    }
    before = i;
  }
  std::vector<bool> marked(static_cast<size_t>(w * h));
  for (const auto& p : plot.marks)
    if (is_point(p)) {
      const auto cx = static_cast<int>(std::lround(x.place(p.first) * (w - 1))),
                 cy = static_cast<int>(std::lround(y.place(p.second) * (h - 1)));
      marked[static_cast<size_t>((h - 1 - cy) * w + cx)] = true;
    }

  auto label = [&](double value) {
    return y.empty() ? "" : plot.label ? plot.label(value) : fmt::format("{:.4g}", value);
  };
  std::vector<std::string> lines;
  for (int row = 0; row < h; ++row) {
    // At both ends, and in the middle where there is room.
    const double middle = (h - 1 - h / 2) / std::max(h - 1.0, 1.0);
    const std::string text = row == h - 1             ? label(y.low)
                             : row == 0               ? label(y.high)
                             : row == h / 2 && h >= 7 ? label(y.low + middle * (y.high - y.low))
                                                      : "";
    std::string line = paint(
        Paint::dim, fmt::format("{:>{}}│", fit(text, std::min(kLabel, columns_of(text))), kLabel));
    std::string run;  // dots between marks, painted at once
    for (int column = 0; column < w; ++column) {
      const auto at = static_cast<size_t>(row * w + column);
      if (marked[at]) {
        line += paint(Paint::cyan, std::exchange(run, "")) + paint(Paint::yellow, "●");
        continue;
      }
      const uint8_t cell = canvas.cell(column, h - 1 - row);
      if (cell == 0)
        run += " ";
      else
        append_utf8(0x2800 + cell, run);
    }
    lines.push_back(line + paint(Paint::cyan, run));
  }
  std::string axis = std::string(kLabel, ' ') + "└";
  for (int i = 0; i < w; ++i) axis += "─";
  lines.push_back(paint(Paint::dim, axis));
  if (height >= 3) {
    const std::string first = x.empty() ? "" : with_commas(std::llround(x.low)),
                      last = x.empty() || x.high <= x.low ? "" : with_commas(std::llround(x.high));
    const int gap = std::max(1, w - columns_of(first) - columns_of(last));
    lines.push_back(paint(Paint::dim, fit(std::string(kLabel + 1, ' ') + first +
                                              std::string(static_cast<size_t>(gap), ' ') + last,
                                          width)));
  }
  return lines;
}

}  // namespace millrace
