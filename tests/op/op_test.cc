// Generated from the op cards: every op, every case. No op is known by name here, leaves and
// element-wise programs aside.
//   expansion   fused ops against the same thing in plain ops, float64
//   gradient    4-point stencil in float64, random cotangents, relative error <= 1e-7
//   kernels     each CPU kernel of each instruction set here against the float64 reference, <= 8
//   eps sqrt(K)
//               of the largest value (or 4 times what the plain float loop itself loses);
//               twice the same bits; any number of threads the same bits; in place the same bits;
//               nothing written outside the outputs and the workspace
//   bf16        the same of products whose operands are rounded, where the CPU has them: inputs are
//               rounded first, results may be off by 32 roundings of the largest value
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/half.h"
#include "cpu/gemm.h"
#include "cpu/kernel.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "exec/reference.h"
#include "graph/autodiff.h"
#include "tests/op/op_cases.h"

namespace millrace {
namespace {

template <typename T>
void fill(Reference<T>& reference, const OpCase& c, const Data& data) {
  for (size_t i = 0; i < c.in.size(); ++i) {
    const std::string name = fmt::format("in{}", i);
    if (c.in[i].type.dtype == DType::i32)
      reference.ids(name) = data.ids[i];
    else
      reference.values(name).assign(data.floats[i].begin(), data.floats[i].end());
  }
}

std::vector<Value> declare_inputs(Builder& b, const OpCase& c) {
  std::vector<Value> in;
  for (size_t i = 0; i < c.in.size(); ++i)
    in.push_back(b.leaf(Leaf::parameter, fmt::format("in{}", i), c.in[i].type));
  return in;
}

class OpExpansion : public testing::TestWithParam<Instance> {};
class OpGradient : public testing::TestWithParam<Instance> {};
class OpKernel : public testing::TestWithParam<Instance> {};
class OpKernelBf16 : public testing::TestWithParam<Instance> {};
INSTANTIATE_TEST_SUITE_P(Card, OpExpansion, testing::ValuesIn(instances([](const Instance& i) {
                           return i.card->expand != nullptr;
                         })),
                         instance_name);
INSTANTIATE_TEST_SUITE_P(Card, OpGradient, testing::ValuesIn(instances([](const Instance& i) {
                           return i.card->vjp != nullptr && i.op_case.gradient;
                         })),
                         instance_name);
INSTANTIATE_TEST_SUITE_P(Card, OpKernel, testing::ValuesIn(instances([](const Instance& i) {
                           return !cpu::kernels_of(i.card->name, cpu::Isa::avx2).empty();
                         })),
                         instance_name);

INSTANTIATE_TEST_SUITE_P(Card, OpKernelBf16, testing::ValuesIn(instances([](const Instance& i) {
                           return cpu::multiplies_bf16() && i.card->multiplies;
                         })),
                         instance_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OpKernelBf16);

TEST(OpKernelBf16, IsTried) {
  if (!cpu::multiplies_bf16()) GTEST_SKIP() << "no product in bf16 was tried: this CPU has none";
}

TEST_P(OpExpansion, IsTheSame) {
  const auto& [card, index, c] = GetParam();
  Builder b;
  const auto in = declare_inputs(b, c);
  const auto fused = b.op_all(card->name, in, c.attrs);
  const auto plain = card->expand(b, c.attrs, in);
  if (plain.empty()) return;
  ASSERT_EQ(fused.size(), plain.size());
  const Graph g = b.finish();
  Reference<double> reference(g);
  fill(reference, c, make_data(c, 7));
  reference.run();
  for (size_t o = 0; o < fused.size(); ++o) {
    const auto &x = reference.value(fused[o]), &y = reference.value(plain[o]);
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_NEAR(x[i], y[i], 1e-12 * std::max(1.0, std::fabs(y[i])))
          << "output " << o << " element " << i;
  }
}

TEST_P(OpGradient, MatchesFiniteDifferences) {
  const auto& [card, index, c] = GetParam();
  Builder b;
  const auto in = declare_inputs(b, c);
  const auto out = b.op_all(card->name, in, c.attrs);
  std::vector<Seed> seeds;
  for (size_t o = 0; o < out.size(); ++o)
    if (card->gradients_of >> o & 1)
      seeds.push_back({out[o], b.leaf(Leaf::input, fmt::format("cotangent{}", o), b.type(out[o]))});
  std::vector<Value> wanted;
  std::vector<size_t> which;
  for (size_t i = 0; i < in.size(); ++i)
    if (c.in[i].type.dtype == DType::f32) {
      wanted.push_back(in[i]);
      which.push_back(i);
    }
  const auto grads = gradients(b, seeds, wanted);
  const Graph g = b.finish();
  for (uint64_t draw : {1, 2}) {
    Reference<double> reference(g);
    fill(reference, c, make_data(c, draw));
    std::vector<std::vector<double>> cotangents;
    for (size_t k = 0; k < seeds.size(); ++k) {
      RandomStream random(draw, RandomUse::test, 100 + k);
      auto& values = reference.values(fmt::format("cotangent{}", seeds[k].target.out));
      for (double& v : values) v = random.normal();
      cotangents.push_back(values);
    }
    reference.run();
    std::vector<std::vector<double>> analytic;
    for (Value v : grads)
      analytic.push_back(v.valid() ? reference.value(v) : std::vector<double>{});
    auto loss = [&] {
      reference.run();
      double sum = 0;
      for (size_t k = 0; k < seeds.size(); ++k) {
        const auto& y = reference.value(seeds[k].target);
        for (size_t i = 0; i < y.size(); ++i) sum += y[i] * cotangents[k][i];
      }
      return sum;
    };
    for (size_t w = 0; w < which.size(); ++w) {
      if (c.in[which[w]].fill == CaseInput::Fill::constant)
        continue;  // a number that carries no gradient
      auto& x = reference.values(fmt::format("in{}", which[w]));
      ASSERT_TRUE(x.empty() || grads[w].valid()) << "no gradient for input " << which[w];
      std::vector<double> numeric(x.size());
      double norm = 0;
      const double h = 1e-3;  // 4-point stencil: error h^4/30 f^(5), measured best in float64
      for (size_t i = 0; i < x.size(); ++i) {
        const double at = x[i];
        double f[4];
        const double steps[4] = {-2 * h, -h, h, 2 * h};
        for (int s = 0; s < 4; ++s) {
          x[i] = at + steps[s];
          f[s] = loss();
        }
        x[i] = at;
        numeric[i] = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h);
        norm = std::max(norm, std::fabs(numeric[i]));
      }
      for (size_t i = 0; i < x.size(); ++i) {
        const double error = std::fabs(numeric[i] - analytic[w][i]);
        // Relative to the largest element of this gradient: single elements cancel to nothing.
        ASSERT_TRUE(error <= 1e-7 * std::max(norm, 1e-2))
            << "input " << which[w] << " element " << i << ": numeric " << numeric[i]
            << ", analytic " << analytic[w][i];
      }
    }
  }
}

// A buffer with a fence on both sides.
class Fenced {
 public:
  explicit Fenced(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)), storage_(bytes_ + 2 * kFence + 64, std::byte{0xA5}) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data()) + kFence;
    offset_ = (address + 63) / 64 * 64 - reinterpret_cast<uintptr_t>(storage_.data());
  }
  std::byte* data() { return storage_.data() + offset_; }
  bool intact() const {
    for (size_t i = 0; i < storage_.size(); ++i)
      if ((i < offset_ || i >= offset_ + bytes_) && storage_[i] != std::byte{0xA5}) return false;
    return true;
  }

 private:
  static constexpr size_t kFence = 256;
  size_t bytes_, offset_ = 0;
  std::vector<std::byte> storage_;
};

