// lstm and its gradient on a GPU: the hooks.
#include "ops/lstm_cuda.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "cuda/gemm.h"
#include "ops/row_hooks_cuda.h"

namespace millrace::cuda {
namespace {

LstmSizes sizes_of(const TensorType& x, const Shape& r) {
  return {x.dtype, x.shape[0], x.shape[1], x.shape[2], r[1]};
}

std::string decline_types(const OpSite& site) {
  return decline_mixed({site.in[0].dtype, site.in[1].dtype, site.out[0].dtype, site.out[3].dtype});
}
std::string decline_cluster(const LstmSizes& s, Context& context) {
  if (context.device().sm < 90) return "clusters of blocks need compute capability 9.0";
  if (s.hidden % kLstmHiddenStep != 0 || s.hidden > kLstmMostHidden)
    return fmt::format("{} hidden units, wants a multiple of {} up to {}", s.hidden,
                       kLstmHiddenStep, kLstmMostHidden);
  if (s.steps == 0 || s.rows == 0) return "nothing to do";
  return "";
}

LstmForward forward_of(const Call& c) {
  return {.x = c.in_data[0],
          .r = c.in_data[1],
          .lengths = c.ids(2),
          .y = c.out_data[0],
          .gates = c.out_data[3],
          .last_h = c.out(1),
          .last_c = c.out(2),
          .cells = c.out(4)};
}

std::string decline_forward_cluster(const OpSite& site, Context& context) {
  if (std::string why = decline_types(site); !why.empty()) return why;
  return decline_cluster(sizes_of(site.in[0], site.in[1].shape), context);
}
std::string decline_forward(const OpSite& site, Context&) { return decline_types(site); }

void run_cluster(const Call& c) {
  MR_CUDA(launch_lstm_cluster(sizes_of(c.in_type(0), c.in_shape(1)), forward_of(c),
                              multiprocessors_of(c), c.stream));
}
void run_steps(const Call& c) {
  launch_lstm_steps(sizes_of(c.in_type(0), c.in_shape(1)), forward_of(c), c.stream);
}

// --- gradient

std::string decline_grad(const OpSite& site, Context&) {
  return decline_mixed(
      {site.in[0].dtype, site.in[2].dtype, site.in[3].dtype, site.in[5].dtype, site.out[0].dtype});
}
std::string decline_grad_cluster(const OpSite& site, Context& context) {
  if (std::string why = decline_grad(site, context); !why.empty()) return why;
  return decline_cluster(sizes_of(site.in[3], site.in[0].shape), context);
}

// The gradient of the weights, after the sequence: each step's h' times its dz, which are rows of y
// and dx one step apart.
struct WeightGradient {
  WeightGradient(const OpSite& site, Context& context)
      : s(sizes_of(site.in[3], site.in[0].shape)),
        multiprocessors(context.device().multiprocessors) {
    const int64_t depth = (s.steps - 1) * s.rows, bytes = dtype_bytes(s.type);
    if (depth <= 0) return;
    // Operands begin anywhere where a row of h does.
    int64_t alignment = 64;
    while (s.hidden * bytes % alignment != 0) alignment /= 2;
    product.emplace(GemmSpec{.m = s.hidden,
                             .n = 4 * s.hidden,
                             .k = depth,
                             .ta = true,
                             .in = s.type,
                             .out = site.out[1].dtype,
                             .tf32 = s.type == DType::f32 && site.attrs.text("math") == "tf32",
                             .lda = s.directions * s.hidden,
                             .ldb = s.directions * 4 * s.hidden,
                             .alignment = alignment},
                    context);
  }
  // dc of the kernel that launches step by step stands in front of the library's workspace.
  int64_t dc_bytes() const { return (s.directions * s.rows * s.hidden * 4 + 255) / 256 * 256; }
  int64_t workspace_bytes() const {
    return dc_bytes() + (product ? product->workspace_bytes() : 0);
  }

  void run(const Call& c) const {
    const auto weights_bytes = static_cast<size_t>(c.out_type(1).bytes());
    if (!product) {
      if (weights_bytes > 0) MR_CUDA(cudaMemsetAsync(c.out_data[1], 0, weights_bytes, c.stream));
      return;
    }
    const int64_t bytes = dtype_bytes(s.type), step = s.rows * s.directions * s.hidden;
    for (int64_t d = 0; d < s.directions; ++d) {
      const auto* y = static_cast<const std::byte*>(c.in_data[2]);
      const auto* dz = static_cast<const std::byte*>(c.out_data[0]);
      auto* dr = static_cast<std::byte*>(c.out_data[1]);
      product->run({.a = y + (d * s.hidden + (d == 0 ? 0 : step)) * bytes,
                    .b = dz + 4 * (d * s.hidden + (d == 0 ? step : 0)) * bytes,
                    .d = dr + d * 4 * s.hidden * s.hidden * dtype_bytes(c.out_type(1).dtype),
                    .workspace = static_cast<std::byte*>(c.workspace) + dc_bytes()},
                   c.stream);
    }
  }

  LstmSizes s;
  int multiprocessors;
  std::optional<Gemm> product;
};

LstmBackward backward_of(const Call& c) {
  return {.r = c.in_data[0],
          .lengths = c.ids(1),
          .gates = c.in_data[3],
          .dy = c.in_data[5],
          .cells = c.in(4),
          .dlast_h = c.in(6),
          .dlast_c = c.in(7),
          .dx = c.out_data[0],
          .dc = static_cast<float*>(c.workspace)};
}

int64_t grad_workspace_bytes(const OpSite& site, Context& context) {
  return WeightGradient(site, context).workspace_bytes();
}
std::shared_ptr<const void> prepare_grad(const Call& call, Context& context) {
  return std::make_shared<const WeightGradient>(call.site, context);
}
void run_grad_cluster(const Call& c) {
  const auto& weights = *static_cast<const WeightGradient*>(c.prepared);
  MR_CUDA(launch_lstm_grad_cluster(weights.s, backward_of(c), weights.multiprocessors, c.stream));
  weights.run(c);
}
void run_grad_steps(const Call& c) {
  const auto& weights = *static_cast<const WeightGradient*>(c.prepared);
  launch_lstm_grad_steps(weights.s, backward_of(c), c.stream);
  weights.run(c);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(lstm,
                {.name = "cluster",
                 .decline = decline_forward_cluster,
                 .prepare = prepare_multiprocessors,
                 .run = run_cluster},
                {.name = "steps", .decline = decline_forward, .run = run_steps})
MR_CUDA_KERNELS(lstm_grad,
                {.name = "cluster",
                 .decline = decline_grad_cluster,
                 .workspace_bytes = grad_workspace_bytes,
                 .prepare = prepare_grad,
                 .run = run_grad_cluster},
                {.name = "steps",
                 .decline = decline_grad,
                 .workspace_bytes = grad_workspace_bytes,
                 .prepare = prepare_grad,
                 .run = run_grad_steps})
