// Fine-tuning, the same for every family: which parameters train, and low-rank additions (LoRA, Hu
// et al., arXiv 2106.09685) to linear layers.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"

namespace millrace {

struct LoraSettings {
  int64_t rank = 0;  // 0: none
  double alpha = 16, dropout = 0;
  std::vector<std::string> targets{"*"};
};

struct TuningSettings {
  std::string init_from;  // a folder with weights; empty: they are drawn
  std::vector<std::string> freeze;
  LoraSettings lora;

  void declare(Schema& schema);
};

// As a shell matches files, over the whole name or any run of its words: "layers.[0-5]", "bias" and
// "mlp.*" all match "layers.3.mlp.up.bias".
bool matches_name(const std::string& pattern, const std::string& name);

// The model, resolved, as it is tuned: its table says what trains, and has the additions behind its
// own rows. As it is when nothing is to be tuned. Error when a pattern matches nothing, or nothing
// is left to train.
std::unique_ptr<Model> tuned_model(std::unique_ptr<Model> model, const TuningSettings& settings,
                                   Schema& schema);

// What other programs (PEFT) call the additions of a linear layer whose weight is `weight` there.
struct AdapterNames {
  std::string a, b;
};
AdapterNames adapter_names(const std::string& weight);
bool has_adapters(const Model& model);

// A model folder: of a whole model, or of additions to one that stands elsewhere.
struct ModelFileNames {
  const char *config, *weights;
};
inline constexpr ModelFileNames kWholeModel{"config.json", "model.safetensors"},
    kAdapterModel{"adapter_config.json", "adapter_model.safetensors"};
inline const ModelFileNames& model_file_names(const Model& model) {
  return has_adapters(model) ? kAdapterModel : kWholeModel;
}

}  // namespace millrace
