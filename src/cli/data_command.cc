// millrace data: what the data of a config is, before anything trains on it. `stats` shows lengths
// and what padding costs, `prepare` fills the cache.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/data_progress.h"
#include "cli/standard_output.h"
#include "core/clock.h"
#include "core/text.h"
#include "data/bucketing.h"
#include "data/packing.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// One way to make batches of the same sequences.
struct Way {
  std::string name;
  double useful = 1;  // share of places that hold a token
  double places = 0;  // of an epoch
  size_t shapes = 1;  // plans to make
  std::string note = {};
};

// Batches of B sequences drawn at random, padded to the longest of each: the mean length over the
// expected maximum of B lengths.
Way without_buckets(const LengthHistogram& lengths, int64_t B) {
  double count = 0, sum = 0, expected_max = 0, below = 0;
  for (size_t l = 1; l < lengths.count.size(); ++l) {
    count += static_cast<double>(lengths.count[l]);
    sum += static_cast<double>(lengths.count[l]) * static_cast<double>(l);
  }
  size_t shapes = 0;
  for (size_t l = 1; l < lengths.count.size(); ++l) {
    // P(max >= l) is one minus P(all < l).
    expected_max += 1 - std::pow(below / count, static_cast<double>(B));
    below += static_cast<double>(lengths.count[l]);
    shapes += lengths.count[l] > 0 ? 1 : 0;
  }
  return {"no buckets", sum / count / expected_max, expected_max * count, shapes,
          fmt::format("batches of {} as they come, padded to their longest", B)};
}

std::vector<Way> ways(const LengthHistogram& lengths, const Settings& s, bool packable) {
  std::vector<Way> list{without_buckets(lengths, s.batch_size)};
  const BucketOrder buckets(lengths,
                            {.batch_size = s.batch_size, .batch_tokens = s.data.batch_tokens}, 1);
  list.push_back({"buckets",
                  static_cast<double>(buckets.useful()) / static_cast<double>(buckets.places()),
                  static_cast<double>(buckets.places()), buckets.buckets().size(),
                  fmt::format("rows of {} to {}", buckets.buckets().front().length,
                              buckets.buckets().back().length)});
  const PackedOrder packed(lengths, s.max_length, kPackedPerRow, 1);
  list.push_back(
      {"packing", static_cast<double>(packed.useful()) / static_cast<double>(packed.places()),
       static_cast<double>(packed.places()), 1,
       packable ? fmt::format("{} rows of {}", with_commas(packed.rows_per_epoch()), s.max_length)
                : "this model cannot take it"});
  return list;
}

Json json_of(const LengthSummary& s) {
  return {{"count", s.count}, {"tokens", s.sum}, {"min", s.least}, {"mean", s.mean()},
          {"p50", s.median},  {"p99", s.p99},    {"max", s.most}};
}

std::string row_of(const char* name, const LengthSummary& s) {
  return fmt::format("  {:<12} {:>12} {:>14} {:>8} {:>9.1f} {:>8} {:>8} {:>8}\n", name,
                     with_commas(s.count), with_commas(s.sum), s.least, s.mean(), s.median, s.p99,
                     s.most);
}

// Bars of records by length, the longest one forty signs wide, in eighths of a sign.
std::string histogram(const SequenceSummary& s, int64_t max_length) {
  constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  int64_t most = 1;
  for (const int64_t bar : s.bars) most = std::max(most, bar);
  std::string out;
  for (size_t i = 0; i < s.bars.size(); ++i) {
    const int64_t low = static_cast<int64_t>(i) * s.bar_width + 1,
                  high = (static_cast<int64_t>(i) + 1) * s.bar_width;
    const bool last = i + 1 == s.bars.size() && s.before.most > high;
    const auto eighths = static_cast<int64_t>(
        std::ceil(320.0 * static_cast<double>(s.bars[i]) / static_cast<double>(most)));
    std::string bar;
    for (int64_t n = 0; n < eighths / 8; ++n) bar += "█";
    bar += kEighths[eighths % 8];
    out += fmt::format("  {:>6} - {:<6} {:>10}  {}{}\n", low,
                       last ? fmt::format("{}", s.before.most) : fmt::format("{}", high),
                       with_commas(s.bars[i]), bar,
                       low <= max_length && max_length <= (last ? s.before.most : high)
                           ? fmt::format("  <- training.max_length {}", max_length)
                           : "");
  }
  return out;
}

