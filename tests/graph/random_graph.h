// Random graphs: any DAG of the plain ops that a Builder can make, in small shapes, with a scalar
// loss, the gradients of its parameters, outputs here and there and sometimes an update. Everything
// follows from the seed. Functions and scales are chosen so that values stay near one: a graph that
// loses its digits could not be compared.
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "core/rng.h"
#include "graph/autodiff.h"
#include "graph/passes.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace millrace {

struct RandomGraph {
  Graph graph;
  // The values of the leaves; the numbers are exact in float.
  std::map<std::string, std::vector<double>> floats;
  std::map<std::string, std::vector<int32_t>> ids;
};

class RandomGraphMaker {
 public:
  explicit RandomGraphMaker(uint64_t seed) : random_(seed, RandomUse::test, 1) {}

  RandomGraph make() {
    const bool wide = chance(0.03);  // over one tile of an expression, over one tile of a product
    B_ = 1 + pick(3);
    T_ = 1 + pick(wide ? 40 : 4);
    D_ = 1 + pick(wide ? 90 : 9);
    pool_.push_back({input({B_, T_, D_}), 1});
    if (chance(0.5)) pool_.push_back({embedding_of(parameter({3 + pick(4), D_}, 1)), 1});
    if (chance(0.1)) pool_.push_back({parameter({B_, T_, D_}, 1), 1});
    const int64_t layers = 1 + pick(3);
    for (int64_t l = 0; l < layers; ++l) {
      const auto layer = b_.layer(fmt::format("layers.{}", l));
      for (int64_t n = 1 + pick(5); n > 0; --n) grow();
    }
    for (int64_t n = pick(3); n > 0; --n) grow();
    const Value loss = make_loss();
    add_gradients(loss);
    b_.output("loss", loss);
    done_.graph = b_.finish();
    return std::move(done_);
  }

 private:
  struct Entry {
    Value value;
    double size;  // about how large its elements are
  };

  int64_t pick(int64_t n) { return static_cast<int64_t>(random_.below(static_cast<uint64_t>(n))); }
  bool chance(double p) { return random_.uniform() < p; }
  template <typename T>
  const T& one_of(const std::vector<T>& list) {
    return list[static_cast<size_t>(pick(static_cast<int64_t>(list.size())))];
  }
  // A late value more often than an early one: deep graphs, not wide ones.
  Entry any() {
    const auto n = static_cast<int64_t>(pool_.size());
    return pool_[static_cast<size_t>(chance(0.6) ? n - 1 - pick(std::min<int64_t>(n, 2))
                                                 : pick(n))];
  }
  const Shape& shape(Value v) const { return b_.shape(v); }

  Value leaf(Leaf kind, const Shape& shape, double size, double offset = 0) {
    const std::string name = fmt::format("leaf{}", done_.floats.size() + done_.ids.size());
    auto& values = done_.floats[name];
    for (int64_t i = 0; i < shape.numel(); ++i)
      values.push_back(static_cast<float>(offset + size * random_.normal()));
    return b_.leaf(kind, name, {shape, DType::f32});
  }
  Value input(const Shape& shape) { return inputs_.emplace_back(leaf(Leaf::input, shape, 1)); }
  // A new parameter, or one that is there already: shared parameters add up their gradients.
  Value parameter(const Shape& wanted, double size) {
    if (chance(0.3))
      for (Value p : parameters_)
        if (shape(p) == wanted) return p;
    return parameters_.emplace_back(leaf(Leaf::parameter, wanted, size));
  }
  Value indices(const Shape& shape, int64_t bound) {
    const std::string name = fmt::format("leaf{}", done_.floats.size() + done_.ids.size());
    auto& values = done_.ids[name];
    for (int64_t i = 0; i < shape.numel(); ++i)  // now and then one that is in no row of the table
      values.push_back(chance(0.05) ? -1
                                    : static_cast<int32_t>(pick(bound + (chance(0.1) ? 1 : 0))));
    return b_.input(name, {shape, DType::i32});
  }
  void set_scalar(Value v, double value) {
    done_.floats.at(b_.graph()[v.node].name).assign(1, static_cast<float>(value));
  }

