// Random graphs through random passes: what the plan computes is what the graph says. The plan runs
// on the CPU backend with a poisoned arena, so a buffer that is read before it is written, or
// written while another value lives in it, shows as a difference from the reference, which gives
// every value storage of its own. Twice with other poison the bits must be the same.
//
//   MILLRACE_FULL=1            ten times as many graphs
//   MILLRACE_GRAPH_SEED=1234   that graph alone, printed
#include "tests/graph/random_graph.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "exec/reference.h"
#include "exec/session.h"
#include "tests/graph/poisoned_backend.h"

namespace millrace {
namespace {

// A failed MR_CHECK ends the process: the seed must be known by then.
volatile std::sig_atomic_t current_seed = 0;
extern "C" void name_the_seed(int signal) {
  char text[] = "random graph: the process ended at MILLRACE_GRAPH_SEED=          \n";
  char* digit = text + sizeof text - 3;
  for (auto seed = static_cast<unsigned>(current_seed); seed > 0; seed /= 10)
    *digit-- = static_cast<char>('0' + seed % 10);
  if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(1);
  std::signal(signal, SIG_DFL);
  raise(signal);
}

// Everything a run leaves: outputs by name, and the leaves it updated.
template <typename T>
using Results = std::map<std::string, std::vector<T>>;

// The reference with every value (leaves too) disturbed by up to `noise` of its tensor's largest
// element: how much of the result hangs on the last digits. Each kernel is allowed 8 eps sqrt(K) of
// its result (tests/op); K is at most a few hundred here and errors of sums are random.
constexpr double kNoise = 8 * std::numeric_limits<float>::epsilon();

// Some ops subtract terms that may cancel altogether: a row of one element has no gradient through
// its normalisation, 1 + erf(x) and 1 - tanh(x)^2 go to nothing. Their error is that of the terms:
// x for GELU; for derivatives the cotangents, which stand behind the first operand.
double largest_term(const Node& n, const std::vector<double>& largest_in) {
  const std::string_view name = n.op->name;
  if (name == "softmax_grad") return largest_in[0] * largest_in[1];
  if (name == "layer_norm_grad") return largest_in[1] * largest_in[3] * largest_in[4];
  if (name == "rms_norm_grad") return largest_in[1] * largest_in[2] * largest_in[3];
  const std::string expression = n.attrs.text("expr");
  if (expression.find("gelu") != std::string::npos || expression.find("sub(t") != std::string::npos)
    return *std::max_element(largest_in.begin() + (largest_in.size() > 1), largest_in.end());
  return 0;
}

// Adding up n numbers of one size one by one errs by up to n eps / 2, and always to the same side.
double summed(const Graph& g, const Node& n) {
  if (n.op->name != "reduce_sum") return 1;
  return std::max(1.0, static_cast<double>(g.type(n.in[0]).numel() / n.out[0].numel()) / 16);
}

Results<double> run_reference(const RandomGraph& r, double noise, uint64_t seed) {
  const Graph& g = r.graph;
  RandomStream random(seed, RandomUse::test, 3);
  std::vector<std::vector<std::vector<double>>> floats(g.nodes.size());
  std::vector<std::vector<std::vector<int32_t>>> ints(g.nodes.size());
  std::vector<std::vector<double>> largest(g.nodes.size());
  for (NodeId id = 0; id < g.size(); ++id) {
    const Node& n = g[id];
    const auto at = static_cast<size_t>(id);
    for (const TensorType& t : n.out) {
      floats[at].emplace_back(t.dtype == DType::f32 ? static_cast<size_t>(t.numel()) : 0);
      ints[at].emplace_back(t.dtype == DType::i32 ? static_cast<size_t>(t.numel()) : 0);
    }
    if (n.leaf != Leaf::none) {
      if (n.out[0].dtype == DType::i32)
        ints[at][0] = r.ids.at(n.name);
      else
        floats[at][0] = r.floats.at(n.name);
    } else {
      std::vector<const void*> in;
      std::vector<void*> out;
      auto place = [&](Value v) -> void* {
        const auto node = static_cast<size_t>(v.node), o = static_cast<size_t>(v.out);
        return g.type(v).dtype == DType::i32 ? static_cast<void*>(ints[node][o].data())
                                             : floats[node][o].data();
      };
      for (Value v : n.in) in.push_back(place(v));
      for (size_t o = 0; o < n.out.size(); ++o) out.push_back(place({id, static_cast<int32_t>(o)}));
      const auto in_types = g.in_types(n);
      n.op->reference_f64({{n.attrs, in_types, n.out}, in, out});
    }
    std::vector<double> largest_in;
    for (Value v : n.in)
      largest_in.push_back(largest[static_cast<size_t>(v.node)][static_cast<size_t>(v.out)]);
    for (auto& values : floats[at]) {
      double most = 0;
      for (double v : values) most = std::max(most, std::fabs(v));
      largest[at].push_back(most);
      for (double& v : values)
        v += noise * summed(g, n) * std::max(most, largest_term(n, largest_in)) *
             (2 * random.uniform() - 1);
    }
  }
  Results<double> results;
  for (const auto& [name, v] : g.outputs)
    results["output " + name] = floats[static_cast<size_t>(v.node)][static_cast<size_t>(v.out)];
  for (const Update& u : g.updates)
    results["updated " + g[u.leaf].name] =
        floats[static_cast<size_t>(u.value.node)][static_cast<size_t>(u.value.out)];
  return results;
}

Results<float> run_session(Session& session, PoisonedBackend& backend, const RandomGraph& r,
                           std::byte poison) {
  backend.state().fill(poison);
  backend.scratch().fill(poison);
  for (const auto& [name, values] : r.floats)
    session.write<float>(name, std::vector<float>(values.begin(), values.end()));
  for (const auto& [name, values] : r.ids) session.write<int32_t>(name, values);
  session.run(0);
  Results<float> results;
  for (const auto& [name, v] : r.graph.outputs) results["output " + name] = session.output(0, name);
  for (const Update& u : r.graph.updates)
    results["updated " + r.graph[u.leaf].name] = session.read<float>(r.graph[u.leaf].name);
  return results;
}

std::string describe(uint64_t seed, const RandomGraph& r, const Plan& plan) {
  std::string off;
  for (const std::string& name : plan.passes.off) off += " " + name;
  return fmt::format(
      "MILLRACE_GRAPH_SEED={}\npasses off:{}; recomputed: cheap {}, {} layers\n{}\n{}", seed, off,
      plan.passes.recompute.cheap, plan.passes.recompute.whole_layers, r.graph.str(), plan.text());
}

struct Tally {
  int64_t results = 0, vague = 0;  // compared; too ill-conditioned for the comparison to say much
};

void check_graph(uint64_t seed, bool print, Tally& tally) {
  current_seed = static_cast<std::sig_atomic_t>(seed);
  const RandomGraph r = make_random_graph(seed);
  const PassOptions passes = make_random_passes(seed);
  const cpu::Isa isa =
      seed % 2 && cpu::supports(cpu::Isa::avx512) ? cpu::Isa::avx512 : cpu::Isa::avx2;
  PoisonedBackend backend(isa, seed % 16 == 0);
  if (print) std::fputs(r.graph.str().c_str(), stderr);
  const Plan plan = make_plan(r.graph, passes, backend);
  verify_memory(plan);
  Session session(backend, {&plan});
  ASSERT_EQ(session.layout().scratch_bytes, plan.scratch_bytes);

  const Results<float> got = run_session(session, backend, r, std::byte{0xFF});
  const Results<float> again =
      run_session(session, backend, r, std::byte{0x3E});  // 0.186 as a float
  ASSERT_TRUE(backend.state().fence_intact() && backend.scratch().fence_intact())
      << "wrote behind an arena\n"
      << describe(seed, r, plan);

  Reference<double> reference(r.graph);
  for (const auto& [name, values] : r.floats) reference.values(name) = values;
  for (const auto& [name, values] : r.ids) reference.ids(name) = values;
  reference.run();
  Results<double> want;
  for (const auto& [name, v] : r.graph.outputs) want["output " + name] = reference.output(name);
  for (const Update& u : r.graph.updates)
    want["updated " + r.graph[u.leaf].name] = reference.value(u.value);
  const Results<double> noisy[2] = {run_reference(r, kNoise, 2 * seed),
                                    run_reference(r, kNoise, 2 * seed + 1)};

  for (const auto& [name, values] : want) {
    const auto& y = got.at(name);
    ASSERT_EQ(y.size(), values.size());
    ASSERT_EQ(std::memcmp(y.data(), again.at(name).data(), 4 * y.size()), 0)
        << name << ": other bits over other poison\n"
        << describe(seed, r, plan);
    double scale = 0, lost = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      scale = std::max(scale, std::fabs(values[i]));
      for (const auto& n : noisy) lost = std::max(lost, std::fabs(n.at(name)[i] - values[i]));
    }
    // Two draws find the size of the error, not its bound: eight times it. What cancels to nothing
    // in a graph of numbers near one is nothing below 1e-5 eps.
    const double tolerance = kNoise * scale + 8 * lost + 1e-12;
    ++tally.results;
    if (tolerance > 1e-2 * std::max(scale, 1e-9)) ++tally.vague;
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_TRUE(std::fabs(static_cast<double>(y[i]) - values[i]) <= tolerance)
          << name << " element " << i << ": " << y[i] << " against " << values[i] << " +- "
          << tolerance << "\n"
          << describe(seed, r, plan);
  }
}

class RandomGraphs : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override {
    cpu::gemm_set_measuring(false);
    cpu::set_threads(1);  // the graphs are small; that threads do not matter is tests/op's business
    abort_before_ = std::signal(SIGABRT, name_the_seed);
    fault_before_ = std::signal(SIGSEGV, name_the_seed);
  }
  void TearDown() override {
    std::signal(SIGABRT, abort_before_);
    std::signal(SIGSEGV, fault_before_);
    cpu::set_threads(0);
    cpu::gemm_set_measuring(true);
  }

 private:
  void (*abort_before_)(int) = SIG_DFL;
  void (*fault_before_)(int) = SIG_DFL;
};

constexpr uint64_t kParts = 10;
INSTANTIATE_TEST_SUITE_P(Part, RandomGraphs, testing::Range<uint64_t>(0, kParts));

TEST_P(RandomGraphs, ComputeWhatTheySay) {
  Tally tally;
  if (const char* one = std::getenv("MILLRACE_GRAPH_SEED")) {
    if (GetParam() == 0) check_graph(std::strtoull(one, nullptr, 10), true, tally);
    return;
  }
  const char* full = std::getenv("MILLRACE_FULL");
  const uint64_t count = (full && std::string_view(full) == "1" ? 100'000 : 10'000) / kParts;
  for (uint64_t i = 0; i < count && !HasFatalFailure(); ++i)
    check_graph(GetParam() * 1'000'000 + i, false, tally);
  if (HasFatalFailure()) return;
  // The comparison means something: few results hang on their last digits.
  EXPECT_GT(tally.results, static_cast<int64_t>(count));
  EXPECT_LT(tally.vague * 50, tally.results);
}

}  // namespace
}  // namespace millrace
