// Token ids that training reads from any place, by any number of threads: on disk (token_store.h),
// or in memory for a program that makes its own.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/error.h"

namespace millrace {

class TokenArray {
 public:
  virtual ~TokenArray() = default;
  virtual int64_t tokens() const = 0;
  virtual int64_t records() const = 0;
  // Ids [begin, begin + out.size()).
  virtual void read(int64_t begin, std::span<int32_t> out) const = 0;
  // Where records [first, first + out.size()) begin; the one behind the last begins at tokens().
  virtual void record_begins(int64_t first, std::span<int64_t> out) const = 0;
};

class TokensInMemory : public TokenArray {
 public:
  // One record unless their ends are given.
  explicit TokensInMemory(std::vector<int32_t> ids, std::vector<int64_t> record_ends = {})
      : ids_(std::move(ids)), begins_{0} {
    if (record_ends.empty()) record_ends.push_back(std::ssize(ids_));
    begins_.insert(begins_.end(), record_ends.begin(), record_ends.end());
    MR_CHECK(begins_.back() == std::ssize(ids_), "records end at {} of {} tokens", begins_.back(),
             ids_.size());
  }
  int64_t tokens() const override { return std::ssize(ids_); }
  int64_t records() const override { return std::ssize(begins_) - 1; }
  void read(int64_t begin, std::span<int32_t> out) const override {
    MR_CHECK(begin >= 0 && std::ssize(out) <= tokens() - begin, "{} ids at {} of {}", out.size(),
             begin, tokens());
    std::copy_n(ids_.begin() + begin, out.size(), out.begin());
  }
  void record_begins(int64_t first, std::span<int64_t> out) const override {
    MR_CHECK(first >= 0 && first + std::ssize(out) <= std::ssize(begins_), "records {} at {} of {}",
             out.size(), first, records());
    std::copy_n(begins_.begin() + first, out.size(), out.begin());
  }

 private:
  std::vector<int32_t> ids_;
  std::vector<int64_t> begins_;
};

}  // namespace millrace
