// What fits into a memory: what takes most of it, batches and lengths around those of a config, and
// the changes that make a config fit, by what they cost in time. Everything is planned for real.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "doctor/prediction.h"
#include "train/program.h"

namespace millrace {

struct Contributor {
  std::string what;
  int64_t bytes;
};
// What is alive at the peak of the step, largest first.
std::vector<Contributor> contributors(const Programs& programs);

// What a limit made of the plans: "nothing", "norms and activations", "2 of 6 layers whole, ...";
// and
// "; the head 256 rows at a time", or "".
std::string recompute_text(const Programs& programs);
std::string head_text(const Programs& programs);
// Both; "" when nothing is computed twice and the head is not cut.
std::string saving_text(const Programs& programs);

// A length of the grid: a model and settings made for it, and the largest batch that it reads.
struct GridColumn {
  int64_t length = 0;  // training.max_length
  const Model* model = nullptr;
  Settings settings;
  BatchShape shape;
};

struct GridCell {
  int64_t batch = 0, length = 0;
  bool fits = false;
  int64_t need = 0;           // bytes; 0: a smaller one does not fit either, so it was not planned
  std::string saving = {};    // what had to be saved
  std::string limiting = {};  // where it does not fit: the largest contributor
  PredictedTime time = {};    // of an update
  double tokens = 0;          // places of an update
};

struct Grid {
  int64_t limit = 0, batch = 0, length = 0;  // of the config
  std::vector<int64_t> batches, lengths;
  std::vector<GridCell> cells;  // by batch, then by length
  const GridCell& at(size_t batch_index, size_t length_index) const {
    return cells[batch_index * lengths.size() + length_index];
  }
};

// Powers of two around a batch, and the batch itself.
std::vector<int64_t> grid_batches(int64_t batch);
// `machine` may be null: times are not known then.
Grid make_grid(std::span<const GridColumn> columns, std::span<const int64_t> batches, int64_t limit,
               Backend& backend, const PrecisionProfile* machine);
std::string grid_text(const Grid& grid);

struct FitChange {
  std::string change;  // of the config, "a.b=c d=e"
  std::string effect;  // on results
  std::string saving;  // what is computed twice, or cut
  int64_t need = 0;
  PredictedTime time;  // of an update of the same optimisation batch
};
struct FitChanges {
  int64_t need = 0;  // as it is
  PredictedTime time;
  std::vector<FitChange> list;  // those that fit, the fastest first
};
// Ways to make batches of this shape fit.
FitChanges find_changes(const Model& model, const Settings& settings, const BatchShape& shape,
                        int64_t limit, Backend& backend, const MachineProfile& machine);
std::string changes_text(const FitChanges& changes, int64_t limit);

nlohmann::ordered_json time_json(const PredictedTime& time);
nlohmann::ordered_json grid_json(const Grid& grid);
nlohmann::ordered_json changes_json(const FitChanges& changes);

}  // namespace millrace
