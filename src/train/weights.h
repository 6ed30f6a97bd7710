// Weights of a model: initial values, and the way between our parameter table and the names and
// layouts the Hugging Face ecosystem uses.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "exec/session.h"
#include "io/safetensors.h"
#include "model/model.h"

namespace millrace {

// Values follow from (seed, parameter's place in the table, element) alone.
void initial_values(const Parameter& parameter, size_t index, uint64_t seed, int64_t begin,
                    std::span<float> out);
// With a folder of weights only what it cannot have is drawn: low-rank additions.
void initialize(Session& session, const Model& model, uint64_t seed, const fs::path& folder = {});
// Writes a leaf piece by piece, on all threads, without a second copy of it.
void fill_leaf(Session& session, const std::string& leaf,
               const std::function<void(int64_t begin, std::span<float> out)>& make);

struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};
// One of our tensors as the tensors it is outside, and back. `values` has the parameter's own
// layout. `part` counts Parameter::external.
bool same_layout(const Parameter& parameter);
std::vector<int64_t> external_shape(const Parameter& parameter, size_t part);
std::vector<float> external_part(const Parameter& parameter, size_t part,
                                 const std::vector<float>& values);
std::vector<NamedTensor> to_external(const Parameter& parameter, const std::vector<float>& values);
std::vector<float> from_external(const Parameter& parameter,
                                 const std::function<NamedTensor(const std::string&)>& fetch);

// Error when `shape`, of the tensor of that name outside, is another one.
void check_shape(const std::string& name, const std::vector<int64_t>& shape,
                 const std::vector<int64_t>& expected);

// Reads the weights of a checkpoint folder, or of a Hugging Face one (several files, other float
// types), into the session's leaves `prefix` + parameter, where it is trained; Error names a tensor
// that is missing or misshapen. Low-rank additions are merged into a model that has none of its
// own. check_weights finds the same without a session: a config that its weights do not bear
// out is refused before anything of its size is planned. It looks at no value, which check_values
// does, and returns the names of tensors that the model has no place for.
std::vector<std::string> check_weights(const fs::path& folder, const Model& model);
void check_values(const fs::path& folder, const Model& model);
void load_model(const fs::path& folder, Session& session, const Model& model,
                const std::string& prefix = "");

}  // namespace millrace
