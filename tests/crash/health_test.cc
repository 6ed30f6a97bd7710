// Numbers that go wrong, and disks that fill up, while a run goes on.
#include "train/health.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "cpu/cpu_backend.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "cpu/parallel.h"
#include "tests/crash/faulty_disk.h"
#include "tests/crash/record.h"
#include "tests/graph/tiny_model.h"
#include "train/trainer.h"

namespace millrace {
namespace {

// Writes a value that is not finite into the result of a node of the plan it is aimed at.
struct Injection {
  const Plan* plan = nullptr;
  NodeId node = -1;  // -1: none
  size_t out = 0, element = 0;
  float value = NAN;
};

class InjectingExecutable : public Executable {
 public:
  InjectingExecutable(std::unique_ptr<Executable> inner, const Plan& plan,
                      std::span<std::byte* const> place, const Injection& injection)
      : inner_(std::move(inner)),
        plan_(plan),
        place_(place.begin(), place.end()),
        injection_(injection) {}
  void run(Ledger* ledger, const std::function<void()>& before_update) override {
    if (injection_.plan != &plan_ || injection_.node < 0) return inner_->run(ledger, before_update);
    if (before_update) before_update();
    run_nodes([](NodeId) { return true; });
  }
  void run_nodes(const std::function<bool(NodeId)>& after) override {
    inner_->run_nodes([&](NodeId id) {
      if (injection_.plan == &plan_ && id == injection_.node) {
        const int32_t buffer = plan_.buffer_of[static_cast<size_t>(id)][injection_.out];
        reinterpret_cast<float*>(place_[static_cast<size_t>(buffer)])[injection_.element] =
            injection_.value;
      }
      return after(id);
    });
  }

 private:
  std::unique_ptr<Executable> inner_;
  const Plan& plan_;
  std::vector<std::byte*> place_;
  const Injection& injection_;
};

class InjectingBackend : public Backend {
 public:
  Injection injection;
  std::string name() const override { return inner_->name(); }
  std::string choices() const override { return inner_->choices(); }
  void pin_choices(const std::string& choices) override { inner_->pin_choices(choices); }
  KernelChoice choose(const OpCard& op, const OpSite& site) override {
    return inner_->choose(op, site);
  }
  std::unique_ptr<Arena> allocate(int64_t bytes) override { return inner_->allocate(bytes); }
  std::unique_ptr<Executable> load(const Plan& plan, std::span<std::byte* const> place) override {
    return std::make_unique<InjectingExecutable>(inner_->load(plan, place), plan, place, injection);
  }
  void copy_in(std::byte* device, std::span<const std::byte> host) override {
    inner_->copy_in(device, host);
  }
  void copy_out(std::span<std::byte> host, const std::byte* device) override {
    inner_->copy_out(host, device);
  }

