// The reference loops in float64 against PyTorch in float64: values and gradients of single
// operations, and three steps of each optimizer (README.md, "Operations"). Measured 5e-16 of the
// largest value; 1e-12 leaves room for other mathematical libraries, and is still below what any
// constant that is off in its fifth digit does here (Adagrad's eps = 1e-10: when doubled).
#include <gtest/gtest.h>

#include "exec/reference.h"
#include "graph/autodiff.h"
#include "tests/golden/golden_file.h"

namespace millrace {
namespace {

constexpr double kTolerance = 1e-12;

// One case of the file: its inputs become leaves, then `check` compares output and gradients.
class OpCheck {
 public:
  explicit OpCheck(std::string name) : case_("op/" + std::move(name) + "/") {}

  Builder b;

  std::vector<double> f64(const std::string& name) const { return file_.f64(case_ + name); }
  std::vector<int32_t> i32(const std::string& name) const { return file_.i32(case_ + name); }
  Shape shape(const std::string& name) const { return Shape(file_.shape(case_ + name)); }

  // A leaf with the values of the file, whose gradient is compared with the file's.
  Value input(int i) {
    const std::string name = fmt::format("in{}", i);
    const Value v = leaf(name, shape(name), f64(name));
    wanted_.push_back(v);
    wanted_grad_.push_back(f64(fmt::format("grad{}", i)));
    return v;
  }
  // A leaf that is put together here, with the gradient it should get.
  Value input(const std::string& name, const Shape& leaf_shape, std::vector<double> values,
              std::vector<double> gradient) {
    const Value v = leaf(name, leaf_shape, std::move(values));
    wanted_.push_back(v);
    wanted_grad_.push_back(std::move(gradient));
    return v;
  }
  Value leaf(const std::string& name, const Shape& leaf_shape, std::vector<double> values) {
    floats_.emplace_back(name, std::move(values));
    return b.leaf(Leaf::parameter, name, {leaf_shape, DType::f32});
  }
  Value ids(const std::string& name, const Shape& leaf_shape, std::vector<int32_t> values) {
    ids_.emplace_back(name, std::move(values));
    return b.input(name, {leaf_shape, DType::i32});
  }
  Value ids(int i) {
    const std::string name = fmt::format("in{}", i);
    return ids(name, shape(name), i32(name));
  }

  void check(Value out) { check(out, f64("out0"), f64("cotangent0")); }
  void check(Value out, const std::vector<double>& wanted_out, std::vector<double> cotangent) {
    const Seed seed{out, leaf("cotangent", b.shape(out), std::move(cotangent))};
    const auto grads = gradients(b, std::span(&seed, 1), wanted_);
    const Graph graph = b.finish();
    Reference<double> reference(graph);
    for (const auto& [name, values] : floats_) {
      ASSERT_EQ(reference.values(name).size(), values.size()) << name;
      reference.values(name) = values;
    }
    for (const auto& [name, values] : ids_) {
      ASSERT_EQ(reference.ids(name).size(), values.size()) << name;
      reference.ids(name) = values;
    }
    reference.run();
    EXPECT_TRUE(near_relative_to_largest(reference.value(out), wanted_out, kTolerance)) << "output";
    for (size_t i = 0; i < wanted_.size(); ++i) {
      ASSERT_TRUE(grads[i].valid()) << "no gradient for input " << i;
      EXPECT_TRUE(near_relative_to_largest(reference.value(grads[i]), wanted_grad_[i], kTolerance))
          << "gradient " << i;
    }
  }

