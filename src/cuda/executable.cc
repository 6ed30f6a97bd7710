#include "cuda/executable.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "cuda/captured.h"
#include "cuda/context.h"
#include "cuda/run_queue.h"
#include "exec/bound_node.h"
#include "exec/lanes.h"

namespace millrace::cuda {

const Kernel* pick_kernel(const OpCard& op, const OpSite& site, Context& context,
                          std::vector<std::string>* declined) {
  for (const Kernel& k : kernels_of(op.name)) {
    const std::string reason = k.decline ? k.decline(site, context) : "";
    if (reason.empty()) return &k;
    if (declined) declined->push_back(fmt::format("{}: {}", k.name, reason));
  }
  return nullptr;
}

std::string op_site_text(const OpSite& site) {
  std::string text;
  for (const TensorType& t : site.in) text += (text.empty() ? "" : ", ") + t.str();
  text += " ->";
  for (const TensorType& t : site.out) text += " " + t.str();
  return text;
}

namespace {

class CudaExecutable : public Executable, private Joinable {
 public:
  CudaExecutable(const Plan& plan, std::span<std::byte* const> place, Context& context,
                 bool capture)
      : plan_(plan), context_(context), capture_(capture), waits_(!capture) {
    std::vector<BoundNode> nodes = bind_nodes(plan, place);
    const size_t update = first_of_update(plan, nodes);
    for (BoundNode& node : nodes) {
      if (&node == nodes.data() + update) update_ = steps_.size();
      const OpCard& op = *plan.graph[node.id].op;
      const Kernel* kernel = pick_kernel(op, node.site(plan), context, nullptr);
      MR_CHECK(kernel, "{}: planned, and now without a kernel", op.name);
      Step step{std::move(node), kernel, nullptr, NodePart::whole};
      if (kernel->prepare) step.prepared = kernel->prepare(call(step), context);
      if (kernel->run_end) {
        step.part = NodePart::begin;
        steps_.push_back(step);
        step.part = NodePart::end;
      }
      steps_.push_back(std::move(step));
    }
    if (update == nodes.size()) update_ = steps_.size();
    for (size_t i = 0; i <= steps_.size(); ++i) after_.emplace_back();
  }
  ~CudaExecutable() override {
    if (queue_) queue_->forget(*this);
  }

  void run(Ledger* ledger, const std::function<void()>& before_update) override {
    if (queue_) {
      // The first ones are alone, and so are those that are captured with events.
      const bool joins = ledger && !before_update && capture_ && runs_ >= 2 &&
                         runs_ < next_profile_ && !queue_->is_at_rest();
      if (joins) return queue_->put_off(*this, *ledger);
      queue_->come_first();
    }
    run_now(ledger, before_update);
  }

  void run_now(Ledger* ledger, const std::function<void()>& before_update) override {
    const cudaStream_t stream = context_.stream();
    const bool split = before_update && update_ < steps_.size();
    // The first run is launched plainly: libraries load their kernels, and a fault has a name. So
    // is one that waits in its middle, which happens once for a checkpoint. Some of the others are
    // captured with an event behind every node, to know where the time goes.
    const bool plain = !capture_ || runs_ == 0 || split;
    // One such run at a time: the next one would write the same events.
    const bool profiled =
        ledger && !split && runs_ >= next_profile_ &&
        std::none_of(pending_.begin(), pending_.end(), [](const Run& r) { return r.profiled; });
    if (profiled) next_profile_ = plain && capture_ ? runs_ + 1 : runs_ + kProfileEvery;
    Run* run = nullptr;
    if (ledger && ledger->timeline) clock_.set(stream);
    if (ledger) {
      if (pending_.size() == kPending) {
        MR_CUDA(cudaEventSynchronize(pending_.front().ends->end.get()));
        settle_one(banked_);
      }
      pending_.push_back({&ring_[timed_++ % kPending], ledger, profiled});
      run = &pending_.back();
      MR_CUDA(cudaEventRecord(run->ends->start.get(), stream));
    }
    if (plain) {
      launch(0, update_, profiled);
      if (split) before_update();
      launch(update_, steps_.size(), profiled);
    } else {
      replay(profiled ? profiled_ : whole_, profiled);
    }
    if (run) MR_CUDA(cudaEventRecord(run->ends->end.get(), stream));
    ++runs_;
  }

