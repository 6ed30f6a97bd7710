// Any family in small, without knowing one by name.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/schema.h"
#include "model/model.h"

namespace millrace {

// Keys of the family's that make it small, as in a config: "d_model: 32, num_layers: 1". A family
// that has none of them stays as large as it is.
inline std::string small_keys(const std::string& family, int64_t width, double dropout = 0) {
  const auto wide = static_cast<double>(width);
  const std::map<std::string, double> small{{"model.d_model", wide},    {"model.emb_dim", wide},
                                            {"model.hidden_dim", wide}, {"model.num_layers", 1},
                                            {"model.num_heads", 2},     {"model.dropout", dropout}};
  const auto model = make_model(family);
  Schema schema;
  model->declare(schema);
  std::string keys;
  for (const std::string& path : schema.paths())
    if (const auto found = small.find(path); found != small.end())
      keys += fmt::format("{}{}: {}", keys.empty() ? "" : ", ", path.substr(path.find('.') + 1),
                          found->second);
  return keys;
}

inline std::vector<std::string> families_that(const std::function<bool(const Model&)>& test) {
  std::vector<std::string> list = model_families();
  std::erase_if(list, [&](const std::string& family) { return !test(*make_model(family)); });
  return list;
}

}  // namespace millrace
