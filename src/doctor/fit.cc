#include "doctor/fit.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/text.h"

namespace millrace {

std::vector<Contributor> contributors(const Programs& programs) {
  const Plan& plan = programs.step();
  std::map<std::string, int64_t> sums;
  for (const Buffer& b : plan.buffers) {
    if (!b.in_state && (b.first > plan.peak_at || b.last < plan.peak_at)) continue;
    const Node& owner = plan.graph[b.owner];
    std::string what(memory_class_name(b.memory_class));
    if (b.memory_class == MemoryClass::activations || b.memory_class == MemoryClass::temporaries ||
        b.memory_class == MemoryClass::workspace)
      what += fmt::format(" of {}", owner.op->name);
    sums[what] += b.bytes;
  }
  if (programs.overhead) sums["context and libraries"] = *programs.overhead;
  std::vector<Contributor> list;
  for (const auto& [what, bytes] : sums) list.push_back({what, bytes});
  std::sort(list.begin(), list.end(),
            [](const Contributor& a, const Contributor& b) { return a.bytes > b.bytes; });
  return list;
}

std::string recompute_text(const Programs& programs) {
  const Recompute& how = programs.passes.recompute;
  if (how.whole_layers > 0)
    return fmt::format("{} of {} layers whole, norms and activations in the rest", how.whole_layers,
                       recompute_units(programs.step().graph).size());
  return how.cheap ? "norms and activations" : "nothing";
}

std::string head_text(const Programs& programs) {
  const int64_t rows = programs.passes.head_chunk_rows;
  return rows > 0 ? fmt::format("; the head {} rows at a time", rows) : "";
}

std::string saving_text(const Programs& programs) {
  const std::string head = head_text(programs);
  if (programs.passes.recompute != Recompute{})
    return "recomputed: " + recompute_text(programs) + head;
  return head.empty() ? "" : head.substr(std::string_view("; ").size());
}

std::vector<int64_t> grid_batches(int64_t batch) {
  constexpr size_t kMost = 8;
  constexpr int64_t kBeyond = 8;
  std::vector<int64_t> list;
  for (int64_t b = 1; b <= kBeyond * batch; b *= 2) list.push_back(b);
  if (list.size() > kMost) list.erase(list.begin(), list.end() - kMost);
  if (std::ranges::find(list, batch) == list.end())
    list.insert(std::ranges::upper_bound(list, batch), batch);
  return list;
}

Grid make_grid(std::span<const GridColumn> columns, std::span<const int64_t> batches, int64_t limit,
               Backend& backend, const PrecisionProfile* machine) {
  Grid grid;
  grid.limit = limit;
  grid.batches.assign(batches.begin(), batches.end());
  for (const GridColumn& c : columns) grid.lengths.push_back(c.length);
  for (const int64_t batch : batches)
    for (size_t l = 0; l < columns.size(); ++l) {
      const GridColumn& c = columns[l];
      GridCell cell{.batch = batch, .length = c.length};
      // More of anything does not fit where less did not.
      const size_t above = grid.cells.size() - columns.size();
      const bool hopeless =
          (batch != batches[0] && !grid.cells[above].fits) || (l > 0 && !grid.cells.back().fits);
      if (!hopeless) {
        Settings settings = c.settings;
        settings.batch_size = batch;
        settings.memory_limit = limit;
        BatchShape shape = c.shape;
        shape.batch = batch;
        const Programs programs = make_programs(*c.model, settings, shape, backend);
        cell.need = programs.needed_bytes();
        cell.fits = cell.need <= limit;
        cell.saving = saving_text(programs);
        if (!cell.fits) {
          const Contributor most = contributors(programs).front();
          cell.limiting = fmt::format("{} {}", most.what, human_bytes(most.bytes));
        } else if (machine) {
          constexpr double kOnly[] = {1};
          cell.time = predict_update(programs, settings.grad_accum, kOnly, *machine);
        }
        cell.tokens = static_cast<double>(shape.places() * settings.grad_accum);
      }
      grid.cells.push_back(std::move(cell));
    }
  return grid;
}

std::string grid_text(const Grid& grid) {
  constexpr int kWidth = 29;
  bool saves = false, timed = false, expected = false;
  for (const GridCell& cell : grid.cells) {
    saves = saves || (cell.fits && !cell.saving.empty());
    timed = timed || cell.time.least > 0;
    expected = expected || cell.time.expected;
  }
  std::string s =
      fmt::format("\nbatch x length in {}: memory, to spare{}\n", human_bytes(grid.limit),
                  !timed     ? ""
                  : expected ? ", tokens/s expected"
                             : ", tokens/s at most");
  s += fmt::format("  {:>7}", "");
  for (const int64_t length : grid.lengths)
    s += fmt::format("{:>{}}", fmt::format("{}{}", length, length == grid.length ? " (now)" : ""),
                     kWidth);
  s += "\n";
  for (size_t b = 0; b < grid.batches.size(); ++b) {
    s += fmt::format("{} {:>7}", grid.batches[b] == grid.batch ? ">" : " ", grid.batches[b]);
    for (size_t l = 0; l < grid.lengths.size(); ++l) {
      const GridCell& cell = grid.at(b, l);
      std::string text = cell.need == 0 ? "no" : "needs " + human_bytes(cell.need);
      if (cell.fits) {
        text = fmt::format(
            "{}{} {:>3.0f} %", cell.saving.empty() ? "" : "~", human_bytes(cell.need),
            100 * static_cast<double>(grid.limit - cell.need) / static_cast<double>(grid.limit));
        if (cell.time.least > 0)
          text += fmt::format(" {:>7}/s", human_count(cell.tokens / cell.time.best_known()));
      }
      s += fmt::format("{:>{}}", text, kWidth);
    }
    s += "\n";
  }
  if (saves) s += "  ~ with parts computed twice, or fewer rows of logits at a time\n";
  for (const GridCell& cell : grid.cells)
    if (!cell.limiting.empty())
      s += fmt::format("  batch {} of length {} needs {}: most is {}\n", cell.batch, cell.length,
                       human_bytes(cell.need), cell.limiting);
  return s;
}

FitChanges find_changes(const Model& model, const Settings& settings, const BatchShape& shape,
                        int64_t limit, Backend& backend, const MachineProfile& machine) {
  constexpr double kOnly[] = {1};
  FitChanges changes;
  auto plan = [&](const Settings& with, int64_t batch) {
    BatchShape of = shape;
    of.batch = batch;
    return make_programs(model, with, of, backend);
  };
  auto time_of = [&](const Programs& programs, int64_t grad_accum) {
    const PrecisionProfile* p = machine.find(programs.passes.precision);
    return p ? predict_update(programs, grad_accum, kOnly, *p) : PredictedTime{};
  };
  auto consider = [&](const Settings& with, int64_t batch, const std::string& change,
                      const char* effect) {
    const Programs programs = plan(with, batch);
    const int64_t need = programs.needed_bytes();
    if (need > limit) return false;
    const bool cut = programs.passes.head_chunk_rows > 0;
    changes.list.push_back({change, cut ? "sums of the head in another order" : effect,
                            saving_text(programs), need, time_of(programs, with.grad_accum)});
    return true;
  };
  Settings plain = settings;
  plain.memory_limit = 0;
  {
    const Programs as_is = plan(plain, shape.batch);
    changes.need = as_is.needed_bytes();
    changes.time = time_of(as_is, settings.grad_accum);
  }
  if (changes.need <= limit) return changes;

  constexpr int64_t kMiB = 1 << 20;
  const std::string limited = limit % kMiB == 0
                                  ? fmt::format("runtime.memory_limit={}MiB", limit / kMiB)
                                  : fmt::format("runtime.memory_limit={}", limit);
  Settings with = settings;
  with.memory_limit = limit;
  if (settings.recompute) consider(with, shape.batch, limited, "the same losses");
  with.recompute = false;
  consider(with, shape.batch, limited + " runtime.recompute=false", "the same losses");
  // Micro-batches of the same optimisation batch, with nothing else changed.
  for (int64_t batch = shape.batch / 2; batch >= 1; batch /= 2) {
    if (shape.batch % batch != 0) continue;
    with = plain;
    with.batch_size = batch;
    with.grad_accum = settings.grad_accum * (shape.batch / batch);
    if (consider(
            with, batch,
            fmt::format("training.batch_size={} training.grad_accum={}", batch, with.grad_accum),
            "the same optimisation batch, gradients added in another order"))
      break;
  }
  const Precision now = settings.pass_precision();
  if (now == Precision::fp32 || now == Precision::tf32) {
    with = plain;
    with.precision = precision_name(Precision::bf16);
    if (backend.computes(Precision::bf16) && backend.stores_halves())
      consider(with, shape.batch, "training.precision=bf16", "16-bit numbers");
  }
  // Unknown times come last.
  std::ranges::stable_sort(changes.list, [](const FitChange& a, const FitChange& b) {
    const double x = a.time.best_known(), y = b.time.best_known();
    return x > 0 && (y <= 0 || x < y);
  });
  return changes;
}

std::string changes_text(const FitChanges& changes, int64_t limit) {
  if (changes.need <= limit) return "";
  const double now = changes.time.best_known();
  std::string s =
      fmt::format("\nto fit in {}, the fastest first; as it is, batches need {}{}\n",
                  human_bytes(limit), human_bytes(changes.need),
                  now > 0 ? fmt::format(" and an update takes {}", human_seconds(now)) : "");
  for (const FitChange& c : changes.list) {
    const double seconds = c.time.best_known();
    s += fmt::format(
        "  {:<9} {}{} ({}{}; needs {})\n", seconds > 0 ? human_seconds(seconds) : "?",
        now > 0 && seconds > 0 ? fmt::format("{:>+5.1f} %  ", 100 * (seconds / now - 1)) : "",
        c.change, c.saving.empty() ? "" : c.saving + "; ", c.effect, human_bytes(c.need));
  }
  if (changes.list.empty())
    s +=
        "  neither recomputing, nor smaller batches that are accumulated, nor 16 bits are enough\n";
  return s;
}

nlohmann::ordered_json time_json(const PredictedTime& time) {
  nlohmann::ordered_json j = {{"least_seconds", nullptr}, {"expected_seconds", nullptr}};
  if (time.least > 0) j["least_seconds"] = time.least;
  if (time.expected) {
    j["expected_seconds"] = *time.expected;
    j["unknown_seconds"] = time.unknown;
  }
  return j;
}

nlohmann::ordered_json grid_json(const Grid& grid) {
  auto list = nlohmann::ordered_json::array();
  for (const GridCell& c : grid.cells) {
    nlohmann::ordered_json j = {{"batch", c.batch}, {"length", c.length}, {"fits", c.fits}};
    j["needed_bytes"] = c.need > 0 ? nlohmann::ordered_json(c.need) : nlohmann::ordered_json();
    if (c.fits) j["margin_bytes"] = grid.limit - c.need;
    if (!c.saving.empty()) j["saving"] = c.saving;
    if (!c.limiting.empty()) j["limiting"] = c.limiting;
    if (c.fits && c.time.least > 0) {
      j.update(time_json(c.time));
      j["tokens_per_second"] = c.tokens / c.time.best_known();
    }
    list.push_back(std::move(j));
  }
  return list;
}

nlohmann::ordered_json changes_json(const FitChanges& changes) {
  auto list = nlohmann::ordered_json::array();
  for (const FitChange& c : changes.list) {
    nlohmann::ordered_json j = {
        {"change", c.change}, {"effect", c.effect}, {"saving", c.saving}, {"needed_bytes", c.need}};
    j.update(time_json(c.time));
    list.push_back(std::move(j));
  }
  return list;
}

}  // namespace millrace
