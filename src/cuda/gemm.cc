#include "cuda/gemm.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>

#include "cuda/captured.h"
#include "cuda/context.h"
#include "cuda/gelu_gemm_sm90.h"

namespace millrace::cuda {
namespace {

constexpr int64_t kMaxWorkspace = 64 << 20;
constexpr int kAnswers = 12;
// A measured time must be this much better than that of an algorithm the library ranks higher.
constexpr double kClearly = 0.98;

cudaDataType_t library_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

cublasLtEpilogue_t library_epilogue(const GemmSpec& s) {
  switch (s.activation) {
    case Activation::none:
      return s.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case Activation::relu:
      return s.bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Activation::gelu:
      return s.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case Activation::gelu_kept:
      return s.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Activation::gelu_grad:
      MR_CHECK(!s.bias, "the derivative of an activation has no bias");
      return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// A and B as they are stored.
struct Stored {
  int64_t rows, columns, ld;
};
Stored stored_a(const GemmSpec& s) {
  const int64_t columns = s.ta ? s.m : s.k;
  return {s.ta ? s.k : s.m, columns, s.lda ? s.lda : columns};
}
Stored stored_b(const GemmSpec& s) {
  const int64_t columns = s.tb ? s.k : s.n;
  return {s.tb ? s.n : s.k, columns, s.ldb ? s.ldb : columns};
}
Stored stored_d(const GemmSpec& s) { return {s.m, s.n, s.ldd ? s.ldd : s.n}; }

int64_t bytes_of(const Stored& matrix, int64_t batch, DType dtype) {
  return batch * matrix.rows * matrix.ld * dtype_bytes(dtype);
}

template <typename T>
void set(cublasLtMatmulDescOpaque_t& operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  MR_CUDA(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof(value)));
}
template <typename T>
void set(cublasLtMatmulPreferenceOpaque_t& preference,
         cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  MR_CUDA(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)));
}

// The library counts by columns: for it a row-major matrix is its own transpose.
void describe(cublasLtMatrixLayoutOpaque_t& layout, const Stored& matrix, DType dtype,
              int64_t batch) {
  MR_CUDA(cublasLtMatrixLayoutInit(&layout, library_type(dtype),
                                   static_cast<uint64_t>(matrix.columns),
                                   static_cast<uint64_t>(matrix.rows), matrix.ld));
  if (batch == 1) return;
  const auto count = static_cast<int32_t>(batch);
  const int64_t stride = matrix.rows * matrix.ld;
  MR_CUDA(cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                           sizeof(count)));
  MR_CUDA(cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                           &stride, sizeof(stride)));
}

constexpr std::string_view kOwn = "own";

bool has_own(const GemmSpec& spec, Context& context) {
  return decline_gelu_gemm(spec, context.device().sm).empty();
}

std::string hex(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
  return text;
}

}  // namespace

std::string_view activation_name(Activation activation) {
  switch (activation) {
    case Activation::none:
      break;
    case Activation::relu:
      return "relu";
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_kept:
      return "gelu aux";
    case Activation::gelu_grad:
      return "gelu gradient";
  }
  return "";
}

std::string GemmSpec::str() const {
  std::string text = fmt::format("{}x{}x{} {}{} {} {}", m, n, k, ta ? 't' : 'n', tb ? 't' : 'n',
                                 dtype_name(in), dtype_name(out));
  if (batch != 1) text += fmt::format(" batch {}", batch);
  if (tf32) text += " tf32";
  if (adds) text += " add";
  if (bias) text += " bias";
  if (scaled) text += " scaled";
  if (activation != Activation::none) text += fmt::format(" {}", activation_name(activation));
  if (lda || ldb || ldd) text += fmt::format(" rows {},{},{}", lda, ldb, ldd);
  if (alignment != 64) text += fmt::format(" aligned {}", alignment);
  return text;
}