 private:
  std::unique_ptr<Backend> inner_ = cpu::make_backend(cpu::best_isa());
};

// Floating-point results in memory: where something can be put.
struct Target {
  NodeId node;
  size_t out;
  int64_t elements;
};
std::vector<Target> targets_of(const Plan& plan) {
  std::vector<Target> list;
  for (NodeId id = 0; id < plan.graph.size(); ++id) {
    const Node& n = plan.graph[id];
    // New weights and moments themselves: what comes before them is in question.
    const bool state = std::any_of(plan.graph.updates.begin(), plan.graph.updates.end(),
                                   [&](const Update& u) { return u.value.node == id; });
    if (plan.kernels[static_cast<size_t>(id)].name.empty() || state) continue;
    for (size_t out = 0; out < n.out.size(); ++out) {
      // Read later: what was computed together with its only reader cannot be noticed any more.
      const bool read =
          std::any_of(plan.graph.nodes.begin(), plan.graph.nodes.end(), [&](const Node& reader) {
            return std::find(reader.in.begin(), reader.in.end(),
                             Value{id, static_cast<int32_t>(out)}) != reader.in.end();
          });
      if (read && n.out[out].dtype == DType::f32 && n.out[out].numel() > 0)
        list.push_back({id, out, n.out[out].numel()});
    }
  }
  return list;
}

class HealthTest : public testing::Test {
 protected:
  void SetUp() override {
    cpu::gemm_set_measuring(false);
    cpu::set_threads(1);
    std::string name = testing::TempDir() + "millrace-health-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    cpu::gemm_set_measuring(true);
    cpu::set_threads(0);
    fs::remove_all(folder_);
  }
  static TrainingData data_for(const Settings& s) {
    DataOptions options;
    options.train = {kBuiltinGrammar};
    options.grammar_chars = 4000;
    DataObserver silent;
    return make_training_data(open_dataset(options, silent), s, {.packed_rows = true}, silent);
  }
  static Settings settings() {
    Settings s;
    s.batch_size = 2;
    s.max_length = 12;
    s.max_steps = 24;
    s.log_interval = 1;
    s.eval_every = {{12}};
    s.max_eval_batches = 2;
    s.checkpoint.every = {{4}};
    s.sample_length = 0;
    s.tensorboard = false;
    return s;
  }
  struct Made {
    std::unique_ptr<Model> model = make_model("gpt");
    Schema schema;
    Made(const Settings& s, const TrainingData& data) {
      model->declare(schema);
      schema.load_text("model: {d_model: 16, num_layers: 2, num_heads: 2}", "test.yaml");
      schema.finish();
      model->resolve(schema, data.set.vocab_size, {s.max_length, s.max_length});
    }
  };

  fs::path folder_;
  InjectingBackend backend_;
  std::mt19937_64 random_{3};
};

TEST_F(HealthTest, NothingThatIsNotFiniteReachesWeightsOrMoments) {
  const int goal = full_counts() ? 5'000 : 2'000;
  int caught = 0, harmless = 0;
  for (const bool accumulate : {false, true}) {
    TinyModel tiny("d_model: 8, num_layers: 1, num_heads: 2, dropout: 0.1", {2, 6});
    tiny.settings.grad_accum = accumulate ? 2 : 1;
    tiny.settings.ema_decay = 0.9;
    const Programs programs = make_programs(*tiny.model, tiny.settings, tiny.shape, backend_);
    Session session(backend_, programs.plans());
    auto begin_anew = [&] {
      initialize(session, *tiny.model, 1);
      for (const std::string& leaf : state_leaves(programs.step()))
        if (leaf.find("layers.") != 0 && session.type(leaf).dtype == DType::f32 &&
            (leaf.starts_with("m.") || leaf.starts_with("v.") || leaf.starts_with("ema.")))
          session.write<float>(leaf,
                               std::vector<float>(static_cast<size_t>(session.type(leaf).numel())));
    };
    begin_anew();
    const float scale = 0.1f, rate = 1e-3f, average = 0.1f, zero = 0, step = 3;
    std::vector<int32_t> tokens(12), next(12);
    for (size_t i = 0; i < 12; ++i) {
      tokens[i] = static_cast<int32_t>(i);
      next[i] = static_cast<int32_t>(i) + 1;
    }
    session.write<int32_t>("tokens", tokens);
    session.write<int32_t>("targets", next);
    session.write<float>("loss_scale", std::span(&scale, 1));
    session.write<float>("learning_rate", std::span(&rate, 1));
    session.write<float>("step", std::span(&step, 1));
    session.write<float>("ema_rate", std::span(&average, 1));
    session.write<int32_t>("random_key", std::vector<int32_t>{1, 2, 3, 4});
    if (accumulate) {
      session.write<float>("gradient.loss", std::span(&zero, 1));
      for (const Parameter& p : tiny.model->parameters())
        session.write<float>("gradient." + p.name,
                             std::vector<float>(static_cast<size_t>(p.shape.numel())));
    }
    auto state = [&] {
      std::map<std::string, std::vector<float>> values;
      for (const auto& [leaf, tensor] : state_tensors(session, programs.step()))
        values[leaf] = tensor.values();
      return values;
    };
    const auto targets = targets_of(programs.step());
    const float values[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < goal / 2; ++i) {
      const Target& t = targets[random_() % targets.size()];
      backend_.injection = {&programs.step(), t.node, t.out,
                            random_() % static_cast<size_t>(t.elements), values[random_() % 3]};
      const auto before = state();
      session.run(0);
      backend_.injection.node = -1;
      const auto after = state();
      const float loss = session.scalar_output(0, "loss"),
                  norm = session.scalar_output(0, "grad_norm");
      const std::string_view op = programs.step().graph[t.node].op->name;
      if (!std::isfinite(loss) || !std::isfinite(norm)) {
        ++caught;
        ASSERT_TRUE(before == after) << "injected into " << op;
      } else {
        ++harmless;  // a value nobody uses, or one that only the clipping factor reads
        for (const auto& [name, tensor] : after)
          for (const float v : tensor)
            ASSERT_TRUE(std::isfinite(v)) << name << ", injected into " << op;
        if (harmless % 16 == 0) begin_anew();
      }
    }
  }
  EXPECT_GT(caught, goal / 2);
  record(
      "NaN and infinities put into activations, gradients, the loss or the norm: no value that is "
      "not finite ever reaches weights, moments or the average",
      caught + harmless,
      fmt::format("{} injections, {} updates refused and nothing changed, {} without effect", goal,
                  caught, harmless));
}

// Injects while the update number is in [from, to), counted by updates that were tried.
class InjectingObserver : public TrainObserver {
 public:
  InjectingObserver(InjectingBackend& backend, const Plan& plan, int64_t from, int64_t to)
      : backend_(backend), plan_(plan), from_(from), to_(to) {
    arm();
  }
  void step(const StepReport&) override { arm_next(); }
  void note(const std::string& text) override {
    notes += text + "\n";
    if (text.find("nothing was written") != text.npos) arm_next();
  }
  std::string notes;

