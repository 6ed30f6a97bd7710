#include "io/unified_diff.h"

#include <gtest/gtest.h>

#include <charconv>
#include <vector>

#include "core/rng.h"

namespace millrace {
namespace {

std::string diff(std::string_view before, std::string_view after) {
  return unified_diff(before, after, "a", "b");
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return lines;
}

// What `patch` makes of it; every context line and every count must be right.
std::string patched(const std::string& before, const std::string& patch) {
  if (patch.empty()) return before;
  const std::vector<std::string> old_lines = lines_of(before), lines = lines_of(patch);
  EXPECT_EQ(lines.at(0), "--- a\n");
  EXPECT_EQ(lines.at(1), "+++ b\n");
  std::string result;
  size_t at = 0, written = 0;
  for (size_t i = 2; i < lines.size();) {
    std::array<size_t, 4> head = {0, 1, 0, 1};  // old line, count, new line, count
    const char* p = lines[i].c_str() + 4;
    for (size_t part = 0; part < 4; part += 2) {
      p = std::from_chars(p, p + 20, head[part]).ptr;
      if (*p == ',') p = std::from_chars(p + 1, p + 20, head[part + 1]).ptr;
      EXPECT_EQ(std::string_view(p, 2), part == 0 ? " +" : " @");
      p += 2;
    }
    const size_t first = head[0] - (head[1] > 0 ? 1 : 0);
    while (at < first) {
      result += old_lines.at(at++);
      ++written;
    }
    EXPECT_EQ(written, head[2] - (head[3] > 0 ? 1 : 0));
    size_t taken = 0, given = 0;
    for (++i; i < lines.size() && !lines[i].starts_with("@@"); ++i) {
      std::string text = lines[i].substr(1);
      const char sign = lines[i][0];
      if (i + 1 < lines.size() && lines[i + 1] == "\\ No newline at end of file\n") {
        text.pop_back();
        ++i;
      }
      if (sign != '+') {
        EXPECT_EQ(old_lines.at(at++), text);
        ++taken;
      }
      if (sign != '-') {
        result += text;
        ++written;
        ++given;
      }
    }
    EXPECT_EQ(taken, head[1]);
    EXPECT_EQ(given, head[3]);
  }
  while (at < old_lines.size()) result += old_lines[at++];
  return result;
}

// The expected texts are those of GNU diff.
TEST(UnifiedDiffTest, IsWhatDiffPrints) {
  EXPECT_EQ(diff("a\n", "a\n"), "");
  EXPECT_EQ(diff("", ""), "");
  EXPECT_EQ(diff("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\nfive\n6\n7\n8\n9\n"),
            "--- a\n+++ b\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n");
  EXPECT_EQ(diff("", "a\nb\n"), "--- a\n+++ b\n@@ -0,0 +1,2 @@\n+a\n+b\n");
  EXPECT_EQ(diff("a\n", ""), "--- a\n+++ b\n@@ -1 +0,0 @@\n-a\n");
  EXPECT_EQ(diff("a\n", "a\nb"),
            "--- a\n+++ b\n@@ -1 +1,2 @@\n a\n+b\n\\ No newline at end of file\n");
  EXPECT_EQ(diff("a", "a\n"), "--- a\n+++ b\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n");
  EXPECT_EQ(diff("a\r\nb\r\n", "a\r\nc\r\n"), "--- a\n+++ b\n@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n");
}

TEST(UnifiedDiffTest, HunksJoinWhereTheirContextsTouch) {
  auto numbers = [](int changed, int also) {
    std::string text;
    for (int i = 1; i <= 20; ++i)
      text += (i == changed || i == also ? "x" : "") + std::to_string(i) + "\n";
    return text;
  };
  EXPECT_EQ(diff(numbers(0, 0), numbers(4, 12)),
            "--- a\n+++ b\n@@ -1,7 +1,7 @@\n 1\n 2\n 3\n-4\n+x4\n 5\n 6\n 7\n"
            "@@ -9,7 +9,7 @@\n 9\n 10\n 11\n-12\n+x12\n 13\n 14\n 15\n");
  EXPECT_EQ(diff(numbers(0, 0), numbers(4, 11)),
            "--- a\n+++ b\n@@ -1,14 +1,14 @@\n 1\n 2\n 3\n-4\n+x4\n 5\n 6\n 7\n 8\n 9\n 10\n"
            "-11\n+x11\n 12\n 13\n 14\n");
}

TEST(UnifiedDiffTest, NamesStayOnTheirLine) {
  EXPECT_TRUE(unified_diff("a\n", "b\n", "x\ny", "größe").starts_with("--- x?y\n+++ größe\n@@"));
}

TEST(UnifiedDiffTest, CanBeApplied) {
  RandomStream random(1, RandomUse::test);
  for (int round = 0; round < 2000; ++round) {
    std::string before, after;
    for (uint64_t i = 0, count = random.below(30); i < count; ++i) {
      const std::string line = std::to_string(random.below(6)) + "\n";
      if (random.below(6) > 0) before += line;
      if (random.below(6) > 0) after += line;
    }
    if (random.below(4) == 0) before += "end";
    if (random.below(4) == 0) after += "end";
    ASSERT_EQ(patched(before, diff(before, after)), after);
  }
}

TEST(UnifiedDiffTest, LargeTextsDifferAsAWhole) {
  std::string before = "same\n", after = "same\n";
  for (int i = 0; i < 5000; ++i) {
    before += "a" + std::to_string(i) + "\n";
    after += "b" + std::to_string(i) + "\n";
  }
  EXPECT_EQ(patched(before, diff(before, after)), after);
}

}  // namespace
}  // namespace millrace