// What was read, whatever became of it.
std::string source_text(const Dataset& data) {
  std::string out = fmt::format("data         {}, {}\n", data.source, human_bytes(data.file_bytes));
  if (data.has_trajectories()) {
    out += fmt::format("paths        {} training, {} validation, {} test; {} bad\n",
                       with_commas(data.counts.records[0]), with_commas(data.counts.records[1]),
                       with_commas(data.counts.records[2]), with_commas(data.counts.bad));
    out += fmt::format(
        "points       {} training, {} numbers each{}\n",
        with_commas(data.trajectories[0]->points()), data.trajectories[0]->channels(),
        data.classes() > 0 ? fmt::format(" and one of {} classes", data.classes()) : "");
    return out;
  }
  if (data.records)
    out += fmt::format("records      {} training, {} validation, {} test; {} empty, {} bad\n",
                       with_commas(data.counts.records[0]), with_commas(data.counts.records[1]),
                       with_commas(data.counts.records[2]), with_commas(data.counts.empty),
                       with_commas(data.counts.bad));
  const double chars = static_cast<double>(data.counts.chars[0]),
               tokens = static_cast<double>(data.train.size() +
                                            (data.records ? 0 : data.validation.size()));
  out +=
      fmt::format("tokenizer    {}, vocabulary {}; {:.2f} characters a token\n",
                  data.tokenizer_name, with_commas(data.vocab_size), chars / std::max(1.0, tokens));
  return out;
}

Json source_json(const Dataset& data) {
  return {{"source", data.source},
          {"bytes", data.file_bytes},
          {"characters", data.counts.chars[0]},
          {"tokenizer", data.tokenizer_name},
          {"vocab_size", data.vocab_size},
          {"tokens",
           {{"train", data.train.size()},
            {"validation", data.validation.size()},
            {"test", data.test.size()}}},
          {"records",
           {{"train", data.counts.records[0]},
            {"validation", data.counts.records[1]},
            {"test", data.counts.records[2]},
            {"empty", data.counts.empty},
            {"bad", data.counts.bad}}},
          {"key", data.key},
          {"cache", data.folder.string()}};
}

// The three ways as a table; `chosen` is this config's.
void add_ways(const LengthHistogram& lengths, const Settings& s, bool packable,
              const std::string& chosen, std::string& out, Json& json) {
  const auto list = ways(lengths, s, packable);
  out += fmt::format("\nwhat padding costs\n\n  {:<12} {:>8} {:>14} {:>7} {:>8}\n", "", "useful",
                     "places/epoch", "shapes", "work");
  for (const Way& w : list) {
    out += fmt::format("  {:<12} {:>6.2f} % {:>14} {:>7} {:>7.2f}x  {}{}\n", w.name, 100 * w.useful,
                       with_commas(std::llround(w.places)), w.shapes, w.places / list[0].places,
                       w.note, w.name == chosen ? "  <- this config" : "");
    json["batching"][w.name] = {
        {"useful_share", w.useful}, {"places_per_epoch", w.places}, {"shapes", w.shapes}};
  }
}

