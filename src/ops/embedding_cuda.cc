// embedding and embedding_grad on the GPU.
#include "ops/embedding_cuda.h"

#include <algorithm>

#include "cuda/kernel.h"

namespace millrace::cuda {
namespace {

std::string decline(const OpSite& site, Context&) {
  if (site.in[1].dtype == site.out[0].dtype) return "";
  return fmt::format("table {}, rows {}", site.in[1].str(), site.out[0].str());
}

void run(const Call& call) {
  launch_embedding(call.in_type(1).dtype, call.ids(0), call.in_data[1], call.out_data[0],
                   call.in_shape(0).numel(), call.in_shape(1)[0], call.in_shape(1)[1], call.stream);
}

std::string decline_grad(const OpSite& site, Context&) {
  if (is_half(site.out[0].dtype)) return "the gradient of a table is f32";
  const int64_t rows = std::max(site.in[0].numel(), site.out[0].shape[0]);
  return rows <= kEmbeddingMaxRows ? "" : fmt::format("{} rows over {}", rows, kEmbeddingMaxRows);
}

int64_t workspace_bytes_grad(const OpSite& site, Context&) {
  const Shape& table = site.out[0].shape;
  return embedding_grad_workspace(site.in[0].numel(), table[0], table[1]);
}

void run_grad(const Call& call) {
  const EmbeddingGrad grad = {.count = call.in_shape(0).numel(),
                              .rows = call.out_shape(0)[0],
                              .width = call.out_shape(0)[1],
                              .dtype = call.in_type(1).dtype,
                              .ids = call.ids(0),
                              .dy = call.in_data[1],
                              .base = call.site.in.size() == 3 ? call.in(2) : nullptr,
                              .out = call.out(0)};
  launch_embedding_grad(grad, call.workspace, call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(embedding, {.name = "rows", .decline = decline, .run = run})
MR_CUDA_KERNELS(embedding_grad, {.name = "segments",
                                 .decline = decline_grad,
                                 .workspace_bytes = workspace_bytes_grad,
                                 .run = run_grad})
