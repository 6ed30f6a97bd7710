#include "train/evaluation.h"

#include <cmath>

namespace millrace {

void write_batch(Session& session, size_t plan, const Batch& batch) {
  session.write_input<int32_t>(plan, "tokens", batch.tokens);
  session.write_input<int32_t>(plan, "targets", batch.targets);
  if (batch.segments.empty()) return;
  session.write_input<int32_t>(plan, "segments", batch.segments);
  session.write_input<int32_t>(plan, "positions", batch.positions);
}

std::optional<double> validate(const TrainingData& data, Session& session, size_t first_plan,
                               const std::function<bool()>& stop) {
  if (!data.validation) return NAN;
  const Batches& batches = *data.validation;
  Ledger inside;  // evaluation's own node times do not mix with training's
  // Of the order of a sequence's length: sums in float stay in range.
  const auto rows = static_cast<double>(batches.shapes()[0].length);
  const auto scale = static_cast<float>(1 / rows);
  double sum = 0;
  int64_t scored = 0;
  Batch batch;
  for (int64_t i = 0; i < batches.batches_per_epoch(); ++i) {
    if (stop()) return std::nullopt;
    batches.fill(i * batches.stride(), batch);
    const size_t plan = first_plan + batch.shape;
    write_batch(session, plan, batch);
    session.write<float>("loss_scale", std::span(&scale, 1));
    session.run(plan, &inside);
    sum += session.scalar_output(plan, "loss") * rows;
    scored += batch.scored;
  }
  return scored > 0 ? sum / static_cast<double>(scored) : NAN;
}

}  // namespace millrace
