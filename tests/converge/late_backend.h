// A device that gives the numbers of several runs back together, as one does that starts them
// together: when somebody waits for one of them.
#pragma once
#include <memory>
#include <vector>

#include "tests/graph/poisoned_backend.h"

namespace millrace {

class LateBackend : public PoisonedBackend {
 public:
  explicit LateBackend(int64_t at_once)
      : PoisonedBackend(cpu::best_isa()), at_once_(static_cast<size_t>(at_once)) {}
  bool on_host() const override { return false; }
  int64_t runs_at_once() const override { return static_cast<int64_t>(at_once_); }
  std::unique_ptr<Executable> load(const Plan& plan, std::span<std::byte* const> place) override {
    auto inner = PoisonedBackend::load(plan, place);
    if (loaded_++ > 0) return inner;  // the first is the step's
    return std::make_unique<Timed>(std::move(inner), *this);
  }
  std::unique_ptr<Late> fetch(std::span<const std::byte* const> numbers) override {
    if (groups_.empty() || groups_.back()->count == at_once_ || groups_.back()->over)
      groups_.push_back(std::make_shared<Group>());
    ++groups_.back()->count;
    most_waiting = std::max(most_waiting, ++waiting_);
    return std::make_unique<Together>(PoisonedBackend::fetch(numbers), groups_.back(), *this);
  }

  bool ends_while_settling = false;  // the next group is over when the time of one was taken
  int64_t settled = 0;               // updates whose time was taken
  int64_t most_waiting = 0;          // updates that nobody had read, at the most

 private:
  struct Group {
    size_t count = 0;
    bool over = false;
  };
  class Together : public Late {
   public:
    Together(std::unique_ptr<Late> late, std::shared_ptr<Group> group, LateBackend& device)
        : late_(std::move(late)), group_(std::move(group)), device_(device) {}
    ~Together() override { --device_.waiting_; }
    std::vector<float> wait() override {
      group_->over = true;
      return late_->wait();
    }
    bool is_there() const override { return group_->over; }

   private:
    std::unique_ptr<Late> late_;
    std::shared_ptr<Group> group_;
    LateBackend& device_;
  };
  class Timed : public Executable {
   public:
    Timed(std::unique_ptr<Executable> inner, LateBackend& device)
        : inner_(std::move(inner)), device_(device) {}
    void run(Ledger* ledger, const std::function<void()>& before_update) override {
      inner_->run(ledger, before_update);
    }
    void run_nodes(const std::function<bool(NodeId)>& after) override { inner_->run_nodes(after); }
    bool settle(std::span<int64_t>) override {
      device_.settled = 0;
      for (const auto& group : device_.groups_) {
        if (group->over) {
          device_.settled += static_cast<int64_t>(group->count);
          continue;
        }
        group->over = device_.ends_while_settling;
        break;
      }
      return false;
    }
    std::string note() const override { return inner_->note(); }

   private:
    std::unique_ptr<Executable> inner_;
    LateBackend& device_;
  };

  size_t at_once_;
  int64_t waiting_ = 0, loaded_ = 0;
  std::vector<std::shared_ptr<Group>> groups_;
};

}  // namespace millrace
