#include "train/evaluation.h"

#include <cmath>

#include "train/program.h"
#include "train/weights.h"

namespace millrace {

void write_batch(Session& session, size_t plan, const Batch& batch) {
  session.write_input<int32_t>(plan, "tokens", batch.tokens);
  session.write_input<int32_t>(plan, "targets", batch.targets);
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

std::optional<double> validate(const TrainingData& data, Session& session, size_t first_plan,
                               const std::function<bool()>& stop) {
  if (!data.validation) return NAN;
  const Batches& batches = *data.validation;
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
    session.run(plan);
    sum += session.scalar_output(plan, "loss") * rows;
    scored += batch.scored;
  }
  return scored > 0 ? sum / static_cast<double>(scored) : NAN;
}

Metrics metrics_of(double loss) {
  return {{"eval/loss", loss}, {"eval/perplexity", std::exp(loss)}};
}

std::vector<std::string> metric_names() {
  std::vector<std::string> names;
  for (const auto& [name, value] : metrics_of(0)) names.push_back(name);
  return names;
}

Metrics evaluate_model(const Model& model, const Settings& settings, const TrainingData& data,
                       Backend& backend, const fs::path& folder) {
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
  return metrics_of(*validate(data, session, 0, [] { return false; }));
}

}  // namespace millrace
