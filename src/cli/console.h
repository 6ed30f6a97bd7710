// What a training run shows while it works: a bar on a terminal, plain lines elsewhere. On standard
// error.
#pragma once
#include <string>

#include "train/trainer.h"

namespace millrace {

class Console : public TrainObserver {
 public:
  // `format` is runtime.log_format.
  Console(const std::string& format, std::optional<double> entropy);
  ~Console() override;
  void step(const StepReport& report) override;
  void epoch(const EpochReport& report) override;
  void evaluated(int64_t step, const Metrics& metrics, bool best) override;
  void sampled(int64_t step, const std::string& text) override;
  void saved(int64_t step) override;
  void note(const std::string& text) override;

 private:
  void line(const std::string& text);  // above the bar
  enum class Format { bar, plain, json, none } format_;
  bool colour_;
  std::optional<double> entropy_;
  int64_t last_drawn_ns_ = 0, last_line_ns_ = 0;
  bool bar_shown_ = false;
};

// The time budget as a table, by phase, component and op, with shares of a ceiling that was
// measured.
std::string ledger_report(const TrainResult& result, const Ceiling& ceiling);

}  // namespace millrace
