// What `doctor` and `tune` found, and how they say it: for a terminal, as Markdown and as JSON; as
// a page with pictures: diagnosis_page.h.
#pragma once
#include <array>
#include <optional>

#include "doctor/search.h"
#include "exec/ledger.h"

namespace millrace {

// A change of the problem, and what it would bring by prediction.
struct Advice {
  std::string change, meaning;  // "model.num_layers=3", "half the layers"
  double ratio = 1;             // of tokens/s
  int64_t bytes_saved = 0;
};

struct Diagnosis {
  std::string config;   // as named on the command line
  std::string command;  // all of it
  std::string machine, precision, data;
  int64_t parameters = 0;  // of the model
  bool on_host = true;
  std::string date;
  Measured profile;               // of the config as it is
  std::string timeline;           // of that measurement, an SVG; empty: none
  std::vector<Finding> findings;  // see settle()
  std::optional<SearchResult> searched;
  std::vector<std::string> notes;  // what disturbs the measurement, what was not looked at
  std::string diff;                // of the config, where something was kept
  std::vector<Advice> advice;      // largest gain first

  // What was tried replaces what was estimated: the share of the time that each finding's best
  // remedy gives back, worst first.
  void settle();
  Severity worst() const;
  std::string verdict() const;  // one sentence
};

// What every report says in the same words.
std::string gain_text(const Gain& gain);  // "+12.3 % +-0.4"
std::array<double, kOwners> budget_of(const Measured& m);
// "x1.92 predicted: half the layers (model.num_layers=3), 40.0 MiB less"
std::vector<std::string> advice_lines(const Diagnosis& d);
struct TriedRow {
  std::string what, speed, gain, memory, maths, verdict;
};
// How the losses of something faster that rounds otherwise or orders otherwise compare.
std::vector<std::string> loss_lines(const Diagnosis& d);
// "2m 05s for 1,500 updates at this pace"
std::string run_text(const Diagnosis& d);
std::vector<TriedRow> tried_rows(const std::vector<Tried>& tried);

std::string diagnosis_text(const Diagnosis& d);      // for a terminal
std::string diagnosis_markdown(const Diagnosis& d);  // report.md
nlohmann::ordered_json diagnosis_json(const Diagnosis& d);

}  // namespace millrace
