// Matrix products by cuBLASLt, or a kernel of our own where that is faster, row-major: D =
// activation(alpha op(A) op(B) + C + bias). Which of its algorithms is best for a shape is measured
// once and remembered (cuda/choices.h). Sums have a fixed order: algorithms that add up shares of k
// do so in single precision and in a step of its own.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace millrace::cuda {

class Context;

enum class Activation : uint8_t {
  none,
  relu,
  gelu,       // the tanh form
  gelu_kept,  // and what went into it is written to `aux`
  gelu_grad,  // times the derivative of gelu at `aux`
};
std::string_view activation_name(Activation activation);

struct GemmSpec {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  bool ta = false, tb = false;  // A is stored [k,m] / B is stored [n,k]
  DType in = DType::f32;        // A and B
  DType out = DType::f32;       // C, D, bias and aux
  bool tf32 = false;            // f32 factors may be rounded to TF32
  bool adds = false;            // with a C, at least sometimes
  bool bias = false;            // n numbers, added to every row
  bool scaled = false;          // alpha may be something else than 1
  Activation activation = Activation::none;
  int64_t lda = 0, ldb = 0, ldd = 0;  // numbers from row to row; 0: no gap. C is as D.
  int64_t alignment = 64;             // of every matrix, in bytes

  bool empty() const { return m == 0 || n == 0 || batch == 0; }
  bool has_aux() const {
    return activation == Activation::gelu_kept || activation == Activation::gelu_grad;
  }
  std::string str() const;
};

struct GemmData {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  const void* c = nullptr;  // null: nothing is added; may be d
  const void* bias = nullptr;
  void* aux = nullptr;  // aligned as the matrices, rows of n without a gap
  void* workspace = nullptr;
  float alpha = 1;
};

class Gemm {
 public:
  // Whether the library has an algorithm for it.
  static bool supported(const GemmSpec& spec, Context& context);

  // Chooses the algorithm, by timing where that is allowed and was not done yet. An Error when
  // there is none.
  Gemm(const GemmSpec& spec, Context& context);
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  int64_t workspace_bytes() const { return workspace_bytes_; }
  std::string detail() const;  // "algorithm 66 tile 21", "own"
  void run(const GemmData& data, cudaStream_t stream) const;

 private:
  struct Described {};
  Gemm(Described, const GemmSpec& spec, Context& context);  // without an algorithm

  using Answers = std::vector<cublasLtMatmulHeuristicResult_t>;
  Answers ask(int count) const;
  bool take(const std::string& choice);
  std::string measure(Context& context) const;
  cublasStatus_t launch(const cublasLtMatmulAlgo_t& algorithm, int64_t workspace_bytes,
                        const GemmData& data, cudaStream_t stream) const;

  GemmSpec spec_;
  cublasLtHandle_t library_ = nullptr;
  // Plain data; the library asks for them as not const.
  mutable cublasLtMatmulDescOpaque_t operation_{};
  mutable cublasLtMatrixLayoutOpaque_t a_{}, b_{}, d_{};
  cublasLtMatmulAlgo_t algorithm_{};
  int64_t workspace_bytes_ = 0;
  int own_blocks_ = 0;  // our own kernel, with so many at a time; 0: the library
};

// --- timing of what will run inside a captured graph

// Seconds of run(i), i = 0, 1, …, one behind the other.
double seconds_of(Context& context, const std::function<void(int)>& run);
// Random numbers around one, on the context's stream: zeros would be multiplied at another clock.
void fill_random(void* data, int64_t bytes, DType dtype, Context& context);

}  // namespace millrace::cuda
