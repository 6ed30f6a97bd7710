#include "train/signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

#include "core/clock.h"

namespace millrace {
namespace {

bool comes(const std::function<bool()>& what) {
  for (const int64_t begin = now_ns(); seconds_since(begin) < 10;)
    if (what()) return true;
  return false;
}

// Signals are sent in processes of their own: threads of other tests would be ended by them.
TEST(TrainingSignalsDeathTest, AskToStopAndToSave) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const TrainingSignals signals;
        bool good = !stop_asked();
        kill(getpid(), SIGUSR1);
        good = good && comes(take_save_request) && !take_save_request() && !stop_asked();
        kill(getpid(), SIGTERM);
        _exit(good && comes(stop_asked) ? 3 : 4);
      },
      testing::ExitedWithCode(3), "");
}

// A frame of a handler on the stack of a thread that computes is what must not be.
TEST(TrainingSignals, NoOtherThreadSeesThem) {
  const TrainingSignals signals;
  for (const bool here : {true, false}) {
    sigset_t blocked;
    auto look = [&] { pthread_sigmask(SIG_BLOCK, nullptr, &blocked); };
    if (here)
      look();
    else
      std::thread(look).join();
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1})
      EXPECT_EQ(sigismember(&blocked, signal), 1) << signal;
  }
}

TEST(TrainingSignals, GiveBackWhatTheyTook) {
  { const TrainingSignals signals; }
  sigset_t blocked;
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1})
    EXPECT_EQ(sigismember(&blocked, signal), 0) << signal;
}

TEST(TrainingSignalsDeathTest, TheSecondOneEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const TrainingSignals signals;
        kill(getpid(), SIGINT);
        if (comes(stop_asked)) kill(getpid(), SIGTERM);
        comes([] { return false; });
      },
      testing::KilledBySignal(SIGTERM), "");
}

TEST(TrainingSignalsDeathTest, ATerminalThatIsClosedAsksToStopUnlessNobodyCares) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const TrainingSignals signals;
        kill(getpid(), SIGHUP);
        _exit(comes(stop_asked) ? 3 : 4);
      },
      testing::ExitedWithCode(3), "");
  EXPECT_EXIT(
      {
        std::signal(SIGHUP, SIG_IGN);  // nohup
        const TrainingSignals signals;
        kill(getpid(), SIGHUP);
        kill(getpid(), SIGUSR1);
        _exit(comes(take_save_request) && !stop_asked() ? 3 : 4);
      },
      testing::ExitedWithCode(3), "");
}

}  // namespace
}  // namespace millrace
