// The programs of a training run: graphs for a step, an accumulation micro-step and an evaluation,
// and their Plans under a memory limit.
#pragma once
#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/session.h"
#include "graph/plan.h"
#include "model/model.h"
#include "train/settings.h"

namespace millrace {

// The graph of one update: loss, gradients, clipping, optimizer. With grad_accum > 1 it is the last
// micro-batch and adds what the others left in the gradient buffers.
//   inputs:  tokens, targets, loss_scale, learning_rate, step (1-based), random_key; ema_rate with
//            ema_decay > 0
//   outputs: loss (of all micro-batches), grad_norm
// In fp16 the loss is scaled up before it is differentiated, so that small gradients are not lost
// (Micikevicius et al., arXiv 1710.03740), and the scale follows what 16 bits can hold.
Graph build_step_graph(const Model& model, const Settings& settings, BatchShape shape);
// The other micro-batches: buffer = accumulate_beta * buffer + gradient, and so for the loss.
Graph build_accumulate_graph(const Model& model, const Settings& settings, BatchShape shape);
constexpr const char* kLossScaling = "loss_scaling.scale";  // leaf of an fp16 step
constexpr float kFirstLossScaling = 65536;
Graph build_eval_graph(const Model& model, BatchShape shape);  // output loss
// Every 16-bit copy that the plans read, out of its parameter: to be run when parameters were
// written by anything but the optimizer.
Plan make_refresh_plan(std::span<const Plan* const> plans, KernelChooser& chooser);
// T new tokens behind a key/value cache (Model::build_decode); output logits.
Graph build_decode_graph(const Model& model, BatchShape shape, int64_t capacity);
// What decoding reads of sources (Model::build_encode); no output.
Graph build_encode_graph(const Model& model, BatchShape shape, int64_t capacity);

// Generation of one sequence over one cache: the prompt goes in by chunks, or a source as a whole,
// then token by token. The output is "logits" or, of a model that copies words, "probabilities",
// which has those of the source behind the vocabulary.
struct DecodePlans {
  Plan prefill, decode;
};
inline int64_t prefill_chunk(int64_t capacity) { return std::min<int64_t>(64, capacity); }
// Tokens that are read of a prompt, its last ones: half of what there is room for when not all fit,
// so that a text can go on.
inline int64_t prompt_kept(int64_t length, int64_t capacity) {
  return length <= capacity ? length : std::max<int64_t>(1, capacity / 2);
}
DecodePlans make_decode_plans(const Model& model, int64_t capacity, const PassOptions& options,
                              KernelChooser& chooser);

// Beam search: sources as a whole or prompts by chunks, and one more token for every row; outputs:
// probabilities, the best of a row and their words; with those of the source behind the vocabulary
// for a model that copies. Their caches have names of their own, so that DecodePlans may stand
// beside them in a session.
struct BeamPlans {
  Plan encode, decode;
};
// What a search has room for at a time.
struct BeamRoom {
  int64_t sources = 1, max_source = 0, max_length = 0;  // of a source or prompt, of what is written
};
// Tokens of a row that the caches hold: what is written and, where it goes on from a prompt, that.
int64_t beam_capacity(const Model& model, const BeamRoom& room);
// As many of a row as hypotheses could grow by, and some that may not follow.
inline int64_t best_of_row(int64_t beam) { return 2 * beam + 8; }
BeamPlans make_beam_plans(const Model& model, const BeamRoom& room, int64_t beam,
                          const PassOptions& options, KernelChooser& chooser);
// For so many sources of whatever length the model reads.
BeamRoom room_for_all(const Model& model, int64_t sources);
// For the texts that validation writes while a run trains.
BeamRoom validation_room(const Model& model, const Settings& settings);

// What batches training and validation read; the largest comes first.
struct ProgramShapes {
  std::vector<BatchShape> train, evaluate;
  ProgramShapes(BatchShape both) : train{both}, evaluate{both} {}
  ProgramShapes(std::vector<BatchShape> train_shapes, std::vector<BatchShape> evaluate_shapes)
      : train(std::move(train_shapes)), evaluate(std::move(evaluate_shapes)) {}
};

struct Programs {
  // One for each shape of a batch; none to accumulate with when an update is one batch.
  std::vector<Plan> steps, accumulates, evaluates;
  // Of sample text, with a cache of training.max_length tokens; empty when the model writes none.
  DecodePlans generation;
  // Of the texts that validation writes (training.eval_texts); empty when it writes none.
  BeamPlans texts;
  Plan refresh;  // makes the 16-bit copies of the parameters anew; empty when there are none
  PassOptions passes;
  // Of a device, beside the arena: context and libraries, where they were measured.
  std::optional<int64_t> overhead;
  int64_t runs_at_once = 1;  // of the device

  const Plan& step() const { return steps[0]; }  // of the largest batch
  std::vector<const Plan*> plans() const;
  // Places in plans(), and so in a Session made of them, by shape.
  size_t step_plan(size_t shape = 0) const { return shape; }
  size_t accumulate_plan(size_t shape = 0) const { return steps.size() + shape; }
  size_t evaluate_plan(size_t shape = 0) const { return steps.size() + accumulates.size() + shape; }
  size_t prefill_plan() const { return evaluate_plan(evaluates.size()); }
  size_t decode_plan() const { return prefill_plan() + 1; }
  bool generates() const { return !generation.decode.graph.nodes.empty(); }
  bool writes_texts() const { return !texts.decode.graph.nodes.empty(); }
  size_t texts_plan() const { return prefill_plan() + (generates() ? 2 : 0); }
  size_t refresh_plan() const { return plans().size() - 1; }
  int64_t total_bytes() const {  // the arena
    return layout_session(plans(), runs_at_once).total_bytes();
  }
  // What must fit: the arena, and the overhead as far as it is known.
  int64_t needed_bytes() const { return total_bytes() + overhead.value_or(0); }
};

// The least recomputation whose memory is within settings.memory_limit. When nothing fits, the
// leanest programs are returned: compare needed_bytes() with the limit.
Programs make_programs(const Model& model, const Settings& settings, const ProgramShapes& shapes,
                       Backend& backend);

// Largest batch of shape `like` whose programs fit `limit`, by bisection; 0 when not even one
// sequence does.
int64_t largest_batch(const Model& model, Settings settings, BatchShape like, int64_t limit,
                      Backend& backend);

}  // namespace millrace
