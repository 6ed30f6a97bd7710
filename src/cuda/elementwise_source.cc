#include "cuda/elementwise_source.h"

#include <algorithm>
#include <cmath>

#include "graph/scalar_functions.h"

namespace millrace::cuda {
namespace {

using Kind = Operand::Kind;

constexpr const char* kPrelude = R"(
template <typename T>
struct alignas(16) Group {
  T value[kGroup];
};

template <typename T>
__device__ __forceinline__ void load_group(Group<T>& group, const T* p) {
#pragma unroll
  for (int i = 0; i < (int)sizeof(Group<T>) / 16; ++i)
    reinterpret_cast<uint4*>(&group)[i] = reinterpret_cast<const uint4*>(p)[i];
}
template <typename T>
__device__ __forceinline__ void store_group(T* p, const float (&value)[kGroup]) {
  Group<T> group;
#pragma unroll
  for (int k = 0; k < kGroup; ++k) group.value[k] = from_float<T>(value[k]);
#pragma unroll
  for (int i = 0; i < (int)sizeof(Group<T>) / 16; ++i)
    reinterpret_cast<uint4*>(p)[i] = reinterpret_cast<const uint4*>(&group)[i];
}

// Broadcast operands whose period ends inside groups.
template <typename T>
__device__ __forceinline__ void load_suffix(Group<T>& group, const T* p, Index first,
                                            Index period) {
  Index at = first % period;
#pragma unroll
  for (int k = 0; k < kGroup; ++k) {
    group.value[k] = p[at];
    at = at + 1 == period ? 0 : at + 1;
  }
}
template <typename T>
__device__ __forceinline__ void load_prefix(Group<T>& group, const T* p, Index first,
                                            Index period) {
  Index row = first / period, rest = first - row * period;
#pragma unroll
  for (int k = 0; k < kGroup; ++k) {
    group.value[k] = p[row];
    if (++rest == period) {
      rest = 0;
      ++row;
    }
  }
}

__device__ __forceinline__ float keep_factor(const PhiloxBlock& block, int element,
                                             unsigned threshold, float scale) {
  return keep_in_block(block, element, threshold) ? scale : 0.0f;
}

// Where everything is rounded to halves: errors of a few units in the last place of a float.
__device__ __forceinline__ float fast_exp(float x) { return __expf(x); }
__device__ __forceinline__ float fast_sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}
__device__ __forceinline__ float fast_silu(float x) { return x * fast_sigmoid(x); }
__device__ __forceinline__ float fast_silu_grad(float x) {
  const float s = fast_sigmoid(x);
  return s * (1.0f + x * (1.0f - s));
}
// (1 + tanh u) / 2 is sigmoid(2 u).
__device__ __forceinline__ float fast_gelu_tanh(float x) {
  return x * fast_sigmoid(1.59576912160573071176f * (x + 0.044715f * x * x * x));
}
__device__ __forceinline__ float fast_gelu_tanh_grad(float x) {
  const float s = fast_sigmoid(1.59576912160573071176f * (x + 0.044715f * x * x * x));
  return s + x * s * (1.0f - s) * 1.59576912160573071176f * (1.0f + 0.134145f * x * x);
}
)";

bool has_fast_form(Function f) {
  return f == Function::exp || f == Function::sigmoid || f == Function::silu ||
         f == Function::silu_grad || f == Function::gelu_tanh || f == Function::gelu_tanh_grad;
}

std::string_view type_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float";
    case DType::i32:
      return "int";
    case DType::bf16:
      return "__nv_bfloat16";
    case DType::f16:
      return "__half";
  }
  return "";
}

