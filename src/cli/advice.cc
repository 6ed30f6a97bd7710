#include "cli/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "doctor/prediction.h"

namespace millrace {
namespace {

// Sizes that a family may have, each halved alone.
struct Size {
  const char *key, *meaning;
};
constexpr Size kSizes[] = {{"model.num_layers", "half the layers"},
                           {"model.d_model", "half the width"},
                           {"model.hidden_dim", "half the width of the LSTMs"},
                           {"training.max_length", "half the length"},
                           {"training.max_source_length", "half the length of sources"},
                           {"model.num_chunks", "half the length of sources"}};

struct Predicted {
  double tokens_per_second = 0;
  int64_t bytes = 0;
};

Predicted predict_run(const LoadedRun& run, Backend& backend, const PrecisionProfile& machine) {
  const Settings& s = run.settings;
  const Programs programs = make_programs(*run.model, s, run.data.shapes(), backend);
  const std::vector<double> shares = shape_shares(*run.data.batches);
  double places = 0;
  for (size_t i = 0; i < shares.size(); ++i)
    places += shares[i] * static_cast<double>(run.data.batches->shapes()[i].places());
  const double seconds = predict_update(programs, s.grad_accum, shares, machine).best_known();
  return {places * static_cast<double>(s.grad_accum) / seconds, programs.needed_bytes()};
}

}  // namespace

std::vector<Advice> advise(const RunRequest& request, LoadedRun& run, Backend& backend,
                           const MachineProfile& machine) {
  constexpr double kLeast = 1.05;
  const PrecisionProfile* known = machine.find(run.settings.pass_precision());
  if (!known || known->ops.empty()) return {};
  const SizesOnly sizes(backend);
  const Predicted now = predict_run(run, backend, *known);
  std::vector<Advice> list;
  for (const Size& size : kSizes) {
    int64_t value = 0;
    if (!run.schema.knows(size.key)) continue;
    const std::string text = run.schema.value_text(size.key);
    std::from_chars(text.data(), text.data() + text.size(), value);
    if (value < 2) continue;
    RunRequest changed = request;
    changed.settled_batch = run.settings.batch_size;
    changed.overrides.push_back(fmt::format("{}={}", size.key, value / 2));
    try {
      DataObserver nobody;
      const auto other = load_run(changed, nobody);
      other->settings.precision = run.settings.precision;
      const Predicted then = predict_run(*other, backend, *known);
      const double ratio = then.tokens_per_second / now.tokens_per_second;
      if (ratio >= kLeast)
        list.push_back({changed.overrides.back(), size.meaning, ratio, now.bytes - then.bytes});
    } catch (const Error&) {
      // It contradicts another key.
    }
  }
  std::ranges::stable_sort(list,
                           [](const Advice& a, const Advice& b) { return a.ratio > b.ratio; });
  return list;
}

}  // namespace millrace