  bool settle(std::span<int64_t> phase_ns) override {
    bool any = queue_ && queue_->settle(phase_ns);
    for (size_t p = 0; p < banked_.size(); ++p) {
      any = any || banked_[p] > 0;
      phase_ns[p] += std::exchange(banked_[p], 0);
    }
    for (; !pending_.empty() && pending_.front().ends->end.is_over(); any = true)
      settle_one(phase_ns);
    return any;
  }

  void run_nodes(const std::function<bool(NodeId)>& after) override {
    if (queue_) queue_->come_first();
    for (const Step& step : steps_) {
      run_step(step);
      MR_CUDA(cudaStreamSynchronize(context_.stream()));
      if (step.part != NodePart::begin && !after(step.node.id)) return;
    }
  }

  std::string note() const override { return note_; }
  int64_t kernels() const override { return whole_.kernels(); }

 private:
  struct Step {
    BoundNode node;
    const Kernel* kernel;
    std::shared_ptr<const void> prepared;
    NodePart part;
  };

  Call call(const Step& s) const { return call(s, context_.stream()); }
  Call call(const Step& s, cudaStream_t stream) const {
    const BoundNode& n = s.node;
    return {n.site(plan_), n.in, n.out, n.workspace, s.prepared.get(), stream};
  }

  void run_step(const Step& s) { run_step(s, context_.stream()); }
  void run_step(const Step& s, cudaStream_t stream) {
    (s.part == NodePart::end ? s.kernel->run_end : s.kernel->run)(call(s, stream));
    const cudaError_t status = cudaGetLastError();
    if (status == cudaSuccess) return;
    throw Error(
        {.what = fmt::format("a CUDA kernel could not be launched: {}", cudaGetErrorString(status)),
         .where = name_of(s),
         .remedy = "device: cpu runs the same plan; this is worth a report"});
  }

  std::string name_of(const Step& s) const {
    const Node& n = plan_.graph[s.node.id];
    return fmt::format("{}: {} by {}, {}", plan_.graph.path(s.node.id), n.op->name, s.kernel->name,
                       op_site_text(s.node.site(plan_)));
  }
  void wait_for(const Step& s) const {
    const cudaError_t status = cudaStreamSynchronize(context_.stream());
    if (status == cudaSuccess) return;
    throw Error({.what = fmt::format("the device failed: {} ({})", cudaGetErrorString(status),
                                     cudaGetErrorName(status)),
                 .where = name_of(s),
                 .remedy = "device: cpu runs the same plan; this is worth a report"});
  }

  // The oldest run, which is over.
  void settle_one(std::span<int64_t> phase_ns) {
    const Run run = pending_.front();
    pending_.pop_front();
    if (run.profiled) read_profile();
    account(*run.ledger, run.ledger->timeline ? clock_.ns_of(run.ends->start) : 0,
            run.ends->end.ns_since(run.ends->start), phase_ns);
  }
  void account(Ledger& ledger, int64_t begin_ns, int64_t ns, std::span<int64_t> phase_ns) override {
    if (alone_ns_.empty()) alone_ns_.assign(steps_.size(), 1);
    NodeTimes& times = ledger.times_of(plan_);
    times.alone_ns.resize(times.ns.size());
    ++times.runs;
    // One node behind the other, each as long as its share, also those that run beside others. None
    // does that in the update: there each takes its own time.
    const auto middle = alone_ns_.begin() + static_cast<std::ptrdiff_t>(update_);
    const double all = static_cast<double>(ns),
                 updating = std::accumulate(middle, alone_ns_.end(), 0.0),
                 others = std::accumulate(alone_ns_.begin(), middle, 0.0);
    const bool apart = overlaps_ && others > 0 && updating < all;
    const double of_others =
                     apart ? (all - updating) / others : all / std::max(others + updating, 1.0),
                 of_update = apart ? 1 : of_others;
    int64_t at = begin_ns;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const auto taken = static_cast<int64_t>(alone_ns_[i] * (i < update_ ? of_others : of_update));
      const NodeId id = steps_[i].node.id;
      if (begin_ns > 0)
        ledger.timeline->add({at, at + taken, kComputeLane, plan_.graph[id].op->name,
                              phase_name(plan_.graph[id].phase), plan_.graph.path(id)});
      at += taken;
      times.ns[static_cast<size_t>(id)] += taken;
      times.alone_ns[static_cast<size_t>(id)] +=
          std::max(taken, static_cast<int64_t>(alone_ns_[i]));
      phase_ns[static_cast<size_t>(plan_.graph[id].phase)] += taken;
    }
  }

