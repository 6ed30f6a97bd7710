// What a backend is: it chooses kernels when a Plan is made, holds memory, and runs Plans.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/ledger.h"
#include "graph/plan.h"

namespace millrace {

// A block of device memory.
class Arena {
 public:
  virtual ~Arena() = default;
  virtual std::byte* data() = 0;
  virtual int64_t bytes() const = 0;
};

// Host memory through which inputs reach a device of its own memory: filled while the device works,
// sent before the run that reads them.
class Staging {
 public:
  virtual ~Staging() = default;
  virtual std::byte* data() = 0;  // holds what was sent last
  virtual void send() = 0;
};

// Numbers on their way from the device.
class Late {
 public:
  virtual ~Late() = default;
  virtual std::vector<float> wait() = 0;
  virtual bool is_there() const { return true; }  // there is nothing to wait for
};

// A Plan bound to memory, ready to run.
class Executable {
 public:
  virtual ~Executable() = default;
  // Runs every node once, or puts them on the device's queue: whatever reads results waits for
  // them. The ledger, when given, gets the time of each, of a device when settle() is called;
  // `before_update`, when given, is called before the first node of the optimizer: until then the
  // state stays as it is.
  virtual void run(Ledger* ledger, const std::function<void()>& before_update) = 0;
  // Node by node, for finding faults: `after` is called when a node's results stand in memory;
  // false ends the run.
  virtual void run_nodes(const std::function<bool(NodeId)>& after) = 0;
  // Runs that are over since the last call: adds what the device worked to `phase_ns`, and the time
  // of nodes to the ledger they were run with. False: there were none.
  virtual bool settle(std::span<int64_t>) { return false; }
  virtual std::string note() const { return {}; }  // what a user should know about how it runs
  // Kernels that a captured run starts; 0 where none was captured.
  virtual int64_t kernels() const { return 0; }
};

// What a device says of itself while it works, as far as it does.
struct DeviceVitals {
  std::optional<double> watts, megahertz;  // the clock of its multiprocessors
  std::optional<double> joules;            // since its driver was loaded
  std::optional<std::string> slowed;       // why its clock is held down; empty: it is not
  std::optional<int64_t> bytes;            // of its memory, taken by this process
  std::optional<int64_t> others_bytes;     // by others; where they cannot be told apart, at first
  // Others have more than what an idle desktop or a monitor holds.
  bool shared() const { return others_bytes.value_or(0) > int64_t{1} << 30; }
};

// What measurements hold for: the kind of device, and the libraries and driver that it runs with.
struct DeviceKind {
  std::string device, made_with;
};

struct BackendOptions {
  // A step is captured once and replayed, where the device can. Otherwise it is launched node by
  // node, each waited for: a fault has a name.
  bool capture = true;
  int64_t runs_at_once = 1;  // of one plan, in one replay, where it captures
};

class Backend : public KernelChooser {
 public:
  virtual std::string name() const = 0;
  virtual DeviceKind kind() const { return {name(), ""}; }
  virtual bool on_host() const { return true; }       // its arenas are memory of this process
  virtual int64_t memory_bytes() const { return 0; }  // of a device that is not,
  virtual int64_t room_bytes() const { return memory_bytes(); }  // and what of it others leave
  // What it computes in, and what is taken when nobody says.
  virtual bool computes(Precision precision) const { return precision == Precision::fp32; }
  virtual Precision usual_precision() const { return Precision::fp32; }
  // Takes seconds.
  virtual Ceiling measure_ceiling(Precision) { return {}; }
  virtual std::optional<DeviceVitals> vitals() const { return {}; }
  // What a run takes of a device's memory beside its arenas, for context, libraries and so many
  // captured graphs: as last measured on this machine, and the way to tell what a run took.
  virtual std::optional<int64_t> overhead_bytes(Precision, int64_t /*graphs*/) const { return {}; }
  virtual void note_overhead(Precision, int64_t /*bytes*/) {}
  virtual bool failed() const { return false; }  // nothing can be done on it any more
  // The algorithms chosen by measurement so far, and the way to choose the same ones again: another
  // algorithm sums in another order.
  virtual std::string choices() const = 0;
  virtual void pin_choices(const std::string& choices) = 0;
  virtual std::unique_ptr<Arena> allocate(int64_t bytes) = 0;
  // So many runs may be put off until they are started together: their results are late for as
  // long.
  virtual int64_t runs_at_once() const { return 1; }
  // Null: inputs are written where they are read. `ring` has room for the inputs of as many runs as
  // are started together.
  virtual std::unique_ptr<Staging> stage(std::byte* /*inputs*/, int64_t /*bytes*/,
                                         std::byte* /*ring*/) {
    return nullptr;
  }
  // `place[b]` is where buffer b of the plan lives.
  virtual std::unique_ptr<Executable> load(const Plan& plan, std::span<std::byte* const> place) = 0;
  // f32 numbers, read after all that was started before; at once, unless the device can do it
  // later.
  virtual std::unique_ptr<Late> fetch(std::span<const std::byte* const> numbers);
  virtual void copy_in(std::byte* device, std::span<const std::byte> host) = 0;
  virtual void copy_out(std::span<std::byte> host, const std::byte* device) = 0;
};

}  // namespace millrace
