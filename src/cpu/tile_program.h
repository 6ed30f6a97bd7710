// Runs an Expression tile by tile: every instruction works on a few hundred elements that stay in
// the first-level cache, with the vector functions. Used by element-wise nodes and by GEMM
// epilogues.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu/vector_math.h"
#include "graph/scalar_functions.h"

namespace millrace::cpu::MR_ISA {

constexpr int64_t kTile = 512;  // floats: 2 KiB a temporary, a dozen of them fit in 32 KiB
constexpr size_t kMaxTemporaries = 64;

// One operand over the current tile: a run of elements, or one number.
struct Source {
  const float* run = nullptr;  // null: `number`
  float number = 0;
  const int32_t* key = nullptr;  // random key operands only
};

template <typename F>
void map_unary(float* d, const Source& a, int64_t n, F f) {
  if (a.run) {
    const float* x = a.run;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) d[i] = f(x[i]);
  } else {
    std::fill_n(d, n, f(a.number));
  }
}

template <typename F>
void map_binary(float* d, const Source& a, const Source& b, int64_t n, F f) {
  const float *x = a.run, *y = b.run;
  if (x && y) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) d[i] = f(x[i], y[i]);
  } else if (x) {
    const float s = b.number;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) d[i] = f(x[i], s);
  } else if (y) {
    const float s = a.number;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) d[i] = f(s, y[i]);
  } else {
    std::fill_n(d, n, f(a.number, b.number));
  }
}

inline void keep_run(float* d, const int32_t* key, double p, int64_t stream, int64_t element,
                     int64_t n) {
  const uint32_t threshold = keep_threshold(p);
  const auto factor = static_cast<float>(keep_scale(p));
  int64_t i = 0;
  while (i < n) {
    const Philox block = keep_block(key, stream, (element + i) >> 3);
    const int64_t skip = (element + i) & 7, take = std::min<int64_t>(8 - skip, n - i);
    for (int64_t k = 0; k < take; ++k) {
      const uint32_t word = block[static_cast<size_t>((skip + k) >> 1)];
      const uint32_t draw = (skip + k) & 1 ? word >> 16 : word & 0xffff;
      d[i + k] = draw >= threshold ? factor : 0.0f;
    }
    i += take;
  }
}

inline void run_instruction(const Instruction& c, float* d, const Source& a, const Source& b,
                            int64_t element, int64_t n) {
  switch (c.function) {
    case Function::constant:
      break;  // never materialised: a Source of its own
    case Function::keep:
      keep_run(d, a.key, c.number, c.stream, element, n);
      break;
    case Function::add:
      map_binary(d, a, b, n, [](float x, float y) { return x + y; });
      break;
    case Function::sub:
      map_binary(d, a, b, n, [](float x, float y) { return x - y; });
      break;
    case Function::mul:
      map_binary(d, a, b, n, [](float x, float y) { return x * y; });
      break;
    case Function::div:
      map_binary(d, a, b, n, [](float x, float y) { return x / y; });
      break;
    case Function::max:
      map_binary(d, a, b, n, [](float x, float y) { return x > y || x != x ? x : y; });
      break;
    case Function::min:
      map_binary(d, a, b, n, [](float x, float y) { return x < y || x != x ? x : y; });
      break;
    case Function::neg:
      map_unary(d, a, n, [](float x) { return -x; });
      break;
    case Function::exp:
      map_unary(d, a, n, vexp);
      break;
    case Function::log:
      map_unary(d, a, n, vlog);
      break;
    case Function::sqrt:
      map_unary(d, a, n, [](float x) { return std::sqrt(x); });
      break;
    case Function::tanh:
      map_unary(d, a, n, vtanh);
      break;
    case Function::sigmoid:
      map_unary(d, a, n, vsigmoid);
      break;
    case Function::step:
      map_unary(d, a, n, [](float x) { return x > 0.0f ? 1.0f : 0.0f; });
      break;
    case Function::relu:
      map_unary(d, a, n, [](float x) { return x < 0.0f ? 0.0f : x; });
      break;
    case Function::silu:
      map_unary(d, a, n, vsilu);
      break;
    case Function::silu_grad:
      map_unary(d, a, n, vsilu_grad);
      break;
    case Function::gelu:
      map_unary(d, a, n, vgelu);
      break;
    case Function::gelu_grad:
      map_unary(d, a, n, vgelu_grad);
      break;
    case Function::gelu_tanh:
      map_unary(d, a, n, vgelu_tanh);
      break;
    case Function::gelu_tanh_grad:
      map_unary(d, a, n, vgelu_tanh_grad);
      break;
  }
}

// Instructions and results together must not exceed kMaxTemporaries.
// Runs `e` over n <= kTile elements starting at flat index `element`. Results may be the storage of
// operands: everything is read before the first result is written, except that the last instruction
// writes its result directly when nothing else is asked for.
inline void run_tile(const Expression& e, const Source* operands, float* const* results,
                     int64_t element, int64_t n) {
  alignas(64) static thread_local float temporaries[kMaxTemporaries][kTile];
  // Not on the stack: clearing them for every tile would cost more than the tile.
  static thread_local Source values[kMaxTemporaries], kept[kMaxTemporaries];
  auto source = [&](Term t) -> const Source& {
    return t.is_operand() ? operands[t.index()] : values[t.index()];
  };
  const bool direct = e.results.size() == 1 && !e.results[0].is_operand() &&
                      e.results[0].index() == static_cast<int>(e.code.size()) - 1 &&
                      e.code.back().function != Function::constant;
  for (size_t k = 0; k < e.code.size(); ++k) {
    const Instruction& c = e.code[k];
    if (c.function == Function::constant) {
      values[k] = {.number = static_cast<float>(c.number)};
      continue;
    }
    const int arity = function_arity(c.function);
    float* d = direct && k + 1 == e.code.size() ? results[0] : temporaries[k];
    // A copy of a Source would wait for all stores before it: they are longer than its parts.
    run_instruction(c, d, source(c.a), source(arity == 2 ? c.b : c.a), element, n);
    values[k] = {.run = d};
  }
  if (direct) return;
  // A result that is an operand unchanged may stand where another result is about to be written.
  for (size_t r = 0; r < e.results.size(); ++r) {
    kept[r] = source(e.results[r]);
    if (!e.results[r].is_operand() || !kept[r].run || e.results.size() == 1) continue;
    std::memcpy(temporaries[e.code.size() + r], kept[r].run, static_cast<size_t>(n) * 4);
    kept[r].run = temporaries[e.code.size() + r];
  }
  for (size_t r = 0; r < e.results.size(); ++r) {
    const Source& s = kept[r];
    if (s.run)
      std::memmove(results[r], s.run, static_cast<size_t>(n) * 4);
    else
      std::fill_n(results[r], n, s.number);
  }
}

}  // namespace millrace::cpu::MR_ISA
