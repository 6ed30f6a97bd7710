// The op card: everything the engine knows about an operation. A card stands in ops/<name>.cc; one
// line in ops/op_list.inc registers it; tests, microbenchmarks and docs are generated from it.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/shape.h"
#include "graph/attrs.h"

namespace millrace {

class Builder;
class GradContext;
struct Value;

// One use of an op as its rules and kernels see it: constants and types, no data.
struct OpSite {
  const Attrs& attrs;
  std::span<const TensorType> in;
  std::span<const TensorType> out;
};

// What the reference loop gets. T is float or double: every f32 tensor, and every 16-bit one, holds
// T; i32 tensors int32_t.
template <typename T>
struct RefCall {
  OpSite site;
  std::span<const void* const> in_data;
  std::span<void* const> out_data;

  const T* in(size_t i) const { return static_cast<const T*>(in_data[i]); }
  const int32_t* ids(size_t i) const { return static_cast<const int32_t*>(in_data[i]); }
  T* out(size_t i) const { return static_cast<T*>(out_data[i]); }
  const Attrs& attrs() const { return site.attrs; }
  const Shape& in_shape(size_t i) const { return site.in[i].shape; }
  const Shape& out_shape(size_t i) const { return site.out[i].shape; }
};

struct Cost {
  double flops = 0;
  double bytes = 0;  // least traffic: each input read once, each output written once, unless said
};

// Bytes of every input and output once; what most cards return.
double traffic(const OpSite& site);

// One generated test: attributes, input types and how to fill them.
struct CaseInput {
  TensorType type;
  enum class Fill { normal, positive, index, constant } fill = Fill::normal;
  double value =
      0;  // index: exclusive upper bound (-1 appears too if `with_ignored`); constant: the value
  bool with_ignored = false;
};

inline CaseInput normal_input(Shape shape) { return {{shape, DType::f32}}; }
inline CaseInput positive_input(Shape shape) {
  return {{shape, DType::f32}, CaseInput::Fill::positive};
}
inline CaseInput constant_input(Shape shape, double value) {
  return {{shape, DType::f32}, CaseInput::Fill::constant, value};
}
inline CaseInput index_input(Shape shape, int64_t bound, bool with_ignored = false) {
  return {{shape, DType::i32}, CaseInput::Fill::index, static_cast<double>(bound), with_ignored};
}

struct OpCase {
  std::vector<CaseInput> in;
  Attrs attrs;
  bool gradient = true;  // false: a form that only exists after differentiation (a fused epilogue)
};

struct InPlace {
  int out;
  int in;  // may share storage when this input dies here
};

struct OpCard {
  std::string_view name;
  std::string_view summary;  // what it computes and where the formula comes from

  // Fills `out`, or returns what is wrong ("inner sizes 64 and 128"). Knows f32 and i32 only:
  // infer_types puts 16-bit types on top.
  std::string (*infer)(const Attrs&, std::span<const TensorType> in, std::vector<TensorType>& out);

  // Builds the gradient out of graph nodes; when null, `no_gradient` says why.
  void (*vjp)(GradContext&) = nullptr;
  std::string_view no_gradient = {};

  // For fused ops: the same outputs out of plain ops. Empty result: this site has no expansion.
  std::vector<Value> (*expand)(Builder&, const Attrs&, std::span<const Value> in) = nullptr;

  void (*reference_f32)(const RefCall<float>&) = nullptr;
  void (*reference_f64)(const RefCall<double>&) = nullptr;

  Cost (*cost)(const OpSite&) = nullptr;
  std::vector<OpCase> (*cases)() = nullptr;
  std::vector<OpCase> (*benchmarks)() =
      nullptr;  // sizes as in real models; null: no microbenchmark
  std::vector<InPlace> (*in_place)(const OpSite&) = nullptr;  // null: none
  bool is_view = false;  // output 0 is input 0's storage, unchanged; no kernel runs
  bool cheap = false;    // memory-bound and quick: first choice for recomputation
  // Inputs and outputs, by bit, that stay f32 in a 16-bit program: statistics, losses, scales.
  uint32_t full_in = 0, full_out = 0;
  bool keeps_shadows = false;  // an optimizer: see ops/optimizer_common.h
  // Outputs, by bit, that take a cotangent; the others exist for the backward pass.
  uint32_t gradients_of = 1;
  // It has matrix products inside, whose f32 factors may be rounded where attribute `math` is tf32.
  bool multiplies = false;
};

// The output types of a use of an op: those of its card, where attribute `store` says so in 16
// bits. `store` is one type for all outputs ("bf16") or runs of them ("f32*3,bf16*2"). A view has
// the type of what it views.
std::string infer_types(const OpCard& card, const Attrs& attrs, std::span<const TensorType> in,
                        std::vector<TensorType>& out);
// Sets or removes `store` for outputs of these types.
void set_store(Attrs& attrs, std::span<const DType> types);

// The registry, defined in ops/op_registry.cc from op_list.inc.
std::span<const OpCard* const> all_op_cards();
const OpCard* find_op_card(std::string_view name);  // null when unknown

}  // namespace millrace
