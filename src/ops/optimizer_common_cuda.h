// What the hooks of the CUDA optimizers (and of grad_norm) share: tables of chunks.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/context.h"
#include "cuda/kernel.h"
#include "ops/optimizer_common.h"
#include "ops/optimizer_cuda.h"

namespace millrace::cuda {

// Chunks of `least` elements, or of up to `most` (twice `least`, and so on) where that still leaves
// the multiprocessors enough blocks: small models are quick when cut finely, large ones when a
// block reads its scalars and its chunk once for many elements. A multiple of 4 each, so that every
// chunk begins on 16 bytes. Does not depend on the device: nor do the sums.
std::vector<TensorChunk> cut_for_blocks(std::span<const TensorType> tensors, int64_t least,
                                        int64_t most);

// The hooks of an optimizer.
std::string decline_update(const OpSite& site, Context& context);
std::shared_ptr<const void> prepare_update(const Call& call, Context& context);
// What was prepared; null when every tensor is empty.
const OptimizerUpdate* update_of(const Call& call);

}  // namespace millrace::cuda
