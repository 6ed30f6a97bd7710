// The weights of a model folder, of whatever kind: files of safetensors as they are, or low-rank
// additions (adapter_config.json, as PEFT writes it) together with the folder that they add to.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/file.h"
#include "io/weight_folder.h"
#include "model/model.h"

namespace millrace {

class ModelWeights {
 public:
  // Error when a file is missing or damaged, or additions are of a kind that is not known here.
  explicit ModelWeights(const fs::path& folder);
  ~ModelWeights();

  bool has_adapters() const { return adapters_ != nullptr; }
  // The values of a parameter; Error names a tensor that is missing, misshapen or not finite. With
  // `merged`, additions are in the weights they belong to; else they are for themselves, as
  // parameters.
  std::vector<float> values(const Parameter& parameter, bool merged) const;
  // Finds the same without reading more than the heads of files, and a type that is not read.
  void check(const Parameter& parameter, bool merged) const;
  // The names of tensors that none of these parameters, a whole table, is made of. Error when there
  // are such additions: they were trained, and would be left out.
  std::vector<std::string> unused(const std::vector<Parameter>& table) const;
  // The folder with config.json and the tokenizer.
  const fs::path& whole_folder() const;

 private:
  struct Adapters;
  explicit ModelWeights(const fs::path& folder, int depth);
  struct Addition {
    int64_t width;
    std::vector<float> a, b;
  };
  std::optional<Addition> addition(const Parameter& parameter, size_t part) const;
  void add(const Parameter& parameter, std::vector<float>& values) const;

  fs::path folder_;
  std::unique_ptr<WeightFolder> files_;       // of a whole model
  std::unique_ptr<Adapters> adapters_;        // or these
  std::unique_ptr<const ModelWeights> base_;  // and what they add to
};

}  // namespace millrace
