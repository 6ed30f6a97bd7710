// What the terminal shows while a data set is made: a bar with the time left, on a terminal only.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "cli/status_line.h"
#include "data/dataset.h"

namespace millrace {

class DataProgress : public DataObserver {
 public:
  void progress(const char* stage, int64_t bytes_done, int64_t bytes_all) override;
  void note(const std::string& text) override;

 private:
  StatusLine line_;
  std::optional<Waiting> waiting_;
  std::string stage_;
  int64_t stage_begin_ = 0;
};

}  // namespace millrace
