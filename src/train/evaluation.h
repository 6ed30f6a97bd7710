// Validation in constant memory: everything once and in order, one batch at a time.
#pragma once
#include <functional>
#include <optional>

#include "exec/session.h"
#include "train/training_data.h"

namespace millrace {

// Puts a batch where the plan reads it.
void write_batch(Session& session, size_t plan, const Batch& batch);

// Mean negative log-likelihood over the validation batches with the weights the session holds;
// `first_plan` and those behind it are evaluation graphs, by shape. Nothing when `stop` said so in
// between; NaN when there is nothing to validate on.
std::optional<double> validate(const TrainingData& data, Session& session, size_t first_plan,
                               const std::function<bool()>& stop);

}  // namespace millrace
