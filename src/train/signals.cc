#include "train/signals.h"

#include <pthread.h>

namespace millrace {
namespace {

std::atomic<bool> stop{false}, save{false};

bool is_ignored(int signal) {
  struct sigaction now {};
  return sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

// As if nobody had taken it.
void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  std::raise(signal);
}

}  // namespace

TrainingSignals::TrainingSignals() {
  stop = save = false;
  sigemptyset(&taken_);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&taken_, signal);
  if (!is_ignored(SIGHUP)) sigaddset(&taken_, SIGHUP);  // nohup
  struct sigaction silent {};
  silent.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &silent, &pipe_);
  pthread_sigmask(SIG_BLOCK, &taken_, &before_);
  thread_ = std::thread([this] { wait(); });
}

TrainingSignals::~TrainingSignals() {
  over_ = true;
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  sigaction(SIGPIPE, &pipe_, nullptr);
}

void TrainingSignals::wait() {
  for (int signal = 0; sigwait(&taken_, &signal) == 0 && !over_;) {
    if (signal == SIGUSR1)
      save = true;
    else if (stop.exchange(true))
      end_by(signal);
  }
}

bool stop_asked() { return stop; }
bool take_save_request() { return save.exchange(false); }

}  // namespace millrace
