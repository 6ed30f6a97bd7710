// The sub-commands. Each adds itself to the parser and returns its exit code through the callback.
#pragma once
#include <string>
#include <vector>

#include "cli/given.h"
#include "cli/load.h"
#include "train/beam_search.h"
#include "train/generate.h"
#include "train/text_evaluation.h"

namespace millrace {

struct TrainArguments {
  RunRequest request;
  std::string run_name;    // --run-name
  int64_t max_steps = -1;  // --max-steps
  bool resume = false;     // --resume, with or without a value
  std::string resume_from;
  std::string command;  // as it was typed, for run.json
};
int train_command(TrainArguments arguments);

struct PlanArguments {
  RunRequest request;
  std::string memory;  // --memory, "" = no limit
  std::string device;  // --device: as the key `device`, or one that is not here; "" = the config's
  bool grid = false, why = false, json = false;
};
int plan_command(const PlanArguments& arguments);

struct ProfileArguments {
  RunRequest request;
  int64_t steps = 40;  // --steps
  bool json = false;
};
int profile_command(const ProfileArguments& arguments);

struct DoctorArguments {
  RunRequest request;
  std::string time_budget = "5m", memory, fail_on;  // --time-budget, --memory, --fail-on
  bool quick = false;                               // --quick: no trials
  bool allow_busy = false;                          // --allow-busy: beside other work
  bool everything = false;                          // tune: all that can be tried
  bool json = false;
};
int doctor_command(const DoctorArguments& arguments);

struct DataArguments {
  RunRequest request;
  bool json = false;
};
int data_stats_command(const DataArguments& arguments);
int data_prepare_command(const DataArguments& arguments);

struct EvalArguments {
  std::string model;                   // a run, a checkpoint or a folder
  std::vector<std::string> overrides;  // a.b=c
  std::string split = "validation";    // or test
  bool json = false;
  TextEvaluation texts;  // of data of pairs
  Given given;
};
int eval_command(const EvalArguments& arguments);

struct RunsArguments {
  std::string folder = "runs";
  bool json = false;
};
int runs_command(const RunsArguments& arguments);

struct WatchArguments {
  std::string run = "latest";  // folder or name
  bool once = false, json = false;
};
int watch_command(const WatchArguments& arguments);

struct CompareArguments {
  std::string first, second;   // folders or names
  std::string max_regression;  // --max-regression, "" = not asked for: 5 %
  bool json = false;
};
int compare_command(const CompareArguments& arguments);

struct GenerateArguments {
  std::string folder;                     // a checkpoint, a Hugging Face folder, or a run folder
  std::string prompt, prompt_ids, input;  // one of them; input: a file of prompts
  std::string field;                      // of an input with named fields: the prompt
  std::string class_column;               // of an input of trajectories: not read
  bool ids = false;                       // tokens as numbers instead of text
  std::string device = "auto", precision = "auto";
  GenerateOptions options;
  BeamOptions beam;     // a beam of 0 draws
  int64_t at_once = 0;  // sources; 0: as many as suit the device
  Given given;
};
int generate_command(const GenerateArguments& arguments);

struct ConvertArguments {
  std::string from;           // import: a Hugging Face folder; export: also a run or a checkpoint
  std::string to;             // a folder, or a file for GGUF; only an empty folder may be there
  std::string format;         // hf or gguf; empty: as the ending of `to` has it
  std::string dtype = "f32";  // of matrices: f32, f16 or bf16
  bool is_import = false;
};
int convert_command(const ConvertArguments& arguments);

struct ScoreArguments {
  std::string hypotheses, references;  // files with a text on each line
  std::vector<std::string> metrics;    // --metric, none: all
  bool stem = false, per_line = false, json = false;
};
int score_command(const ScoreArguments& arguments);

// Prints docs/CONFIG.md ("config") or docs/OPS.md ("ops"): pages generated from the schema and the
// op cards.
int docs_command(const std::string& page);

}  // namespace millrace
