#include "cpu/gemm.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/file.h"
#include "core/half.h"
#include "core/rng.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"

namespace millrace::cpu {
namespace {

std::vector<float> normal_values(int64_t n, uint64_t stream) {
  RandomStream random(3, RandomUse::test, stream);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = static_cast<float>(random.normal());
  return values;
}

// The product in double, and for each element the sum of the absolute terms.
struct Naive {
  std::vector<double> value, size;
};
Naive naive(const GemmShape& s, const std::vector<float>& a, const std::vector<float>& b) {
  Naive out{std::vector<double>(static_cast<size_t>(s.m * s.n)),
            std::vector<double>(static_cast<size_t>(s.m * s.n))};
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t j = 0; j < s.n; ++j)
      for (int64_t k = 0; k < s.k; ++k) {
        const double term =
            static_cast<double>(a[static_cast<size_t>(s.ta ? k * s.m + i : i * s.k + k)]) *
            static_cast<double>(b[static_cast<size_t>(s.tb ? j * s.k + k : k * s.n + j)]);
        out.value[static_cast<size_t>(i * s.n + j)] += term;
        out.size[static_cast<size_t>(i * s.n + j)] += std::fabs(term);
      }
  return out;
}

std::vector<GemmEntry> entries() {
  std::vector<GemmEntry> list = {GemmEntry::sgemm, GemmEntry::matmul, GemmEntry::packed};
  if (multiplies_bf16()) list.push_back(GemmEntry::bf16);
  return list;
}
TEST(Gemm, InBf16) {
  if (!multiplies_bf16()) GTEST_SKIP() << "no product in bf16 was tried: this CPU has none";
}

// What a product reads of its operands.
std::vector<float> as_read(std::vector<float> values, GemmEntry entry) {
  if (entry == GemmEntry::bf16)
    for (float& v : values) v = bf16_to_float(float_to_bf16(v));
  return values;
}

void check(const GemmShape& s, const GemmChoice& choice, float beta) {
  SCOPED_TRACE(fmt::format("{}x{}x{} ta={} tb={} {} beta={}", s.m, s.n, s.k, s.ta, s.tb,
                           choice.str(), beta));
  const auto a = normal_values(s.m * s.k, 1), b = normal_values(s.k * s.n, 2),
             start = normal_values(s.m * s.n, 3);
  // What stands behind C must not be touched; with beta 0 what stands in it must not matter.
  auto c =
      beta == 0 ? std::vector<float>(start.size(), std::numeric_limits<float>::quiet_NaN()) : start;
  c.resize(c.size() + 16, -7.0f);
  gemm(s, choice, a.data(), b.data(), c.data(), beta);
  const Naive want = naive(s, as_read(a, choice.entry), as_read(b, choice.entry));
  for (size_t i = 0; i < start.size(); ++i) {
    const double exact = want.value[i] + (beta == 0 ? 0.0 : static_cast<double>(start[i]));
    // Any order of summing k terms errs by at most k eps times the sum of their absolute values.
    const double bound = static_cast<double>(s.k + 1) * 0x1p-24 * (want.size[i] + std::fabs(exact));
    ASSERT_TRUE(std::fabs(static_cast<double>(c[i]) - exact) <= bound)
        << "element " << i << ": " << c[i] << " against " << exact;
  }
  for (size_t i = start.size(); i < c.size(); ++i) ASSERT_EQ(c[i], -7.0f) << "wrote behind C";
}

TEST(Gemm, EveryTransposeEntryAndBetaAtOddSizes) {
  const int64_t sizes[][3] = {{1, 1, 1},    {1, 7, 3},     {5, 1, 9},     {3, 5, 1},
                              {17, 33, 29}, {65, 70, 131}, {130, 193, 67}};
  for (const auto& [m, n, k] : sizes)
    for (bool ta : {false, true})
      for (bool tb : {false, true})
        for (GemmEntry entry : entries())
          for (float beta : {0.0f, 1.0f}) check({m, n, k, ta, tb}, {entry, {64, 48}}, beta);
}

// Rows whole pages apart are copied; more than a block of them, of depth and of columns.
TEST(Gemm, RowsWholePagesApart) {
  for (GemmEntry entry : entries()) {
    check({50, 33, 1024}, {entry, {64, 48}}, 0);
    check({50, 33, 1024, false, true}, {entry, {64, 48}}, 1);
    check({49, 400, 2048}, {entry, {64, 400}}, 0);
  }
}

TEST(Gemm, WhatIsNotFiniteComesThrough) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (GemmEntry entry : entries())
    for (const float odd : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()})
      for (int way = 0; way < 4; ++way) {
        // A row of ones with one odd number, and a column.
        const GemmShape s{14, 40, 37, (way & 1) != 0, (way & 2) != 0};
        std::vector<float> a(static_cast<size_t>(s.m * s.k), 1),
            b(static_cast<size_t>(s.k * s.n), 1), c(static_cast<size_t>(s.m * s.n));
        a[static_cast<size_t>(s.ta ? 20 * s.m + 3 : 3 * s.k + 20)] = odd;
        b[static_cast<size_t>(s.tb ? 35 * s.k + 21 : 21 * s.n + 35)] = odd;
        gemm(s, {entry, {64, 48}}, a.data(), b.data(), c.data());
        for (int64_t i = 0; i < s.m; ++i)
          for (int64_t j = 0; j < s.n; ++j) {
            const float value = c[static_cast<size_t>(i * s.n + j)];
            if (i != 3 && j != 35)
              EXPECT_EQ(value, 37.0f);
            else if (odd != odd)
              EXPECT_NE(value, value);
            else
              EXPECT_EQ(value, odd);
          }
      }
}

