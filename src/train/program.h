// The programs of a training run: graphs for a step, an accumulation micro-step and an evaluation,
// and their Plans under a memory limit.
#pragma once
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "exec/session.h"
#include "graph/plan.h"
#include "model/model.h"
#include "train/settings.h"

namespace millrace {

// The graph of one update: loss, gradients, clipping, optimizer. With grad_accum > 1 it is the last
// micro-batch and adds what the others left in the gradient buffers.
//   inputs:  tokens, targets, loss_scale, learning_rate, step (1-based), random_key; earlier_loss
//   with
//            grad_accum > 1; ema_rate with ema_decay > 0
//   outputs: loss, grad_norm
Graph build_step_graph(const Model& model, const Settings& settings, BatchShape shape);
// The other micro-batches: buffer = accumulate_beta * buffer + gradient.
Graph build_accumulate_graph(const Model& model, const Settings& settings, BatchShape shape);
Graph build_eval_graph(const Model& model, BatchShape shape);  // output loss
// T new tokens behind a key/value cache (Model::build_decode); output logits.
Graph build_decode_graph(const Model& model, BatchShape shape, int64_t capacity);

// Generation of one sequence over one cache: the prompt goes in by chunks, then token by token.
struct DecodePlans {
  Plan prefill, decode;
};
inline int64_t prefill_chunk(int64_t capacity) { return std::min<int64_t>(64, capacity); }
DecodePlans make_decode_plans(const Model& model, int64_t capacity, const PassOptions& options,
                              KernelChooser& chooser);

// Indices into Programs::plans(), and so into a Session made of them.
enum ProgramIndex : size_t { kStepPlan, kEvaluatePlan, kPrefillPlan, kDecodePlan, kAccumulatePlan };

struct Programs {
  Plan step;
  std::optional<Plan> accumulate;
  Plan evaluate;
  DecodePlans generation;  // of sample text, with a cache of training.max_length tokens
  PassOptions passes;

  std::vector<const Plan*> plans() const;
  int64_t total_bytes() const { return layout_session(plans()).total_bytes(); }
};

// The least recomputation whose memory is within settings.memory_limit. When nothing fits, the
// leanest programs are returned: compare total_bytes() with the limit.
Programs make_programs(const Model& model, const Settings& settings, BatchShape shape,
                       KernelChooser& chooser);

// Largest batch whose programs fit `limit`, by bisection; 0 when not even one sequence does.
int64_t largest_batch(const Model& model, Settings settings, int64_t limit, KernelChooser& chooser);

}  // namespace millrace
