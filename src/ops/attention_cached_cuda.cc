// attention_cached on the GPU.
#include "ops/attention_cached_cuda.h"

#include "cuda/context.h"
#include "cuda/kernel.h"
#include "ops/attention_cached.h"

namespace millrace::cuda {
namespace {

constexpr int64_t kMaxGrid = 65535;  // in y and z

CachedAttention sizes_of(const OpSite& site) {
  const CachedAttentionSite s = cached_attention_site(site);
  CachedAttention a = {};
  a.B = s.B;
  a.T = s.T;
  a.H = s.H;
  a.G = s.G;
  a.K = s.K;
  a.C = s.C;
  a.beams = s.beams;
  a.scale = static_cast<float>(s.scale);
  a.dtype = site.in[0].dtype;
  return a;
}

std::string decline(const OpSite& site, Context&) {
  const CachedAttention a = sizes_of(site);
  for (const TensorType& type : {site.in[1], site.in[2], site.out[0]})
    if (type.dtype != a.dtype) return fmt::format("{} next to {}", type.str(), site.in[0].str());
  if (a.K > kCachedMaxWidth) return fmt::format("head_dim {} over {}", a.K, kCachedMaxWidth);
  if (a.B * a.G > kMaxGrid) return fmt::format("{} key/value heads over {}", a.B * a.G, kMaxGrid);
  if (a.T * a.H / a.G > kMaxGrid)
    return fmt::format("{} rows of a key/value head over {}", a.T * a.H / a.G, kMaxGrid);
  if (a.C > int64_t{1} << 30) return fmt::format("a cache of {} tokens", a.C);
  return "";
}

int64_t workspace_bytes(const OpSite& site, Context&) {
  return cached_attention_workspace(sizes_of(site));
}

std::shared_ptr<const void> prepare(const Call& call, Context&) {
  MR_CUDA(prepare_cached_attention(call.in_type(0).dtype));
  return nullptr;
}

void run(const Call& call) {
  CachedAttention a = sizes_of(call.site);
  a.qkv = call.in_data[0];
  a.keys = call.in_data[1];
  a.values = call.in_data[2];
  a.positions = call.ids(3);
  if (cached_attention_site(call.site).history) a.history = call.ids(4);
  a.out = call.out_data[0];
  a.new_keys = call.out_data[1];
  a.new_values = call.out_data[2];
  launch_cached_attention(a, call.workspace, call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(attention_cached, {.name = "tiles",
                                   .decline = decline,
                                   .workspace_bytes = workspace_bytes,
                                   .prepare = prepare,
                                   .run = run})
