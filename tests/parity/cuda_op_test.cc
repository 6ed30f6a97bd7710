// Generated from the op cards: every case of every op on the CUDA device against the float64
// reference, in f32, tf32, bf16 and f16. Through the same plan, session and kernels as training.
//   f32         <= 8 eps sqrt(K) of the largest value, or 4 times what the plain float loop loses
//   16 bits     inputs are rounded first; results may be off by 32 half-roundings of the largest
//   value (logits of 60 in fp16 are off by 1 %) tf32        the same with 10 bits
// Twice the same bits; where a result may stand in the storage of an input, it does and has the
// same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <sstream>

#include "core/half.h"
#include "exec/session.h"
#include "graph/builder.h"
#include "ops/optimizer_common.h"
#include "tests/op/op_cases.h"
#include "tests/parity/cuda_device.h"

namespace millrace {
namespace {

struct CudaCase {
  Instance instance;
  Precision precision;
};

std::vector<CudaCase> cuda_cases() {
  std::vector<CudaCase> list;
  if (!test_device().backend) return list;  // CudaDevice.IsUsed says so
  for (const Instance& i :
       instances([](const Instance& c) { return !c.card->is_view && c.card->name != "leaf"; }))
    for (const Precision p : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16}) {
      if (p == Precision::tf32 && !i.card->multiplies) continue;
      // A copy of a parameter in its own type is not a case that exists.
      if (p == Precision::fp32 && i.op_case.attrs.find("shadows")) continue;
      list.push_back({i, p});
    }
  return list;
}

DType storage(Precision p) {
  return p == Precision::bf16 ? DType::bf16 : p == Precision::fp16 ? DType::f16 : DType::f32;
}
// Half the distance of two neighbours near 1.
double unit_of(Precision p) {
  return p == Precision::bf16   ? 0x1p-9
         : p == Precision::fp16 ? 0x1p-12
         : p == Precision::tf32 ? 0x1p-12
                                : 0x1p-25;
}

class CudaOp : public testing::TestWithParam<CudaCase> {
 protected:
  // The case in its precision: types of inputs, `store` of outputs, data as it is after rounding.
  void SetUp() override {
    const auto& [instance, precision] = GetParam();
    card_ = instance.card;
    attrs_ = instance.op_case.attrs;
    types_ = in_types(instance.op_case);
    data_ = make_data(instance.op_case, 3);
    if (precision == Precision::tf32) attrs_.set({"math", "tf32"});
    const DType half = storage(precision);
    const size_t shadows = shadow_list(attrs_).size();
    if (is_half(half)) {
      for (size_t i = 0; i < types_.size(); ++i) {
        const bool full = i < 32 && (card_->full_in >> i & 1) != 0;
        const bool optimizer = card_->keeps_shadows || card_->name == "grad_norm";
        const bool becomes =
            optimizer ? i + shadows >= types_.size() : !full && types_[i].shape.rank() > 0;
        if (types_[i].dtype != DType::f32 || !becomes) continue;
        types_[i].dtype = half;
        for (double& x : data_.floats[i])
          x = half_to_float(half, float_to_half(half, static_cast<float>(x)));
      }
      std::vector<TensorType> out;
      ASSERT_EQ(infer_types(*card_, attrs_, types_, out), "");
      std::vector<DType> store;
      for (size_t o = 0; o < out.size(); ++o) {
        const bool optimizer = card_->keeps_shadows || card_->name == "grad_norm";
        const bool full = (o < 32 && (card_->full_out >> o & 1) != 0) || out[o].shape.rank() == 0 ||
                          (optimizer && o + shadows < out.size());
        store.push_back(out[o].dtype == DType::f32 && !full ? half : out[o].dtype);
      }
      set_store(attrs_, store);
    }
    ASSERT_EQ(infer_types(*card_, attrs_, types_, out_types_), "");
  }

  template <typename T>
  std::vector<std::vector<double>> reference() const {
    std::vector<std::vector<T>> in, out;
    std::vector<const void*> in_data;
    std::vector<void*> out_data;
    for (const auto& f : data_.floats) in.emplace_back(f.begin(), f.end());
    for (size_t i = 0; i < types_.size(); ++i)
      in_data.push_back(types_[i].dtype == DType::i32
                            ? static_cast<const void*>(data_.ids[i].data())
                            : in[i].data());
    for (const TensorType& t : out_types_) out.emplace_back(static_cast<size_t>(t.numel()));
    for (auto& o : out) out_data.push_back(o.data());
    const RefCall<T> call{{attrs_, types_, out_types_}, in_data, out_data};
    if constexpr (sizeof(T) == 4)
      card_->reference_f32(call);
    else
      card_->reference_f64(call);
    std::vector<std::vector<double>> values;
    for (size_t o = 0; o < out.size(); ++o) {
      values.emplace_back(out[o].begin(), out[o].end());
      if (out_types_[o].dtype == DType::i32) {
        std::vector<int32_t> ids(out[o].size());
        std::memcpy(ids.data(), out[o].data(), 4 * ids.size());
        values.back().assign(ids.begin(), ids.end());
      }
    }
    return values;
  }

