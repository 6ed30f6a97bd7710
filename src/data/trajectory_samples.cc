#include "data/trajectory_samples.h"

#include <algorithm>

#include "core/text.h"

namespace millrace {
namespace {

Error too_short(const std::string& what, const std::string& where, const StateParts& parts,
                const std::string& got, const std::string& remedy) {
  return config_error(what, where,
                      fmt::format("at least {} points: model.previous {} and model.current {}",
                                  parts.least(), parts.previous, parts.current),
                      got, remedy);
}

}  // namespace

StateSamples find_state_samples(const Dataset& data, SplitName split, const StateOptions& o) {
  const ValueStore& store = *data.trajectories[static_cast<size_t>(split)];
  const std::string split_key = fmt::format("data.{}", split_name(split));
  std::vector<int64_t> begins(static_cast<size_t>(store.paths() + 1));
  store.path_begins(0, begins);
  StateSamples found;
  found.paths = store.paths();
  int64_t longest = 0;
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    const int64_t points = begins[i + 1] - begins[i];
    longest = std::max(longest, points);
    if (points < o.parts.least()) {
      ++found.short_paths;
      if (!o.skip_short)
        throw too_short(
            "a path has too few points",
            data.place_of_path ? data.place_of_path(split, static_cast<int64_t>(i)) : split_key,
            o.parts, fmt::format("{} points without a gap", points),
            "pass over such paths with data.on_bad_record=skip, or predict fewer "
            "states");
      continue;
    }
    for (int64_t end = points; end >= o.parts.least(); end -= o.window_stride) {
      const int64_t states = std::min(end, o.max_length);
      found.cut += states < end && o.max_length > o.parts.least() ? 1 : 0;
      found.samples.push_back({begins[i] + end - states, states});
    }
  }
  if (found.samples.empty())
    throw too_short("no path is long enough", split_key, o.parts,
                    fmt::format("{} paths in {}, the longest of {}", with_commas(store.paths()),
                                data.source_of(split), longest),
                    "longer paths, or fewer states to predict: model.current, model.previous");
  std::stable_sort(found.samples.begin(), found.samples.end(),
                   [](const StateSample& a, const StateSample& b) { return a.states < b.states; });
  auto& count = found.places.count;
  count.resize(static_cast<size_t>(StateParts::places(found.samples.back().states)) + 1);
  for (const StateSample& s : found.samples)
    ++count[static_cast<size_t>(StateParts::places(s.states))];
  return found;
}

}  // namespace millrace