  void grow() {
    const Entry x = any();
    if (x.size > 3) return push(squash(x.value), 0.7);
    switch (pick(14)) {
      case 0:
      case 1:
        return unary(x);
      case 2:
      case 3:
      case 4:
        return binary(x);
      case 5:
        return two_results(x);
      case 6:
        return scale(x);
      case 7:
      case 8:
        return matmul(x);
      case 9:
        return norm(x);
      case 10:
        return reshape_or_permute(x);
      case 11:
        return reduce(x);
      case 12:
        return embedding(x);
      case 13:
        return push(dropout(x.value), 1.2 * x.size);
    }
  }
  void push(Value v, double size) { pool_.push_back({v, size}); }

  Value dropout(Value x) { return b_.dropout(x, one_of<double>({0.1, 0.25, 0.5})); }
  Value squash(Value x) { return b_.apply(chance(0.7) ? Function::tanh : Function::sigmoid, x); }

  void unary(Entry x) {
    using F = Function;
    const F f = one_of<F>({F::tanh, F::sigmoid, F::gelu, F::gelu_tanh, F::silu, F::neg});
    push(b_.apply(f, x.value), f == F::tanh || f == F::sigmoid ? 0.7 : x.size);
  }

  // Something that broadcasts to (or is broadcast by) x: from the pool, or a new parameter.
  Entry partner(Value x) {
    if (chance(0.5)) {
      std::vector<Entry> fitting;
      for (const Entry& e : pool_) {
        const std::vector<TensorType> types{b_.type(x), b_.type(e.value)};
        OperandLayout layout;
        const Shape out = broadcast_shape(types);
        if (operand_layout(types[0], out, layout).empty() &&
            operand_layout(types[1], out, layout).empty())
          fitting.push_back(e);
      }
      if (!fitting.empty()) return one_of(fitting);
    }
    const Shape& s = shape(x);
    std::vector<int64_t> dims(s.begin(), s.end());
    const auto rank = static_cast<int64_t>(dims.size());
    switch (pick(4)) {
      case 0:
        break;  // full
      case 1:
        dims.erase(dims.begin(), dims.begin() + pick(rank + 1));
        break;  // bias
      case 2:
        std::fill(dims.begin() + pick(rank + 1), dims.end(), 1);
        break;  // a number per row
      case 3:
        dims.assign(static_cast<size_t>(pick(2)), 1);
        break;  // a number
    }
    return {parameter(Shape(dims), 0.8), 0.8};
  }

  void binary(Entry x) {
    const Entry y = partner(x.value);
    const Function f = one_of<Function>({Function::add, Function::sub, Function::mul});
    const double size = f == Function::mul ? x.size * y.size : x.size + y.size;
    push(chance(0.5) ? b_.apply(f, x.value, y.value) : b_.apply(f, y.value, x.value), size);
  }

  void two_results(Entry x) {
    const Entry y = partner(x.value);
    const char* text =
        one_of<const char*>({"t0=add(a0,a1);t1=tanh(t0)->t1,t0", "t0=mul(a0,a1)->t0,a0",
                             "t0=sigmoid(a1);t1=mul(a0,t0)->a1,t1", "t0=sub(a1,a0)->t0,t0"});
    const auto out = b_.op_all("elementwise", {x.value, y.value}, {{"expr", text}});
    for (Value v : out)
      if (chance(0.8)) push(v, x.size + y.size);
  }

  void scale(Entry x) {
    const double factor = one_of<double>({1.0, 0.5, -1.0, 0.3, 0.0});
    push(b_.scale(x.value, factor), std::fabs(factor) * x.size);
  }

