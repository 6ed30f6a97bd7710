// permute on the GPU. Dimensions that stay neighbours are merged first.
#include "ops/permute_cuda.h"

#include <array>

#include "cuda/kernel.h"

namespace millrace::cuda {
namespace {

static_assert(kPermuteMaxRank == Shape::kMaxRank);

std::string decline(const OpSite& site, Context&) {
  if (site.in[0].dtype == site.out[0].dtype) return "";
  return fmt::format("{} to {}", site.in[0].str(), site.out[0].str());
}

std::shared_ptr<const void> prepare(const Call& call, Context&) {
  const Shape& in = call.in_shape(0);
  const Shape order = shape_from_text(call.attrs().text("order"));
  std::array<int64_t, Shape::kMaxRank> stride{};
  int64_t step = 1;
  for (int d = in.rank() - 1; d >= 0; --d) {
    stride[static_cast<size_t>(d)] = step;
    step *= in[d];
  }
  auto axes = std::make_shared<PermuteAxes>();
  for (int64_t d : order) {
    const int64_t size = in[static_cast<int>(d)], from = stride[static_cast<size_t>(d)];
    if (size == 1) continue;
    const int last = axes->rank - 1;
    if (last >= 0 && axes->from[last] == from * size) {
      axes->size[last] *= size;
      axes->from[last] = from;
    } else {
      axes->size[axes->rank] = size;
      axes->from[axes->rank++] = from;
    }
  }
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
