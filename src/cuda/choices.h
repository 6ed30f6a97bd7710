// Algorithms chosen by timing, and other things measured, remembered on disk for this kind of
// device: key -> value, one line each. The same order of choice as on the CPU (cpu/gemm.h): pinned
// ones of a resumed run, then remembered ones, then timing.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/file.h"

namespace millrace::cuda {

class Choices {
 public:
  explicit Choices(fs::path file);
  // The choice for `key`; `measure` is asked when none is known and timing is allowed. Empty: take
  // what the rule says. Where `measure` has no answer, `untimed` counts until the next start.
  std::string find(const std::string& key, const std::function<std::string()>& measure,
                   const std::string& untimed = "");
  bool allow_timing(bool allowed) { return std::exchange(may_time_, allowed); }
  // While on, what is not known is neither timed nor kept.
  bool set_sizes_only(bool on) { return std::exchange(sizes_only_, on); }
  bool may_time() const { return may_time_; }

  std::string used() const;              // as lines of text
  void pin(const std::string& choices);  // lines that are not choices are passed over

  // A number, not negative, that was measured and is no choice: no part of used(), so of no
  // checkpoint. One within 1 % of what is remembered is not worth writing the file again.
  std::optional<int64_t> number(const std::string& key) const;
  void note_number(const std::string& key, int64_t value);

 private:
  using Table = std::map<std::string, std::string>;
  static void read(const std::string& text, Table& table);
  static std::string text_of(const Table& table);
  // Into the file, beside what other processes have put there since; of choices, the first stays.
  // What counts from now on.
  std::string remember(const std::string& key, const std::string& value, bool first_stays);

  fs::path file_;
  bool may_time_ = true, sizes_only_ = false;
  Table remembered_, used_;
};

}  // namespace millrace::cuda