  void matmul(Entry x) {
    const Shape& s = shape(x.value);
    if (s.rank() < 2) return unary(x);
    const bool ta = chance(0.4), tb = chance(0.5), left = chance(0.7),
               batched = s.rank() == 3 && chance(0.3);
    const Attrs attrs{{"ta", ta}, {"tb", tb}, {"batched", batched}};
    // With x on the other side its own transposition is that side's flag.
    std::vector<Entry> fitting;
    auto inner = [&](const Shape& a, const Shape& b) {
      if (batched && (a.rank() != 3 || b.rank() != 3 || a[0] != b[0])) return int64_t{-1};
      const MatmulSizes m = matmul_sizes(attrs, a, b);
      return m.k == m.k_of_b ? m.k : int64_t{-1};
    };
    if (chance(0.4))
      for (const Entry& e : pool_)
        if (shape(e.value).rank() >= 2 &&
            inner(left ? s : shape(e.value), left ? shape(e.value) : s) > 0)
          fitting.push_back(e);
    Entry y;
    const bool mine = left ? ta : !tb;  // x's inner size is its rows, not its columns
    const int64_t rows = batched ? s[1] : s.rows(), K = mine ? rows : s.last();
    if (fitting.empty()) {
      const int64_t N = 1 + pick(6);
      const bool inner_first = left ? !tb : ta;
      Shape other = batched ? Shape{s[0]} : Shape{};
      other.push_back(inner_first ? K : N);
      other.push_back(inner_first ? N : K);
      y = {parameter(other, 0.8), 0.8};
    } else {
      y = one_of(fitting);
    }
    const Shape &a = shape(left ? x.value : y.value), &c = shape(left ? y.value : x.value);
    const MatmulSizes m = matmul_sizes(attrs, a, c);
    if (m.batch * m.m * m.n > 20'000 || m.batch * m.m * m.n * m.k > 500'000)
      return unary(x);  // outer products grow without end
    Value product = left ? b_.op("matmul", {x.value, y.value}, attrs)
                         : b_.op("matmul", {y.value, x.value}, attrs);
    const double size = x.size * y.size;
    product = b_.scale(product, 1 / std::sqrt(static_cast<double>(K)));
    // What an epilogue is made of.
    if (chance(0.5)) product = b_.add(product, parameter({shape(product).last()}, 0.5));
    if (chance(0.4))
      product = b_.apply(one_of<Function>({Function::gelu, Function::gelu_tanh, Function::tanh}),
                         product);
    if (chance(0.2)) product = dropout(product);
    if (shape(product) == s && chance(0.5)) product = b_.add(product, x.value);
    push(product, size + 0.5);
  }

  void norm(Entry x) {
    const Shape& s = shape(x.value);
    if (s.rank() == 0) return unary(x);
    // A large eps: rows of equal elements would be blown up otherwise.
    const double eps = 0.1;
    switch (pick(3)) {
      case 0: {
        const bool bias = chance(0.5);
        std::vector<Value> in{x.value, parameter({s.last()}, 0.8)};
        if (bias) in.push_back(parameter({s.last()}, 0.8));
        return push(b_.op("layer_norm", in, {{"eps", eps}, {"bias", bias}}), 1);
      }
      case 1:
        return push(b_.op("rms_norm", {x.value, parameter({s.last()}, 0.8)}, {{"eps", eps}}), 1);
      case 2:
        return push(b_.op("softmax", {x.value}, {{"causal", s.rank() >= 2 && chance(0.5)}}), 0.5);
    }
  }

  void reshape_or_permute(Entry x) {
    const Shape& s = shape(x.value);
    std::vector<int64_t> dims(s.begin(), s.end());
    if (chance(0.5) && dims.size() > 1) {
      std::vector<int64_t> order(dims.size());
      std::iota(order.begin(), order.end(), 0);
      for (size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[static_cast<size_t>(pick(static_cast<int64_t>(i)))]);
      return push(b_.op("permute", {x.value}, {{"order", shape_text(Shape(order))}}), x.size);
    }
    switch (pick(4)) {
      case 0:
        dims = {s.numel()};
        break;
      case 1:
        dims = {s.rank() ? s.rows() : 1, s.rank() ? s.last() : 1};
        break;
      case 2:
        if (dims.size() < 4)
          dims.insert(dims.begin() + pick(static_cast<int64_t>(dims.size()) + 1), 1);
        break;
      case 3:
        dims =
            s.numel() % (B_ * T_) == 0 ? std::vector<int64_t>{B_, T_, s.numel() / (B_ * T_)} : dims;
        break;
    }
    push(b_.reshape(x.value, Shape(dims)), x.size);
  }

