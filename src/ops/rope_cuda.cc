// Rotary position embedding on the GPU: the frequencies are made once, on the host.
#include "ops/rope_cuda.h"

#include <numbers>
#include <vector>

#include "cuda/context.h"
#include "cuda/kernel.h"
#include "ops/rope.h"

namespace millrace::cuda {
namespace {

std::string decline(const OpSite& site, Context&) {
  const int64_t width = site.attrs.integer("head_dim");
  if (width > kRopeMaxWidth) return fmt::format("head_dim {} over {}", width, kRopeMaxWidth);
  if (site.in[0].dtype != site.out[0].dtype)
    return fmt::format("{} to {}", site.in[0].str(), site.out[0].str());
  return "";
}

std::shared_ptr<const void> prepare(const Call& call, Context&) {
  const int64_t width = call.attrs().integer("head_dim");
  std::vector<double> turns;
  for (int64_t d = 0; d < width / 2; ++d)
    turns.push_back(rope_frequency(call.attrs(), d, width) / (2 * std::numbers::pi));
  return std::make_shared<DeviceBytes>(turns.data(),
                                       static_cast<int64_t>(turns.size() * sizeof(double)));
}

void run(const Call& call) {
  const Attrs& attrs = call.attrs();
  const RopeSizes sizes = {.rows = call.in_shape(0).rows(),
                           .steps = call.in_shape(0)[1],
                           .offset = attrs.integer("offset", 0),
                           .turned = attrs.integer("heads") + attrs.integer("kv_heads"),
                           .kept = attrs.integer("kv_heads"),
                           .width = attrs.integer("head_dim"),
                           .direction = attrs.integer("inverse", 0) != 0 ? -1.0f : 1.0f};
  const bool positions = attrs.integer("positions", 0) != 0;
  launch_rope(call.in_type(0).dtype, sizes,
              static_cast<const DeviceBytes*>(call.prepared)->as<double>(),
              positions ? call.ids(1) : nullptr, call.in_data[0], call.out_data[0], call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(rope, {.name = "rows", .decline = decline, .prepare = prepare, .run = run})
