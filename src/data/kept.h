// Something in the cache that is checked as it is read. A block that is not what was written is
// noticed when it is first touched, which may be in the middle of a run: it is then made again, of
// the same files, and reading goes on.
#pragma once
#include <functional>
#include <memory>
#include <mutex>

#include "data/checked_file.h"

namespace millrace {

template <typename T>
class Kept {
 public:
  using Pointer = std::shared_ptr<const T>;
  // Told what was wrong with what, gives what is to be read instead.
  using MakeAgain = std::function<Pointer(const Error&, const T& damaged)>;
  Kept(Pointer made, MakeAgain make_again)
      : current_(std::move(made)), make_again_(std::move(make_again)) {}

  Pointer current() const {
    const std::lock_guard lock(mutex_);
    return current_;
  }
  // What `read` gives of it. By any number of threads.
  template <typename Read>
  auto read(Read read) const {
    const Pointer seen = current();
    try {
      return read(*seen);
    } catch (const Error& error) {
      if (!is_damaged_cache(error)) throw;
      const std::lock_guard lock(mutex_);
      if (current_ == seen) current_ = make_again_(error, *seen);  // or it is mended already
    }
    return read(*current());
  }

 private:
  mutable std::mutex mutex_;
  mutable Pointer current_;
  MakeAgain make_again_;
};

}  // namespace millrace
