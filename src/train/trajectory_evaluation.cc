#include "train/trajectory_evaluation.h"

#include <algorithm>
#include <cmath>

#include "train/evaluation.h"
#include "train/program.h"
#include "train/weights.h"

namespace millrace {
namespace {

// Calls visit(place) for the first scored place of every sequence.
template <typename Visit>
void for_each_sequence(const Batch& batch, const StateParts& parts, Visit visit) {
  const auto current = static_cast<size_t>(parts.current);
  for (size_t place = 0; place < batch.weights.size();) {
    if (batch.weights[place] == 0) {
      ++place;
      continue;
    }
    visit(place);
    place += current;
  }
}

}  // namespace

std::vector<float> roll_out(Session& session, size_t plan, const StateParts& parts, Batch& batch) {
  const size_t channels = batch.states.size() / batch.weights.size();
  std::vector<float> predicted = session.output(plan, "predicted");
  // A prediction depends on what stands before it alone, so that the last run has them all.
  for (size_t step = 1; step < static_cast<size_t>(parts.current); ++step) {
    for_each_sequence(batch, parts, [&](size_t place) {
      const auto from =
          predicted.begin() + static_cast<std::ptrdiff_t>((place + step - 1) * channels);
      std::copy_n(from, channels,
                  batch.states.begin() + static_cast<std::ptrdiff_t>((place + step) * channels));
    });
    session.write_input<float>(plan, "states", batch.states);
    session.run(plan);
    predicted = session.output(plan, "predicted");
  }
  return predicted;
}

Normalisation normalisation_of(const fs::path& folder, const Model& model) {
  const fs::path file = folder / kNormalisationFile;
  Normalisation found = read_normalisation(read_file(file, 16 << 20), file);
  if (found.channels() == model.vocab_size()) return found;
  throw Error({.code = ErrorCode::failure,
               .what = "the normalisation is of other data than the model",
               .where = file.string(),
               .expected = fmt::format("{} channels", model.vocab_size()),
               .got = std::to_string(found.channels()),
               .remedy = "the file that the model was trained with"});
}

void DisplacementErrors::add(const Batch& batch, const std::vector<float>& predicted) {
  const auto channels = static_cast<size_t>(normalisation_.channels());
  std::vector<double> gap(channels);
  for_each_sequence(batch, parts_, [&](size_t place) {
    std::fill(gap.begin(), gap.end(), 0);
    double distance = 0;
    for (size_t step = 0; step < static_cast<size_t>(parts_.current); ++step) {
      double squares = 0;
      for (size_t c = 0; c < channels; ++c) {
        const size_t at = (place + step) * channels + c;
        gap[c] += (static_cast<double>(predicted[at]) - batch.state_targets[at]) *
                  normalisation_.deviation[c];
        squares += gap[c] * gap[c];
      }
      distance = std::sqrt(squares);
      sum_ += distance;
    }
    last_sum_ += distance;
    ++sequences_;
  });
}

Metrics DisplacementErrors::metrics() const {
  const auto n = static_cast<double>(sequences_);
  return {{"eval/ade", sum_ / (n * static_cast<double>(parts_.current))},
          {"eval/fde", last_sum_ / n}};
}

std::vector<int32_t> likeliest_classes(const std::vector<float>& logits, size_t places) {
  const auto classes = static_cast<std::ptrdiff_t>(logits.size() / places);
  std::vector<int32_t> found;
  for (auto row = logits.begin(); row != logits.end(); row += classes)
    found.push_back(static_cast<int32_t>(std::max_element(row, row + classes) - row));
  return found;
}

void ClassHits::add(const std::vector<int32_t>& targets, const std::vector<float>& logits) {
  const std::vector<int32_t> found = likeliest_classes(logits, targets.size());
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] < 0) continue;
    ++labelled_;
    hits_ += found[i] == targets[i] ? 1 : 0;
  }
}

PathPrediction::PathPrediction(const Model& model, int64_t at_once, const fs::path& folder,
                               const PassOptions& passes, Backend& backend)
    : parts_(model.takes().parts),
      max_states_(model.max_lengths().target),
      classes_(model.takes().classes) {
  normalisation_ = normalisation_of(folder, model);
  shape_ = {at_once, StateParts::places(max_states_)};
  plan_ = make_plan(build_eval_graph(model, shape_), passes, backend);
  const Plan* const plans[] = {&plan_};
  refresh_ = make_refresh_plan(plans, backend);
  session_.emplace(backend, std::vector<const Plan*>{&plan_, &refresh_});
  load_model(folder, *session_, model);
  session_->run(1);
}

std::vector<PredictedPath> PathPrediction::next(std::span<const std::span<const float>> paths) {
  MR_CHECK(std::ssize(paths) <= shape_.batch, "{} paths at once", paths.size());
  const int64_t C = channels(), room = max_states_ - parts_.current;
  clear_states(batch_, shape_, {C, classes_ > 0});
  std::vector<int64_t> first;  // place of what is predicted
  for (const std::span<const float> path : paths) {
    const int64_t points = std::ssize(path) / C, read = std::min(points, room);
    MR_CHECK(points >= parts_.previous, "a path of {} points", points);
    std::vector<float> states(path.end() - read * C, path.end());
    // What is not known yet stands still: nothing before it sees it.
    for (int64_t t = 0; t < parts_.current; ++t)
      states.insert(states.end(), path.end() - C, path.end());
    const int64_t row = std::ssize(first) * shape_.length;
    put_states(states, parts_, normalisation_, row, batch_);
    first.push_back(row + read - 2);
  }
  write_batch(*session_, 0, batch_, {});
  session_->run(0);
  const std::vector<float> predicted = roll_out(*session_, 0, parts_, batch_);
  std::vector<int32_t> labels;
  if (classes_ > 0)
    labels = likeliest_classes(session_->output(0, "class_logits"), batch_.weights.size());
  std::vector<PredictedPath> result;
  for (size_t i = 0; i < paths.size(); ++i) {
    std::vector<float>& states = result.emplace_back().states;
    // Read off where training has it: before the last change.
    if (classes_ > 0)
      result.back().label = labels[static_cast<size_t>(first[i] + parts_.current - 1)];
    std::vector<float> state(paths[i].end() - C, paths[i].end());
    for (int64_t t = 0; t < parts_.current; ++t)
      for (int64_t c = 0; c < C; ++c) {
        state[static_cast<size_t>(c)] += normalisation_.change(
            predicted[static_cast<size_t>((first[i] + t) * C + c)], static_cast<size_t>(c));
        states.push_back(state[static_cast<size_t>(c)]);
      }
  }
  return result;
}

}  // namespace millrace
