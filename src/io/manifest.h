// The manifest of a checkpoint: what the folder holds, with a checksum of every file and of itself.
// It is written last, so a folder whose manifest verifies is whole.
//
//   { "checksum": "<XXH3-128 of everything after this line>",
//     "format": 1, "version": "0.1", "step": 1200, "plan": "<hash>",
//     "metric": {"name": "eval/loss", "value": 1.87},
//     "files": {"model.safetensors": {"bytes": 123, "xxh3": "..."}, ...} }
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/file.h"

namespace millrace {

inline constexpr const char* kManifestName = "manifest.json";

struct Manifest {
  static constexpr int64_t kFormat = 1;
  std::string version;  // of the program that wrote it
  int64_t step = 0;
  std::string plan;              // hash of the step's Plan
  std::string metric_name;       // what the best is judged by; empty: nothing measured yet
  std::optional<double> metric;  // finite
  std::map<std::string, FileDigest> files;
};

std::string manifest_text(const Manifest& manifest);
// Error names `where` and the field for anything manifest_text() would not have written, a newer
// format among it.
Manifest parse_manifest(std::string_view text, const std::string& where);

// Reads the folder's manifest and checks size and checksum of every file it names. Error says which
// file is missing, short or damaged.
Manifest verify_folder(const fs::path& folder);

}  // namespace millrace