void add_lengths(const SequenceSummary& summary, const char* what, const char* unit,
                 int64_t max_length, std::string& out, Json& json) {
  out += fmt::format("\nlengths of the training {}, in {}\n\n{}\n", what, unit,
                     histogram(summary, max_length));
  out += fmt::format("  {:<12} {:>12} {:>14} {:>8} {:>9} {:>8} {:>8} {:>8}\n", "", "sequences",
                     unit, "min", "avg", "p50", "p99", "max");
  out += row_of(what, summary.before);
  json["lengths"] = {{what, json_of(summary.before)},
                     {"sequences", json_of(summary.after)},
                     {"split", summary.split},
                     {"cut", summary.cut},
                     {"too_short", summary.too_short},
                     {"histogram", {{"bar_width", summary.bar_width}, {"bars", summary.bars}}}};
}

// The batches that training makes, where shapes differ.
void add_batches(const Batches& batches, std::string& out, Json& json) {
  out +=
      fmt::format("batches      {} an epoch, in {} shapes; {:.1f} % of their places hold a token\n",
                  with_commas(batches.batches_per_epoch()), batches.shapes().size(),
                  100 * batches.useful_share());
  json["batches"] = {{"per_epoch", batches.batches_per_epoch()},
                     {"shapes", batches.shapes().size()}};
  json["useful_share"] = batches.useful_share();
}

void add_trajectories(const LoadedRun& run, std::string& out, Json& json) {
  const Dataset& data = run.data.set;
  const Settings& s = run.settings;
  const ValueStore& store = *data.trajectories[0];
  std::vector<int64_t> begins(static_cast<size_t>(store.paths() + 1));
  store.path_begins(0, begins);
  std::map<int64_t, int64_t> counts;
  LengthHistogram lengths;
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    const int64_t length = begins[i + 1] - begins[i];
    ++counts[length];
    const auto places = static_cast<size_t>(std::min(length, s.max_length));
    lengths.count.resize(std::max(lengths.count.size(), places + 1));
    ++lengths.count[places];
  }
  add_lengths(summary_of_lengths(counts), "paths", "points", s.max_length, out, json);
  if (!run.data.batches) return add_ways(lengths, s, true, "", out, json);
  const Batches& batches = *run.data.batches;
  add_batches(batches, out, json);
  if (!batches.cut().empty()) out += fmt::format("cut          {}\n", batches.cut());
  if (batches.shapes()[0].packed) json["rows_per_epoch"] = batches.positions_per_epoch();
}

// Of a model that reads source and target apart.
void add_pairs(const LoadedRun& run, DataObserver& observer, std::string& out, Json& json) {
  const Settings& s = run.settings;
  const PairOptions options = pair_options(batch_options(run.data.set, s, run.model->takes()));
  const PairSummary summary =
      open_pair_index(run.data.set, SplitName::train, options, observer)->current()->summary();
  out += fmt::format("\nlengths of the training pairs, in tokens\n\n");
  out += fmt::format("  {:<12} {:>12} {:>14} {:>8} {:>9} {:>8} {:>8} {:>8}\n", "", "sequences",
                     "tokens", "min", "avg", "p50", "p99", "max");
  out += row_of("sources", summary.source) + row_of("targets", summary.target);
  out += fmt::format(
      "  {} sources are longer than training.max_source_length {}, {} targets than "
      "training.max_length {}: they lose their end\n",
      with_commas(summary.cut_sources), s.max_source_length, with_commas(summary.cut_targets),
      s.max_length);
  add_batches(*run.data.batches, out, json);
  json["lengths"] = {{"sources", json_of(summary.source)},
                     {"targets", json_of(summary.target)},
                     {"cut_sources", summary.cut_sources},
                     {"cut_targets", summary.cut_targets}};
}

}  // namespace

