#include "train/training_data.h"

#include <algorithm>
#include <array>

#include "data/long_records.h"

namespace millrace {

DataOptions data_options(const Settings& settings, const Takes& takes) {
  const DataSettings& s = settings.data;
  auto in_folder = [&](std::vector<std::string> paths) {
    for (std::string& path : paths)
      if (!path.starts_with("builtin:")) path = (fs::path(s.folder) / path).string();
    return paths;
  };
  DataOptions o;
  o.train = in_folder(s.train);
  o.validation = in_folder(s.validation);
  o.test = in_folder(s.test);
  o.train_target = in_folder(s.train_target);
  o.validation_target = in_folder(s.validation_target);
  o.test_target = in_folder(s.test_target);
  o.format = s.format;
  o.fields = s.fields;
  o.validation_fraction = s.validation_fraction;
  o.test_fraction = s.test_fraction;
  o.tokenizer = {s.tokenizer, s.vocab_size, s.min_frequency, s.lower_case};
  o.max_chars = s.max_chars;
  o.max_records = s.max_records;
  o.grammar_chars = s.grammar_chars;
  o.skip_bad_records = s.on_bad_record == "skip";
  o.joined_pairs = s.separator == "none";
  o.class_column = {s.class_column, takes.classes};
  o.seed = static_cast<uint64_t>(settings.seed);
  o.threads = static_cast<int>(settings.threads);
  return o;
}

BatchOptions batch_options(const Dataset& set, const Settings& settings, Takes takes) {
  const DataSettings& s = settings.data;
  BatchOptions o;
  // Sequences of one length have nothing to gain from packing.
  const bool one_length = takes.states && settings.max_length == takes.parts.least();
  o.batching = resolved_batching(s.batching, set, takes.packed_rows && !one_length);
  o.states = {takes.parts, settings.max_length, s.window_stride, s.rotate,
              s.on_bad_record == "skip"};
  if (takes.pairs) o.max_source = settings.max_source_length;
  o.open_words = takes.open_words;
  o.batch_size = settings.batch_size;
  o.batch_tokens = s.batch_tokens;
  o.sequences = {settings.max_length, s.chunking, s.chunk_overlap};
  o.random_windows = s.sampling == "random";
  o.seed = static_cast<uint64_t>(settings.seed);
  // A batch of pairs is one position.
  for (const std::vector<int64_t>& row : settings.length_curriculum) {
    MR_CHECK(row.size() == 3, "a stage of {} numbers", row.size());
    o.stages.push_back({row[0] * settings.grad_accum, row[1], row[2]});
  }
  return o;
}

TrainingData make_training_data(Dataset set, const Settings& settings, Takes takes,
                                DataObserver& observer, SplitName evaluated) {
  TrainingData data;
  data.set = std::move(set);
  data.evaluated = evaluated;
  data.parts = takes.parts;
  const TokenizerOptions tokenizer = data_options(settings).tokenizer;
  if (tokenizer.is_file() && !takes.states)
    data.companions = tokenizer_companions(fs::path(tokenizer.kind).parent_path());
  BatchOptions o = batch_options(data.set, settings, takes);
  const bool trains = data.set.has(SplitName::train);
  if (settings.data.on_long_record == "error" && !takes.states) {
    DataOptions source = data_options(settings);
    if (!trains) source.only = evaluated;
    for (const SplitName split : {SplitName::train, evaluated})
      refuse_long_records(data.set, split, o, source);
  }
  if (trains || !data.set.has(evaluated))  // of nothing at all it is refused
    data.batches = make_batches(data.set, SplitName::train, o, observer);
  if (data.set.has(evaluated)) {
    o.seed.reset();
    o.stages.clear();
    o.window_context = settings.eval_context;
    // Fewer batches are for validating often; a test is of all there is.
    if (evaluated == SplitName::validation) o.limit = settings.max_eval_batches;
    data.validation = make_batches(data.set, evaluated, o, observer);
  }
  return data;
}

ProgramShapes TrainingData::shapes() const {
  const auto& evaluates = validation ? validation->shapes() : batches->shapes();
  return {batches ? batches->shapes() : std::vector<BatchShape>(), evaluates};
}

std::vector<int32_t> TrainingData::sample_prompt(const Settings& settings, Takes takes) const {
  std::vector<int32_t> prompt;
  if (prompt_form(settings, takes).start) prompt.push_back(set.start_id);
  if (!settings.sample_prompt.empty()) {
    set.tokenizer().encode(settings.sample_prompt, {"sample.prompt"}, prompt);
    if (set.fields == 2 && settings.data.separator == "end") prompt.push_back(set.end_id);
    return prompt;
  }
  const Split& split = set.validation.size() > 0 ? set.validation : set.train;
  int64_t count = std::min({int64_t{16}, settings.max_length, split.size()});
  if (set.fields == 2 && split.tokens) {  // a source, for which the model writes the target
    std::array<int64_t, 2> begins;
    split.tokens->record_begins(0, begins);
    count = std::min(begins[1] - begins[0],
                     takes.pairs ? settings.max_source_length : settings.max_length);
  }
  std::vector<int32_t> first(static_cast<size_t>(count));
  if (count > 0) split.tokens->read(split.begin, first);
  prompt.insert(prompt.end(), first.begin(), first.end());
  return prompt;
}

RunLength TrainingData::run_length(const Settings& settings) const {
  const auto micro_batches = static_cast<double>(settings.grad_accum);
  return millrace::run_length(settings,
                              static_cast<double>(batches->positions_per_epoch()) /
                                  (static_cast<double>(batches->stride()) * micro_batches),
                              batches->mean_places() * batches->useful_share() * micro_batches);
}

}  // namespace millrace
