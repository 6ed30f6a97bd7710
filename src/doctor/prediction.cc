#include "doctor/prediction.h"

#include <algorithm>

namespace millrace {

PredictedTime& PredictedTime::add(const PredictedTime& other, double times) {
  least += times * other.least;
  unknown += times * other.unknown;
  if (other.expected) expected = expected.value_or(0) + times * *other.expected;
  return *this;
}

PredictedTime predict(const Plan& plan, const PrecisionProfile& machine) {
  OpTime all;
  for (const auto& [name, sizes] : machine.ops)
    for (const auto& [size, op] : sizes) all.add(op);
  PredictedTime time;
  if (all.limit_seconds > 0) time.expected = 0;
  const double usual = time.expected ? all.seconds / all.limit_seconds : 0;
  for (NodeId id = 0; id < plan.graph.size(); ++id) {
    if (plan.kernels[static_cast<size_t>(id)].name.empty()) continue;
    const Node& node = plan.graph[id];
    const double limit = limit_seconds(plan.graph.cost(node), machine.ceiling);
    time.least += limit;
    if (!time.expected) continue;
    const auto found = machine.ops.find(std::string(node.op->name));
    const bool known = found != machine.ops.end();
    // An op that was never seen is as far from its limit as the others were together.
    const double seconds =
        std::max(machine.node_seconds,
                 known ? expected_seconds(found->second, limit, usual) : limit * usual);
    *time.expected += seconds;
    if (!known) time.unknown += seconds;
  }
  return time;
}

std::vector<double> shape_shares(const Batches& batches) {
  std::vector<double> shares(batches.shapes().size(), 0);
  if (shares.size() == 1) return {1};
  constexpr int64_t kLooks = 64;
  const int64_t count = batches.batches_per_epoch(), looks = std::min(kLooks, count);
  Batch batch;
  for (int64_t i = 0; i < looks; ++i) {
    batches.fill(i * count / looks * batches.stride(), batch);
    shares[batch.shape] += 1 / static_cast<double>(looks);
  }
  return shares;
}

PredictedTime predict_update(const Programs& programs, int64_t grad_accum,
                             std::span<const double> shares, const PrecisionProfile& machine) {
  PredictedTime time;
  for (size_t shape = 0; shape < programs.steps.size(); ++shape) {
    if (shares[shape] == 0) continue;
    time.add(predict(programs.steps[shape], machine), shares[shape]);
    if (!programs.accumulates.empty())
      time.add(predict(programs.accumulates[shape], machine),
               shares[shape] * static_cast<double>(grad_accum - 1));
  }
  return time;
}

}  // namespace millrace
