// Launches of attention_decoder and its gradient.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace millrace::cuda {

// A result in the type of the op or, where somebody wants it exact, in f32.
struct DecoderResult {
  void* data;
  bool full;
};

struct DecoderShape {
  int T, B, S, H, M, A;
  int beams;  // sequences that read one memory
  bool coverage;
  DType dtype;
  // How it is cut. The products take `rows` sequences at a time; what they multiply stands as
  // [chunk][depth][rows]. A sequence has `splits` slices of `slice` places.
  int rows, chunks, splits, slice;
};
// Sets how it is cut.
void cut_decoder(DecoderShape& shape);
// Of a matrix [depth, columns] in the order in which the products read it.
int64_t decoder_panel_numbers(int64_t depth, int64_t columns);
int64_t decoder_gate_panel_numbers(const DecoderShape& shape);
// Shared memory of a block, and how much that may be; `allow` comes before the first launch.
constexpr int64_t kDecoderMaxShared = 96 << 10;
int64_t decoder_shared_bytes(const DecoderShape& shape);
int64_t decoder_gradient_shared_bytes(const DecoderShape& shape);
cudaError_t allow_decoder(DType dtype);
cudaError_t allow_decoder_gradient(DType dtype);

struct DecoderForward : DecoderShape {
  const void *x, *w, *memory, *keys, *wq;
  const float *v, *wc, *h0, *c0;
  const float *context0, *covered0;  // or null: zeros
  const int* lengths;
  DecoderResult h, context, gates;
  float *attention, *cells, *overlap;
  // Scratch.
  void *w_panels, *wq_panels;
  float* state;                     // [2][chunk][H + M][rows]: h and context, of every other step
  float *q, *scores, *tops, *sums;  // [B, A], [B, S], [B, splits] twice
  float *shares, *covered;          // [B, splits, M], [B, S]
};
void launch_decoder(const DecoderForward& p, cudaStream_t stream);

struct DecoderBackward : DecoderShape {
  const void *w, *keys, *memory, *wq, *h, *context, *gates;
  const float *v, *wc, *h0, *c0, *attention, *cells;
  const int* lengths;
  const float *dh_given, *dcontext_given, *da_given, *doverlap;  // or null
  DecoderResult dx, dkeys;
  float *dv, *dwc, *dh0, *dc0;
  // Scratch; what is said to be of all steps is in the type of the op where a product reads it.
  void *w_panels, *wq_panels;
  void* before;                   // [T, B, H + M]: h and context of the step before, of all steps
  void* attention_copy;           // [B, T, S]
  void *dz_all, *dq_all;          // [T, B, 4 H], [T, B, A]
  void* dcontext_all;             // [B, T, M]
  const float* q;                 // [T, B, A], a product
  float *de, *covered;            // [T, B, S], of all steps
  float *dz, *dq;                 // [chunk][4 H][rows], [chunk][A][rows]
  float *dh, *dcontext;           // [B, H], [B, M]
  float *da, *dcovered;           // [B, S]
  float *dots, *shares;           // [B, splits], [B, splits, A]
  float *dv_shares, *dwc_shares;  // [decoder_key_blocks, A]
};
int64_t decoder_key_blocks(const DecoderShape& shape);
// Everything before q is multiplied, the steps, and what remains after them besides products.
void launch_decoder_setup(const DecoderBackward& p, cudaStream_t stream);
void launch_decoder_steps(const DecoderBackward& p, cudaStream_t stream);
void launch_decoder_keys(const DecoderBackward& p, cudaStream_t stream);

}  // namespace millrace::cuda
