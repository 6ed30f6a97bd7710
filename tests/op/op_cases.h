// The test cases of the op cards and the data they are filled with: shared by everything that is
// generated from the cards.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/rng.h"
#include "graph/op.h"

namespace millrace {

struct Instance {
  const OpCard* card;
  size_t index;
  OpCase op_case;
};

// The cases of the cards for which a test makes sense; the others are not instantiated at all.
template <typename Applies>
std::vector<Instance> instances(const Applies& applies) {
  std::vector<Instance> list;
  for (const OpCard* card : all_op_cards()) {
    if (!card->cases) continue;
    size_t index = 0;
    for (const OpCase& c : card->cases()) {
      const Instance instance{card, index++, c};
      if (applies(instance)) list.push_back(instance);
    }
  }
  return list;
}

inline std::string instance_name(const testing::TestParamInfo<Instance>& info) {
  return fmt::format("{}_{}", info.param.card->name, info.param.index);
}

// Input i as doubles and as ids; the same for every test of an instance.
struct Data {
  std::vector<std::vector<double>> floats;
  std::vector<std::vector<int32_t>> ids;
};

inline Data make_data(const OpCase& c, uint64_t seed) {
  Data data;
  for (size_t i = 0; i < c.in.size(); ++i) {
    const CaseInput& in = c.in[i];
    RandomStream random(seed, RandomUse::test, i);
    std::vector<double> f;
    std::vector<int32_t> v;
    for (int64_t k = 0; k < in.type.numel(); ++k) {
      if (in.fill == CaseInput::Fill::index) {
        int32_t id = static_cast<int32_t>(random.below(static_cast<uint64_t>(in.value)));
        if (in.with_ignored && random.below(4) == 0) id = -1;
        v.push_back(id);
      } else if (in.fill == CaseInput::Fill::constant && in.type.dtype == DType::i32) {
        v.push_back(static_cast<int32_t>(in.value));
      } else if (in.fill == CaseInput::Fill::constant) {
        f.push_back(in.value);
      } else {
        double x = random.normal();
        if (in.fill == CaseInput::Fill::positive) x = 0.3 + std::fabs(x);
        f.push_back(static_cast<double>(static_cast<float>(x)));  // exact in both precisions
      }
    }
    data.floats.push_back(std::move(f));
    data.ids.push_back(std::move(v));
  }
  return data;
}

inline std::vector<TensorType> in_types(const OpCase& c) {
  std::vector<TensorType> types;
  for (const CaseInput& in : c.in) types.push_back(in.type);
  return types;
}

}  // namespace millrace
