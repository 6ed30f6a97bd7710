// Another process, run to its end: what it printed, how it ended, how long it took.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

struct ChildResult {
  int exit_code = -1;  // -1: a signal ended it
  int signal = 0;
  bool timed_out = false;  // it was ended here
  std::string out, err;
  double seconds = 0;
  int64_t peak_bytes = 0;  // resident
};

// The program of this process, to be run again.
std::string own_program();
// Standard input is empty. After `limit_seconds` the process is killed. Error when it cannot be
// started.
ChildResult run_child(const std::vector<std::string>& command, double limit_seconds);

}  // namespace millrace
