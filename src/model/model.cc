#include "model/model.h"

namespace millrace {

#define MR_MODEL(name) std::unique_ptr<Model> make_##name##_model();
#include "model/model_list.inc"
#undef MR_MODEL

std::vector<std::string> model_families() {
  return {
#define MR_MODEL(name) #name,
#include "model/model_list.inc"
#undef MR_MODEL
  };
}

std::unique_ptr<Model> make_model(std::string_view family) {
#define MR_MODEL(name) \
  if (family == #name) return make_##name##_model();
#include "model/model_list.inc"
#undef MR_MODEL
  MR_CHECK(false, "no model family {}", family);
  return nullptr;
}

}  // namespace millrace