void check_kernels(const OpCard* card, const OpCase& c, bool bf16) {
  const auto types = in_types(c);
  std::vector<TensorType> out_types;
  ASSERT_EQ(infer_types(*card, c.attrs, types, out_types), "");
  Attrs attrs = c.attrs;
  if (bf16) attrs.set({"math", "bf16"});
  const OpSite site{attrs, types, out_types};
  Data data = make_data(c, 3);
  if (bf16)
    for (auto& values : data.floats)
      for (double& x : values)
        x = static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(x))));

  // The truth in double.
  std::vector<std::vector<double>> in64 = data.floats, out64;
  std::vector<const void*> in_ptr64, in_ptr32;
  std::vector<void*> out_ptr64;
  std::vector<std::vector<float>> in32;
  int64_t K = 1;
  for (size_t i = 0; i < types.size(); ++i) {
    in32.emplace_back(data.floats[i].begin(), data.floats[i].end());
    if (types[i].shape.rank() > 0) K = std::max({K, types[i].shape.rows(), types[i].shape.last()});
  }
  for (size_t i = 0; i < types.size(); ++i) {
    const bool ints = types[i].dtype == DType::i32;
    in_ptr64.push_back(ints ? static_cast<const void*>(data.ids[i].data()) : in64[i].data());
    in_ptr32.push_back(ints ? static_cast<const void*>(data.ids[i].data()) : in32[i].data());
  }
  for (const TensorType& t : out_types) out64.emplace_back(static_cast<size_t>(t.numel()), 0.0);
  for (auto& o : out64) out_ptr64.push_back(o.data());
  card->reference_f64({site, in_ptr64, out_ptr64});
  // What the plain loop in float loses against double: cancellation that no kernel can avoid.
  std::vector<std::vector<float>> out32;
  std::vector<void*> out_ptr32;
  for (const TensorType& t : out_types) out32.emplace_back(static_cast<size_t>(t.numel()), 0.0f);
  for (auto& o : out32) out_ptr32.push_back(o.data());
  card->reference_f32({site, in_ptr32, out_ptr32});

  cpu::gemm_set_measuring(false);
  for (const cpu::Isa isa : {cpu::Isa::avx2, cpu::Isa::avx512}) {
    if (!cpu::supports(isa) || (bf16 && isa != cpu::best_isa())) continue;
    for (const cpu::Kernel& kernel : cpu::kernels_of(card->name, isa)) {
      if (kernel.decline && !kernel.decline(site).empty()) continue;
      SCOPED_TRACE(fmt::format("{} {}", kernel.name, cpu::isa_name(isa)));
      const auto prepared = kernel.prepare ? kernel.prepare(site) : nullptr;
      // Runs with outputs in storage of their own, or output `alias.out` in the storage of input
      // `alias.in`.
      auto run = [&](int threads, InPlace alias) {
        cpu::set_threads(threads);
        std::vector<Fenced> outs;
        for (const TensorType& t : out_types) outs.emplace_back(t.bytes());
        Fenced workspace(kernel.workspace_bytes ? kernel.workspace_bytes(site) : 0);
        std::vector<const void*> in = in_ptr32;
        std::vector<void*> out;
        for (Fenced& f : outs) out.push_back(f.data());
        if (alias.out >= 0) {
          const auto o = static_cast<size_t>(alias.out), i = static_cast<size_t>(alias.in);
          std::memcpy(outs[o].data(), in[i], static_cast<size_t>(types[i].bytes()));
          in[i] = outs[o].data();
        }
        kernel.run({site, in, out, workspace.data(), prepared.get()});
        for (Fenced& f : outs) EXPECT_TRUE(f.intact()) << "wrote outside an output";
        EXPECT_TRUE(workspace.intact()) << "wrote outside the workspace";
        std::vector<std::vector<std::byte>> bytes;
        for (size_t o = 0; o < outs.size(); ++o)
          bytes.emplace_back(outs[o].data(), outs[o].data() + out_types[o].bytes());
        return bytes;
      };
      const auto first = run(2, {-1, -1});
      for (size_t o = 0; o < out_types.size(); ++o) {
        if (out_types[o].dtype == DType::i32) {
          EXPECT_EQ(std::memcmp(first[o].data(), out32[o].data(), first[o].size()), 0)
              << "output " << o << ": other integers";
          continue;
        }
        double scale = 0, lost = 0;
        for (size_t i = 0; i < out64[o].size(); ++i) {
          if (!std::isfinite(out64[o][i])) continue;
          scale = std::max(scale, std::fabs(out64[o][i]));
          lost = std::max(lost, std::fabs(out64[o][i] - static_cast<double>(out32[o][i])));
        }
        constexpr double kRounding = 0x1p-9;  // of bf16
        const double tolerance = std::max(
            (8 * std::numeric_limits<float>::epsilon() * std::sqrt(static_cast<double>(K)) +
             (bf16 ? 32 * kRounding : 0)) *
                std::max(scale, 1e-30),
            4 * lost);
        const auto* y = reinterpret_cast<const float*>(first[o].data());
        for (size_t i = 0; i < out64[o].size(); ++i) {
          if (std::isinf(out64[o][i])) {
            ASSERT_EQ(static_cast<double>(y[i]), out64[o][i]);
            continue;
          }
          ASSERT_TRUE(std::fabs(static_cast<double>(y[i]) - out64[o][i]) <= tolerance)
              << "output " << o << " element " << i << ": " << y[i] << " against " << out64[o][i];
        }
      }
      EXPECT_EQ(first, run(2, {-1, -1})) << "not the same bits twice";
      EXPECT_EQ(first, run(1, {-1, -1})) << "other bits on one thread";
      EXPECT_EQ(first, run(3, {-1, -1})) << "other bits on three threads";
      const auto pairs = card->in_place ? card->in_place(site) : std::vector<InPlace>{};
      for (const InPlace& pair : pairs)
        EXPECT_EQ(first, run(2, pair))
            << "other bits in place: output " << pair.out << " over input " << pair.in;
      cpu::set_threads(0);
    }
  }
  cpu::gemm_set_measuring(true);
}