 private:
  void arm_next() {
    ++tried_;
    arm();
  }
  void arm() {
    backend_.injection.plan = &plan_;
    backend_.injection.node = -1;
    if (tried_ < from_ || tried_ >= to_) return;
    for (NodeId id = 0; id < plan_.graph.size(); ++id)
      if (plan_.graph[id].op->name == "attention" && backend_.injection.node < 0)
        backend_.injection.node = id;
  }
  InjectingBackend& backend_;
  const Plan& plan_;
  int64_t from_, to_, tried_ = 0;
};

TEST_F(HealthTest, SkipsThenRollsBackPastTheDataThenGoesOn) {
  Settings s = settings();
  const TrainingData data = data_for(s);
  const Made made(s, data);
  const Programs programs = make_programs(*made.model, s, data.shapes(), backend_);
  {  // two bad updates: skipped, nothing more
    InjectingObserver observer(backend_, programs.step(), 5, 7);
    const auto run = RunFolder::create(folder_, "two");
    const TrainResult r = train(*made.model, s, data, backend_, programs, run.get(), observer);
    EXPECT_EQ(r.skipped_updates, 2);
    EXPECT_EQ(r.rollbacks, 0);
    EXPECT_EQ(r.steps, 24);
    EXPECT_TRUE(std::isfinite(r.last_loss));
  }
  {  // three in a row: back to the checkpoint of update 4, and on
    InjectingObserver observer(backend_, programs.step(), 5, 8);
    const auto run = RunFolder::create(folder_, "three");
    const TrainResult r = train(*made.model, s, data, backend_, programs, run.get(), observer);
    EXPECT_EQ(r.skipped_updates, 3);
    EXPECT_EQ(r.rollbacks, 1);
    EXPECT_EQ(r.steps, 24);
    EXPECT_NE(observer.notes.find("rolled back from update 8 to 4"), std::string::npos)
        << observer.notes;
    EXPECT_NE(observer.notes.find("layers.0.attention: attention"), std::string::npos)
        << observer.notes;
  }
}

TEST_F(HealthTest, DivergenceStopsAndNamesTheNode) {
  Settings s = settings();
  s.health.max_rollbacks = 2;
  const TrainingData data = data_for(s);
  const Made made(s, data);
  const Programs programs = make_programs(*made.model, s, data.shapes(), backend_);
  InjectingObserver observer(backend_, programs.step(), 5, 1000);
  const auto run = RunFolder::create(folder_, "always");
  try {
    train(*made.model, s, data, backend_, programs, run.get(), observer);
    FAIL() << "went on";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::diverged);
    EXPECT_NE(e.fields().where.find("layers.0.attention: attention"), std::string::npos)
        << e.what();
  }
  // The last good state is on disk.
  EXPECT_TRUE(run->checkpoints().newest([](const std::string&) {}));
}

// What is there before the step runs is no matter of its size: with the wrong weights, however they
// came to be, every learning rate diverges.
TEST_F(HealthTest, WeightsThatAreNotFiniteAreNoMatterOfTheLearningRate) {
  Settings s = settings();
  s.health.max_rollbacks = 0;
  const TrainingData data = data_for(s);
  const Made made(s, data);
  const Programs programs = make_programs(*made.model, s, data.shapes(), backend_);
  const Plan& step = programs.step();
  for (const Update& u : step.graph.updates)
    if (step.graph[u.leaf].leaf == Leaf::parameter)
      backend_.injection = {&step, u.value.node, static_cast<size_t>(u.value.out), 0, NAN};
  ASSERT_GE(backend_.injection.node, 0);
  TrainObserver silent;
  try {
    train(*made.model, s, data, backend_, programs, nullptr, silent);
    FAIL() << "went on";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::diverged);
    EXPECT_NE(e.fields().where.find("before the step ran"), std::string::npos) << e.what();
    EXPECT_NE(e.fields().remedy.find("other weights"), std::string::npos) << e.what();
  }
}

