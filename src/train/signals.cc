#include "train/signals.h"

#include <atomic>

namespace millrace {
namespace {

std::atomic<bool> stop{false}, save{false};
static_assert(std::atomic<bool>::is_always_lock_free);
extern "C" void ask_to_stop(int) { stop = true; }
extern "C" void ask_to_save(int) { save = true; }

}  // namespace

TrainingSignals::TrainingSignals() {
  stop = save = false;
  struct sigaction action {};
  action.sa_handler = ask_to_stop;
  // Reset: the second one is not held up. Restart: a write in progress does not see the signal.
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigaction(SIGINT, &action, &interrupt_);
  sigaction(SIGTERM, &action, &terminate_);
  action.sa_handler = ask_to_save;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, &user_);
}

TrainingSignals::~TrainingSignals() {
  sigaction(SIGINT, &interrupt_, nullptr);
  sigaction(SIGTERM, &terminate_, nullptr);
  sigaction(SIGUSR1, &user_, nullptr);
}

bool stop_asked() { return stop; }
bool take_save_request() { return save.exchange(false); }

}  // namespace millrace
