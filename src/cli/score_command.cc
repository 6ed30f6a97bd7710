// millrace score: generated texts beside their references, line by line, by the metrics of papers.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands.h"
#include "cli/standard_output.h"
#include "core/text.h"
#include "data/record_file.h"
#include "io/quote.h"
#include "train/bleu.h"
#include "train/chrf.h"
#include "train/rouge.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

const std::vector<std::string> kMetrics{"bleu", "chrf", "rouge1", "rouge2", "rougeL"};

// The metrics that were asked for, of the pairs that were added.
class PairMetrics {
 public:
  PairMetrics(const std::vector<std::string>& names, bool stem) : names_(names) {
    if (wants("bleu")) bleu_.emplace();
    if (wants("chrf")) chrf_.emplace();
    if (wants("rouge1") || wants("rouge2") || wants("rougeL")) rouge_.emplace(stem);
  }
  void add(std::string_view hypothesis, std::string_view reference) {
    if (bleu_) bleu_->add(hypothesis, reference);
    if (chrf_) chrf_->add(hypothesis, reference);
    if (rouge_) rouge_->add(hypothesis, reference);
  }
  // Into `to` under their names. `sentence`: they are those of one line.
  void write(Json& to, bool sentence) const {
    if (bleu_) to["bleu"] = sentence ? bleu_->sentence_score() : bleu_->score();
    if (chrf_) to["chrf"] = chrf_->score();
    if (!rouge_) return;
    const Rouge::Scores scores = rouge_->mean();
    for (const auto& [name, score] : {std::pair("rouge1", scores.rouge1),
                                      {"rouge2", scores.rouge2},
                                      {"rougeL", scores.rougeL}}) {
      if (!wants(name)) continue;
      to[name] = score.f1;
      to[std::string(name) + "_precision"] = score.precision;
      to[std::string(name) + "_recall"] = score.recall;
    }
  }
  bool wants(std::string_view name) const {
    return names_.empty() || std::find(names_.begin(), names_.end(), name) != names_.end();
  }

 private:
  std::vector<std::string> names_;  // none: all
  std::optional<Bleu> bleu_;
  std::optional<Chrf> chrf_;
  std::optional<Rouge> rouge_;
};

void check_metrics(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (std::find(kMetrics.begin(), kMetrics.end(), name) != kMetrics.end()) continue;
    const std::string near = nearest(name, kMetrics);
    throw Error({.code = ErrorCode::config,
                 .what = "no metric is called " + quote(name),
                 .where = "command line: --metric",
                 .expected = fmt::format("{}", fmt::join(kMetrics, ", ")),
                 .got = printable(name),
                 .remedy = near.empty() ? "leave --metric out to get all of them"
                                        : fmt::format("did you mean `--metric {}`?", near)});
  }
}

// The lines of a file that was named on the command line.
class Lines {
 public:
  Lines(const fs::path& path, const char* argument) {
    std::error_code fault;
    if (!fs::is_regular_file(path, fault))
      throw Error(
          {.code = ErrorCode::config,
           .what = "the texts are not there",
           .where = fmt::format("command line: {} {}", argument, path.string()),
           .expected = "a file with a text on each line",
           .got = fs::exists(path, fault) ? "something that is not a file" : "nothing there",
           .remedy = "millrace score HYPOTHESES REFERENCES"});
    file_ = open_record_file(DataFormat::lines, path, {}, {});
  }
  bool next() {
    if (file_->next(fields_, places_) == RecordFile::Got::end) return false;
    ++count_;
    return true;
  }
  const std::string& text() const { return fields_[0]; }
  int64_t count() const { return count_; }

 private:
  std::unique_ptr<RecordFile> file_;
  std::vector<std::string> fields_;
  std::vector<TextPlace> places_;
  int64_t count_ = 0;
};

}  // namespace

int score_command(const ScoreArguments& arguments) {
  check_metrics(arguments.metrics);
  Lines hypotheses(arguments.hypotheses, "HYPOTHESES");
  Lines references(arguments.references, "REFERENCES");
  PairMetrics all(arguments.metrics, arguments.stem);
  for (;;) {
    const bool first = hypotheses.next(), second = references.next();
    if (!first && !second) break;
    if (first != second) {
      while (hypotheses.next() || references.next()) continue;  // to say how many there are
      throw Error(
          {.code = ErrorCode::config,
           .what = "different numbers of texts",
           .where = fmt::format("{} and {}", arguments.hypotheses, arguments.references),
           .expected = "a line of references for each line of hypotheses",
           .got = fmt::format("{} hypotheses, {} references", with_commas(hypotheses.count()),
                              with_commas(references.count())),
           .remedy = "check that both are of the same data and whole, and that no text has "
                     "a line end inside"});
    }
    if (!arguments.per_line) {
      all.add(hypotheses.text(), references.text());
      continue;
    }
    PairMetrics one(arguments.metrics, arguments.stem);
    one.add(hypotheses.text(), references.text());
    Json json = {{"line", hypotheses.count()}};
    one.write(json, true);
    put(json.dump() + "\n");
  }
  if (hypotheses.count() == 0)
    throw Error({.code = ErrorCode::config,
                 .what = "there is nothing to score",
                 .where = fmt::format("{} and {}", arguments.hypotheses, arguments.references),
                 .expected = "a text on each line",
                 .got = "two empty files",
                 .remedy = "millrace score HYPOTHESES REFERENCES"});
  if (arguments.per_line) return 0;
  Json json = {{"lines", hypotheses.count()}, {"stem", arguments.stem}};
  all.write(json, false);
  if (arguments.json) {
    put(json.dump(2) + "\n");
    return 0;
  }
  for (const std::string& name : kMetrics)
    if (all.wants(name)) put(fmt::format("{:<10} {:.4f}\n", name, json[name].get<double>()));
  std::fprintf(stderr, "of %s lines; 0 to 100, ROUGE as F1%s\n",
               with_commas(hypotheses.count()).c_str(), arguments.stem ? " of stems" : "");
  return 0;
}

}  // namespace millrace
