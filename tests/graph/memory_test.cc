// Memory of whole programs: what is predicted is what is allocated and what is touched, and
// recomputation buys memory without changing a bit of the losses.
#include <gtest/gtest.h>

#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "tests/graph/poisoned_backend.h"
#include "tests/graph/tiny_model.h"
#include "tests/model/small_family.h"

namespace millrace {
namespace {

class Memory : public testing::Test {
 protected:
  void SetUp() override { cpu::gemm_set_measuring(false); }
  void TearDown() override { cpu::gemm_set_measuring(true); }
  PoisonedBackend backend_{cpu::best_isa()};
};

// What five updates give without a limit, and with one that leaves 40 % of the scratch:
// activations, gradients on their way to the update, workspaces.
struct FreeAndLean {
  Programs lean;
  Trained free_run, lean_run;
};
FreeAndLean train_within_forty_percent(TinyModel& tiny, PoisonedBackend& backend) {
  const Programs free = make_programs(*tiny.model, tiny.settings, tiny.shape, backend);
  EXPECT_EQ(free.passes.recompute, Recompute{});
  const int64_t state = layout_session(free.plans()).state_bytes,
                scratch = free.step().scratch_bytes;
  tiny.settings.memory_limit = state + scratch * 2 / 5;
  Programs lean = make_programs(*tiny.model, tiny.settings, tiny.shape, backend);
  EXPECT_LE(lean.total_bytes(), tiny.settings.memory_limit);
  EXPECT_LE(lean.step().scratch_bytes * 5, scratch * 2) << "not within 40 % of " << scratch;
  EXPECT_TRUE(lean.passes.recompute.cheap);
  EXPECT_GT(lean.passes.recompute.whole_layers, 0);
  Trained one, two;
  {
    Session session(backend, free.plans());
    one = train_steps(session, 0, tiny, 5);
  }
  {
    Session session(backend, lean.plans());
    two = train_steps(session, 0, tiny, 5);
  }
  return {std::move(lean), std::move(one), std::move(two)};
}
const char* const kTwelveLayers = "d_model: 32, num_layers: 12, num_heads: 2, dropout: 0.1";

TEST_F(Memory, RecomputationMeetsTheLimitAndKeepsEveryBit) {
  TinyModel tiny(kTwelveLayers, {4, 48});
  const FreeAndLean done = train_within_forty_percent(tiny, backend_);
  EXPECT_EQ(done.lean.passes.head_chunk_rows, 0);
  EXPECT_EQ(done.free_run.losses, done.lean_run.losses);
  EXPECT_EQ(done.free_run.norms, done.lean_run.norms);
  EXPECT_TRUE(done.free_run.parameters == done.lean_run.parameters);
}

// Where recomputation is not enough, the loss head takes fewer rows at a time. Its weight gradient
// is then summed in another order: the same up to rounding, a few eps an update.
TEST_F(Memory, WithoutRecomputationTheHeadIsChunkedAndTheLossesAreTheSameUpToRounding) {
  TinyModel tiny(kTwelveLayers, {4, 48});
  tiny.settings.recompute = false;
  const Programs free = make_programs(*tiny.model, tiny.settings, tiny.shape, backend_);
  tiny.settings.memory_limit = 1;
  const Programs lean = make_programs(*tiny.model, tiny.settings, tiny.shape, backend_);
  EXPECT_EQ(lean.passes.head_chunk_rows, 16);
  EXPECT_EQ(lean.passes.recompute, Recompute{});
  Session one(backend_, free.plans());
  const Trained free_run = train_steps(one, 0, tiny, 5);
  Session two(backend_, lean.plans());
  const Trained lean_run = train_steps(two, 0, tiny, 5);
  for (size_t i = 0; i < free_run.losses.size(); ++i)
    EXPECT_NEAR(free_run.losses[i], lean_run.losses[i],
                16 * std::numeric_limits<float>::epsilon() * free_run.losses[i]);
}

TEST_F(Memory, TheLeastRecomputationThatFitsIsTaken) {
  TinyModel tiny("d_model: 32, num_layers: 6, num_heads: 2", {4, 48});
  const int64_t most =
      make_programs(*tiny.model, tiny.settings, tiny.shape, backend_).total_bytes();
  tiny.settings.memory_limit = 1;  // cannot be met: the leanest there is
  const Programs leanest = make_programs(*tiny.model, tiny.settings, tiny.shape, backend_);
  EXPECT_EQ(leanest.passes.recompute.whole_layers, 6);
  const int64_t least = leanest.total_bytes();
  ASSERT_LT(least, most);
  int64_t layers = 0;
  for (int64_t share = 10; share >= 0; --share) {
    tiny.settings.memory_limit = least + (most - least) * share / 10;
    const Programs p = make_programs(*tiny.model, tiny.settings, tiny.shape, backend_);
    EXPECT_LE(p.total_bytes(), tiny.settings.memory_limit);
    EXPECT_GE(p.passes.recompute.whole_layers, layers) << "a tighter limit recomputes less";
    layers = p.passes.recompute.whole_layers;
  }
  tiny.settings.memory_limit = most;
  EXPECT_EQ(make_programs(*tiny.model, tiny.settings, tiny.shape, backend_).passes.recompute,
            Recompute{});
  tiny.settings.memory_limit = 1;
  tiny.settings.recompute = false;
  EXPECT_EQ(make_programs(*tiny.model, tiny.settings, tiny.shape, backend_).passes.recompute,
            Recompute{});
}

// A plan of generation: every input at zero, sources as long as they can be.
void run_plainly(Session& session, const Plan& plan, size_t number, int64_t source_length) {
  for (const Node& n : plan.graph.nodes) {
    if (n.leaf != Leaf::input) continue;
    const int64_t value = n.name.ends_with("lengths") ? source_length : 0;
    session.write_input<int32_t>(
        number, n.name,
        std::vector<int32_t>(static_cast<size_t>(n.out[0].numel()), static_cast<int32_t>(value)));
  }
  session.run(number);
  for (const auto& [name, value] : plan.graph.outputs)
    for (const float x : session.output(number, name))
      ASSERT_TRUE(std::isfinite(x)) << name << ": read what nobody wrote";
}

TEST_F(Memory, PredictedIsAllocatedIsTouched) {
  struct Case {
    std::string family, keys;
  };
  std::vector<Case> cases{{"gpt", kLlamaKeys},
                          {"trajectory", small_keys("trajectory", 24) + ", classes: 5"}};
  for (const std::string& family : model_families())
    for (const double dropout : {0.0, 0.1})
      cases.push_back({family, small_keys(family, 24, dropout)});
  for (const auto& [family, keys] : cases)
    for (int64_t limit : {0, 1}) {
      SCOPED_TRACE(fmt::format("{} {} limit {}", family, keys, limit));
      const bool pairs = make_model(family)->takes().pairs,
                 texts = !make_model(family)->takes().states;
      TinyModel tiny(keys, {2, 12, false, pairs ? 10 : 0}, family);
      tiny.settings.memory_limit = limit;
      if (texts) tiny.settings.eval_texts = tiny.settings.eval_beam = 2;
      const Programs programs = make_programs(*tiny.model, tiny.settings, tiny.shape, backend_);
      EXPECT_EQ(programs.writes_texts(), texts);
      for (const Plan* plan : programs.plans()) verify_memory(*plan);
      Session session(backend_, programs.plans());
      EXPECT_EQ(programs.total_bytes(), session.allocated_bytes());
      EXPECT_EQ(session.layout().total_bytes(), session.allocated_bytes());
      EXPECT_EQ(backend_.scratch().bytes(), session.layout().scratch_bytes);
      EXPECT_EQ(backend_.state().bytes(), session.layout().state_bytes);
      EXPECT_GE(session.layout().scratch_bytes, programs.step().scratch_bytes);

      const Trained done = train_steps(session, 0, tiny, 2);
      for (float loss : done.losses) EXPECT_TRUE(std::isfinite(loss)) << "read what nobody wrote";
      session.run(programs.evaluate_plan());
      const auto plans = programs.plans();
      for (size_t number = programs.prefill_plan(); number < plans.size(); ++number)
        run_plainly(session, *plans[number], number, tiny.shape.source);
      EXPECT_TRUE(backend_.scratch().fence_intact()) << "wrote behind the scratch arena";
      EXPECT_TRUE(backend_.state().fence_intact()) << "wrote behind the state";
      // Touched to the end: at most the padding of the last buffer to a cache line is left.
      EXPECT_GT(backend_.scratch().touched_bytes(), session.layout().scratch_bytes - kAlignment);
      EXPECT_GT(backend_.state().touched_bytes(), session.layout().state_bytes - kAlignment);
    }
}

TEST_F(Memory, LeavesAreSharedByName) {
  TinyModel tiny(kGpt2Keys);
  const Programs programs = make_programs(*tiny.model, tiny.settings, tiny.shape, backend_);
  const SessionLayout layout = layout_session(programs.plans());
  std::map<int64_t, std::string> at;
  for (const auto& [name, offset] : layout.offset) {
    EXPECT_TRUE(at.emplace(offset, name).second)
        << name << " and " << at[offset] << " share " << offset;
    EXPECT_EQ(offset % kAlignment, 0);
  }
  int64_t end = 0;
  for (const auto& [offset, name] : at) {
    EXPECT_EQ(offset, end) << "a gap before " << name;
    end = offset + aligned(layout.type.at(name).bytes());
  }
  EXPECT_EQ(end, layout.state_bytes);
  int64_t alone = 0;
  for (const Plan* plan : programs.plans()) alone += plan->state_bytes;
  EXPECT_LT(layout.state_bytes, alone);
}

TEST_F(Memory, AccumulatedMicroBatchesGiveTheGradientOfTheWhole) {
  // Two micro-batches of one sequence against one batch of two, without dropout: the same sums in
  // another order.
  TinyModel whole(kGpt2Keys, {2, 12}), cut(kGpt2Keys, {1, 12});
  cut.settings.grad_accum = 2;
  const Plan one = make_plan(whole.step_graph(), {}, backend_);
  const Plan first =
      make_plan(build_accumulate_graph(*cut.model, cut.settings, cut.shape), {}, backend_);
  const Plan last = make_plan(cut.step_graph(), {}, backend_);
  std::vector<int32_t> tokens, targets;
  RandomStream random(4, RandomUse::test);
  for (int i = 0; i < 24; ++i) {
    tokens.push_back(static_cast<int32_t>(random.below(29)));
    targets.push_back(static_cast<int32_t>(random.below(29)));
  }
  auto prepare = [&](Session& session, const TinyModel& tiny) {
    initialize(session, *tiny.model, 1);
    for (const auto& [name, type] : session.layout().type)
      if (name.starts_with("m.") || name.starts_with("v."))
        session.write<float>(name, std::vector<float>(static_cast<size_t>(type.numel())));
    const float scale = 1.0f / 24, rate = 1e-3f, step = 1;
    session.write<float>("loss_scale", std::span(&scale, 1));
    session.write<float>("learning_rate", std::span(&rate, 1));
    session.write<float>("step", std::span(&step, 1));
  };
  Session a(backend_, {&one});
  prepare(a, whole);
  a.write<int32_t>("tokens", tokens);
  a.write<int32_t>("targets", targets);
  a.run(0);
  Session b(backend_, {&last, &first});
  prepare(b, cut);
  for (size_t micro : {size_t{0}, size_t{1}}) {
    b.write<int32_t>("tokens", std::vector<int32_t>(
                                   tokens.begin() + static_cast<std::ptrdiff_t>(micro) * 12,
                                   tokens.begin() + static_cast<std::ptrdiff_t>(micro) * 12 + 12));
    b.write<int32_t>(
        "targets",
        std::vector<int32_t>(targets.begin() + static_cast<std::ptrdiff_t>(micro) * 12,
                             targets.begin() + static_cast<std::ptrdiff_t>(micro) * 12 + 12));
    const size_t plan = micro == 0 ? 1 : 0;
    if (micro == 0) {
      const float beta = 0;  // what the buffers hold from before does not count
      b.write<float>("accumulate_beta", std::span(&beta, 1));
      for (const Parameter& p : cut.model->parameters())
        b.write<float>("gradient." + p.name,
                       std::vector<float>(static_cast<size_t>(p.shape.numel()), 7.0f));
      b.write<float>("gradient.loss", std::vector<float>{7.0f});
    }
    b.run(plan);
  }
  const float loss = b.scalar_output(0, "loss");
  const float eps = std::numeric_limits<float>::epsilon();
  EXPECT_NEAR(loss, a.scalar_output(0, "loss"), 16 * eps * loss);
  EXPECT_NEAR(b.scalar_output(0, "grad_norm"), a.scalar_output(0, "grad_norm"),
              64 * eps * a.scalar_output(0, "grad_norm"));
}

}  // namespace
}  // namespace millrace
