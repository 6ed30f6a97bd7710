#include "cli/predict_paths.h"

#include <algorithm>
#include <cstdio>

#include "cli/standard_output.h"
#include "core/clock.h"
#include "core/text.h"
#include "data/trajectory_source.h"
#include "io/byte_stream.h"
#include "train/trajectory_evaluation.h"

namespace millrace {
namespace {

Trajectories read_paths(const fs::path& input, const ClassColumn& classes) {
  std::string bytes;
  append_unpacked_file(input, bytes);
  try {
    return input.extension() == ".safetensors"
               ? read_ragged_safetensors(std::as_bytes(std::span(bytes)), input)
               : parse_trajectory_table(bytes, input.string(), false, classes);
  } catch (const Error& e) {  // there is no config here that could say otherwise
    ErrorFields fields = e.fields();
    if (const size_t at = fields.remedy.find(kOrSkipBad); at != fields.remedy.npos)
      fields.remedy.resize(at);
    throw Error(fields);
  }
}

void check_paths(const Trajectories& scene, const PathPrediction& prediction, const fs::path& input,
                 bool may_have_classes) {
  auto refuse = [&](const std::string& what, const std::string& where, const std::string& expected,
                    const std::string& got, const std::string& remedy) {
    throw Error({.code = ErrorCode::config,
                 .what = what,
                 .where = where,
                 .expected = expected,
                 .got = got,
                 .remedy = remedy});
  };
  if (scene.paths.empty())
    refuse("there is no path to go on from", input.string(), "at least one path", "none",
           "a table of frame, agent, x and y");
  if (scene.channels != prediction.channels())
    refuse("points of another kind than the model knows", input.string(),
           fmt::format("{} numbers a point", prediction.channels()), std::to_string(scene.channels),
           may_have_classes ? "--class-column 5, or whatever number or name a column of classes has"
                            : "data as the model was trained on");
}

// Paths that are too short to go on from are passed over: in real tables someone is seen for a
// moment, and everybody else's future does not depend on it.
void drop_short_paths(Trajectories& scene, int64_t least, const fs::path& input) {
  Trajectory first;
  const auto too_short = [&](const Trajectory& path) {
    if (path.length >= least) return false;
    if (first.length == 0) first = path;
    return true;
  };
  const auto dropped = static_cast<int64_t>(std::erase_if(scene.paths, too_short));
  if (dropped == 0) return;
  const std::string place = path_place(input.string(), first);
  if (scene.paths.empty())
    throw Error(
        {.code = ErrorCode::config,
         .what = "no path has enough points to go on from",
         .where = place,
         .expected = fmt::format("at least {}: model.previous", least),
         .got = fmt::format("{} points without a gap, and no other path has enough", first.length),
         .remedy = "a table in which somebody is seen for longer"});
  std::fprintf(
      stderr, "%s\n",
      fmt::format(
          "note     {} of {} paths have too few points to go on from (at least {} without a "
          "gap: model.previous) and are passed over; the first: {}, {} points",
          with_commas(dropped), with_commas(dropped + std::ssize(scene.paths)), least, place,
          first.length)
          .c_str());
}

}  // namespace

void predict_paths(const Model& model, const fs::path& folder, const fs::path& input,
                   const std::string& class_column, int64_t at_once, const PassOptions& passes,
                   Backend& backend) {
  const int64_t classes = model.takes().classes;
  Trajectories scene = read_paths(input, {class_column, int64_t{1} << 31});
  at_once = std::clamp<int64_t>(std::ssize(scene.paths), 1, at_once);
  PathPrediction prediction(model, at_once, folder, passes, backend);
  check_paths(scene, prediction, input, classes > 0 && class_column.empty());
  drop_short_paths(scene, prediction.parts().previous, input);
  const int64_t begin = now_ns();
  for (size_t first = 0; first < scene.paths.size(); first += static_cast<size_t>(at_once)) {
    const auto group =
        std::span(scene.paths)
            .subspan(first, std::min(static_cast<size_t>(at_once), scene.paths.size() - first));
    std::vector<std::span<const float>> paths;
    for (const Trajectory& path : group) paths.push_back(scene.values_of(path));
    const auto found = prediction.next(paths);
    std::string text;
    for (size_t i = 0; i < group.size(); ++i) {
      const int64_t last = group[i].first_frame + (group[i].length - 1) * scene.frame_step;
      for (int64_t t = 0; t < prediction.parts().current; ++t) {
        text += fmt::format("{}\t{}", last + (t + 1) * scene.frame_step, group[i].agent);
        for (int64_t c = 0; c < scene.channels; ++c)
          text += fmt::format("\t{}", found[i].states[static_cast<size_t>(t * scene.channels + c)]);
        text += classes > 0 ? fmt::format("\t{}\n", found[i].label) : "\n";
      }
    }
    put(text);
  }
  const double seconds = seconds_since(begin);
  std::fprintf(
      stderr, "%s\n",
      fmt::format("{} paths, {} states each, in {}: {:.0f} paths a second",
                  with_commas(std::ssize(scene.paths)), prediction.parts().current,
                  human_seconds(seconds), static_cast<double>(scene.paths.size()) / seconds)
          .c_str());
}

}  // namespace millrace
