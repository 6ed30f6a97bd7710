// What the optimizer ops share. An optimizer updates n tensors in one node:
//   inputs   p1..pn, g1..gn, then n tensors for each kind of state, then the scalars learning rate,
//            gradient scale (the clipping factor) and step (from 1);
//   outputs  p'1..n, then each kind of state, every one in the storage of its input;
//   attrs    n, decay = weight decay of each tensor ("0.1;0;0.1");
//            shadows = which parameters have a 16-bit copy ("0;3"): the old copies come after the
//            scalars, the new ones after the other outputs.
// When the gradient scale is not finite nothing changes: a broken step leaves the model as it was.
#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/op.h"

namespace millrace {

// A piece of one tensor of a list.
struct TensorChunk {
  size_t tensor;
  int64_t begin, end;
};
// 64 KiB per stream: all streams of a task fit the second-level cache.
constexpr int64_t kChunkElements = 16384;
std::vector<TensorChunk> cut_into_chunks(std::span<const TensorType> tensors);

std::string decay_text(std::span<const double> decay);
// The inverse; nothing unless `text` is n finite numbers.
std::optional<std::vector<double>> decay_from_text(std::string_view text, int64_t n);

// What a kernel's `prepare` returns.
struct OptimizerTable {
  std::vector<TensorChunk> chunks;
  std::vector<double> decay;
};
std::shared_ptr<const void> prepare_optimizer(const OpSite& site);

// `states` kinds of state. The scalars stand at 2 + states times n.
std::string infer_optimizer(const Attrs& attrs, std::span<const TensorType> in,
                            std::vector<TensorType>& out, int64_t states);
std::vector<int64_t> shadow_list(const Attrs& attrs);
std::vector<InPlace> optimizer_in_place(const OpSite& site);
// Copies parameters and state to outputs that have their own storage.
void leave_unchanged(const OpSite& site, std::span<const void* const> in,
                     std::span<void* const> out, int64_t element_bytes);

// The new copies, in a reference loop that has written the parameters.
template <typename T>
void copy_shadows(const RefCall<T>& c) {
  const std::vector<int64_t> shadows = shadow_list(c.attrs());
  for (size_t i = 0; i < shadows.size(); ++i) {
    const auto of = static_cast<size_t>(shadows[i]);
    std::copy_n(c.out(of), c.out_shape(of).numel(), c.out(c.site.out.size() - shadows.size() + i));
  }
}
// Why a kernel of the CPU, which computes in f32 only, does not take a site.
std::string decline_shadows(const OpSite& site);

// Test inputs for tensors of these shapes; state is positive.
std::vector<CaseInput> optimizer_case(std::span<const Shape> shapes, int64_t states,
                                      double learning_rate, double gradient_scale, double step);
// The same case with 16-bit copies of some tensors.
OpCase with_shadows(OpCase c, const char* shadows);

}  // namespace millrace
