// permute on the GPU. Dimensions that stay neighbours are merged first.
#include "ops/permute_cuda.h"

#include <algorithm>

#include "cuda/kernel.h"
#include "ops/permute.h"

namespace millrace::cuda {
namespace {

static_assert(kPermuteMaxRank == Shape::kMaxRank);

std::string decline(const OpSite& site, Context&) {
  if (site.in[0].dtype == site.out[0].dtype) return "";
  return fmt::format("{} to {}", site.in[0].str(), site.out[0].str());
}

std::shared_ptr<const void> prepare(const Call& call, Context&) {
  const PermutedAxes merged =
      merged_axes(call.in_shape(0), shape_from_text(call.attrs().text("order")));
  auto axes = std::make_shared<PermuteAxes>();
  axes->rank = merged.rank;
  std::copy(merged.size.begin(), merged.size.end(), axes->size);
  std::copy(merged.from.begin(), merged.from.end(), axes->from);
  return axes;
}

void run(const Call& call) {
  if (call.out_shape(0).numel() == 0) return;
  launch_permute(*static_cast<const PermuteAxes*>(call.prepared),
                 dtype_bytes(call.in_type(0).dtype), call.in_data[0], call.out_data[0],
                 call.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(permute, {.name = "tiles", .decline = decline, .prepare = prepare, .run = run})
