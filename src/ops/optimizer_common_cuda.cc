#include "ops/optimizer_common_cuda.h"

#include <algorithm>

namespace millrace::cuda {
namespace {

// Around 16 for each multiprocessor of a large device.
constexpr int64_t kEnoughBlocks = 2048;

// One to four rounds of the kernel's loop.
constexpr int64_t kLeastElements = 2048, kMostElements = 8192;

struct PreparedUpdate {
  explicit PreparedUpdate(const std::vector<OptimizerChunk>& chunks)
      : table(chunks.data(), static_cast<int64_t>(chunks.size() * sizeof(OptimizerChunk))) {
    update.chunks = table.as<OptimizerChunk>();
    update.chunk_count = static_cast<int64_t>(chunks.size());
  }
  DeviceBytes table;
  OptimizerUpdate update;
};

}  // namespace

std::vector<TensorChunk> cut_for_blocks(std::span<const TensorType> tensors, int64_t least,
                                        int64_t most) {
  int64_t total = 0;
  for (const TensorType& t : tensors) total += t.numel();
  int64_t elements = least;
  while (elements < most && total / elements > kEnoughBlocks) elements *= 2;
  std::vector<TensorChunk> chunks;
  for (size_t i = 0; i < tensors.size(); ++i)
    for (int64_t at = 0; at < tensors[i].numel(); at += elements)
      chunks.push_back({i, at, std::min(tensors[i].numel(), at + elements)});
  return chunks;
}

std::string decline_update(const OpSite& site, Context&) {
  for (const TensorType& shadow : site.out.last(shadow_list(site.attrs).size()))
    if (!is_half(shadow.dtype) || shadow.dtype != site.out.back().dtype)
      return "copies that are not all bf16 or all f16";
  return "";
}

std::shared_ptr<const void> prepare_update(const Call& call, Context&) {
  const auto n = static_cast<size_t>(call.attrs().integer("n"));
  const std::vector<int64_t> shadowed = shadow_list(call.attrs());
  const std::vector<double> decay =
      decay_from_text(call.attrs().text("decay"), static_cast<int64_t>(n)).value();
  // Inputs: parameters, gradients, state, scalars, shadows. Outputs: parameters, state, shadows.
  const size_t kept = (call.out_data.size() - shadowed.size()) / n, scalars = (kept + 1) * n;
  MR_CHECK(kept <= OptimizerChunk::kMaxKept, "{} tensors kept for each parameter", kept);

  std::vector<const uint16_t*> shadow(n, nullptr);
  std::vector<uint16_t*> shadow_out(n, nullptr);
  for (size_t s = 0; s < shadowed.size(); ++s) {
    const auto i = static_cast<size_t>(shadowed[s]);
    shadow[i] = static_cast<const uint16_t*>(call.in_data[scalars + 3 + s]);
    shadow_out[i] = static_cast<uint16_t*>(call.out_data[kept * n + s]);
  }

  std::vector<OptimizerChunk> chunks;
  for (const TensorChunk& piece :
       cut_for_blocks(call.site.in.first(n), kLeastElements, kMostElements)) {
    const size_t i = piece.tensor;
    OptimizerChunk chunk{};
    for (size_t k = 0; k < kept; ++k) {
      chunk.kept[k] = call.in(k == 0 ? i : (k + 1) * n + i) + piece.begin;
      chunk.kept_out[k] = call.out(k * n + i) + piece.begin;
    }
    chunk.gradient = call.in(n + i) + piece.begin;
    if (shadow_out[i] != nullptr) {
      chunk.shadow = shadow[i] + piece.begin;
      chunk.shadow_out = shadow_out[i] + piece.begin;
    }
    chunk.decay = static_cast<float>(decay[i]);
    chunk.count = static_cast<int32_t>(piece.end - piece.begin);
    chunks.push_back(chunk);
  }
  if (chunks.empty()) return nullptr;

  auto prepared = std::make_shared<PreparedUpdate>(chunks);
  OptimizerUpdate& update = prepared->update;
  update.learning_rate = call.in(scalars);
  update.scale = call.in(scalars + 1);
  update.step = call.in(scalars + 2);
  if (!shadowed.empty()) update.shadow_type = call.out_type(kept * n).dtype;
  return prepared;
}

const OptimizerUpdate* update_of(const Call& call) {
  if (call.prepared == nullptr) return nullptr;
  return &static_cast<const PreparedUpdate*>(call.prepared)->update;
}

}  // namespace millrace::cuda
