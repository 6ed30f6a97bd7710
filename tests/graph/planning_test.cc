// Small graphs on which planning went wrong once, each the smallest that shows it. What they have
// in common: a value's storage is given to another while somebody still reads it, or a fold loses
// what it folded.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "exec/reference.h"
#include "exec/session.h"
#include "graph/autodiff.h"
#include "tests/graph/poisoned_backend.h"

namespace millrace {
namespace {

std::vector<double> leaf_values(const Node& n, NodeId id) {
  std::vector<double> values;
  for (int64_t i = 0; i < n.out[0].numel(); ++i)
    values.push_back(static_cast<float>(std::sin(1.0 + 0.7 * static_cast<double>(i) + 3.1 * id)));
  return values;
}

// Every output and updated leaf against the reference: all passes on, all off, each off alone.
void expect_right(Builder& b, const std::map<std::string, std::vector<int32_t>>& ids = {}) {
  cpu::gemm_set_measuring(false);
  const Graph g = b.finish();
  Reference<double> reference(g);
  for (NodeId id = 0; id < g.size(); ++id) {
    if (g[id].leaf == Leaf::none) continue;
    if (g[id].out[0].dtype == DType::i32)
      reference.ids(g[id].name) = ids.at(g[id].name);
    else
      reference.values(g[id].name) = leaf_values(g[id], id);
  }
  reference.run();

  std::vector<PassOptions> all(2);
  for (std::string_view name : pass_names()) {
    all[1].off.insert(std::string(name));
    all.emplace_back().off.insert(std::string(name));
  }
  for (const PassOptions& options : all) {
    std::string off = "off:";
    for (const std::string& name : options.off) off += " " + name;
    PoisonedBackend backend(cpu::best_isa());
    const Plan plan = make_plan(g, options, backend);
    SCOPED_TRACE(off + "\n" + plan.text());
    Session session(backend, {&plan});
    for (NodeId id = 0; id < g.size(); ++id) {
      if (g[id].leaf == Leaf::none) continue;
      if (g[id].out[0].dtype == DType::i32) {
        session.write<int32_t>(g[id].name, ids.at(g[id].name));
      } else {
        const auto values = leaf_values(g[id], id);
        session.write<float>(g[id].name, std::vector<float>(values.begin(), values.end()));
      }
    }
    session.run(0);
    auto compare = [&](const std::string& name, const std::vector<float>& got,
                       const std::vector<double>& want) {
      ASSERT_EQ(got.size(), want.size());
      // A dozen operations on numbers near one.
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(std::fabs(static_cast<double>(got[i]) - want[i]) <= 1e-5)
            << name << " element " << i << ": " << got[i] << " against " << want[i];
    };
    for (const auto& [name, v] : g.outputs)
      compare(name, session.output(0, name), reference.value(v));
    for (const Update& u : g.updates)
      compare(g[u.leaf].name, session.read<float>(g[u.leaf].name), reference.value(u.value));
  }
  cpu::gemm_set_measuring(true);
}

// p' = p - 0.1 m' / (sqrt(v') + 0.01) with m = v = 0: constants, so that v is not negative.
void adam(Builder& b, const std::vector<Value>& parameters, const std::vector<Value>& grads) {
  std::vector<Value> in = parameters;
  in.insert(in.end(), grads.begin(), grads.end());
  for (int slot = 0; slot < 2; ++slot)
    for (Value p : parameters) in.push_back(b.constant(0, b.shape(p)));
  for (double number : {0.1, 1.0, 1.0}) in.push_back(b.constant(number));  // rate, scale, step
  std::string decay = "0";
  for (size_t i = 1; i < parameters.size(); ++i) decay += ";0";
  const auto out = b.op_all("adam", in,
                            {{"n", static_cast<int64_t>(parameters.size())},
                             {"decay", decay},
                             {"beta1", 0.9},
                             {"beta2", 0.95},
                             {"eps", 1e-2},
                             {"decoupled", 0}});
  for (size_t i = 0; i < parameters.size(); ++i) b.update(parameters[i], out[i]);
}

TEST(Planning, LeavesDeclaredBehindAnUpdate) {
  // buffer = buffer * beta + gradient, one leaf and one update after the other.
  Builder b;
  const Value beta = b.input("beta", {{}, DType::f32});
  for (const char* name : {"one", "two", "three"}) {
    const Value gradient =
        b.apply(Function::tanh, b.input(std::string("x.") + name, {{5}, DType::f32}));
    const Value buffer = b.leaf(Leaf::gradient_buffer, name, {{5}, DType::f32});
    b.update(buffer, b.op("elementwise", {buffer, beta, gradient},
                          {{"expr", "t0=mul(a0,a1);t1=add(t0,a2)->t1"}}));
  }
  expect_right(b);
}

TEST(Planning, AResultThatIsAnOperandWhoseStorageAnotherResultTakes) {
  Builder b;
  const Value x =
      b.apply(Function::tanh, b.input("x", {{4, 3}, DType::f32}));  // dies in the next node
  const auto out = b.op_all("elementwise", {x}, {{"expr", "t0=neg(a0)->t0,a0"}});
  b.output("negative", out[0]);
  b.output("same", out[1]);
  expect_right(b);
}

TEST(Planning, AProductThatIsAlsoAResultOfItsEpilogue) {
  Builder b;
  const Value y =
      b.scale(b.matmul(b.input("a", {{4, 3}, DType::f32}), b.input("b", {{3, 5}, DType::f32})),
              1.0);  // scale by one: the product itself
  b.output("y", y);
  b.output("gelu", b.apply(Function::gelu, y));
  expect_right(b);
}

TEST(Planning, AnEmbeddingGradientOnTopOfItsOwnCotangent) {
  // table + table[ids], both [V, D]: the table's gradient is dy scattered on top of dy.
  Builder b;
  const Value table = b.parameter("table", {4, 3}), ids = b.input("ids", {{4}, DType::i32});
  const Value y = b.apply(Function::tanh, b.add(table, b.op("embedding", {ids, table})));
  const Seed seed{b.reduce_to(y, {}), b.constant(1)};
  const Value wanted[] = {table};
  b.output("gradient", gradients(b, std::span(&seed, 1), wanted)[0]);
  expect_right(b, {{"ids", {1, 0, 1, 3}}});
}

TEST(Planning, AnEmbeddingGradientThatIsBroadcast) {
  // The table is a sum over a leading dimension of one; its gradient is broadcast back.
  Builder b;
  const Value x = b.parameter("x", {1, 4, 3}), ids = b.input("ids", {{6}, DType::i32});
  const Value rows = b.op("embedding", {ids, b.reduce_to(x, {4, 3})});
  const Seed seed{b.reduce_to(b.apply(Function::tanh, rows), {}), b.constant(1)};
  const Value wanted[] = {x};
  b.output("gradient", gradients(b, std::span(&seed, 1), wanted)[0]);
  expect_right(b, {{"ids", {1, 0, 1, 3, 3, 2}}});
}

TEST(Planning, AnExpressionThatFoldsToANumber) {
  Builder b;
  const Value x = b.input("x", {{4, 3}, DType::f32});
  const Value zero = b.scale(x, 0.0);
  b.output("zero", zero);
  b.output("one", b.apply(Function::sigmoid, zero));
  b.output("bias", b.add(b.scale(b.apply(Function::tanh, x), 0.0),
                         b.parameter("bias", {3})));  // [3] must not become the shape
  expect_right(b);
}

TEST(Planning, ASinkingNodeWhoseFirstReaderSinksToo) {
  // `turned` could stand right before `late`, its first reader; but `late` itself sinks to before
  // its own reader, behind the second reader of `turned`.
  Builder b;
  const Value x = b.input("x", {{2, 2}, DType::f32});
  auto product = [&](Value v, const char* name) { return b.matmul(v, b.parameter(name, {2, 2})); };
  const Value turned = b.op("permute", {x}, {{"order", "1x0"}});
  b.output("between", product(x, "p"));
  const Value late = product(turned, "q");
  b.output("second", product(turned, "r"));
  b.output("reader of late", product(late, "s"));
  b.output("third", product(turned, "t"));
  expect_right(b);
}

TEST(Planning, AGradientThatIsAnotherParameter) {
  // d(p q)/dp = q: the optimizer must not read q after it wrote it.
  Builder b;
  const Value p = b.parameter("p", {}), q = b.parameter("q", {});
  const Value loss = b.mul(p, q);
  const Seed seed{loss, b.constant(1)};
  const Value wanted[] = {p, q};
  const auto grads = gradients(b, std::span(&seed, 1), wanted);
  b.output("gradient of p", grads[0]);
  b.output("gradient of q", grads[1]);
  adam(b, {p, q}, grads);
  expect_right(b);
}

TEST(Planning, AnOutputThatIsALeafTimesOne) {
  Builder b;
  const Value p = b.parameter("p", {5});
  b.output("before", b.scale(p, 1.0));
  adam(b, {p}, {b.apply(Function::tanh, b.input("g", {{5}, DType::f32}))});
  expect_right(b);
}

}  // namespace
}  // namespace millrace