TEST_F(HealthTest, SpikesAreFlaggedAndHealthyLossesAreNot) {
  std::normal_distribution<double> noise(0, 1);
  LossHistory history;
  int64_t alarms = 0, flagged = 0;
  constexpr int64_t kHealthy = 100'000, kSpikes = 1'000;
  for (int64_t i = 0; i < kHealthy; ++i)
    alarms +=
        spike_sigma(history, 2.0 + 2.0 / (1 + 1e-4 * static_cast<double>(i)) + 0.1 * noise(random_),
                    6) > 6;
  for (int64_t i = 0; i < kSpikes; ++i) {
    flagged += spike_sigma(history, 20 + noise(random_), 6) > 6;
    for (int k = 0; k < 20; ++k) spike_sigma(history, 2.2 + 0.1 * noise(random_), 6);
  }
  EXPECT_LE(alarms, kHealthy / 10'000);
  EXPECT_GE(flagged, kSpikes * 99 / 100);
  record("loss spikes (ten times the loss) are flagged, healthy noise is not", kHealthy + kSpikes,
         fmt::format("{} of {} spikes flagged, {} false alarms in {} healthy losses", flagged,
                     kSpikes, alarms, kHealthy));
}

// A disk without room while the step is in [from, to).
class FullDisk : public FileSystem {
 public:
  std::atomic<bool> full{false};
  ssize_t write(int fd, const void* bytes, size_t count) override {
    if (!full) return FileSystem::write(fd, bytes, count);
    errno = ENOSPC;
    return -1;
  }
  int fsync(int) override { return 0; }
};

TEST_F(HealthTest, TrainingGoesOnWhileTheDiskIsFull) {
  const Settings s = settings();
  const TrainingData data = data_for(s);
  const Made made(s, data);
  const Programs programs = make_programs(*made.model, s, data.shapes(), backend_);
  FullDisk disk;
  struct Watcher : TrainObserver {
    FullDisk* disk = nullptr;
    std::string notes;
    std::vector<int64_t> saved_steps;
    void step(const StepReport& r) override {
      if (disk) disk->full = r.step >= 7 && r.step < 14;
    }
    void note(const std::string& text) override { notes += text + "\n"; }
    void saved(int64_t step) override { saved_steps.push_back(step); }
  } plain, troubled;
  troubled.disk = &disk;
  const auto one = RunFolder::create(folder_, "plain"), two = RunFolder::create(folder_, "full");
  const TrainResult a = train(*made.model, s, data, backend_, programs, one.get(), plain);
  const WithFileSystem with(disk);
  const TrainResult b = train(*made.model, s, data, backend_, programs, two.get(), troubled);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_FALSE(b.save_error);
  EXPECT_NE(troubled.notes.find("was not saved"), std::string::npos) << troubled.notes;
  EXPECT_NE(troubled.notes.find("No space left"), std::string::npos) << troubled.notes;
  EXPECT_NE(troubled.notes.find("bytes"), std::string::npos);
  EXPECT_LT(troubled.saved_steps.size(), plain.saved_steps.size());
  EXPECT_EQ(troubled.saved_steps.back(), 24);
  for (const char* name : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(digest_of_file(one->path() / "checkpoints/checkpoint-24" / name),
              digest_of_file(two->path() / "checkpoints/checkpoint-24" / name));
}

// Training is much faster than this disk: every update arrives while the state is still being read.
class SlowDisk : public FileSystem {
 public:
  ssize_t write(int fd, const void* bytes, size_t count) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return FileSystem::write(fd, bytes, count);
  }
  int fsync(int) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return 0;
  }
};

