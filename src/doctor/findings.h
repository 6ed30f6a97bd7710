// What a profile and a config say about where time is lost, and what could be done about it. A
// remedy is a change of settings that can be tried; what it may do to the mathematics is part of
// it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "train/settings.h"

namespace millrace {

enum class Maths {
  same_bits,       // the same losses, bit by bit
  reporting,       // the same weights; fewer numbers about them
  other_rounding,  // the same sums in another order or precision
  other_order,     // other examples together in an update
  other_problem,   // another model or optimisation: advised, never done for the user
};
std::string_view maths_name(Maths maths);

struct Remedy {
  std::string id;     // remedies with the same one exclude each other
  std::string title;  // "4 sequences at a time, accumulated 4 times"
  std::vector<std::string> overrides;
  Maths maths = Maths::same_bits;
  double ceiling = 0;      // the share of the time that it could save at most
  bool is_choice = false;  // no finding points at it
};

enum class Severity { none, low, medium, high };
// By the share of the time that could be had back: from 1, 5 and 20 % on.
Severity severity_of(double recoverable);
std::string_view severity_name(Severity severity);

struct Finding {
  std::string id;        // input.wait
  std::string title;     // "the step waits for its batches"
  std::string evidence;  // "41.0 % of the time; 0 loaders"
  double recoverable = 0;
  std::vector<Remedy> remedies;
  // After a search: why `recoverable` is still an estimate; empty: it was measured.
  std::string open = {};
};

struct Situation {
  const Settings& settings;
  const nlohmann::ordered_json& profile;  // of `millrace profile --json`
  bool on_host = true;
  int64_t cores = 1;
  int64_t vocabulary = 0, words = 0;  // of the model, of the tokenizer; 0: no words
  std::string batching;               // as resolved
  bool packable = false;              // the model can take packed rows
  std::string saving;                 // what is computed twice or cut, to fit the memory; or ""
  bool limit_is_given = false;        // the memory's limit is no choice of the config
  std::string fast_precision;         // what the device is fast in
  double fast_flops = 0;              // the ceiling in it; 0: not known
};

// Overrides of one or more remedies, and what keeps validation at as many sequences as they ask for
// where they change the size of a batch: its limit counts batches.
std::vector<std::string> with_same_validation(const Settings& settings,
                                              std::vector<std::string> overrides);

// Worst first.
std::vector<Finding> examine(const Situation& situation);
// What the findings point at, then what is only a choice: nothing is wrong without it.
std::vector<Remedy> remedies_of(const std::vector<Finding>& findings, const Situation& situation);
// Every change that can be tried, whether something points at it or not: for `tune`.
std::vector<Remedy> knobs(const Situation& situation);

}  // namespace millrace
