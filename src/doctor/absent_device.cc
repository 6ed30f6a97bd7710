#include "doctor/absent_device.h"

#include "cpu/cpu_backend.h"
#include "cpu/machine.h"
#include "ops/linear_cross_entropy_sizes.h"

namespace millrace {
namespace {

class AbsentDevice : public Backend {
 public:
  AbsentDevice(const MachineProfile& machine, const BackendOptions& options)
      : machine_(machine),
        options_(options),
        cpu_(machine.on_host ? cpu::make_backend(cpu::best_isa()) : nullptr) {}
  std::string name() const override { return machine_.device; }
  DeviceKind kind() const override { return {machine_.device, machine_.made_with}; }
  bool on_host() const override { return false; }
  int64_t memory_bytes() const override { return machine_.memory_bytes; }
  // Of a CPU only its own profile tells which instructions it has.
  bool computes(Precision p) const override {
    return !cpu_ || p == Precision::fp32 || machine_.find(p);
  }
  Precision usual_precision() const override { return machine_.usual; }
  std::optional<int64_t> overhead_bytes(Precision precision, int64_t) const override {
    const PrecisionProfile* p = machine_.find(precision);
    return p ? p->overhead_bytes : std::nullopt;
  }
  bool stores_halves() const override { return !cpu_; }
  bool runs_beside() const override { return !cpu_; }
  int64_t runs_at_once() const override {
    return !cpu_ && options_.capture ? options_.runs_at_once : 1;
  }
  KernelChoice choose(const OpCard& op, const OpSite& site) override {
    if (cpu_) return cpu_->choose(op, site);
    KernelChoice choice;
    choice.name = "not known here";
    if (op.name == "linear_cross_entropy")
      choice.workspace_bytes = cuda::HeadSizes(site).own_bytes();
    return choice;
  }
  std::string choices() const override { return ""; }
  void pin_choices(const std::string&) override {}

  std::unique_ptr<Arena> allocate(int64_t) override { return not_here<std::unique_ptr<Arena>>(); }
  std::unique_ptr<Executable> load(const Plan&, std::span<std::byte* const>) override {
    return not_here<std::unique_ptr<Executable>>();
  }
  void copy_in(std::byte*, std::span<const std::byte>) override { not_here<void>(); }
  void copy_out(std::span<std::byte>, const std::byte*) override { not_here<void>(); }

 private:
  template <typename T>
  [[noreturn]] static T not_here() {
    MR_CHECK(false, "nothing runs on a device that is not here");
    std::abort();
  }
  MachineProfile machine_;
  BackendOptions options_;
  std::unique_ptr<Backend> cpu_;  // null: of a GPU no kernel is here
};

}  // namespace

std::unique_ptr<Backend> absent_device(const MachineProfile& machine,
                                       const BackendOptions& options) {
  return std::make_unique<AbsentDevice>(machine, options);
}

}  // namespace millrace
