#include "ops/optimizer_common.h"

#include <gtest/gtest.h>

#include <array>

namespace millrace {
namespace {

TEST(OptimizerCommon, DecayTextComesBackExactly) {
  const std::vector<double> decay{0.1, 0, 1e-7, 1.0 / 3.0};
  EXPECT_EQ(decay_from_text(decay_text(decay), 4), decay);
}

TEST(OptimizerCommon, DecayTextIsExactlyNFiniteNumbers) {
  for (const char* text :
       {"", ";", "0.1", "0.1;", ";0.1", "1;2;3", "1;x", "1 ;2", "1,2", "nan;1", "inf;1"})
    EXPECT_FALSE(decay_from_text(text, 2)) << text;
  EXPECT_TRUE(decay_from_text("1;2", 2));
}

TEST(OptimizerCommon, ChunksCoverEveryElementOnceInOrder) {
  const std::vector<TensorType> tensors{
      {{3}}, {{0, 5}}, {{2 * kChunkElements + 1}}, {{kChunkElements}}};
  std::vector<int64_t> covered(tensors.size(), 0);
  for (const TensorChunk& chunk : cut_into_chunks(tensors)) {
    EXPECT_EQ(chunk.begin, covered[chunk.tensor]);
    EXPECT_LT(chunk.begin, chunk.end);
    EXPECT_LE(chunk.end - chunk.begin, kChunkElements);
    covered[chunk.tensor] = chunk.end;
  }
  for (size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(covered[i], tensors[i].numel());
}

// Two tensors, one kind of state: outputs p1 p2 s1 s2 stand for inputs p1 p2 g1 g2 s1 s2.
TEST(OptimizerCommon, PairsOutputsWithParametersAndState) {
  const Attrs attrs{{"n", 2}, {"decay", "0;0"}};
  std::vector<TensorType> in(6, {{2}}), out;
  in.resize(9, {{}});
  ASSERT_EQ(infer_optimizer(attrs, in, out, 1), "");
  const OpSite site{attrs, in, out};
  std::vector<int> from;
  for (const InPlace& pair : optimizer_in_place(site)) from.push_back(pair.in);
  EXPECT_EQ(from, (std::vector<int>{0, 1, 4, 5}));

  std::array<std::array<float, 2>, 9> source{};
  for (size_t i = 0; i < 9; ++i) source[i] = {static_cast<float>(i), static_cast<float>(i) + 0.5f};
  std::array<std::array<float, 2>, 4> target{};
  std::vector<const void*> in_data;
  std::vector<void*> out_data;
  for (auto& values : source) in_data.push_back(values.data());
  for (auto& values : target) out_data.push_back(values.data());
  leave_unchanged(site, in_data, out_data, 4);
  EXPECT_EQ(target,
            (std::array<std::array<float, 2>, 4>{source[0], source[1], source[4], source[5]}));
}

TEST(OptimizerCommon, InferNamesWhatIsWrong) {
  const Attrs attrs{{"n", 1}, {"decay", "0"}};
  std::vector<TensorType> in(3, {{2, 3}}), out;
  in.resize(6, {{}});
  EXPECT_EQ(infer_optimizer(attrs, in, out, 1), "");
  EXPECT_NE(infer_optimizer(attrs, in, out, 2), "");
  EXPECT_NE(infer_optimizer({{"n", 1}, {"decay", "0;0"}}, in, out, 1), "");
  EXPECT_NE(infer_optimizer({{"n", 0}, {"decay", ""}}, in, out, 1), "");
  auto other_shape = in;
  other_shape[2] = {{3, 2}};
  EXPECT_NE(infer_optimizer(attrs, other_shape, out, 1), "");
  auto integers = in;
  integers[1].dtype = DType::i32;
  EXPECT_NE(infer_optimizer(attrs, integers, out, 1), "");
  auto long_scalar = in;
  long_scalar[5] = {{1}};
  EXPECT_NE(infer_optimizer(attrs, long_scalar, out, 1), "");
}

}  // namespace
}  // namespace millrace