  void launch_captured() override { launch_beside(); }
  void has_run(int64_t times, const std::string& note) override {
    runs_ += times;
    if (!note.empty()) note_ = note;
  }

  // Steps [begin, end); `profiled`: with an event behind each.
  void launch(size_t begin, size_t end, bool profiled) {
    if (profiled && begin == 0) mark(0);
    for (size_t i = begin; i < end; ++i) {
      run_step(steps_[i]);
      if (waits_ && !capturing_) wait_for(steps_[i]);
      if (profiled) mark(i + 1);
    }
  }
  // All of them, on the side where the plan allows it.
  void launch_beside() {
    std::vector<LaneNode> nodes;
    for (const Step& step : steps_) nodes.push_back(lane_node(plan_, step.node, step.part));
    const Lanes lanes(nodes);
    overlaps_ = lanes.any_beside();
    if (!overlaps_) return launch(0, steps_.size(), false);
    const cudaStream_t main = context_.stream(), side = context_.side_stream();
    // Events of a capture are edges of its graph and nothing else: they are not needed afterwards.
    const Event forked(cudaEventDisableTiming), joined(cudaEventDisableTiming);
    std::map<size_t, Event> done;
    MR_CUDA(cudaEventRecord(forked.get(), main));
    MR_CUDA(cudaStreamWaitEvent(side, forked.get()));
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Lanes::Step& step = lanes[i];
      const cudaStream_t lane = step.beside ? side : main;
      if (step.waits_for) MR_CUDA(cudaStreamWaitEvent(lane, done.at(*step.waits_for).get()));
      run_step(steps_[i], lane);
      if (!step.is_waited_for) continue;
      MR_CUDA(
          cudaEventRecord(done.try_emplace(i, cudaEventDisableTiming).first->second.get(), lane));
    }
    MR_CUDA(cudaEventRecord(joined.get(), side));
    MR_CUDA(cudaStreamWaitEvent(main, joined.get()));
  }
  void mark(size_t at) {
    // External: also inside a captured graph the event can be asked for its time.
    MR_CUDA(
        cudaEventRecordWithFlags(after_[at].get(), context_.stream(),
                                 capturing_ ? cudaEventRecordExternal : cudaEventRecordDefault));
  }
  void read_profile() {
    alone_ns_.resize(steps_.size());
    for (size_t i = 0; i < steps_.size(); ++i)
      alone_ns_[i] = static_cast<double>(after_[i + 1].ns_since(after_[i]));
  }

  void replay(Captured& captured, bool profiled) {
    if (!captured.ready()) {
      capturing_ = true;
      const std::string reason = captured.capture(context_, 1, [&] {
        if (profiled)
          launch(0, steps_.size(), true);
        else
          launch_beside();
      });
      capturing_ = false;
      if (!reason.empty()) {
        capture_ = false;
        note_ =
            "the step is launched kernel by kernel: it could not be captured as a graph: " + reason;
        return launch(0, steps_.size(), profiled);
      }
    }
    captured.launch(context_.stream());
  }

  // Runs that settle() has not seen: events of a run may be used again when it has.
  static constexpr size_t kPending = 64;
  static constexpr int64_t kProfileEvery = 500;
  struct Ends {
    Event start, end;
  };
  struct Run {
    Ends* ends;
    Ledger* ledger;
    bool profiled;
  };

  const Plan& plan_;
  Context& context_;
  RunQueue* const queue_ = context_.queue;  // null: no run is put off
  ClockPair clock_;
  bool capture_, capturing_ = false;
  bool overlaps_ = false;  // in the captured run, some steps run beside others
  const bool waits_;       // for every node that is launched alone
  std::vector<Step> steps_;
  size_t update_ = 0;  // the first step of the optimizer
  Captured whole_, profiled_;
  std::array<Ends, kPending> ring_;
  std::deque<Run> pending_;
  std::array<int64_t, 3> banked_{};  // of runs that were settled to make room
  std::vector<Event> after_;         // of a profiled run: its start, then behind every node
  std::vector<double> alone_ns_;     // of each step there: one behind the other
  size_t timed_ = 0;
  int64_t runs_ = 0, next_profile_ = 0;
  std::string note_;
};

}  // namespace

std::unique_ptr<Executable> make_executable(const Plan& plan, std::span<std::byte* const> place,
                                            Context& context, bool capture) {
  return std::make_unique<CudaExecutable>(plan, place, context, capture);
}

}  // namespace millrace::cuda
