// Label smoothing against values worked out by hand, in both cross-entropies.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "exec/reference.h"
#include "graph/autodiff.h"

namespace millrace {
namespace {

// Probabilities 1/8, 2/8 and 5/8, the target is the second, 0.3 is spread: the target's
// distribution is 0.1, 0.8, 0.1.
TEST(LabelSmoothing, IsAsByHand) {
  for (const bool head : {false, true}) {
    SCOPED_TRACE(head);
    Builder b;
    const Value x = b.parameter("x", {1, 3}), targets = b.input("targets", {{1}, DType::i32});
    const Value one = b.constant(1);
    const Value loss =
        head ? b.op("linear_cross_entropy", {x, b.parameter("w", {3, 3}), targets, one},
                    {{"gradients", 1}, {"chunk_rows", 0}, {"smoothing", 0.3}})
             : b.op("cross_entropy", {x, targets, one}, {{"smoothing", 0.3}});
    const Seed seed{loss, one};
    const auto grads = gradients(b, std::span(&seed, 1), std::span(&x, 1));
    Reference<double> reference(b.finish());
    reference.values("x") = {0, std::log(2), std::log(5)};
    if (head) reference.values("w") = {1, 0, 0, 0, 1, 0, 0, 0, 1};
    reference.ids("targets") = {1};
    reference.run();
    EXPECT_NEAR(reference.value(loss)[0],
                0.1 * std::log(8) + 0.8 * std::log(4) + 0.1 * std::log(1.6), 1e-15);
    const double wanted[] = {0.125 - 0.1, 0.25 - 0.8, 0.625 - 0.1};
    for (size_t v = 0; v < 3; ++v) EXPECT_NEAR(reference.value(grads[0])[v], wanted[v], 1e-15);
  }
}

TEST(LabelSmoothing, RefusesWhatIsNoShareAndWordsThatAreCopied) {
  const TensorType rows{{4}, DType::f32}, ids{{4}, DType::i32}, one{{}, DType::f32};
  const std::vector<TensorType> head{{{4, 3}, DType::f32}, {{5, 3}, DType::f32}, ids, one};
  std::vector<TensorType> pointer = head, out;
  pointer.insert(pointer.end(), {rows, rows});
  const OpCard& card = *find_op_card("linear_cross_entropy");
  for (const double smoothing : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_NE(
        card.infer({{"gradients", 1}, {"smoothing", smoothing}}, head, out).find("outside [0, 1)"),
        std::string::npos);
  EXPECT_EQ(card.infer({{"gradients", 1}, {"smoothing", 0.1}}, head, out), "");
  EXPECT_EQ(card.infer({{"gradients", 1}, {"smoothing", 0.1}, {"copy", 1}}, pointer, out),
            "smoothing and copy: a word that is copied is no class among others");
}

}  // namespace
}  // namespace millrace
