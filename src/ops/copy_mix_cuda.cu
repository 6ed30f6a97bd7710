// copy_mix: a block has a row. The first place of a word adds up all its places, in their order: no
// two threads write one column.
#include <cuda_runtime.h>

#include "cuda/device.cuh"
#include "ops/copy_mix_cuda.h"

namespace millrace::cuda {
namespace {

constexpr int kBlockThreads = 256;

__global__ void __launch_bounds__(kBlockThreads) mix_rows(CopyMix of) {
  const Int row = blockIdx.x, group = row / (of.rows / of.groups), width = of.words + of.places;
  const float gate = of.gate[row], writes = fn_sigmoid(gate), copies = fn_sigmoid(-gate);
  const float* const words = of.probabilities + row * of.words;
  float* const out = of.out + row * width;
  for (Int v = threadIdx.x; v < width; v += kBlockThreads)
    out[v] = v < of.words ? writes * words[v] : 0.0f;
  __syncthreads();
  const int* const columns = of.columns + group * of.places;
  const float* const attention = of.attention + row * of.places;
  const Int length = of.lengths[group] < of.places ? of.lengths[group] : of.places;
  for (Int s = threadIdx.x; s < length; s += kBlockThreads) {
    const int column = columns[s];
    bool first = column >= 0 && column < width;
    for (Int t = 0; t < s && first; ++t) first = columns[t] != column;
    if (!first) continue;
    float sum = out[column];
    for (Int t = s; t < length; ++t)
      if (columns[t] == column) sum += copies * attention[t];
    out[column] = sum;
  }
}

}  // namespace

void launch_copy_mix(const CopyMix& of, cudaStream_t stream) {
  if (of.rows == 0 || of.words + of.places == 0) return;
  mix_rows<<<(unsigned)of.rows, kBlockThreads, 0, stream>>>(of);
}

}  // namespace millrace::cuda
