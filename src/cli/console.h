// What a training run shows while it works: a bar on a terminal, plain lines elsewhere. On standard
// error.
#pragma once
#include <string>

#include "cli/status_line.h"
#include "train/trainer.h"

namespace millrace {

class Console : public TrainObserver {
 public:
  // `step` of `total` updates are done.
  Console(const Settings& settings, std::optional<double> entropy, int64_t step, int64_t total);
  void updated(const UpdateReport& report, Ledger& ledger) override;
  void step(const StepReport& report) override;
  void epoch(const EpochReport& report) override;
  void evaluating(const char* what, int64_t done, int64_t all) override;
  void evaluated(int64_t step, const Metrics& metrics, bool best) override;
  void sampled(int64_t step, const std::string& text) override;
  void saved(int64_t step) override;
  void note(const std::string& text) override;

 private:
  void line(const std::string& text);  // above the bar
  std::string bar_text(int64_t step) const;
  enum class Format { bar, plain, json, none } format_;
  bool colour_;
  std::optional<double> entropy_;
  int64_t total_, log_interval_;
  StepReport report_;  // the last one; of step 0: there was none
  int64_t report_ns_ = now_ns(), last_line_ns_ = 0;
  StatusLine bar_;
};

// The time budget as a table, by phase, component and op, with shares of a ceiling that was
// measured.
std::string ledger_report(const TrainResult& result, const Ceiling& ceiling);

}  // namespace millrace