TEST_F(HealthTest, CheckpointsHoldTheStateOfTheirStepOnASlowDisk) {
  Settings s = settings();
  s.ema_decay = 0.9;
  s.eval_every = {{3}};
  s.checkpoint.every = {{1}};
  s.checkpoint.keep_last = 100;
  const TrainingData data = data_for(s);
  const Made made(s, data);
  const Programs programs = make_programs(*made.model, s, data.shapes(), backend_);
  TrainObserver silent;
  const auto often = RunFolder::create(folder_, "often");
  {
    SlowDisk disk;
    const WithFileSystem with(disk);
    train(*made.model, s, data, backend_, programs, often.get(), silent);
  }
  // A run that ends with the step saves it when nothing can change any more.
  s.checkpoint.every = {{1000}};
  for (const int64_t step : {1, 5, 6, 23}) {
    s.stop_after = {static_cast<double>(step)};
    const auto ended = RunFolder::create(folder_, "ended");
    train(*made.model, s, data, backend_, programs, ended.get(), silent);
    for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
      const fs::path file = fmt::format("checkpoints/checkpoint-{}/{}", step, name);
      EXPECT_EQ(digest_of_file(often->path() / file), digest_of_file(ended->path() / file)) << file;
    }
  }
}

TEST_F(HealthTest, LogLinesTellAllTheTimeOfTheirSteps) {
  Settings s = settings();
  s.log_interval = 4;
  s.eval_every = {{3}};
  s.sample_length = 2;
  s.sample_every = {{5}};
  const TrainingData data = data_for(s);
  const Made made(s, data);
  const Programs programs = make_programs(*made.model, s, data.shapes(), backend_);
  struct Watcher : TrainObserver {
    double seconds = 0;
    int64_t last = 0;
    void step(const StepReport& r) override {
      seconds += r.step_seconds * static_cast<double>(r.step - last);
      last = r.step;
    }
  } watcher;
  const TrainResult result = train(*made.model, s, data, backend_, programs, nullptr, watcher);
  EXPECT_EQ(watcher.last, s.max_steps);
  int64_t updates = 0;
  for (const Owner owner : {Owner::forward, Owner::backward, Owner::optimizer})
    updates += result.ledger.ns(owner);
  EXPECT_GE(watcher.seconds, static_cast<double>(updates) * 1e-9);
  EXPECT_LE(watcher.seconds,
            result.seconds - static_cast<double>(result.ledger.ns(Owner::eval)) * 1e-9);
}

}  // namespace
}  // namespace millrace
