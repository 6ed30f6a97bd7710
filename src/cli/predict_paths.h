// millrace generate, for models of trajectories: what follows on the paths of a file.
#pragma once
#include "core/file.h"
#include "exec/backend.h"
#include "graph/passes.h"
#include "model/model.h"

namespace millrace {

// Reads a table of frames, agents and numbers, or ragged arrays in safetensors, and writes a table
// of the states that follow to standard output, of a model with classes with that of the part in
// the last column. `class_column`: of the input, what stands there is not read. Error when a path
// is too short to go on from.
void predict_paths(const Model& model, const fs::path& folder, const fs::path& input,
                   const std::string& class_column, int64_t at_once, const PassOptions& passes,
                   Backend& backend);

}  // namespace millrace
