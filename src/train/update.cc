#include "train/update.h"

#include "train/evaluation.h"

namespace millrace {

size_t start_update(Session& session, const Programs& programs, const Settings& settings,
                    const UpdateBatches& batches, const UpdatePlace& at, Ledger& ledger,
                    const std::function<void()>& before_optimizer) {
  const LossScales scales = LossScales::means(batches.scored, batches.labelled);
  const auto write_scalar = [&](const char* leaf, double value) {
    const auto number = static_cast<float>(value);
    session.write<float>(leaf, std::span(&number, 1));
  };
  size_t plan = 0;
  for (int64_t micro = 0; micro < settings.grad_accum; ++micro) {
    const bool last = micro + 1 == settings.grad_accum;
    const Batch& batch = batches.parts[static_cast<size_t>(micro)];
    plan = last ? programs.step_plan(batch.shape) : programs.accumulate_plan(batch.shape);
    {
      const OwnerScope copying(ledger, Owner::h2d);
      write_batch(session, plan, batch, scales);
      if (session.has("random_key")) {
        // Follows the data, not the step: after a roll-back both are new.
        const auto seed = static_cast<uint64_t>(settings.seed),
                   sample = static_cast<uint64_t>(at.samples + micro * at.stride);
        const int32_t key[4] = {static_cast<int32_t>(seed), static_cast<int32_t>(seed >> 32),
                                static_cast<int32_t>(sample), static_cast<int32_t>(sample >> 32)};
        session.write<int32_t>("random_key", key);
      }
      if (!last) write_scalar("accumulate_beta", micro == 0 ? 0 : 1);
      if (session.has("ema_rate"))
        write_scalar("ema_rate", average_rate_at(settings.ema_decay, at.step));
      write_scalar("learning_rate", at.learning_rate);
      write_scalar("step", static_cast<double>(at.step + 1));
    }
    session.run(plan, &ledger, last ? before_optimizer : std::function<void()>());
  }
  return plan;
}

}  // namespace millrace
