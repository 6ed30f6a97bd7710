// What attention is said to cost: in rows of several sequences a place sees its own sequence only.
#include <gtest/gtest.h>

#include "graph/builder.h"

namespace millrace {
namespace {

constexpr int64_t B = 2, T = 100, H = 3, K = 4;

// FLOPs of causal attention over rows of sequences that are so long on the mean; 0: not said.
double flops(double sequence_length) {
  Builder b;
  const Value qkv = b.parameter("qkv", {B, T, 3 * H * K}),
              segments = b.input("segments", {{B, T}, DType::i32});
  Attrs attrs{{"heads", H}, {"kv_heads", H}, {"head_dim", K}, {"causal", 1}, {"mask", "segments"}};
  if (sequence_length > 0) attrs.set({"sequence_length", sequence_length});
  b.op("attention", {qkv, segments}, attrs);
  const Graph graph = b.finish();
  return graph.cost(graph.nodes.back()).flops;
}

TEST(AttentionCost, IsThatOfTheSequencesInARow) {
  // Two products of 2 K for each pair of places that see each other.
  const double pairs = flops(0) / (4 * H * K);
  EXPECT_DOUBLE_EQ(pairs, B * T * (T + 1) / 2.0);
  // Four sequences of 25 in each row, to the pair.
  EXPECT_DOUBLE_EQ(flops(25) / (4 * H * K), B * 4 * 25 * (25 + 1) / 2.0);
  EXPECT_DOUBLE_EQ(flops(T), flops(0));
  EXPECT_DOUBLE_EQ(flops(10 * T), flops(0));  // rows cut them
}

}  // namespace
}  // namespace millrace