std::string number_text(double number) {
  const auto value = static_cast<float>(number);
  if (std::isnan(value)) return "__int_as_float(0x7fc00000)";
  if (std::isinf(value))
    return value > 0 ? "__int_as_float(0x7f800000)" : "__int_as_float(0xff800000)";
  std::string text = fmt::format("{:.9g}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text + "f";
}

std::string term_text(Term t) { return fmt::format("{}{}", t.is_operand() ? 'a' : 't', t.index()); }

bool has_period(const Operand& operand) {
  return operand.kind == Kind::suffix || operand.kind == Kind::prefix;
}

// The same operands, broadcasts that are none made full.
std::vector<Operand> plain(std::span<const Operand> in, int64_t count) {
  std::vector<Operand> operands(in.begin(), in.end());
  for (Operand& operand : operands)
    if ((operand.kind == Kind::suffix && operand.period == count) ||
        (operand.kind == Kind::prefix && operand.period == 1))
      operand = {operand.dtype, Kind::full, 1};
  return operands;
}

class Writer {
 public:
  Writer(const Expression& e, std::span<const Operand> in, std::span<const DType> out,
         int64_t count)
      : e_(e),
        in_(plain(in, count)),
        out_(out.begin(), out.end()),
        wide_(count > int64_t{1} << 31),
        used_(in.size(), false) {
    auto use = [&](Term t, bool as_key) {
      if (!t.is_operand()) return;
      const auto i = static_cast<size_t>(t.index());
      MR_CHECK((in_[i].kind == Kind::random_key) == as_key, "operand {} of {}", i, e_.str());
      used_[i] = true;
    };
    for (const Instruction& c : e_.code) {
      if (function_arity(c.function) >= 1) use(c.a, c.function == Function::keep);
      if (function_arity(c.function) >= 2) use(c.b, false);
      any_keep_ |= c.function == Function::keep;
    }
    for (Term t : e_.results) use(t, false);
    bool any_half = std::any_of(out_.begin(), out_.end(), is_half), any_full_f32 = false;
    for (size_t i = 0; i < in_.size(); ++i) {
      if (!used_[i] || in_[i].kind == Kind::scalar) continue;
      any_half |= is_half(in_[i].dtype);
      any_full_f32 |= in_[i].kind == Kind::full && in_[i].dtype == DType::f32;
    }
    group_ = any_half || any_keep_ ? 8 : 4;
    fast_ = !any_full_f32 && std::all_of(out_.begin(), out_.end(), is_half);
  }

  std::string text() const {
    std::string s = "#include \"cuda/device.cuh\"\nusing namespace millrace::cuda;\n";
    s += fmt::format("using Index = unsigned{};\n", wide_ ? " long long" : "");
    s += fmt::format("constexpr int kGroup = {}, kSteps = {};\n", group_,
                     kElementwisePerThread / group_);
    return s + kPrelude + evaluate() + kernel();
  }

 private:
  // Whether the elements of a group read one row of a prefix, or a group of a suffix.
  bool aligned(size_t i) const { return in_[i].period % group_ == 0; }
  bool is_group(size_t i) const {
    return used_[i] && (in_[i].kind == Kind::full || in_[i].kind == Kind::suffix ||
                        (in_[i].kind == Kind::prefix && !aligned(i)));
  }
  bool is_number(size_t i) const { return used_[i] && in_[i].kind == Kind::scalar; }
  bool is_row(size_t i) const { return used_[i] && in_[i].kind == Kind::prefix && aligned(i); }

  // The program for one element. What `keep` draws is an argument: it is made for eight at a time.
  std::string evaluate() const {
    std::string parameters, body;
    auto parameter = [&](const std::string& p) {
      parameters += (parameters.empty() ? "" : ", ") + p;
    };
    for (size_t i = 0; i < in_.size(); ++i)
      if (used_[i] && in_[i].kind != Kind::random_key) parameter(fmt::format("float a{}", i));
    for (size_t k = 0; k < e_.code.size(); ++k) {
      const Instruction& c = e_.code[k];
      if (c.function == Function::keep) {
        parameter(fmt::format("float t{}", k));
        continue;
      }
      body += fmt::format("  const float t{} = ", k);
      if (c.function == Function::constant)
        body += number_text(c.number);
      else
        body += fmt::format("{}_{}({}{})", fast_ && has_fast_form(c.function) ? "fast" : "fn",
                            function_name(c.function), term_text(c.a),
                            function_arity(c.function) == 2 ? ", " + term_text(c.b) : "");
      body += ";\n";
    }
    for (size_t r = 0; r < e_.results.size(); ++r) {
      parameter(fmt::format("float& y{}", r));
      body += fmt::format("  y{} = {};\n", r, term_text(e_.results[r]));
    }
    return fmt::format("\n__device__ __forceinline__ void evaluate({}) {{\n{}}}\n", parameters,
                       body);
  }

  // A call of it: for element k of a group whose operands are loaded, or for element `at`.
  std::string call(bool in_group) const {
    std::string arguments;
    auto argument = [&](const std::string& a) { arguments += (arguments.empty() ? "" : ", ") + a; };
    for (size_t i = 0; i < in_.size(); ++i) {
      if (!used_[i] || in_[i].kind == Kind::random_key) continue;
      if (is_number(i))
        argument(fmt::format("x{}", i));
      else if (in_group)
        argument(is_row(i) ? fmt::format("x{}[s]", i)
                           : fmt::format("to_float(x{}[s].value[k])", i));
      else
        argument(fmt::format("to_float(a{}[at{}])", i,
                             in_[i].kind == Kind::suffix   ? fmt::format(" % p{}", i)
                             : in_[i].kind == Kind::prefix ? fmt::format(" / p{}", i)
                                                           : ""));
    }
    for (size_t k = 0; k < e_.code.size(); ++k) {
      const Instruction& c = e_.code[k];
      if (c.function != Function::keep) continue;
      const std::string block =
          in_group ? fmt::format("d{}, k", k)
                   : fmt::format("keep_block(a{}, {}, at >> 3), at & 7", c.a.index(), c.stream);
      argument(fmt::format("keep_factor({}, {}u, {})", block, keep_threshold(c.number),
                           number_text(keep_scale(c.number))));
    }
    for (size_t r = 0; r < out_.size(); ++r)
      argument(fmt::format("y{}{}", r, in_group ? "[k]" : ""));
    return fmt::format("evaluate({});\n", arguments);
  }

  std::string parameters() const {
    std::string s = "Int all";
    for (size_t i = 0; i < in_.size(); ++i)
      s += fmt::format(", const {}* a{}", type_name(in_[i].dtype), i);
    for (size_t r = 0; r < out_.size(); ++r) s += fmt::format(", {}* r{}", type_name(out_[r]), r);
    for (size_t i = 0; i < in_.size(); ++i)
      if (has_period(in_[i])) s += fmt::format(", Int period{}", i);
    return s;
  }

  std::string loads() const {
    std::string s;
    for (size_t i = 0; i < in_.size(); ++i) {
      if (is_row(i))
        s += fmt::format("      x{0}[s] = to_float(a{0}[first[s] / p{0}]);\n", i);
      else if (!is_group(i))
        continue;
      else if (in_[i].kind == Kind::full)
        s += fmt::format("      load_group(x{0}[s], a{0} + first[s]);\n", i);
      else if (in_[i].kind == Kind::suffix && aligned(i))
        s += fmt::format("      load_group(x{0}[s], a{0} + first[s] % p{0});\n", i);
      else
        s += fmt::format("      load_{1}(x{0}[s], a{0}, first[s], p{0});\n", i,
                         in_[i].kind == Kind::suffix ? "suffix" : "prefix");
    }
    return s;
  }

  std::string declarations() const {
    std::string s;
    for (size_t i = 0; i < in_.size(); ++i) {
      if (used_[i] && has_period(in_[i]))
        s += fmt::format("  const Index p{0} = (Index)period{0};\n", i);
      if (is_number(i)) s += fmt::format("  const float x{0} = to_float(*a{0});\n", i);
      if (is_row(i)) s += fmt::format("  float x{}[kSteps];\n", i);
      if (is_group(i)) s += fmt::format("  Group<{}> x{}[kSteps];\n", type_name(in_[i].dtype), i);
    }
    return s;
  }

  // Everything a thread reads is read before it writes: results may stand on operands.
  std::string kernel() const {
    std::string draws, values, stores, value, store;
    for (size_t k = 0; k < e_.code.size(); ++k)
      if (const Instruction& c = e_.code[k]; c.function == Function::keep)
        draws += fmt::format("      const PhiloxBlock d{} = keep_block(a{}, {}, first[s] >> 3);\n",
                             k, c.a.index(), c.stream);
    for (size_t r = 0; r < out_.size(); ++r) {
      values += fmt::format("{}y{}[kGroup]", r ? ", " : "", r);
      value += fmt::format("{}y{}", r ? ", " : "", r);
      stores += fmt::format("      store_group(r{0} + first[s], y{0});\n", r);
      store += fmt::format("        r{0}[at] = from_float<{1}>(y{0});\n", r, type_name(out_[r]));
    }
    std::string s =
        fmt::format("\nextern \"C\" __global__ void __launch_bounds__({}) elementwise({}) {{\n",
                    kElementwiseThreads, parameters());
    s += "  const Index count = (Index)all;\n  Index first[kSteps];\n" + declarations();
    s += "#pragma unroll\n  for (int s = 0; s < kSteps; ++s) {\n"
         "    first[s] = (((Index)blockIdx.x * kSteps + s) * blockDim.x + threadIdx.x) * kGroup;\n"
         "    if (first[s] + kGroup <= count) {\n";
    s += loads() + "    }\n  }\n";
    s += "#pragma unroll\n  for (int s = 0; s < kSteps; ++s) {\n"
         "    if (first[s] + kGroup <= count) {\n";
    s += draws + "      float " + values + ";\n";
    s += "#pragma unroll\n      for (int k = 0; k < kGroup; ++k)\n        " + call(true);
    s += stores + "    } else {\n";
    // The last elements, fewer than a group.
    s += "#pragma unroll 1\n      for (Index at = first[s]; at < count; ++at) {\n        float " +
         value + ";\n        " + call(false) + store;
    return s + "      }\n    }\n  }\n}\n";
  }

  const Expression& e_;
  std::vector<Operand> in_;
  std::vector<DType> out_;
  bool wide_;
  std::vector<bool> used_;
  bool any_keep_ = false, fast_ = false;
  int group_ = 8;
};

}  // namespace

std::string elementwise_source(const Expression& e, std::span<const Operand> in,
                               std::span<const DType> out, int64_t count) {
  return Writer(e, in, out, count).text();
}

std::vector<int64_t> elementwise_periods(std::span<const Operand> in, int64_t count) {
  std::vector<int64_t> periods;
  for (const Operand& operand : plain(in, count))
    if (has_period(operand)) periods.push_back(operand.period);
  return periods;
}

}  // namespace millrace::cuda
