// Pictures for a terminal: curves of braille dots, bars of block elements, text cut to columns.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace {

// Colours by their number in the terminal's own palette; off: nothing is written.
class Paint {
 public:
  enum Colour {
    plain = 0,
    dim = 2,
    bold = 1,
    red = 31,
    green = 32,
    yellow = 33,
    blue = 34,
    cyan = 36
  };
  explicit Paint(bool on) : on_(on) {}
  std::string operator()(Colour colour, std::string_view text) const;

 private:
  bool on_;
};

// How many columns the text takes. No terminal codes may be in it.
int columns_of(std::string_view text);
// Cut or filled up to exactly so many columns.
std::string fit(std::string_view text, int columns);

using Points = std::vector<std::pair<double, double>>;  // x, y; what is not finite is left out

struct Plot {
  Points curve;       // as a line of dots
  Points marks = {};  // as single signs on top
  bool from_zero = false;
  std::string (*label)(double value) = nullptr;  // of the y axis
};
// `height` lines of `width` columns: the labels of the y axis, the curve, and below it the first
// and the last x. Each column of dots spans the least and the greatest value that fall into it, so
// no extreme is lost however many points there are.
std::vector<std::string> draw_plot(const Plot& plot, int width, int height, const Paint& paint);

// So much of `columns`, to an eighth of one.
std::string bar(double share, int columns);

}  // namespace millrace
