// What the terminal shows while a data set is made: a bar with the time left, on a terminal only.
#pragma once
#include <cstdint>
#include <string>

#include "data/dataset.h"

namespace millrace {

class DataProgress : public DataObserver {
 public:
  DataProgress();
  ~DataProgress() override;  // takes the bar away
  void progress(const char* stage, int64_t bytes_done, int64_t bytes_all) override;
  void note(const std::string& text) override;

 private:
  void clear();
  bool terminal_;
  bool shown_ = false;
  std::string stage_;
  int64_t stage_begin_ = 0, last_drawn_ = 0;
};

}  // namespace millrace