int data_stats_command(const DataArguments& arguments) {
  DataProgress progress;
  const auto run = load_data(arguments.request, progress);
  const Settings& s = run->settings;
  const Dataset& data = run->data.set;
  Json json = source_json(data);
  std::string out = source_text(data);
  if (data.has_trajectories()) {
    add_trajectories(*run, out, json);
  } else if (run->model->takes().pairs) {
    add_pairs(*run, progress, out, json);
  } else if (!data.records) {
    const int64_t windows = run->data.batches->positions_per_epoch();
    out += fmt::format("tokens       {} training, {} validation\n", with_commas(data.train.size()),
                       with_commas(data.validation.size()));
    out += fmt::format(
        "batches      windows of {}: {} an epoch, {} updates; 100 % of their places hold a token\n",
        s.max_length, with_commas(windows),
        with_commas(static_cast<int64_t>(run->data.run_length(s).steps_per_epoch)));
    json["windows"] = windows;
    json["useful_share"] = 1.0;
  } else {
    const auto index =
        open_sequence_index(data, SplitName::train,
                            {s.max_length, s.data.chunking, s.data.chunk_overlap}, progress)
            ->current();
    const SequenceSummary& summary = index->summary();
    add_lengths(summary, "records", "tokens", s.max_length, out, json);
    out += row_of("chunks", summary.after);
    if (data.fields == 2)
      out += fmt::format(
          "  {} pairs are longer than training.max_length {} and lose the front of "
          "their source\n",
          with_commas(summary.cut), s.max_length);
    else
      out += fmt::format("  {} records are longer than training.max_length {} and were split\n",
                         with_commas(summary.split), s.max_length);
    if (summary.too_short > 0)
      out += fmt::format("  {} records hold nothing to predict\n", with_commas(summary.too_short));
    const bool packable = run->model->takes().packed_rows;
    const std::string chosen = resolved_batching(s.data.batching, data, packable);
    add_ways(index->lengths(), s, packable, chosen, out, json);
    json["batching"]["chosen"] = chosen;
    json["useful_share"] = run->data.batches->useful_share();
  }
  put(arguments.json ? json.dump(2) + "\n" : out);
  return 0;
}

int data_prepare_command(const DataArguments& arguments) {
  const int64_t begin = now_ns();
  DataProgress progress;
  const auto run = load_data(arguments.request, progress);
  const Dataset& data = run->data.set;
  const double seconds = seconds_since(begin);
  if (arguments.json) {
    Json json = source_json(data);
    json["made"] = data.prepared.has_value();
    json["seconds"] = seconds;
    if (data.prepared) {
      json["tokenizing_seconds"] = data.prepared->seconds;
      auto times = [](const WorkTimes& t) {
        return Json{{"busy_s", static_cast<double>(t.busy_ns) * 1e-9},
                    {"wait_s", static_cast<double>(t.wait_ns) * 1e-9},
                    {"blocks", t.items}};
      };
      json["threads"]["read"] = times(data.prepared->times.read);
      for (const WorkTimes& t : data.prepared->times.workers)
        json["threads"]["tokenize"].push_back(times(t));
      json["threads"]["write"] = times(data.prepared->times.take);
    }
    put(json.dump(2) + "\n");
    return 0;
  }
  std::string out = source_text(data);
  out += fmt::format("tokens       {}\n", data.description());
  if (data.prepared) {
    const Prepared& p = *data.prepared;
    out += fmt::format(
        "made         in {}: {} of text a second\n", human_seconds(seconds),
        human_bytes(static_cast<int64_t>(static_cast<double>(data.file_bytes) / seconds)));
    auto row = [&](const std::string& name, const WorkTimes& t) {
      out += fmt::format("  {:<12} busy {:>5.1f} %, waits {:>5.1f} %, {} blocks\n", name,
                         100 * static_cast<double>(t.busy_ns) * 1e-9 / p.seconds,
                         100 * static_cast<double>(t.wait_ns) * 1e-9 / p.seconds,
                         with_commas(t.items));
    };
    row("read", p.times.read);
    for (size_t i = 0; i < p.times.workers.size(); ++i)
      row(fmt::format("tokenize {}", i + 1), p.times.workers[i]);
    row("write", p.times.take);
  } else {
    out += fmt::format("made         before; found in {}\n", human_seconds(seconds));
  }
  out += fmt::format("cache        {}\n", data.folder.string());
  put(out);
  return 0;
}

}  // namespace millrace