 private:
  GoldenFile file_{"ops"};
  std::string case_;
  std::vector<std::pair<std::string, std::vector<double>>> floats_;
  std::vector<std::pair<std::string, std::vector<int32_t>>> ids_;
  std::vector<Value> wanted_;
  std::vector<std::vector<double>> wanted_grad_;
};

// Tensors [.., width_i] side by side, row by row: how q, k and v heads are packed.
std::vector<double> side_by_side(const std::vector<std::vector<double>>& parts, size_t rows) {
  std::vector<double> packed;
  for (size_t r = 0; r < rows; ++r)
    for (const auto& part : parts) {
      const auto width = static_cast<std::ptrdiff_t>(part.size() / rows);
      const auto begin = part.begin() + static_cast<std::ptrdiff_t>(r) * width;
      packed.insert(packed.end(), begin, begin + width);
    }
  return packed;
}

TEST(GoldenOps, LayerNorm) {
  OpCheck c("layer_norm");
  const Value x = c.input(0), weight = c.input(1), bias = c.input(2);
  c.check(c.b.op("layer_norm", {x, weight, bias}, {{"eps", 1e-5}, {"bias", 1}}));
}

TEST(GoldenOps, RmsNorm) {
  OpCheck c("rms_norm");
  const Value x = c.input(0), weight = c.input(1);
  c.check(c.b.op("rms_norm", {x, weight}, {{"eps", 1e-5}}));
}

TEST(GoldenOps, Activations) {
  for (const Function f : {Function::gelu, Function::gelu_tanh, Function::silu}) {
    const std::string name(function_name(f));
    SCOPED_TRACE(name);
    OpCheck c(name);
    c.check(c.b.apply(f, c.input(0)));
  }
}

TEST(GoldenOps, Softmax) {
  OpCheck c("softmax");
  c.check(c.b.op("softmax", {c.input(0)}));
}

// The file has q, k, v apart, [B,T,heads,K]; the op takes them packed, [B,T,(H+2G)K].
TEST(GoldenOps, Attention) {
  struct Case {
    const char* name;
    bool causal, lengths;
  };
  for (const auto& [name, causal, lengths] :
       {Case{"attention_causal", true, false}, Case{"attention_causal_gqa", true, false},
        Case{"attention_padding", false, true}, Case{"attention_causal_padding", true, true}}) {
    SCOPED_TRACE(name);
    OpCheck c(name);
    const Shape q = c.shape("in0");
    const int64_t B = q[0], T = q[1], H = q[2], G = c.shape("in1")[2], K = q[3];
    const auto rows = static_cast<size_t>(B * T);
    Attrs attrs{{"heads", H}, {"kv_heads", G}, {"head_dim", K}, {"causal", causal}};
    std::vector<Value> in{
        c.input("qkv", {B, T, (H + 2 * G) * K},
                side_by_side({c.f64("in0"), c.f64("in1"), c.f64("in2")}, rows),
                side_by_side({c.f64("grad0"), c.f64("grad1"), c.f64("grad2")}, rows))};
    if (lengths) {
      attrs.set({"mask", "lengths"});
      in.push_back(c.ids(3));
    }
    c.check(c.b.op("attention", in, attrs));
  }
}

TEST(GoldenOps, CrossAttention) {
  OpCheck c("attention_cross");
  const Shape q = c.shape("in0"), k = c.shape("in1");
  const int64_t B = q[0], T = q[1], H = q[2], K = q[3], S = k[1], G = k[2];
  const auto rows = static_cast<size_t>(B * S);
  const Value queries = c.input("q", {B, T, H * K}, c.f64("in0"), c.f64("grad0")),
              keys =
                  c.input("kv", {B, S, 2 * G * K}, side_by_side({c.f64("in1"), c.f64("in2")}, rows),
                          side_by_side({c.f64("grad1"), c.f64("grad2")}, rows));
  c.check(
      c.b.op("attention", {queries, keys, c.ids(3)},
             {{"heads", H}, {"kv_heads", G}, {"head_dim", K}, {"mask", "lengths"}, {"cross", 1}}),
      c.f64("out0"), c.f64("cotangent0"));
}

// Once as q heads and once as k heads; what stands in the place of v must come through untouched.
// Positions counted by the op, and given as ids.
TEST(GoldenOps, Rotary) {
  for (const bool given : {false, true}) {
    SCOPED_TRACE(given);
    OpCheck c("rotary");
    const Shape x = c.shape("in0");
    const int64_t B = x[0], T = x[1], H = x[2], K = x[3];
    const auto rows = static_cast<size_t>(B * T);
    const auto in = c.f64("in0"), cotangent = c.f64("cotangent0");
    std::vector<Value> inputs{
        c.input("qkv", {B, T, 3 * H * K}, side_by_side({in, in, in}, rows),
                side_by_side({c.f64("grad0"), c.f64("grad0"), cotangent}, rows))};
    Attrs attrs{{"heads", H}, {"kv_heads", H}, {"head_dim", K}, {"theta", 10000.0}};
    if (given) {
      std::vector<int32_t> positions;
      for (int64_t i = 0; i < B; ++i)
        for (int32_t p : c.i32("in1")) positions.push_back(p);
      attrs.set({"positions", 1});
      inputs.push_back(c.ids("positions", {B, T}, positions));
    }
    c.check(c.b.op("rope", inputs, attrs), side_by_side({c.f64("out0"), c.f64("out0"), in}, rows),
            side_by_side({cotangent, cotangent, cotangent}, rows));
  }
}

double one_over_kept(const std::vector<int32_t>& targets) {
  double kept = 0;
  for (int32_t t : targets) kept += t >= 0 ? 1 : 0;
  return 1 / kept;
}

struct CrossEntropyCase {
  const char* name;
  double smoothing;
};
constexpr CrossEntropyCase kCrossEntropies[] = {{"cross_entropy", 0},
                                                {"cross_entropy_smoothed", 0.1}};

TEST(GoldenOps, CrossEntropy) {
  for (const auto& [name, smoothing] : kCrossEntropies) {
    SCOPED_TRACE(name);
    OpCheck c(name);
    const Value logits = c.input(0), targets = c.ids(1);
    c.check(c.b.op("cross_entropy",
                   {logits, targets, c.leaf("scale", {}, {one_over_kept(c.i32("in1"))})},
                   {{"smoothing", smoothing}}));
  }
}

// With the identity as head weight, the logits are x itself.
TEST(GoldenOps, LinearCrossEntropy) {
  for (const auto& [name, smoothing] : kCrossEntropies) {
    SCOPED_TRACE(name);
    OpCheck c(name);
    const Value x = c.input(0), targets = c.ids(1);
    const int64_t V = c.shape("in0").last();
    std::vector<double> identity(static_cast<size_t>(V * V));
    for (size_t i = 0; i < static_cast<size_t>(V); ++i)
      identity[i * static_cast<size_t>(V + 1)] = 1;
    const Value head = c.leaf("head", {V, V}, identity);
    c.check(c.b.op("linear_cross_entropy",
                   {x, head, targets, c.leaf("scale", {}, {one_over_kept(c.i32("in1"))})},
                   {{"gradients", 1}, {"chunk_rows", 0}, {"smoothing", smoothing}}));
  }
}

TEST(GoldenOps, Embedding) {
  OpCheck c("embedding");
  const Value table = c.input(0), ids = c.ids(1);
  c.check(c.b.op("embedding", {ids, table}));
}

// Three steps through updates of one graph: weight and state are fed back in place.
TEST(GoldenOps, Optimizers) {
  struct Case {
    const char *name, *op;
    double learning_rate;
    Attrs attrs;
    std::vector<double> initial_state;  // one number per kind of state
  };
  const Case cases[] = {
      {"adamw",
       "adam",
       0.1,
       {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"decoupled", 1}, {"decay", "0.1"}},
       {0, 0}},
      {"adam",
       "adam",
       0.05,
       {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"decoupled", 0}, {"decay", "0.1"}},
       {0, 0}},
      {"adagrad", "adagrad", 0.1, {{"eps", 1e-10}, {"decay", "0"}}, {0.1}},
      {"sgd_momentum", "sgd", 0.1, {{"momentum", 0.9}, {"nesterov", 0}, {"decay", "0.01"}}, {0}},
      {"sgd_nesterov", "sgd", 0.1, {{"momentum", 0.9}, {"nesterov", 1}, {"decay", "0.01"}}, {0}},
  };
  const GoldenFile file("ops");
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string prefix = fmt::format("op/{}/", c.name);
    const Shape shape(file.shape(prefix + "in0"));
    const size_t states = c.initial_state.size();
    Builder b;
    std::vector<Value> in{b.parameter("weight", shape), b.input("gradient", {shape, DType::f32})};
    for (size_t s = 0; s < states; ++s)
      in.push_back(b.leaf(Leaf::optimizer_state, fmt::format("state{}", s), {shape, DType::f32}));
    for (const char* scalar : {"learning_rate", "scale", "step"})
      in.push_back(b.input(scalar, {Shape{}, DType::f32}));
    Attrs attrs = c.attrs;
    attrs.set({"n", 1});
    const auto out = b.op_all(c.op, in, attrs);
    ASSERT_EQ(out.size(), 1 + states);
    b.update(in[0], out[0]);
    for (size_t s = 0; s < states; ++s) b.update(in[2 + s], out[1 + s]);
    const Graph graph = b.finish();

    Reference<double> reference(graph);
    reference.values("weight") = file.f64(prefix + "in0");
    for (size_t s = 0; s < states; ++s)
      for (double& v : reference.values(fmt::format("state{}", s))) v = c.initial_state[s];
    reference.values("learning_rate") = {c.learning_rate};
    reference.values("scale") = {1};
    for (int step = 1; step <= 3; ++step) {
      SCOPED_TRACE(step);
      reference.values("gradient") = file.f64(fmt::format("{}in{}", prefix, step));
      reference.values("step") = {static_cast<double>(step)};
      reference.run();
      EXPECT_TRUE(near_relative_to_largest(reference.values("weight"),
                                           file.f64(fmt::format("{}out{}", prefix, step - 1)),
                                           kTolerance));
    }
    for (size_t s = 0; s < states; ++s)
      EXPECT_TRUE(near_relative_to_largest(reference.values(fmt::format("state{}", s)),
                                           file.f64(fmt::format("{}out{}", prefix, 3 + s)),
                                           kTolerance))
          << "state " << s;
    EXPECT_FALSE(file.has(fmt::format("{}out{}", prefix, 3 + states))) << "more state in the file";
  }
}

}  // namespace
}  // namespace millrace
