// Trajectories: paths of agents (people, cars) through a scene, sequences of vectors of floats that
// differ in length. They come from tables, one row for each agent in each frame, or as ragged
// arrays in safetensors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"

namespace millrace {

// One agent's path, a piece of Trajectories::values.
struct Trajectory {
  int64_t agent = 0;
  int64_t first_frame = 0;
  int64_t begin = 0, length = 0;  // in points
  bool operator==(const Trajectory&) const = default;
};

// All paths of one scene.
struct Trajectories {
  std::string scene;       // the name of the file, less folder and ending
  int64_t channels = 0;    // numbers of a point; 0: there are no points
  int64_t frame_step = 0;  // from one point to the next, usually; 0: no path has two points
  std::vector<Trajectory> paths;
  std::vector<float> values;     // [points, channels], path behind path; all finite
  std::vector<int32_t> classes;  // [points], -1: it has none; empty: none were asked for
  int64_t skipped = 0;           // what was bad and passed over

  std::span<const float> values_of(const Trajectory& path) const {  // [length, channels]
    return std::span(values).subspan(static_cast<size_t>(path.begin * channels),
                                     static_cast<size_t>(path.length * channels));
  }
  std::span<const int32_t> classes_of(const Trajectory& path) const {  // [length], or empty
    if (classes.empty()) return {};
    return std::span(classes).subspan(static_cast<size_t>(path.begin),
                                      static_cast<size_t>(path.length));
  }
};

// Where the class of a point stands, a whole number below `classes`: in the column of a table with
// this number, from 1, or name, which its first line then has, with or without a # before it; in
// the tensor [N] of this name. Empty and negative: the point has none.
struct ClassColumn {
  std::string name = {};  // empty: points have no classes
  int64_t classes = 0;
  bool is_asked_for() const { return !name.empty(); }
  int64_t number() const;  // 0: it is a name
};

// "street.txt: agent 5 from frame 780 on"
std::string path_place(const std::string& file, const Trajectory& path);

// What a refused row or path may be passed over with, at the end of a remedy: where data is read
// for a config.
inline constexpr const char* kOrSkipBad = ", or pass over such with data.on_bad_record=skip";

// A table of lines `frame agent x y`, with further channels behind them when all lines have them;
// blanks or commas stand between the numbers. Empty lines and those that begin with # are passed
// over, and so is a first line of names: one whose first word is no number. The rows of an agent,
// which may stand in any order, are its path; it ends, and another one begins, where frames are
// left out: where the next is farther away than is most common in this scene. Paths come by agent,
// then by frame. A row is bad when something in it is not a finite number, frame or agent not a
// whole one, its length not that of the first row, or its frame already there for this agent: Error
// with file, line and column, or, with `skip_bad`, it is counted and passed over; so is one whose
// class is not one of `classes`.
Trajectories parse_trajectory_table(std::string_view text, const std::string& file,
                                    bool skip_bad = false, const ClassColumn& classes = {});

// Two tensors: `values` [N, channels] of floats, and `offsets` [R + 1] of integers, which increase
// from 0 to N: path r is the rows from offsets[r] up to offsets[r + 1], its agent r. A path with a
// value that is not finite, or a class that is not one of `classes`, is an Error or, with
// `skip_bad`, counted and passed over.
Trajectories read_ragged_safetensors(std::span<const std::byte> bytes, const fs::path& name,
                                     bool skip_bad = false, const ClassColumn& classes = {});

}  // namespace millrace
