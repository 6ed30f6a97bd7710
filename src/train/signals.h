// Signals a training run answers: SIGINT and SIGTERM ask it to save and stop, SIGUSR1 to save. A
// second SIGINT or SIGTERM ends the process at once; the last checkpoint is whole at any moment.
#pragma once
#include <csignal>

namespace millrace {

// Takes the signals while it lives. One at a time.
class TrainingSignals {
 public:
  TrainingSignals();
  ~TrainingSignals();
  TrainingSignals(const TrainingSignals&) = delete;
  TrainingSignals& operator=(const TrainingSignals&) = delete;

 private:
  struct sigaction interrupt_, terminate_, user_;
};

bool stop_asked();
bool take_save_request();  // true once for each SIGUSR1 that was not answered yet

}  // namespace millrace
