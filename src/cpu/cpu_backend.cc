#include "cpu/cpu_backend.h"

#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/text.h"
#include "cpu/gemm.h"
#include "cpu/machine.h"
#include "cpu/memory_ceiling.h"
#include "exec/bound_node.h"

namespace millrace::cpu {
namespace {

// Pages come from the system on first touch; huge ones where it gives them.
class CpuArena : public Arena {
 public:
  explicit CpuArena(int64_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    void* p = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
      throw Error({.code = ErrorCode::does_not_fit,
                   .what = "the system refused " + human_bytes(bytes) + " of memory",
                   .expected = "the arena of the plan",
                   .got = std::strerror(errno),
                   .remedy = "a smaller batch, or --memory with a limit the machine has"});
    madvise(p, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // advice: failing is harmless
    data_ = static_cast<std::byte*>(p);
  }
  ~CpuArena() override {
    if (data_) munmap(data_, static_cast<size_t>(bytes_));
  }
  std::byte* data() override { return data_; }
  int64_t bytes() const override { return bytes_; }

 private:
  int64_t bytes_;
  std::byte* data_ = nullptr;
};

const Kernel* pick(const OpCard& op, const OpSite& site, Isa isa, bool reference_only,
                   std::vector<std::string>* declined) {
  if (reference_only) return nullptr;
  for (const Kernel& k : kernels_of(op.name, isa)) {
    const std::string reason = k.decline ? k.decline(site) : "";
    if (reason.empty()) return &k;
    if (declined) declined->push_back(fmt::format("{}: {}", k.name, reason));
  }
  return nullptr;
}

class CpuExecutable : public Executable {
 public:
  CpuExecutable(const Plan& plan, std::span<std::byte* const> place, Isa isa, bool reference_only)
      : plan_(plan) {
    std::vector<BoundNode> nodes = bind_nodes(plan, place);
    update_ = first_of_update(plan, nodes);
    for (BoundNode& node : nodes) {
      const OpSite site = node.site(plan);
      const Kernel* kernel = pick(*plan.graph[node.id].op, site, isa, reference_only, nullptr);
      std::shared_ptr<const void> prepared;
      if (kernel && kernel->prepare) prepared = kernel->prepare(site);
      steps_.push_back({std::move(node), kernel, std::move(prepared)});
    }
  }

  void run(Ledger* ledger, const std::function<void()>& before_update) override {
    if (ledger) ++ledger->times_of(plan_).runs;
    run_steps(0, update_, ledger);
    if (update_ == steps_.size()) return;
    if (before_update) before_update();
    run_steps(update_, steps_.size(), ledger);
  }

  void run_nodes(const std::function<bool(NodeId)>& after) override {
    for (const Step& step : steps_) {
      run_step(step);
      if (!after(step.node.id)) return;
    }
  }

 private:
  struct Step {
    BoundNode node;
    const Kernel* kernel;  // null: the reference loop
    std::shared_ptr<const void> prepared;
  };

  void run_steps(size_t begin, size_t end, Ledger* ledger) {
    if (!ledger) {
      for (size_t i = begin; i < end; ++i) run_step(steps_[i]);
      return;
    }
    NodeTimes& times = ledger->times_of(plan_);
    int64_t phase_ns[3] = {}, before = now_ns();
    for (size_t i = begin; i < end; ++i) {
      run_step(steps_[i]);
      const auto id = steps_[i].node.id;
      const int64_t after = now_ns();
      times.ns[static_cast<size_t>(id)] += after - before;
      phase_ns[static_cast<size_t>(plan_.graph[id].phase)] += after - before;
      if (Timeline* t = ledger->timeline)
        t->add({before, after, kComputeLane, plan_.graph[id].op->name,
                phase_name(plan_.graph[id].phase), plan_.graph.path(id)});
      before = after;
    }
    ledger->add_run(phase_ns, before);
  }

  void run_step(const Step& s) {
    const BoundNode& n = s.node;
    if (s.kernel)
      s.kernel->run({n.site(plan_), n.in, n.out, n.workspace, s.prepared.get()});
    else
      plan_.graph[n.id].op->reference_f32({n.site(plan_), n.in, n.out});
  }

  const Plan& plan_;
  std::vector<Step> steps_;
  size_t update_ = 0;  // the first step of the optimizer
};

class CpuBackend : public Backend {
 public:
  CpuBackend(Isa isa, bool reference_only) : isa_(isa), reference_only_(reference_only) {}
  std::string name() const override { return "cpu"; }
  DeviceKind kind() const override { return {machine_name(), machine_fingerprint()}; }
  bool computes(Precision precision) const override {
    return precision == Precision::fp32 ||
           (precision == Precision::bf16 && isa_ == Isa::avx512 && multiplies_bf16());
  }
  bool stores_halves() const override { return false; }
  Ceiling measure_ceiling(Precision precision) override {
    return {measure_gemm_ceiling(precision == Precision::bf16), measure_memory_ceiling(),
            measure_cache_ceilings()};
  }
  std::string choices() const override { return gemm_choices(); }
  void pin_choices(const std::string& choices) override { gemm_pin_choices(choices); }

  KernelChoice choose(const OpCard& op, const OpSite& site) override {
    KernelChoice choice;
    const Kernel* k = pick(op, site, isa_, reference_only_, &choice.declined);
    if (!k) {
      MR_CHECK(op.reference_f32, "{} has no kernel", op.name);
      choice.name = "reference";
      return choice;
    }
    choice.name = k->name;
    if (k->detail) choice.name += fmt::format(" [{}]", k->detail(site));
    if (k->workspace_bytes) choice.workspace_bytes = k->workspace_bytes(site);
    return choice;
  }
  bool allow_timing(bool allowed) override { return gemm_set_timing(allowed); }
  bool set_sizes_only(bool on) override {
    const bool before = !gemm_measuring();
    gemm_set_measuring(!on);
    return before;
  }
  std::unique_ptr<Arena> allocate(int64_t bytes) override {
    return std::make_unique<CpuArena>(bytes);
  }
  std::unique_ptr<Executable> load(const Plan& plan, std::span<std::byte* const> place) override {
    return std::make_unique<CpuExecutable>(plan, place, isa_, reference_only_);
  }
  void copy_in(std::byte* device, std::span<const std::byte> host) override {
    if (!host.empty()) std::memcpy(device, host.data(), host.size());
  }
  void copy_out(std::span<std::byte> host, const std::byte* device) override {
    if (!host.empty()) std::memcpy(host.data(), device, host.size());
  }

 private:
  Isa isa_;
  bool reference_only_;
};

}  // namespace

std::unique_ptr<Backend> make_backend(Isa isa, bool reference_only) {
  return std::make_unique<CpuBackend>(isa, reference_only);
}

}  // namespace millrace::cpu