  void reduce(Entry x) {
    const Shape& s = shape(x.value);
    std::vector<int64_t> dims(s.begin(), s.end());
    const auto rank = static_cast<int64_t>(dims.size());
    if (chance(0.5))
      dims.erase(dims.begin(), dims.begin() + pick(rank + 1));
    else
      std::fill(dims.begin() + pick(rank + 1), dims.end(), 1);
    const Shape target(dims);
    const double count = static_cast<double>(s.numel()) / static_cast<double>(target.numel());
    push(b_.scale(b_.reduce_to(x.value, target), 1 / std::sqrt(count)), x.size);
  }

  // Rows of `table` by index: as many as it has (so that shapes meet again), or a batch of them.
  Value embedding_of(Value table) {
    const int64_t V = shape(table)[0];
    if (chance(0.2)) return b_.op("embedding", {b_.op("iota", {}, {{"size", 1 + pick(V)}}), table});
    const Shape ids = one_of<Shape>({Shape{B_, T_}, Shape{V}, Shape{B_ * T_}});
    return b_.op("embedding", {indices(ids, V), table});
  }
  void embedding(Entry x) {
    const Shape& s = shape(x.value);
    const bool of_pool = s.rank() == 2 && chance(0.6);
    const Value table = of_pool ? x.value : parameter({2 + pick(5), D_}, 1);
    const Value rows = embedding_of(table);
    push(rows, of_pool ? x.size : 1);
    if (shape(rows) == shape(table) && chance(0.5)) push(b_.add(table, rows), 2);
  }

  Value make_loss() {
    Value loss;
    for (int64_t n = 1 + pick(3); n > 0; --n) {
      Value v = n == 1 ? pool_.back().value : any().value;
      if (chance(0.3)) v = b_.mul(v, v);
      if (chance(0.3)) v = b_.mul(v, partner(v).value);
      const auto count = static_cast<double>(shape(v).numel());
      v = b_.reduce_to(v, {});
      if (shape(v).rank() > 0) v = b_.reshape(v, {});
      if (count > 1) v = b_.scale(v, 1 / std::sqrt(count));
      loss = !loss.valid() ? v : chance(0.7) ? b_.add(loss, v) : b_.mul(loss, v);
    }
    // Products of parameters: the gradient of one is the other's very storage, if nobody takes
    // care.
    if (chance(0.05)) loss = b_.add(loss, b_.mul(parameter({}, 1), parameter({}, 1)));
    return loss;
  }

  // A view of a leaf is the leaf's storage: after an update it shows the new value, so it is no
  // output.
  bool shows_a_leaf(Value v) const {
    while (b_.graph()[v.node].op->is_view) v = b_.graph()[v.node].in[0];
    return b_.graph()[v.node].leaf != Leaf::none;
  }

