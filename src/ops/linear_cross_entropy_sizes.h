// How the loss head on a GPU cuts its work, and what it keeps meanwhile. Nothing of CUDA in it: the
// memory of a device that is not here is planned by it, too.
#pragma once
#include <algorithm>
#include <cstdint>

#include "graph/op.h"
#include "ops/label_smoothing.h"

namespace millrace::cuda {

// Large products and few launches; more memory would not make them faster.
constexpr int64_t kHeadChunkBytes = 512 << 20;
constexpr int64_t kHeadMinRows = 256, kHeadRowStep = 128;
constexpr int64_t kHeadPaddedFrom = 4096;
// Up to so many rows the product for dw is sooner made by a slow kernel than copied.
constexpr int64_t kHeadCopiedFrom = 1024;
// Rows of logits lie this many numbers apart, or a multiple of it: whole 16-byte loads, and room
// for the products' fast kernels whatever the vocabulary.
constexpr int64_t kLogitsRow = 64;

constexpr int64_t rounded_up(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

struct HeadSizes {
  explicit HeadSizes(const OpSite& site)
      : N(site.in[0].shape.rows()),
        D(site.in[0].shape.last()),
        V(site.in[1].shape[0]),
        gradients(site.attrs.integer("gradients") != 0),
        frozen(site.attrs.integer("frozen", 0) != 0),
        label(site.attrs, V),
        type(site.in[0].dtype),
        stride(std::max(rounded_up(V, kLogitsRow), kLogitsRow)) {
    const int64_t asked = site.attrs.integer("chunk_rows", 0);
    if (asked > 0) {
      rows = asked;
    } else {
      // Chunks of one size, as far as that goes.
      const int64_t most = std::max(kHeadMinRows, kHeadChunkBytes / (stride * dtype_bytes(type)));
      const int64_t chunks = std::max<int64_t>(1, (N + most - 1) / most);
      rows = rounded_up((N + chunks - 1) / chunks, kHeadRowStep);
    }
    rows = std::max<int64_t>(1, std::min(N, rows));
    if (!gradients) return;
    dx_type = site.out[1].dtype;
    if (!frozen) dw_type = site.out[2].dtype;
  }
  int64_t chunks() const { return (N + rows - 1) / rows; }
  // A sum over chunks is kept in single precision; so is one with more rows than dw has.
  bool dw_apart() const {
    return gradients && !frozen && ((is_half(dw_type) && chunks() > 1) || dw_padded());
  }
  // A vocabulary of 50,257 would leave the library only its slow kernels: w is copied once a step
  // with rows of zeros behind it, and the products are of that size.
  bool padded() const { return stride != V && is_half(type) && V >= kHeadPaddedFrom; }
  int64_t width() const { return padded() ? stride : V; }
  bool dw_padded() const { return padded() && N > kHeadCopiedFrom; }
  int64_t dw_width() const { return dw_padded() ? stride : V; }

  int64_t logits_bytes() const { return rounded_up(rows * stride * dtype_bytes(type), 256); }
  int64_t losses_bytes() const { return rounded_up(N * dtype_bytes(DType::f32), 256); }
  int64_t dw_bytes() const {
    return dw_apart() ? rounded_up(dw_width() * D * dtype_bytes(DType::f32), 256) : 0;
  }
  int64_t w_bytes() const { return padded() ? rounded_up(stride * D * dtype_bytes(type), 256) : 0; }

  int64_t own_bytes() const { return logits_bytes() + losses_bytes() + dw_bytes() + w_bytes(); }

  int64_t N, D, V;
  bool gradients, frozen;  // frozen: no gradient of w
  LabelShares label;
  DType type;        // of x, w and the logits
  int64_t stride;    // of the logits' rows
  int64_t rows = 0;  // of a chunk
  DType dx_type = DType::f32, dw_type = DType::f32;
};

}  // namespace millrace::cuda