TEST_P(OpKernel, MatchesTheReference) { check_kernels(GetParam().card, GetParam().op_case, false); }

TEST_P(OpKernelBf16, MatchesTheReference) {
  check_kernels(GetParam().card, GetParam().op_case, true);
}

TEST(OpCards, AreComplete) {
  for (const OpCard* card : all_op_cards()) {
    SCOPED_TRACE(card->name);
    EXPECT_FALSE(card->summary.empty());
    EXPECT_TRUE(card->infer != nullptr);
    EXPECT_TRUE(card->vjp || !card->no_gradient.empty()) << "neither a gradient nor a reason";
    if (card->name == "leaf") continue;
    ASSERT_TRUE(card->cases != nullptr) << "no cases";
    EXPECT_GE(card->cases().size(), 2u);
    EXPECT_TRUE(card->reference_f32 && card->reference_f64) << "no reference loop";
    // Every kernel is reached by some case.
    for (const cpu::Kernel& kernel : cpu::kernels_of(card->name, cpu::Isa::avx2)) {
      bool reached = false;
      for (const OpCase& c : card->cases()) {
        const auto types = in_types(c);
        std::vector<TensorType> out;
        ASSERT_EQ(infer_types(*card, c.attrs, types, out), "");
        reached = reached || !kernel.decline || kernel.decline({c.attrs, types, out}).empty();
      }
      EXPECT_TRUE(reached) << "no case reaches kernel " << kernel.name;
    }
  }
}

}  // namespace
}  // namespace millrace