  void add_gradients(Value loss) {
    b_.phase = Phase::backward;
    const Value one = b_.constant(1);
    b_.phase = Phase::forward;
    const Seed seed{loss, one};
    std::vector<Value> wanted = parameters_;
    if (chance(0.3)) wanted.push_back(inputs_[0]);
    const auto found = gradients(b_, std::span(&seed, 1), wanted);
    std::vector<Value> used, grads;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!found[i].valid()) continue;
      if (chance(0.5)) b_.output(fmt::format("gradient{}", i), found[i]);
      if (i >= parameters_.size()) continue;
      used.push_back(wanted[i]);
      grads.push_back(found[i]);
    }
    for (size_t i = 0; i < pool_.size(); ++i)
      if (chance(0.1) && !shows_a_leaf(pool_[i].value))
        b_.output(fmt::format("value{}", i), pool_[i].value);
    if (used.empty()) return;
    b_.phase = Phase::optimizer;
    if (chance(0.4))
      adam(used, grads);
    else if (chance(0.3))
      accumulate(grads);
    else
      return;
    if (chance(0.3)) after_the_update();
  }

  void adam(const std::vector<Value>& parameters, const std::vector<Value>& grads) {
    std::vector<Value> in = parameters;
    in.insert(in.end(), grads.begin(), grads.end());
    for (Value p : parameters) in.push_back(leaf(Leaf::optimizer_state, shape(p), 0.5));
    for (Value p : parameters) in.push_back(leaf(Leaf::optimizer_state, shape(p), 0.1, 1));
    const Value rate = leaf(Leaf::input, {}, 0), step = leaf(Leaf::input, {}, 0);
    set_scalar(rate, 0.1);
    set_scalar(step, 3);
    const Value norm = b_.op("grad_norm", grads);
    ExpressionBuilder e(1);
    const Term clip =
        e.apply(Function::div, e.constant(1), e.apply(Function::add, e.operand(0), e.constant(1)));
    for (Value v : {rate, b_.elementwise(e.finish({clip}), {norm}), step}) in.push_back(v);
    std::string decay = "0.1";
    for (size_t i = 1; i < parameters.size(); ++i) decay += i % 2 ? ";0" : ";0.1";
    const auto n = static_cast<int64_t>(parameters.size());
    const auto out = b_.op_all("adam", in,
                               {{"n", n},
                                {"decay", decay},
                                {"beta1", 0.9},
                                {"beta2", 0.95},
                                {"eps", 1e-8},
                                {"decoupled", chance(0.5)}});
    for (size_t i = 0; i < parameters.size(); ++i) {
      b_.update(parameters[i], out[i]);
      b_.update(in[2 * parameters.size() + i], out[parameters.size() + i]);
      b_.update(in[3 * parameters.size() + i], out[2 * parameters.size() + i]);
    }
  }

  // buffer = beta * buffer + gradient
  void accumulate(const std::vector<Value>& grads) {
    const Value beta = leaf(Leaf::input, {}, 1);
    for (Value g : grads) {
      const Value buffer = leaf(Leaf::gradient_buffer, shape(g), 1);
      b_.update(buffer, b_.op("elementwise", {buffer, beta, g},
                              {{"expr", "t0=mul(a0,a1);t1=add(t0,a2)->t1"}}));
    }
  }

  // Nodes behind the one that writes the parameters, over storage it may have given back.
  void after_the_update() {
    Value v = inputs_[0];
    for (int64_t n = 1 + pick(3); n > 0; --n) v = b_.mul(squash(v), inputs_[0]);
    b_.output("last", v);
  }

  RandomStream random_;
  Builder b_;
  RandomGraph done_;
  int64_t B_ = 1, T_ = 1, D_ = 1;
  std::vector<Entry> pool_;
  std::vector<Value> parameters_, inputs_;
};

inline RandomGraph make_random_graph(uint64_t seed) {
  RandomGraph made = RandomGraphMaker(seed).make();
  if (made.graph.find_leaf("random_key") >= 0)
    made.ids["random_key"] = {static_cast<int32_t>(seed), static_cast<int32_t>(seed >> 32), 5, 0};
  return made;
}

// Each pass on or off; recomputation of cheap results and of some layers.
inline PassOptions make_random_passes(uint64_t seed) {
  RandomStream random(seed, RandomUse::test, 2);
  PassOptions options;
  const uint64_t mode = random.below(4);  // all on as often as all off; else each by itself
  for (std::string_view name : pass_names())
    if (mode == 0 || (mode != 1 && random.below(4) == 0)) options.off.insert(std::string(name));
  options.recompute.cheap = random.below(2) == 0;
  options.recompute.whole_layers = static_cast<int64_t>(random.below(4));
  return options;
}

}  // namespace millrace
