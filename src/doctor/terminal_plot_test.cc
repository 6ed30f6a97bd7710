#include "doctor/terminal_plot.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace {
namespace {

using Lines = std::vector<std::string>;
const Paint kPlain(false);

TEST(TerminalPlotTest, TextInColumns) {
  EXPECT_EQ(columns_of("aé●"), 3);
  EXPECT_EQ(columns_of("漢字"), 4);
  EXPECT_EQ(fit("abc", 5), "abc  ");
  EXPECT_EQ(fit("abcdef", 4), "abc…");
  EXPECT_EQ(fit("漢字漢", 4), "漢… ");
  EXPECT_EQ(fit("abc", 0), "");
  EXPECT_EQ(fit("\xff\xfe", 2), "\xff\xfe");  // whatever it is, it ends
}

TEST(TerminalPlotTest, Bars) {
  EXPECT_EQ(bar(0.5, 4), "██");
  EXPECT_EQ(bar(1.0 / 16, 4), "▎");
  EXPECT_EQ(bar(7, 2), "██");
  EXPECT_EQ(bar(-1, 4), "");
  EXPECT_EQ(bar(NAN, 4), "");
}

TEST(TerminalPlotTest, AFallingLine) {
  EXPECT_EQ(draw_plot({.curve = {{0, 1}, {1, 0}}}, 11, 4, kPlain),
            (Lines{"       1│⠱⡀", "       0│ ⢣", "        └──", "         0…"}));
}

TEST(TerminalPlotTest, MarksStandOnTop) {
  const Lines lines = draw_plot({.curve = {{0, 0}, {9, 0}}, .marks = {{9, 1}}}, 15, 4, kPlain);
  EXPECT_EQ(lines[0], "       1│     ●");
  EXPECT_EQ(lines[1], "       0│⣀⣀⣀⣀⣀⣀");
  EXPECT_EQ(lines[3], "         0    9");
}

TEST(TerminalPlotTest, NothingAndWorse) {
  for (const Points& points :
       {Points{}, Points{{0, NAN}}, Points{{1, 1}}, Points{{0, -1e308}, {1, 1e308}},
        Points{{0, INFINITY}, {NAN, 2}}, Points{{3, 5}, {3, 5}}})
    for (const int size : {-1, 0, 1, 2, 5, 40}) {
      const Lines lines = draw_plot({.curve = points, .marks = points}, size, size, kPlain);
      EXPECT_GE(lines.size(), 2u);
    }
}

// However many points: the extremes can be seen.
TEST(TerminalPlotTest, KeepsExtremes) {
  Points points;
  for (int i = 0; i < 100000; ++i) points.emplace_back(i, i == 50000 ? 10 : 0);
  const Lines lines = draw_plot({.curve = points}, 40, 6, kPlain);
  EXPECT_NE(lines[0].find("⡇") == lines[0].npos, lines[0].find("⢸") == lines[0].npos) << lines[0];
}

TEST(PaintTest, OnAndOff) {
  EXPECT_EQ(Paint(true)(Paint::red, "a"), "\033[31ma\033[0m");
  EXPECT_EQ(Paint(false)(Paint::red, "a"), "a");
}

}  // namespace
}  // namespace millrace
