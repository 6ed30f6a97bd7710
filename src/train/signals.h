// Signals a training run answers: SIGINT, SIGTERM and, unless it is ignored, SIGHUP ask it to save
// and stop, SIGUSR1 to save. A second request to stop ends the process at once; the last checkpoint
// is whole at any moment.
#pragma once
#include <atomic>
#include <csignal>
#include <thread>

namespace millrace {

// Takes the signals while it lives: a thread of its own waits for them, and no other sees them. A
// handler would not do: oneDNN's products (2.6 to 3.10) move the stack pointer into the heap, where
// the frame of a handler overwrites what others have there. Threads that are there before it are
// not covered, so make it first. Whoever reads what is printed may go away meanwhile (SIGPIPE):
// that is no reason to end. One at a time.
class TrainingSignals {
 public:
  TrainingSignals();
  ~TrainingSignals();
  TrainingSignals(const TrainingSignals&) = delete;
  TrainingSignals& operator=(const TrainingSignals&) = delete;

 private:
  void wait();

  sigset_t taken_, before_;
  struct sigaction pipe_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

bool stop_asked();
bool take_save_request();  // true once for each SIGUSR1 that was not answered yet

}  // namespace millrace
