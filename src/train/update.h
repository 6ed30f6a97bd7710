// One update handed to the backend: batch after batch with all that changes from one to the next.
#pragma once
#include <functional>

#include "data/loader.h"
#include "exec/ledger.h"
#include "exec/session.h"
#include "train/program.h"
#include "train/settings.h"

namespace millrace {

// Where a run stands when an update begins.
struct UpdatePlace {
  int64_t step, samples;
  int64_t stride;  // samples a batch
  double learning_rate;
};

// Runs grad_accum micro-batches, of which the last one's plan is returned. The loss is the mean
// over all scored tokens of the update, so that the result does not depend on how the batch is cut.
// A device only starts: what it gives is read later. `before_optimizer` may be empty.
size_t start_update(Session& session, const Programs& programs, const Settings& settings,
                    const UpdateBatches& batches, const UpdatePlace& at, Ledger& ledger,
                    const std::function<void()>& before_optimizer);

}  // namespace millrace
