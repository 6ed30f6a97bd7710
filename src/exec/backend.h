// What a backend is: it chooses kernels when a Plan is made, holds memory, and runs Plans.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

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

// A Plan bound to memory, ready to run.
class Executable {
 public:
  virtual ~Executable() = default;
  // Runs every node once. The ledger, when given, gets the time of each; `before_update`, when
  // given, is called before the first node of the optimizer: until then the state stays as it is.
  virtual void run(Ledger* ledger, const std::function<void()>& before_update) = 0;
  // Node by node, for finding faults: `after` is called when a node's results stand in memory;
  // false ends the run.
  virtual void run_nodes(const std::function<bool(NodeId)>& after) = 0;
};

class Backend : public KernelChooser {
 public:
  virtual std::string name() const = 0;
  // The algorithms chosen by measurement so far, and the way to choose the same ones again: another
  // algorithm sums in another order.
  virtual std::string choices() const = 0;
  virtual void pin_choices(const std::string& choices) = 0;
  virtual std::unique_ptr<Arena> allocate(int64_t bytes) = 0;
  // `place[b]` is where buffer b of the plan lives.
  virtual std::unique_ptr<Executable> load(const Plan& plan, std::span<std::byte* const> place) = 0;
  virtual void copy_in(std::byte* device, std::span<const std::byte> host) = 0;
  virtual void copy_out(std::span<std::byte> host, const std::byte* device) = 0;
};

}  // namespace millrace
