// The CPU backend with arenas that are filled with a byte of the test's choice and fenced behind
// their end: a kernel that reads what nobody wrote gives NaN, one that writes too far breaks the
// fence, and how far an arena was touched can be read off.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "cpu/cpu_backend.h"

namespace millrace {

class PoisonedArena : public Arena {
 public:
  explicit PoisonedArena(int64_t bytes)
      : bytes_(bytes), storage_(static_cast<size_t>(bytes) + kFence + kAlignment, kFenceByte) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    begin_ = storage_.data() + (kAlignment - address % kAlignment) % kAlignment;
    fill(std::byte{0xFF});
  }
  std::byte* data() override { return begin_; }
  int64_t bytes() const override { return bytes_; }

  // 0xFF is a NaN as a float and -1 as an index.
  void fill(std::byte value) {
    filled_ = value;
    std::fill_n(begin_, bytes_, value);
  }
  bool fence_intact() const {
    return std::all_of(begin_ + bytes_, begin_ + bytes_ + kFence,
                       [](std::byte b) { return b == kFenceByte; });
  }
  // One past the last byte that is not what fill() left there.
  int64_t touched_bytes() const {
    int64_t end = bytes_;
    while (end > 0 && begin_[end - 1] == filled_) --end;
    return end;
  }

 private:
  static constexpr size_t kFence = 4096;
  static constexpr std::byte kFenceByte{0xA5};
  int64_t bytes_;
  std::vector<std::byte> storage_;
  std::byte* begin_;
  std::byte filled_{};
};

class PoisonedBackend : public Backend {
 public:
  explicit PoisonedBackend(cpu::Isa isa, bool reference_only = false)
      : inner_(cpu::make_backend(isa, reference_only)) {}

  std::string name() const override { return inner_->name(); }
  std::string choices() const override { return inner_->choices(); }
  void pin_choices(const std::string& choices) override { inner_->pin_choices(choices); }
  KernelChoice choose(const OpCard& op, const OpSite& site) override {
    return inner_->choose(op, site);
  }
  std::unique_ptr<Arena> allocate(int64_t bytes) override {
    auto arena = std::make_unique<PoisonedArena>(bytes);
    arenas_.push_back(arena.get());
    return arena;
  }
  std::unique_ptr<Executable> load(const Plan& plan, std::span<std::byte* const> place) override {
    return inner_->load(plan, place);
  }
  void copy_in(std::byte* device, std::span<const std::byte> host) override {
    inner_->copy_in(device, host);
  }
  void copy_out(std::span<std::byte> host, const std::byte* device) override {
    inner_->copy_out(host, device);
  }

  // Of the session made last: it asks for the state first, then for the scratch.
  PoisonedArena& state() { return *arenas_[arenas_.size() - 2]; }
  PoisonedArena& scratch() { return *arenas_.back(); }

 private:
  std::unique_ptr<Backend> inner_;
  std::vector<PoisonedArena*> arenas_;
};

}  // namespace millrace