  // The op alone on the device. `copied`: its inputs are results that die with it, so that the plan
  // may put its results into their storage.
  std::vector<std::vector<float>> run(Backend& backend, bool copied) const {
    Builder b;
    std::vector<Value> in;
    for (size_t i = 0; i < types_.size(); ++i)
      in.push_back(b.leaf(Leaf::parameter, fmt::format("in{}", i), types_[i]));
    if (copied)
      for (size_t i = 0; i < types_.size(); ++i)
        if (types_[i].dtype != DType::i32) {
          Attrs same{{"expr", "->a0"}};
          set_store(same, std::span(&types_[i].dtype, 1));
          in[i] = b.op("elementwise", {in[i]}, same);
        }
    const auto out = b.op_all(card_->name, in, attrs_);
    for (size_t o = 0; o < out.size(); ++o) b.output(fmt::format("out{}", o), out[o]);
    PassOptions off;
    for (std::string_view name : pass_names()) off.off.insert(std::string(name));
    const Plan plan = make_plan(b.finish(), off, backend);
    Session session(backend, {&plan});
    for (size_t i = 0; i < types_.size(); ++i) {
      const std::string name = fmt::format("in{}", i);
      const std::vector<float> floats(data_.floats[i].begin(), data_.floats[i].end());
      if (types_[i].dtype == DType::i32) {
        session.write<int32_t>(name, data_.ids[i]);
      } else if (is_half(types_[i].dtype)) {
        std::vector<uint16_t> bits;
        for (float x : floats) bits.push_back(float_to_half(types_[i].dtype, x));
        session.write<uint16_t>(name, bits);
      } else {
        session.write<float>(name, floats);
      }
    }
    session.run(0);
    std::vector<std::vector<float>> values;
    for (size_t o = 0; o < out.size(); ++o) {
      values.push_back(session.output(0, fmt::format("out{}", o)));
      if (out_types_[o].dtype != DType::i32) continue;
      std::vector<int32_t> ids(values[o].size());
      std::memcpy(ids.data(), values[o].data(), 4 * ids.size());
      values[o].assign(ids.begin(), ids.end());
    }
    return values;
  }

  const OpCard* card_ = nullptr;
  Attrs attrs_;
  std::vector<TensorType> types_, out_types_;
  Data data_;
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaOp);
INSTANTIATE_TEST_SUITE_P(Card, CudaOp, testing::ValuesIn(cuda_cases()), [](const auto& test) {
  return fmt::format("{}_{}_{}", test.param.instance.card->name, test.param.instance.index,
                     precision_name(test.param.precision));
});

// Products with GELU have a kernel of our own on some devices, and timing decides who makes them:
// from now on it does where nobody was chosen. False when there are no such products.
bool choose_own_products(Backend& backend) {
  std::istringstream lines(backend.choices());
  std::string own;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("lt ") && line.find(" gelu") != std::string::npos && line.ends_with(" : "))
      own += line + "own\n";
  backend.pin_choices(own);
  return !own.empty();
}

TEST_P(CudaOp, MatchesTheReference) {
  Backend& backend = *test_device().backend;
  backend.allow_timing(false);
  const auto truth = reference<double>(), plain = reference<float>();
  int64_t K = 1;
  for (const TensorType& t : types_)
    if (t.shape.rank() > 0) K = std::max({K, t.shape.rows(), t.shape.last()});
  do {
    const auto first = run(backend, false);
    for (size_t o = 0; o < truth.size(); ++o) {
      double scale = 0, lost = 0;
      for (size_t i = 0; i < truth[o].size(); ++i) {
        if (!std::isfinite(truth[o][i])) continue;
        scale = std::max(scale, std::fabs(truth[o][i]));
        lost = std::max(lost, std::fabs(truth[o][i] - plain[o][i]));
      }
      double tolerance = std::max(8 * std::numeric_limits<float>::epsilon() *
                                      std::sqrt(static_cast<double>(K)) * std::max(scale, 1e-30),
                                  4 * lost);
      if (GetParam().precision != Precision::fp32)
        tolerance += 32 * unit_of(GetParam().precision) * scale;
      ASSERT_EQ(first[o].size(), truth[o].size());
      for (size_t i = 0; i < truth[o].size(); ++i) {
        if (std::isinf(truth[o][i])) {
          ASSERT_EQ(static_cast<double>(first[o][i]), truth[o][i]);
          continue;
        }
        ASSERT_TRUE(std::fabs(static_cast<double>(first[o][i]) - truth[o][i]) <= tolerance)
            << "output " << o << " element " << i << " of " << truth[o].size() << ": "
            << first[o][i] << " against " << truth[o][i] << ", tolerance " << tolerance;
      }
    }
    EXPECT_EQ(first, run(backend, false)) << "not the same bits twice";
    EXPECT_EQ(first, run(backend, true)) << "other bits in place";
  } while (choose_own_products(backend));
}

}  // namespace
}  // namespace millrace
