// What the row-wise CPU kernels share: sums and maxima along a row.
// Four accumulators, each over its quarter of the row, hide the latency of an addition; the order
// of additions depends on the length alone.
#pragma once
#include <cmath>
#include <cstdint>

namespace millrace::cpu::MR_ISA {

// f(0) + … + f(n - 1); f must only read.
template <typename F>
inline float sum_over(int64_t n, const F& f) {
  const int64_t q = n / 4;
  float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
  for (int64_t j = 0; j < q; ++j) {
    s0 += f(j);
    s1 += f(j + q);
    s2 += f(j + 2 * q);
    s3 += f(j + 3 * q);
  }
  for (int64_t j = 4 * q; j < n; ++j) s0 += f(j);
  return (s0 + s1) + (s2 + s3);
}

// Sums over four rows of D elements that follow each other: shorter than one row after the other,
// whose sums would each be waited for.
class FourRows {
 public:
  FourRows(const float* x, int64_t D) : x_(x), D_(D) {}

  void sums(float* out) const {
    const float *xa = x_, *xb = xa + D_, *xc = xb + D_, *xd = xc + D_;
    float a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
    for (int64_t j = 0; j < D_; ++j) {
      a += xa[j];
      b += xb[j];
      c += xc[j];
      d += xd[j];
    }
    out[0] = a, out[1] = b, out[2] = c, out[3] = d;
  }

  // Sums of (x - centre)^2, each row with its own centre.
  void squared_distances(const float* centre, float* out) const {
    const float *xa = x_, *xb = xa + D_, *xc = xb + D_, *xd = xc + D_;
    const float ca = centre[0], cb = centre[1], cc = centre[2], cd = centre[3];
    float a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
    for (int64_t j = 0; j < D_; ++j) {
      a += (xa[j] - ca) * (xa[j] - ca);
      b += (xb[j] - cb) * (xb[j] - cb);
      c += (xc[j] - cc) * (xc[j] - cc);
      d += (xd[j] - cd) * (xd[j] - cd);
    }
    out[0] = a, out[1] = b, out[2] = c, out[3] = d;
  }

 private:
  const float* x_;
  int64_t D_;
};

// The largest of x; NaNs are passed over, so what follows must look at every element itself.
inline float max_of(const float* x, int64_t n) {
  const int64_t q = n / 4;
  float m0 = -INFINITY, m1 = -INFINITY, m2 = -INFINITY, m3 = -INFINITY;
#pragma omp simd reduction(max : m0, m1, m2, m3)
  for (int64_t j = 0; j < q; ++j) {
    m0 = x[j] > m0 ? x[j] : m0;
    m1 = x[j + q] > m1 ? x[j + q] : m1;
    m2 = x[j + 2 * q] > m2 ? x[j + 2 * q] : m2;
    m3 = x[j + 3 * q] > m3 ? x[j + 3 * q] : m3;
  }
  for (int64_t j = 4 * q; j < n; ++j) m0 = x[j] > m0 ? x[j] : m0;
  m0 = m1 > m0 ? m1 : m0;
  m2 = m3 > m2 ? m3 : m2;
  return m2 > m0 ? m2 : m0;
}

}  // namespace millrace::cpu::MR_ISA
