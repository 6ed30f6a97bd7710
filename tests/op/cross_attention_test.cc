// Cross attention beside self-attention: over its own sequence it is the same, in every bit, and
// what makes no sense is refused.
#include <gtest/gtest.h>

#include "core/rng.h"
#include "exec/reference.h"
#include "graph/autodiff.h"

namespace millrace {
namespace {

constexpr int64_t B = 2, T = 5, S = 7, H = 6, G = 2, K = 3;

std::vector<double> normal(size_t count) {
  RandomStream random(5, RandomUse::test, 0);
  std::vector<double> values(count);
  for (double& v : values) v = random.normal();
  return values;
}

// Columns [from, from + width) of rows of `row` numbers.
std::vector<double> columns(const std::vector<double>& all, int64_t row, int64_t from,
                            int64_t width) {
  std::vector<double> part;
  for (auto at = all.begin(); at != all.end(); at += row)
    part.insert(part.end(), at + from, at + from + width);
  return part;
}

TEST(CrossAttention, OverItsOwnSequenceIsSelfAttention) {
  constexpr int64_t kRow = (H + 2 * G) * K;
  Builder b;
  const Value qkv = b.parameter("qkv", {B, T, kRow}), q = b.parameter("q", {B, T, H * K}),
              kv = b.parameter("kv", {B, T, 2 * G * K});
  const Value lengths = b.input("lengths", {{B}, DType::i32}),
              key = b.input("key", {{4}, DType::i32});
  const Value cotangent = b.input("cotangent", {{B, T, H * K}, DType::f32});
  Attrs attrs{{"heads", H},        {"kv_heads", G},  {"head_dim", K},
              {"mask", "lengths"}, {"dropout", 0.5}, {"stream", 3}};
  const Value self = b.op("attention", {qkv, lengths, key}, attrs);
  attrs.set({"cross", 1});
  const Value cross = b.op("attention", {q, kv, lengths, key}, attrs);
  const Seed seeds[] = {{self, cotangent}, {cross, cotangent}};
  const Value wanted[] = {qkv, q, kv};
  const auto grads = gradients(b, seeds, wanted);
  const Graph graph = b.finish();

  Reference<double> reference(graph);
  const auto all = normal(B * T * kRow);
  reference.values("qkv") = all;
  reference.values("q") = columns(all, kRow, 0, H * K);
  reference.values("kv") = columns(all, kRow, H * K, 2 * G * K);
  reference.values("cotangent") = normal(B * T * H * K);
  reference.ids("lengths") = {4, 0};
  reference.ids("key") = {1, 2, 3, 4};
  reference.run();
  EXPECT_EQ(reference.value(cross), reference.value(self));
  const auto dqkv = reference.value(grads[0]);
  EXPECT_EQ(reference.value(grads[1]), columns(dqkv, kRow, 0, H * K));
  EXPECT_EQ(reference.value(grads[2]), columns(dqkv, kRow, H * K, 2 * G * K));
}

TEST(CrossAttention, GivesOnlyTheGradientThatIsWanted) {
  for (const bool of_keys : {false, true}) {
    Builder b;
    const Value q = b.parameter("q", {B, T, H * K}), kv = b.parameter("kv", {B, S, 2 * G * K});
    const Value out =
        b.op("attention", {q, kv}, {{"heads", H}, {"kv_heads", G}, {"head_dim", K}, {"cross", 1}});
    const Seed seed{out, b.input("cotangent", {{B, T, H * K}, DType::f32})};
    const Value wanted = of_keys ? kv : q;
    const auto grads = gradients(b, std::span(&seed, 1), std::span(&wanted, 1));
    ASSERT_TRUE(grads[0].valid());
    EXPECT_EQ(b.shape(grads[0]), b.shape(wanted));
    b.finish();
  }
}

TEST(CrossAttention, RefusesWhatMakesNoSense) {
  struct Case {
    std::vector<TensorType> in;
    Attrs::Entry extra;
    std::string fault;
  };
  const TensorType q{{B, T, H * K}, DType::f32}, kv{{B, S, 2 * G * K}, DType::f32};
  const TensorType other_batch{{B + 1, S, 2 * G * K}, DType::f32};
  const Attrs::Entry nothing{"causal", 0}, lengths{"mask", "lengths"};
  const Case cases[] = {
      {{q, kv},
       {"causal", 1},
       "causal: queries and keys of cross attention are of different sequences"},
      {{q, kv, {{B, T}, DType::i32}},
       {"mask", "segments"},
       "mask `segments`: cross attention takes lengths only"},
      {{q}, nothing, "wants q, kv, got 1 inputs"},
      {{q, kv, kv}, nothing, "wants 2 inputs, got 3"},
      {{kv, q}, nothing, "q wants f32 [B,T,18], got f32[2,7,12]"},
      {{q, q}, nothing, "kv wants f32 [2,S,12], got f32[2,5,18]"},
      {{q, other_batch}, nothing, "kv wants f32 [2,S,12], got f32[3,7,12]"},
      {{q, kv, {{B, S}, DType::i32}}, lengths, "mask wants i32[2], got i32[2,7]"},
  };
  for (const Case& c : cases) {
    Attrs attrs{{"heads", H}, {"kv_heads", G}, {"head_dim", K}, {"cross", 1}};
    attrs.set(c.extra);
    std::vector<TensorType> out;
    EXPECT_EQ(find_op_card("attention")->infer(attrs, c.in, out), c.fault);
  }
}

}  // namespace
}  // namespace millrace
