// The sizes of a matmul node, shared by the card and its kernels.
#pragma once
#include "graph/op.h"

namespace millrace {

struct MatmulSizes {
  int64_t batch = 1, m = 0, n = 0, k = 0, k_of_b = 0;
  bool ta = false, tb = false;
};

// A is [.., m, k] with leading dimensions flattened into m (or, transposed, into k); B likewise.
// With `batched`, both have three dimensions and the first is the batch.
inline MatmulSizes matmul_sizes(const Attrs& attrs, const Shape& a, const Shape& b) {
  MatmulSizes s;
  s.ta = attrs.integer("ta", 0) != 0;
  s.tb = attrs.integer("tb", 0) != 0;
  const bool batched = attrs.integer("batched", 0) != 0;
  s.batch = batched ? a[0] : 1;
  const int64_t a_rows = batched ? a[1] : a.rows(), b_rows = batched ? b[1] : b.rows();
  s.m = s.ta ? a.last() : a_rows;
  s.k = s.ta ? a_rows : a.last();
  s.n = s.tb ? b_rows : b.last();
  s.k_of_b = s.tb ? b.last() : b_rows;
  return s;
}

}  // namespace millrace
