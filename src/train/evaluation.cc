#include "train/evaluation.h"

#include <cmath>

#include "train/program.h"
#include "train/trajectory_evaluation.h"
#include "train/weights.h"

namespace millrace {

LossScales LossScales::means(int64_t scored, int64_t labelled) {
  const double classes =
      labelled > 0 ? static_cast<double>(scored) / static_cast<double>(labelled) : 0;
  return {1.0f / static_cast<float>(scored), static_cast<float>(classes)};
}

void write_batch(Session& session, size_t plan, const Batch& batch, LossScales scales) {
  session.write<float>("loss_scale", std::span(&scales.loss, 1));
  if (!batch.class_targets.empty()) {
    session.write_input<int32_t>(plan, "class_targets", batch.class_targets);
    session.write<float>("class_scale", std::span(&scales.classes, 1));
  }
  if (!batch.states.empty()) {
    session.write_input<float>(plan, "states", batch.states);
    session.write_input<float>(plan, "state_targets", batch.state_targets);
    session.write_input<float>(plan, "weights", batch.weights);
    session.write_input<int32_t>(plan, "parts", batch.parts);
  } else {
    session.write_input<int32_t>(plan, "tokens", batch.tokens);
    session.write_input<int32_t>(plan, "targets", batch.targets);
  }
  if (!batch.segments.empty()) {
    session.write_input<int32_t>(plan, "segments", batch.segments);
    session.write_input<int32_t>(plan, "positions", batch.positions);
  }
  if (!batch.source.empty()) {
    session.write_input<int32_t>(plan, "source", batch.source);
    session.write_input<int32_t>(plan, "source_lengths", batch.source_lengths);
  }
  if (!batch.source_open.empty())
    session.write_input<int32_t>(plan, "source_open", batch.source_open);
}

namespace {
Metrics metrics_of(double loss) {
  return {{"eval/loss", loss}, {"eval/perplexity", std::exp(loss)}};
}
}  // namespace

std::optional<Metrics> validate(const TrainingData& data, Session& session, size_t first_plan,
                                const std::function<bool()>& stop,
                                const EvaluationProgress& progress) {
  const bool states = data.set.has_trajectories();
  DisplacementErrors displacements(data.parts, data.set.normalisation);
  ClassHits hits;
  auto all_metrics = [&](double loss) {
    if (!states) return metrics_of(loss);
    Metrics metrics = displacements.metrics();
    metrics["eval/loss"] = loss;
    if (data.set.classes() > 0) metrics["eval/class_accuracy"] = hits.share();
    return metrics;
  };
  if (!data.validation) return all_metrics(NAN);
  const Batches& batches = *data.validation;
  // Of the order of a sequence's length: sums in float stay in range.
  const auto rows = static_cast<double>(batches.shapes()[0].length);
  const auto scale = static_cast<float>(1 / rows);
  double sum = 0, class_sum = 0;
  int64_t scored = 0;
  Batch batch;
  for (int64_t i = 0; i < batches.batches_per_epoch(); i += data.validation_stride) {
    if (stop()) return std::nullopt;
    progress("validating", i, batches.batches_per_epoch());
    batches.fill(i * batches.stride(), batch);
    const size_t plan = first_plan + batch.shape;
    write_batch(session, plan, batch, {scale});
    session.run(plan);
    sum += session.scalar_output(plan, "loss") * rows;
    scored += batch.scored;
    if (!batch.class_targets.empty()) {
      class_sum += session.scalar_output(plan, "class_loss") * rows;
      hits.add(batch.class_targets, session.output(plan, "class_logits"));
    }
    if (states) displacements.add(batch, roll_out(session, plan, data.parts, batch));
  }
  // Two means, of which the session has the sum of both.
  const double of_classes =
      hits.labelled() > 0 ? class_sum / static_cast<double>(hits.labelled()) : 0;
  return all_metrics(scored > 0 ? (sum - class_sum) / static_cast<double>(scored) + of_classes
                                : NAN);
}

std::vector<std::string> metric_names(const Takes& takes) {
  if (takes.states && takes.classes > 0)
    return {"eval/ade", "eval/class_accuracy", "eval/fde", "eval/loss"};
  if (takes.states) return {"eval/ade", "eval/fde", "eval/loss"};
  return {"eval/loss", "eval/perplexity"};
}

Metrics evaluate_model(const Model& model, const Settings& settings, const TrainingData& data,
                       Backend& backend, const fs::path& folder,
                       const EvaluationProgress& progress) {
  std::vector<Plan> plans;
  for (const BatchShape& shape : data.shapes().evaluate)
    plans.push_back(make_plan(build_eval_graph(model, shape), settings.pass_options(), backend));
  std::vector<const Plan*> list;
  for (const Plan& plan : plans) list.push_back(&plan);
  const Plan refresh = make_refresh_plan(list, backend);
  list.push_back(&refresh);
  Session session(backend, list);
  load_model(folder, session, model);
  session.run(list.size() - 1);
  return *validate(
      data, session, 0, [] { return false; }, progress);
}

}  // namespace millrace
