// grad_norm on a GPU: the hooks.
#include "ops/grad_norm_cuda.h"

#include "ops/optimizer_common_cuda.h"

namespace millrace::cuda {
namespace {

struct Prepared {
  explicit Prepared(const std::vector<GradNormChunk>& chunks)
      : table(chunks.data(), static_cast<int64_t>(chunks.size() * sizeof(GradNormChunk))),
        count(static_cast<int64_t>(chunks.size())) {}
  DeviceBytes table;
  int64_t count;
};

std::string decline(const OpSite& site, Context&) {
  for (const TensorType& t : site.in)
    if (t.dtype != DType::f32) return fmt::format("a gradient of type {}", dtype_name(t.dtype));
  return "";
}

// One to four rounds of the kernel's loop.
std::vector<TensorChunk> cut(const OpSite& site) { return cut_for_blocks(site.in, 4096, 16384); }

int64_t workspace_bytes(const OpSite& site, Context&) {
  return static_cast<int64_t>(cut(site).size() * sizeof(double));
}

// Nothing when every gradient is empty.
std::shared_ptr<const void> prepare(const Call& call, Context&) {
  std::vector<GradNormChunk> chunks;
  for (const TensorChunk& piece : cut(call.site))
    chunks.push_back({call.in(piece.tensor) + piece.begin, piece.end - piece.begin});
  if (chunks.empty()) return nullptr;
  return std::make_shared<Prepared>(chunks);
}

void run(const Call& call) {
  const auto* prepared = static_cast<const Prepared*>(call.prepared);
  launch_grad_norm(prepared ? prepared->table.as<GradNormChunk>() : nullptr,
                   prepared ? prepared->count : 0, static_cast<double*>(call.workspace),
                   call.out(0), call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(grad_norm, {.name = "chunks",
                            .decline = decline,
                            .workspace_bytes = workspace_bytes,
                            .prepare = prepare,
                            .run = run})