Gemm::Gemm(Described, const GemmSpec& spec, Context& context) : spec_(spec) {
  if (spec.empty() || spec.k == 0) return;
  library_ = context.lt();
  const bool tf32 = spec.tf32 && spec.in == DType::f32;
  MR_CUDA(cublasLtMatmulDescInit(
      &operation_, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  // D transposed is op(B) transposed times op(A) transposed: B comes first.
  set<int32_t>(operation_, CUBLASLT_MATMUL_DESC_TRANSA, spec.tb ? CUBLAS_OP_T : CUBLAS_OP_N);
  set<int32_t>(operation_, CUBLASLT_MATMUL_DESC_TRANSB, spec.ta ? CUBLAS_OP_T : CUBLAS_OP_N);
  set<uint32_t>(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE, library_epilogue(spec));
  // Until there are real pointers: something with their alignment, which the library looks at.
  void* const aligned = reinterpret_cast<void*>(spec.alignment);
  if (spec.bias) set<const void*>(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned);
  if (spec.has_aux()) {
    set<int64_t>(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, spec.n);
    set<void*>(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aligned);
  }
  describe(a_, stored_a(spec), spec.in, spec.batch);
  describe(b_, stored_b(spec), spec.in, spec.batch);
  describe(d_, stored_d(spec), spec.out, spec.batch);
}

bool Gemm::supported(const GemmSpec& spec, Context& context) {
  if (spec.empty()) return true;
  if (spec.k == 0) return !spec.adds && !spec.bias && spec.activation == Activation::none;
  return has_own(spec, context) || !Gemm(Described{}, spec, context).ask(1).empty();
}

Gemm::Gemm(const GemmSpec& spec, Context& context) : Gemm(Described{}, spec, context) {
  if (!library_) return;
  const std::string key = fmt::format("lt {} {}", cublasLtGetVersion(), spec.str());
  const std::string choice = context.choices().find(key, [&] { return measure(context); });
  if (take(choice)) return;
  const Answers answers = ask(1);
  if ((choice == kOwn || answers.empty()) && has_own(spec, context)) {
    own_blocks_ = context.device().multiprocessors;
    return;
  }
  if (answers.empty())
    throw Error({.what = "cuBLASLt has no algorithm for the product " + spec.str(),
                 .remedy = "device: cpu runs the same plan; this is worth a report"});
  algorithm_ = answers[0].algo;
  workspace_bytes_ = static_cast<int64_t>(answers[0].workspaceSize);
}

Gemm::Answers Gemm::ask(int count) const {
  cublasLtMatmulPreferenceOpaque_t preference;
  MR_CUDA(cublasLtMatmulPreferenceInit(&preference));
  set<uint64_t>(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMaxWorkspace);
  set<uint32_t>(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  const auto alignment = static_cast<uint32_t>(spec_.alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
  Answers answers(static_cast<size_t>(count));
  int found = 0;
  // Whatever it answers but success is a no.
  if (cublasLtMatmulAlgoGetHeuristic(library_, &operation_, &b_, &a_, &d_, &d_, &preference, count,
                                     answers.data(), &found) != CUBLAS_STATUS_SUCCESS)
    return {};
  answers.resize(static_cast<size_t>(found));
  std::erase_if(answers, [](const auto& a) { return a.state != CUBLAS_STATUS_SUCCESS; });
  return answers;
}

// A choice as text: the algorithm in hexadecimal and the bytes of its workspace.
bool Gemm::take(const std::string& choice) {
  const size_t space = choice.find(' ');
  const std::string_view digits = std::string_view(choice).substr(0, space);
  if (space == std::string::npos || digits.size() != 2 * sizeof(algorithm_)) return false;
  cublasLtMatmulAlgo_t algorithm;
  for (size_t i = 0; i < std::size(algorithm.data); ++i)
    algorithm.data[i] = std::strtoull(std::string(digits.substr(16 * i, 16)).c_str(), nullptr, 16);
  const int64_t bytes = std::strtoll(choice.c_str() + space, nullptr, 10);
  cublasLtMatmulHeuristicResult_t result{};
  if (bytes < 0 || bytes > kMaxWorkspace ||
      cublasLtMatmulAlgoCheck(library_, &operation_, &b_, &a_, &d_, &d_, &algorithm, &result) !=
          CUBLAS_STATUS_SUCCESS ||
      static_cast<int64_t>(result.workspaceSize) > bytes)
    return false;
  algorithm_ = algorithm;
  workspace_bytes_ = bytes;
  return true;
}

std::string Gemm::measure(Context& context) const {
  const Answers answers = ask(kAnswers);
  const bool own = has_own(spec_, context);
  if (answers.empty()) return own ? std::string(kOwn) : "";
  auto text = [](const cublasLtMatmulHeuristicResult_t& answer) {
    return fmt::format("{} {}", hex(answer.algo), answer.workspaceSize);
  };
  if (answers.size() == 1 && !own) return text(answers[0]);
  const int64_t a_bytes = bytes_of(stored_a(spec_), spec_.batch, spec_.in),
                b_bytes = bytes_of(stored_b(spec_), spec_.batch, spec_.in),
                d_bytes = bytes_of(stored_d(spec_), spec_.batch, spec_.out),
                all_bytes = a_bytes + b_bytes + d_bytes * (1 + spec_.adds + spec_.has_aux());
  // Other operands every time, as far as that keeps them from staying in the second-level cache.
  const int64_t sets = std::clamp<int64_t>(context.device().l2_bytes / all_bytes + 1, 1, 8);
  auto rounded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  try {
    std::vector<std::unique_ptr<DeviceBytes>> memory;
    auto random = [&](int64_t bytes, DType dtype) {
      memory.push_back(std::make_unique<DeviceBytes>(bytes));
      fill_random(memory.back()->data(), bytes, dtype, context);
      return static_cast<std::byte*>(memory.back()->data());
    };
    std::byte* const a = random(sets * rounded(a_bytes), spec_.in);
    std::byte* const b = random(sets * rounded(b_bytes), spec_.in);
    std::byte* const d = random(sets * rounded(d_bytes), spec_.out);
    std::byte* const c = spec_.adds ? random(sets * rounded(d_bytes), spec_.out) : nullptr;
    std::byte* const aux = spec_.has_aux() ? random(sets * rounded(d_bytes), spec_.out) : nullptr;
    std::byte* const bias =
        spec_.bias ? random(rounded(spec_.n * dtype_bytes(spec_.out)), spec_.out) : nullptr;
    const DeviceBytes workspace(kMaxWorkspace);
    auto data = [&](int i) {
      const int64_t s = i % sets;
      return GemmData{.a = a + s * rounded(a_bytes),
                      .b = b + s * rounded(b_bytes),
                      .d = d + s * rounded(d_bytes),
                      .c = c ? c + s * rounded(d_bytes) : nullptr,
                      .bias = bias,
                      .aux = aux ? aux + s * rounded(d_bytes) : nullptr,
                      .workspace = workspace.data()};
    };
    size_t best = answers.size();
    double best_seconds = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      const auto bytes = static_cast<int64_t>(answers[i].workspaceSize);
      // The library may find out only now that it cannot.
      if (launch(answers[i].algo, bytes, data(0), context.stream()) != CUBLAS_STATUS_SUCCESS)
        continue;
      const double seconds = seconds_of(context, [&](int round) {
        MR_CUDA(launch(answers[i].algo, bytes, data(round), context.stream()));
      });
      if (best < answers.size() && seconds > kClearly * best_seconds) continue;
      best = i;
      best_seconds = seconds;
    }
    bool own_is_best = false;
    if (own) {
      const double seconds = seconds_of(context, [&](int round) {
        MR_CUDA(launch_gelu_gemm(spec_, data(round), context.device().multiprocessors,
                                 context.stream()));
      });
      own_is_best = best == answers.size() || seconds < kClearly * best_seconds;
    }
    MR_CUDA(cudaStreamSynchronize(context.stream()));
    if (own_is_best) return std::string(kOwn);
    return best < answers.size() ? text(answers[best]) : "";
  } catch (const Error&) {
    // No memory to spare: the library's own ranking decides.
    (void)cudaGetLastError();
    return "";
  }
}

std::string Gemm::detail() const {
  if (!library_) return "nothing to multiply";
  if (own_blocks_ > 0) return std::string(kOwn);
  int32_t number = 0, splits = 1;
  uint32_t tile = 0;
  size_t written = 0;
  auto read = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
    (void)cublasLtMatmulAlgoConfigGetAttribute(&algorithm_, attribute, &value, sizeof(value),
                                               &written);
  };
  read(CUBLASLT_ALGO_CONFIG_ID, number);
  read(CUBLASLT_ALGO_CONFIG_TILE_ID, tile);
  read(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, splits);
  return fmt::format("algorithm {} tile {}{}", number, tile,
                     splits > 1 ? fmt::format(" split {}", splits) : "");
}

cublasStatus_t Gemm::launch(const cublasLtMatmulAlgo_t& algorithm, int64_t workspace_bytes,
                            const GemmData& data, cudaStream_t stream) const {
  if (spec_.bias) set<const void*>(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, data.bias);
  if (spec_.has_aux()) set<void*>(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, data.aux);
  const float beta = data.c ? 1.0f : 0.0f;
  return cublasLtMatmul(library_, &operation_, &data.alpha, data.b, &b_, data.a, &a_, &beta,
                        data.c ? data.c : data.d, &d_, data.d, &d_, &algorithm, data.workspace,
                        static_cast<size_t>(workspace_bytes), stream);
}

void Gemm::run(const GemmData& data, cudaStream_t stream) const {
  if (spec_.empty()) return;
  if (!library_) {  // k is 0
    MR_CHECK(!data.c && !spec_.bias && spec_.activation == Activation::none,
             "an epilogue on an empty sum");
    const Stored d = stored_d(spec_);
    const auto size = static_cast<size_t>(dtype_bytes(spec_.out));
    MR_CUDA(cudaMemset2DAsync(data.d, static_cast<size_t>(d.ld) * size, 0,
                              static_cast<size_t>(d.columns) * size,
                              static_cast<size_t>(spec_.batch * d.rows), stream));
    return;
  }
  if (own_blocks_ > 0)
    check(launch_gelu_gemm(spec_, data, own_blocks_, stream), "launch_gelu_gemm");
  else
    check(launch(algorithm_, workspace_bytes_, data, stream), "cublasLtMatmul");
}

double seconds_of(Context& context, const std::function<void(int)>& run) {
  constexpr double kLong = 200e-6;  // against which a launch and a look at the clock are nothing
  constexpr int kMostRounds = 16;
  const double once = context.time([&] { run(0); }, 3);
  const int rounds = static_cast<int>(std::clamp(kLong / once, 1.0, double{kMostRounds}));
  if (rounds == 1) return once;
  // In a graph, as they will run: launched one by one, the host would be what is measured.
  Captured graph;
  const std::string refused = graph.capture(context, 0, [&] {
    for (int i = 0; i < rounds; ++i) run(i);
  });
  if (!refused.empty()) return once;
  const double all = context.time([&] { graph.launch(context.stream()); });
  return all / rounds;
}

void fill_random(void* data, int64_t bytes, DType dtype, Context& context) {
  const cudaStream_t stream = context.stream();
  // A random sign and fraction under an exponent of 1/8, 1/4 or 1/2.
  const int64_t first = std::min<int64_t>(bytes, 1 << 20);
  std::vector<uint32_t> words(static_cast<size_t>(first + 3) / 4);
  uint64_t state = 0x9E3779B97F4A7C15u;
  auto number = [&](uint32_t fraction_bits, uint32_t exponent_bits) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto draw = static_cast<uint32_t>(state >> 32);
    const uint32_t one = (1u << (exponent_bits - 1)) - 1, exponent = one - 1 - (draw >> 8) % 3;
    return draw >> 31 << (fraction_bits + exponent_bits) | exponent << fraction_bits |
           (draw & ((1u << fraction_bits) - 1));
  };
  for (uint32_t& word : words) {
    if (dtype == DType::i32)
      word = 0;
    else if (dtype == DType::f32)
      word = number(23, 8);
    else if (dtype == DType::bf16)
      word = number(7, 8) | number(7, 8) << 16;
    else
      word = number(10, 5) | number(10, 5) << 16;
  }
  auto* const to = static_cast<std::byte*>(data);
  MR_CUDA(cudaMemcpyAsync(to, words.data(), static_cast<size_t>(first), cudaMemcpyHostToDevice,
                          stream));
  for (int64_t done = first; done < bytes; done *= 2)
    MR_CUDA(cudaMemcpyAsync(to + done, to, static_cast<size_t>(std::min(done, bytes - done)),
                            cudaMemcpyDeviceToDevice, stream));
  MR_CUDA(cudaStreamSynchronize(stream));  // `words` is read by the copy
}

}  // namespace millrace::cuda
