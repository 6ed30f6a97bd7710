// Algorithms chosen by timing, remembered on disk for this kind of device: key -> choice, one line
// each. The same order of choice as on the CPU (cpu/gemm.h): pinned ones of a resumed run, then
// remembered ones, then timing.
#pragma once
#include <functional>
#include <map>
#include <string>

#include "core/file.h"

namespace millrace::cuda {

class Choices {
 public:
  explicit Choices(fs::path file);
  // The choice for `key`; `measure` is asked when none is known and timing is allowed. Empty: take
  // what the rule says.
  std::string find(const std::string& key, const std::function<std::string()>& measure);
  void allow_timing(bool allowed) { may_time_ = allowed; }

  std::string used() const;              // as lines of text
  void pin(const std::string& choices);  // lines that are not choices are passed over

 private:
  using Table = std::map<std::string, std::string>;
  static void read(const std::string& text, Table& table);
  static std::string text_of(const Table& table);

  fs::path file_;
  bool may_time_ = true;
  Table remembered_, used_;
};

}  // namespace millrace::cuda
