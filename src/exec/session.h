// Session: several Plans over one memory. Leaves (parameters, optimizer state, inputs) are shared
// by name; the scratch arena is as large as the hungriest plan needs. Everything is allocated once,
// here.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/backend.h"

namespace millrace {

// How the leaves of several plans share one block: known before anything is allocated. An input
// may have another shape in each plan; it has room for the largest.
struct SessionLayout {
  std::map<std::string, int64_t> offset;  // leaf name -> place in the state
  std::map<std::string, TensorType> type;
  int64_t input_bytes = 0;  // inputs come first
  int64_t ring = 0;         // behind the leaves: inputs of runs that are started together
  int64_t state_bytes = 0;
  int64_t scratch_bytes = 0;
  int64_t total_bytes() const { return state_bytes + scratch_bytes; }
};
SessionLayout layout_session(std::span<const Plan* const> plans, int64_t runs_at_once = 1);

class Session {
 public:
  // The plans must outlive the session.
  Session(Backend& backend, std::vector<const Plan*> plans);

  void run(size_t plan, Ledger* ledger = nullptr, const std::function<void()>& before_update = {}) {
    send_inputs();
    executables_[plan]->run(ledger, before_update);
  }
  std::string note(size_t plan) const { return executables_[plan]->note(); }
  int64_t kernels(size_t plan) const { return executables_[plan]->kernels(); }

  // Runs the plan again, node by node, and says which node is the first whose result is not finite:
  // "layers.3.attention: attention, output 0". Empty: none.
  struct Nonfinite {
    std::string text;
    Leaf leaf = Leaf::none;  // what was not finite before the plan ran
  };
  Nonfinite first_nonfinite(size_t plan);

  const TensorType& type(const std::string& leaf) const;
  bool has(const std::string& leaf) const { return layout_.type.contains(leaf); }
  template <typename T>
  void write(const std::string& leaf, std::span<const T> values) {
    MR_CHECK(static_cast<int64_t>(values.size_bytes()) == type(leaf).bytes(),
             "leaf {}: {} bytes for {}", leaf, values.size_bytes(), type(leaf).str());
    write_bytes(leaf, std::as_bytes(values), 0);
  }
  // An input of one plan: others may have it in another shape.
  template <typename T>
  void write_input(size_t plan, const std::string& leaf, std::span<const T> values) {
    const TensorType& wanted = input_type(plan, leaf);
    MR_CHECK(static_cast<int64_t>(values.size_bytes()) == wanted.bytes(),
             "input {}: {} bytes for {}", leaf, values.size_bytes(), wanted.str());
    write_bytes(leaf, std::as_bytes(values), 0);
  }
  // Elements from `begin` on.
  template <typename T>
  void write_part(const std::string& leaf, int64_t begin, std::span<const T> values) {
    write_bytes(leaf, std::as_bytes(values), begin * static_cast<int64_t>(sizeof(T)));
  }
  template <typename T>
  std::vector<T> read(const std::string& leaf) const {
    std::vector<T> values(static_cast<size_t>(type(leaf).numel()));
    read_bytes(leaf, std::as_writable_bytes(std::span(values)), 0);
    return values;
  }
  template <typename T>
  void read_part(const std::string& leaf, int64_t begin, std::span<T> values) const {
    read_bytes(leaf, std::as_writable_bytes(values), begin * static_cast<int64_t>(sizeof(T)));
  }
  std::vector<float> output(size_t plan, const std::string& name) const;
  std::vector<int32_t> integer_output(size_t plan, const std::string& name) const;
  float scalar_output(size_t plan, const std::string& name) const;
  // The same for several, without waiting for them.
  std::unique_ptr<Late> fetch(size_t plan, std::span<const std::string> names) const;
  // Gives the ledger the time of runs that are over, where a device keeps it.
  void settle(Ledger& ledger);

  // What was allocated, as the arenas report it.
  int64_t allocated_bytes() const { return state_->bytes() + scratch_->bytes(); }
  const SessionLayout& layout() const { return layout_; }

 private:
  void send_inputs();
  const TensorType& input_type(size_t plan, const std::string& leaf) const;
  void write_bytes(const std::string& leaf, std::span<const std::byte> bytes, int64_t begin);
  void read_bytes(const std::string& leaf, std::span<std::byte> bytes, int64_t begin) const;
  int64_t place_of(const std::string& leaf, int64_t begin, size_t bytes) const;
  std::vector<float> floats_at(const TensorType& type, const std::byte* place) const;
  const std::byte* output_place(size_t plan, const std::string& name, TensorType& type) const;

  Backend& backend_;
  std::vector<const Plan*> plans_;
  SessionLayout layout_;
  std::unique_ptr<Arena> state_, scratch_;
  std::unique_ptr<Staging> staging_;            // of the inputs, when the device wants it
  bool inputs_written_ = false;                 // since they were sent
  std::vector<std::vector<std::byte*>> place_;  // per plan and buffer
  std::vector<std::unique_ptr<Executable>> executables_;
};

}  // namespace millrace
