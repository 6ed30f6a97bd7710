// Launches lstm and its gradient on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace millrace::cuda {

struct LstmSizes {
  DType type;  // of x, r, y, gates and their gradients; the rest is single precision
  int64_t steps, rows, directions, hidden;
};

struct LstmForward {
  const void *x, *r;
  const int32_t* lengths;
  void *y, *gates;
  float *last_h, *last_c, *cells;
};

struct LstmBackward {
  const void* r;
  const int32_t* lengths;
  const void *gates, *dy;
  const float *cells, *dlast_h, *dlast_c;
  void* dx;
  float* dc;  // [directions, rows, hidden], of launch_lstm_grad_steps alone
};

// The whole sequence in one launch: the weights of a direction stay in the registers of a cluster
// of blocks, which exchange h in shared memory. From compute capability 9.0 on.
constexpr int64_t kLstmMostHidden = 256, kLstmHiddenStep = 32;
cudaError_t launch_lstm_cluster(const LstmSizes& sizes, const LstmForward& of, int multiprocessors,
                                cudaStream_t stream);
cudaError_t launch_lstm_grad_cluster(const LstmSizes& sizes, const LstmBackward& of,
                                     int multiprocessors, cudaStream_t stream);

// A launch for each step, for any size and device.
void launch_lstm_steps(const LstmSizes& sizes, const LstmForward& of, cudaStream_t stream);
void launch_lstm_grad_steps(const LstmSizes& sizes, const LstmBackward& of, cudaStream_t stream);

}  // namespace millrace::cuda
