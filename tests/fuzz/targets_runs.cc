// The files of a run folder as targets, as `watch` and `compare` read them: what one line says, and
// whether all of it can be drawn and compared.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "doctor/comparison.h"
#include "doctor/machine_profile.h"
#include "doctor/recorded_run.h"
#include "doctor/run_view.h"
#include "doctor/terminal_plot.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/fuzz.h"

namespace millrace::fuzz {
namespace {

bool is_shown(const std::string& text) {
  return clean_text_length(text) == text.size() && text.find('\n') == text.npos;
}

void check_picture(const RecordedRun& run) {
  for (const int columns : {40, 100})
    for (const std::string& line : run_view(run, {columns, 30, false, 2e9}))
      require(is_shown(line) && columns_of(line) <= columns, "a line that a terminal cannot show");
  const Comparison same = compare(run, run);
  require(!same.is_regression(0), "a run is slower than itself");
  require(clean_text_length(comparison_text(same, run, run, 0.05, false)) > 0, "no comparison");
  comparison_json(same, run, run, 0.05).dump();
  run_json(run).dump();
}

void check_line(const MetricLine& line) {
  require(line.step >= 0 && line.schema >= 0, "a negative count");
  for (const auto& [name, value] : line.values)
    require(std::isfinite(value) && is_shown(name), "a metric that is none");
}

Verdict run_metrics(std::string_view bytes) {
  const std::string copy(bytes);
  RunReader whole("run"), pieces("run");
  whole.add_metrics(copy);
  for (size_t at = 0; at < copy.size(); at += 7) pieces.add_metrics(copy.substr(at, 7));
  require(whole.run().train.size() == pieces.run().train.size() &&
              whole.run().evals.size() == pieces.run().evals.size() &&
              whole.run().latest == pieces.run().latest,
          "it matters where the bytes were cut");
  check_picture(whole.run());
  const std::string first = copy.substr(0, copy.find('\n'));
  return verdict_of("metrics.jsonl:1",
                    [&] { check_line(parse_metric_line(first, "metrics.jsonl:1")); });
}

Verdict run_run_json(std::string_view bytes) {
  return verdict_of("run.json", [&] {
    RecordedRun run;
    parse_run_json(std::string(bytes), "run.json", run);
    for (const std::string* text :
         {&run.id, &run.name, &run.status, &run.machine, &run.device, &run.precision, &run.version})
      require(is_shown(*text), "a text that a terminal cannot show");
    require(run.step >= 0 && run.total >= 0 && run.parameters >= 0, "a negative count");
    run.state = run.status;
    check_picture(run);
  });
}

const std::string kTrainLine =
    R"({"type":"train","step":10,"time":1794851199.9,"elapsed_s":12.5,"train/loss":3.5,)"
    R"("throughput/tokens_per_sec":1173.9,"time/step":0.5,"time/forward":0.6,"time/backward":0.4})";

std::vector<Example> metrics_examples() {
  const std::string eval = R"({"type":"eval","step":10,"eval/loss":3.25})";
  return {
      accepted("{\"type\":\"meta\",\"schema\":1}\n" + kTrainLine + "\n" + eval + "\n"),
      accepted(kTrainLine + "\n" + kTrainLine + "\n{\"type\""),
      accepted("{}"),
      accepted(R"({"type":7,"step":-1,"time":null,"train/loss":"x","nonfinite":["train/loss"]})"),
      accepted(R"({"type":"train","step":1e300,"elapsed_s":-1e308,"time/step":1.7e308,)"
               R"("time/forward":1e308,"train/loss":-1.7e308,"throughput/tokens_per_sec":1e308})"
               "\n" +
               kTrainLine + "\n"),
      accepted("{\"type\":\"train\",\"a/\\u001b[31m\":1}\n"),
      accepted("{\"type\":\"meta\",\"schema\":99999999999999999999}\n"),
      refused("", {"not a JSON object", "metrics.jsonl:1", "expected:"}),
      refused("\n" + kTrainLine, {"not a JSON object"}),
      refused("[1]\n", {"got:      array"}),
      refused("{\"type\":\"train\",\"step\":1", {"not a JSON object"}),
      refused("{\"time/step\":1e999}\n", {"not a JSON object"}),
      refused("{\"a\":\"\xff\"}", {"not a JSON object"}),
      refused(repeated("[", 1000), {"not a JSON object"}),
  };
}

std::vector<Example> run_json_examples() {
  return {
      accepted(R"({"id":"a","name":"b","status":"running","machine":"c","step":3,"total":10,)"
               R"("seconds":1.5,"best_metric":0.5,"device_bytes":1e18,"parameters":1000})"),
      accepted("{}"),
      accepted(R"({"id":"\u001b[2J\u0000","status":"\u009b","step":-5,"total":1e300})"),
      accepted(R"({"status":["done"],"step":"3","seconds":null,"version":{"a":1}})"),
      refused("", {"not a JSON object", "run.json"}),
      refused("{\"status\": ", {"not a JSON object"}),
      refused("null", {"got:      null"}),
      refused("{}{}", {"not a JSON object"}),
  };
}

// --- profiles of devices, as `plan --device FILE` reads them

const std::string kMachine =
    R"({"format":"millrace-machine-2","device":"a","made_with":"b","on_host":false,"memory_bytes":8000000000,)"
    R"("usual_precision":"bf16","precisions":{"bf16":{"flops_per_second":1e15,"bytes_per_second":4e12,)"
    R"("measured":"2026-11-16","watts":600,"overhead_bytes":5,"profiled":"2026-11-16",)"
    R"("node_seconds":2e-6,"ops":{"matmul":[{"nodes":3,"seconds":0.5,"limit_seconds":0.4},)"
    R"({"nodes":1,"seconds":1e-3,"limit_seconds":0}]}}}})";

Verdict run_machine(std::string_view bytes) {
  return verdict_of("machine.json", [&] {
    const MachineProfile m = parse_machine_profile(bytes, "machine.json");
    require(is_shown(m.device) && is_shown(m.made_with), "a text that a terminal cannot show");
    const std::string text = m.text();
    require(read_again([&] { return parse_machine_profile(text, "machine.json"); }).text() == text,
            "what is written again reads differently");
    for (const auto& [precision, p] : m.precisions)
      for (const auto& [name, sizes] : p.ops)
        for (const double limit : {0.0, 1e-9, 1e-3, 1e6})
          require(std::isfinite(expected_seconds(sizes, limit, 2)) &&
                      expected_seconds(sizes, limit, 2) >= 0,
                  "a time that is none");
  });
}

std::vector<Example> machine_examples() {
  auto with = [](const std::string& old, const std::string& now) {
    std::string text = kMachine;
    return text.replace(text.find(old), old.size(), now);
  };
  return {
      accepted(kMachine),
      accepted(with("\"watts\":600,", "")),
      refused("", {"not a profile of a device", "machine.json"}),
      refused("[]", {"an object", "array"}),
      refused(with("4e12", "1e-3"), {"a ceiling of at least 1"}),
      refused(with("4e12", "1e999"), {"a JSON object"}),
      refused(with("\"seconds\":0.5", "\"seconds\":-1"), {"seconds"}),
      refused(with("\"matmul\"", "\"\\u001b\""), {"names of ops"}),
      refused(with("bf16\":{", "fp64\":{"), {"as a precision"}),
      refused(repeated("[", 60000), {"a JSON object"}),
  };
}

}  // namespace

std::vector<Target> run_targets() {
  return {{"metrics_jsonl",
           run_metrics,
           metrics_examples,
           {"\"type\"", "\"train\"", "\"eval\"", "\"step\"", "\"elapsed_s\"", "\"train/loss\"",
            "\"time/step\"", "\"time/forward\"", "\"eval/loss\"", "\"schema\"", kTrainLine, "\n"}},
          {"run_json",
           run_run_json,
           run_json_examples,
           {"\"status\"", "\"running\"", "\"done\"", "\"step\"", "\"total\"", "\"seconds\"",
            "\"best_metric\"", "\"device_bytes\"", "\"parameters\""}},
          {"machine_profile",
           run_machine,
           machine_examples,
           {"\"format\"", "\"precisions\"", "\"bf16\"", "\"ops\"", "\"nodes\"", "\"seconds\"",
            "\"limit_seconds\"", "\"watts\"", "1e18", kMachine}}};
}

}  // namespace millrace::fuzz