TEST(Gemm, EmptySizes) {
  for (GemmEntry entry : entries()) {
    check({4, 3, 0}, {entry, {2, 2}}, 0);
    check({4, 3, 0}, {entry, {2, 2}}, 1);
    check({0, 3, 5}, {entry, {2, 2}}, 0);
    check({4, 0, 5}, {entry, {2, 2}}, 0);
  }
}

TEST(Gemm, TilesOfEverySizeCoverTheProduct) {
  for (GemmEntry entry : entries())
    for (int64_t tile_m : {1, 7, 64, 1000})
      for (int64_t tile_n : {1, 16, 50, 1000})
        check({37, 51, 23, false, true}, {entry, {tile_m, tile_n}}, 0);
}

TEST(Gemm, TheSameTilingGivesTheSameBitsOnAnyNumberOfThreads) {
  const GemmShape s{150, 130, 200, false, false};
  const auto a = normal_values(s.m * s.k, 1), b = normal_values(s.k * s.n, 2);
  for (GemmEntry entry : entries()) {
    std::vector<std::vector<float>> results;
    for (int count : {1, 2, 3}) {
      cpu::set_threads(count);
      std::vector<float> c(static_cast<size_t>(s.m * s.n));
      gemm(s, {entry, {32, 48}}, a.data(), b.data(), c.data());
      results.push_back(std::move(c));
    }
    cpu::set_threads(0);
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

// A sum runs over k in order whatever the tile: a choice of tiles is a choice of speed alone.
TEST(Gemm, PackedBitsDoNotDependOnTheTiling) {
  for (const GemmEntry entry : entries())
    for (int way = 0; way < 4; ++way) {
      const GemmChoice choice{entry, {}};
      if (!choice.own()) continue;
      const GemmShape s{101, 147, 801, (way & 1) != 0, (way & 2) != 0};
      const auto a = normal_values(s.m * s.k, 1), b = normal_values(s.k * s.n, 2);
      std::vector<float> whole(static_cast<size_t>(s.m * s.n)), tiled(whole.size());
      gemm_tile(s, choice, a.data(), b.data(), whole.data(), 0, 0, s.m, 0, s.n);
      for (int64_t i = 0; i < s.m; i += 7)
        for (int64_t j = 0; j < s.n; j += 40)
          gemm_tile(s, choice, a.data(), b.data(), tiled.data(), 0, i, std::min(s.m, i + 7), j,
                    std::min(s.n, j + 40));
      EXPECT_EQ(whole, tiled);
    }
}

TEST(Gemm, PackedTilingsGiveEveryThreadWork) {
  for (int64_t workers : {1, 2, 16})
    for (const GemmShape& s : {GemmShape{1024, 1536, 512},
                               {1024, 512, 2048, false, true},
                               {2048, 512, 1024, true},
                               {256, 50000, 512, false, true},
                               {50000, 512, 256, true},
                               {4096, 128, 128}}) {
      for (const bool bf16 : {false, true}) {
        const GemmTiling t = packed_tiling(s, workers, bf16);
        EXPECT_GE(pieces(s.m, t.m) * pieces(s.n, t.n), workers) << s.m << "x" << s.n << "x" << s.k;
      }
    }
  const GemmTiling one = packed_tiling({1, 1, 1}, 16, false);
  EXPECT_GE(one.m, 1);
  EXPECT_GE(one.n, 1);
}

TEST(Gemm, TheEpilogueGetsEveryElementOnce) {
  // k beyond a block of the packed kernel: what it has of C so far must not be the epilogue's.
  const GemmShape s{145, 461, 500, true, false};
  const auto a = normal_values(s.m * s.k, 1), b = normal_values(s.k * s.n, 2);
  for (GemmEntry entry : entries()) {
    std::vector<float> plain(static_cast<size_t>(s.m * s.n)), with(plain.size());
    gemm(s, {entry, {64, 200}}, a.data(), b.data(), plain.data());
    std::vector<int> seen(plain.size());
    std::vector<float> values(plain.size());
    gemm(s, {entry, {64, 200}}, a.data(), b.data(), with.data(), 0, [&](const ProductBlock& block) {
      for (int64_t i = block.i0; i < block.i1; ++i)
        for (int64_t j = block.j0; j < block.j1; ++j) {
          ++seen[static_cast<size_t>(i * s.n + j)];
          values[static_cast<size_t>(i * s.n + j)] = block.row(i)[j - block.j0];
        }
    });
    EXPECT_EQ(values, plain);
    EXPECT_EQ(seen, std::vector<int>(plain.size(), 1));
  }
}

TEST(GemmChoice, WithoutMeasuringItIsAFixedRule) {
  gemm_set_measuring(false);
  EXPECT_FALSE(gemm_measuring());
  for (const GemmShape& s : {GemmShape{1, 1, 1}, {40, 384, 7}, {4096, 512, 2048}}) {
    const GemmChoice one = gemm_choice(s), two = gemm_choice(s);
    EXPECT_EQ(one.str(), two.str());
  }
  EXPECT_EQ(gemm_choice({4096, 512, 2048}).str(), "packed");
  gemm_set_measuring(true);
}

fs::path memory_file() { return cache_folder() / ("gemm3-" + machine_fingerprint() + ".txt"); }

// The choices are read once in a process, so these run in processes of their own.
int remembered_choices() {
  std::string folder = ::testing::TempDir() + "millrace-gemm-test-XXXXXX";
  if (!mkdtemp(folder.data())) return 2;
  setenv("MILLRACE_CACHE", folder.c_str(), 1);
  write_file(memory_file(),
             "this is not a choice\n"
             "\n"
             "5 6\n"
             "5 6 7 0 0 : 1 64\n"                         // one number short
             "5 6 7 0 0 : 3 64 64\n"                      // no such entry
             "5 6 7 0 0 : 0 0 64\n"                       // an empty tile
             "5 6 7 0 0 : 0 64 -64\n"                     // a negative one
             "9 8 7 1 0 : 1 48 96\n"                      // sound
             "17 18 19 0 1 : 0 32 9223372036854775807\n"  // a tile that overflows
             "5 6 7 0 0 : 0 6");                          // cut off in the middle
  int wrong = 0;
  auto expect = [&](bool holds, const char* what) {
    if (!holds) std::fprintf(stderr, "not so: %s\n", what);
    wrong += !holds;
  };
  expect(gemm_choice({9, 8, 7, true, false}).str() == "matmul 48x96", "the sound line is used");
  const GemmChoice measured = gemm_choice({5, 6, 7});
  expect(measured.tile.m >= 1 && measured.tile.n >= 1, "damaged lines are measured anew");
  expect(gemm_choice({5, 6, 7}).str() == measured.str(), "and remembered");
  const std::string text = read_file(memory_file());
  expect(text.find("5 6 7 0 0 : ") != std::string::npos, "on disk");
  expect(text.find("9 8 7 1 0 : 1 48 96\n") != std::string::npos, "beside the sound one");
  expect(text.find("not a choice") == std::string::npos, "and the damage is gone");
  // What another process has remembered since is kept, and used.
  write_file(memory_file(), text + "33 34 35 0 0 : 1 48 96\n");
  expect(gemm_choice({6, 7, 8}).tile.m >= 1, "another shape");
  expect(gemm_choice({33, 34, 35}).str() == "matmul 48x96", "another process's choice is used");
  expect(read_file(memory_file()).find("33 34 35 0 0 : 1 48 96\n") != std::string::npos,
         "and not lost");
  // A choice from the file must compute the product whatever it says.
  const GemmShape s{17, 18, 19, false, true};
  const auto a = normal_values(s.m * s.k, 1), b = normal_values(s.k * s.n, 2);
  std::vector<float> c(static_cast<size_t>(s.m * s.n), 1e9f);
  gemm(s, gemm_choice(s), a.data(), b.data(), c.data());
  const Naive want = naive(s, a, b);
  bool right = true;
  for (size_t i = 0; i < c.size(); ++i)
    right = right && std::fabs(static_cast<double>(c[i]) - want.value[i]) < 1e-4;
  expect(right, "a tile that overflows is not believed");
  fs::remove_all(folder);
  return wrong == 0 ? 0 : 1;
}

int unreadable_memory() {
  std::string folder = ::testing::TempDir() + "millrace-gemm-test-XXXXXX";
  if (!mkdtemp(folder.data())) return 2;
  setenv("MILLRACE_CACHE", folder.c_str(), 1);
  create_folders(memory_file());  // a folder where the file should be
  int code = 1;
  try {
    code = gemm_choice({5, 6, 7}).tile.m >= 1 ? 0 : 1;
  } catch (const Error& e) {
    std::fprintf(stderr, "not so: a cache that cannot be read costs time only: %s\n", e.what());
  }
  fs::remove_all(folder);
  return code;
}

TEST(GemmMemoryDeathTest, DamagedLinesAreIgnored) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(remembered_choices()), testing::ExitedWithCode(0), "");
}

TEST(GemmMemoryDeathTest, AFileThatCannotBeReadIsIgnored) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(unreadable_memory()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace millrace::cpu
