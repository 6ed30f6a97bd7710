#include "doctor/machine_profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/clock.h"
#include "core/process.h"
#include "io/json_parser.h"
#include "io/quote.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "millrace-machine-2";
constexpr int64_t kMostBytes = 1 << 20;
constexpr int kDeepest = 8;  // writing and freeing JSON takes a level of the stack for each
constexpr std::array kPrecisions = {Precision::fp32, Precision::tf32, Precision::bf16,
                                    Precision::fp16};
constexpr double kNothing = 1e-9;  // seconds: a node without work to speak of
// No device is, for a while: more is damage, and would overflow what is computed of it.
constexpr double kMostRate = 1e18, kMostSeconds = 1e9, kMostWatts = 1e5;

Error not_a_profile(const std::string& where, const std::string& expected, const std::string& got) {
  return Error({.code = ErrorCode::config,
                .what = "not a profile of a device",
                .where = printable(where, 300),
                .expected = expected,
                .got = got,
                .remedy =
                    "a file that `millrace profile` wrote (machines/ in the cache folder), or "
                    "one like configs/devices/nvidia-h200.json"});
}

// A JSON object whose values must be what they are asked for as, and nothing else may be in it.
class Section {
 public:
  Section(const nlohmann::json& object, std::string path, const std::string& file)
      : object_(object), path_(std::move(path)), file_(file) {
    if (!object_.is_object()) throw refuse("an object", shown(object_));
  }
  double number(const char* key, double most) {
    const nlohmann::json& v = value(key);
    const double number = v.is_number() ? v.get<double>() : -1;
    if (!(number >= 0 && number <= most))
      throw refuse(fmt::format("`{}`: a number from 0 to {:g}", key, most), shown(v));
    return number;
  }
  int64_t integer(const char* key) {
    constexpr int64_t kMost = int64_t{1} << 50;
    const nlohmann::json& v = value(key);
    const bool fits = v.is_number_unsigned() && v.get<uint64_t>() <= static_cast<uint64_t>(kMost);
    if (!fits) throw refuse(fmt::format("`{}`: an integer from 0 to {}", key, kMost), shown(v));
    return v.get<int64_t>();
  }
  bool flag(const char* key) {
    const nlohmann::json& v = value(key);
    if (!v.is_boolean()) throw refuse(fmt::format("`{}`: true or false", key), shown(v));
    return v.get<bool>();
  }
  std::string text(const char* key) {
    constexpr size_t kLongest = 400;
    const nlohmann::json& v = value(key);
    if (!v.is_string() || v.get_ref<const std::string&>().size() > kLongest ||
        printable(v.get_ref<const std::string&>(), kLongest) != v.get_ref<const std::string&>())
      throw refuse(fmt::format("`{}`: a line of text", key), shown(v));
    return v.get<std::string>();
  }
  Section section(const std::string& key) {
    return {value(key), path_.empty() ? key : path_ + "." + key, file_};
  }
  std::vector<Section> sections(const std::string& key) {
    const nlohmann::json& v = value(key);
    if (!v.is_array()) throw refuse(fmt::format("a list for `{}`", key), shown(v));
    std::vector<Section> list;
    for (const auto& part : v) list.push_back({part, path_ + "." + key, file_});
    return list;
  }
  bool has(const std::string& key) const { return object_.contains(key); }
  std::vector<std::string> keys() const {
    std::vector<std::string> list;
    for (const auto& [key, v] : object_.items()) list.push_back(key);
    return list;
  }
  void finish() const {
    for (const auto& [key, v] : object_.items())
      if (!asked_.contains(key)) throw refuse("no key but those of such a file", quote(key, 40));
  }
  Error refuse(const std::string& expected, const std::string& got) const {
    return not_a_profile(file_ + (path_.empty() ? "" : ": " + path_), expected, got);
  }

 private:
  static std::string shown(const nlohmann::json& v) {
    return v.is_structured()
               ? v.type_name()
               : printable(v.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 40);
  }
  const nlohmann::json& value(const std::string& key) {
    asked_.insert(key);
    const auto found = object_.find(key);
    if (found == object_.end()) throw refuse(fmt::format("a value for `{}`", key), "none");
    return *found;
  }
  const nlohmann::json& object_;
  std::string path_;
  const std::string& file_;
  std::set<std::string> asked_;
};

PrecisionProfile parse_precision(Section s) {
  PrecisionProfile p;
  p.ceiling = {s.number("flops_per_second", kMostRate), s.number("bytes_per_second", kMostRate)};
  if (s.has("caches"))
    for (Section& cache : s.sections("caches")) {
      p.ceiling.caches.push_back(
          {cache.number("capacity_bytes", kMostRate), cache.number("bytes_per_second", kMostRate)});
      cache.finish();
    }
  if (p.ceiling.flops < 1 || p.ceiling.bytes < 1)
    throw s.refuse("a ceiling of at least 1 in flops_per_second and bytes_per_second", "less");
  p.ceiling_date = s.text("measured");
  if (s.has("watts")) p.watts = s.number("watts", kMostWatts);
  if (s.has("overhead_bytes")) p.overhead_bytes = s.integer("overhead_bytes");
  if (s.has("ops")) {
    p.ops_date = s.text("profiled");
    p.node_seconds = s.number("node_seconds", kMostSeconds);
    Section ops = s.section("ops");
    for (const std::string& name : ops.keys()) {
      constexpr size_t kLongest = 64;
      if (name.size() > kLongest || printable(name, kLongest) != name)
        throw ops.refuse("names of ops", quote(name, 40));
      for (Section& op : ops.sections(name)) {
        const OpTime time{op.number("nodes", kMostRate), op.number("seconds", kMostSeconds),
                          op.number("limit_seconds", kMostSeconds)};
        constexpr double kLeast = 1e-12;  // less is damage, and its quotients are no numbers
        if (!(time.nodes >= kLeast && time.seconds >= kLeast))
          throw op.refuse("nodes that took time", "none");
        p.ops[name][size_class(time.limit_seconds / time.nodes)].add(time);
        op.finish();
      }
    }
  }
  s.finish();
  return p;
}

Json precision_json(const PrecisionProfile& p) {
  Json j = {{"flops_per_second", p.ceiling.flops},
            {"bytes_per_second", p.ceiling.bytes},
            {"measured", p.ceiling_date}};
  for (const CacheCeiling& cache : p.ceiling.caches)
    j["caches"].push_back({{"capacity_bytes", cache.capacity}, {"bytes_per_second", cache.bytes}});
  if (p.watts) j["watts"] = *p.watts;
  if (p.overhead_bytes) j["overhead_bytes"] = *p.overhead_bytes;
  if (!p.ops.empty()) {
    j["profiled"] = p.ops_date;
    j["node_seconds"] = p.node_seconds;
    for (const auto& [name, sizes] : p.ops)
      for (const auto& [size, op] : sizes)
        j["ops"][name].push_back(
            {{"nodes", op.nodes}, {"seconds", op.seconds}, {"limit_seconds", op.limit_seconds}});
  }
  return j;
}

std::string today() { return local_time("%Y-%m-%d"); }

std::string made_with(const Backend& backend) {
  constexpr int kCeilings = 2;  // another number when they are measured in another way
  return fmt::format("millrace {}, ceilings {}; {}", MILLRACE_VERSION, kCeilings,
                     backend.kind().made_with);
}

}  // namespace

OpTime& OpTime::add(const OpTime& other, double times) {
  nodes += times * other.nodes;
  seconds += times * other.seconds;
  limit_seconds += times * other.limit_seconds;
  return *this;
}

int size_class(double limit_seconds) {
  return static_cast<int>(
      std::lround(std::log(std::max(limit_seconds, kNothing) / kNothing) / std::log(4)));
}

double expected_seconds(const OpTimes& seen, double limit_seconds, double usual) {
  // How far from its limit a node is, over its size, both as logarithms: straight between what was
  // seen, and beyond it as at its end. Where only nodes were seen that cost little but their start,
  // these say nothing of large ones: what is more is more as usual.
  constexpr double kStart = 3;
  struct Point {
    double size, factor;
  };
  auto point_of = [](const OpTime& op) {
    const double limit = std::max(op.limit_seconds / op.nodes, kNothing);
    return Point{std::log(limit), std::log(op.seconds / op.nodes / limit)};
  };
  const double limit = std::max(limit_seconds, kNothing), size = std::log(limit);
  Point before = point_of(seen.begin()->second);
  for (const auto& [number, op] : seen) {
    const Point here = point_of(op);
    if (size <= here.size) {
      const double width = here.size - before.size,
                   share = width > 0 ? std::max(0.0, (size - before.size) / width) : 1;
      return limit * std::exp(before.factor + share * (here.factor - before.factor));
    }
    before = here;
  }
  const double factor = std::exp(before.factor), largest = std::exp(before.size);
  return factor <= kStart * usual ? limit * factor : largest * factor + (limit - largest) * usual;
}

void PrecisionProfile::take_ceiling(const Ceiling& measured) {
  constexpr double kClearly = 1.05;
  if (measured.flops > kClearly * ceiling.flops || measured.bytes > kClearly * ceiling.bytes ||
      measured.caches.size() > ceiling.caches.size()) {
    ops.clear();
    node_seconds = 0;
  }
  ceiling = best_of(ceiling, measured);
  ceiling_date = today();
}

void PrecisionProfile::take_profile(const Ledger& ledger, std::optional<double> drawn) {
  constexpr double kOlder = 0.5;
  for (auto& [name, sizes] : ops) {
    for (auto& [size, op] : sizes) op = OpTime{}.add(op, kOlder);
    std::erase_if(sizes, [](const auto& entry) { return entry.second.seconds < kNothing; });
  }
  for (const NodeTimes& t : ledger.node_times())
    for (NodeId id = 0; id < t.plan->graph.size(); ++id) {
      const auto ns = static_cast<double>(t.ns[static_cast<size_t>(id)]),
                 runs = static_cast<double>(t.runs);
      if (t.plan->kernels[static_cast<size_t>(id)].name.empty() || ns <= 0 || runs <= 0) continue;
      const Node& node = t.plan->graph[id];
      const double limit = limit_seconds(t.plan->graph.cost(node), ceiling);
      ops[std::string(node.op->name)][size_class(limit)].add({runs, 1e-9 * ns, limit * runs});
    }
  std::erase_if(ops, [](const auto& entry) { return entry.second.empty(); });
  node_seconds = 0;
  for (const auto& [name, sizes] : ops)
    for (const auto& [size, op] : sizes) {
      const double one = op.seconds / op.nodes;
      node_seconds = node_seconds == 0 ? one : std::min(one, node_seconds);
    }
  ops_date = today();
  if (drawn) watts = drawn;
}

const PrecisionProfile* MachineProfile::find(Precision precision) const {
  const auto found = precisions.find(precision);
  return found == precisions.end() ? nullptr : &found->second;
}

std::string MachineProfile::text() const {
  Json j = {{"format", kFormat},
            {"device", device},
            {"made_with", made_with},
            {"on_host", on_host},
            {"memory_bytes", memory_bytes},
            {"usual_precision", precision_name(usual)}};
  j["precisions"] = Json::object();
  for (const auto& [precision, p] : precisions)
    j["precisions"][std::string(precision_name(precision))] = precision_json(p);
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

MachineProfile parse_machine_profile(std::string_view text, const std::string& name) {
  nlohmann::json object;
  try {
    object = parse_json(text, [&](int depth, nlohmann::json::parse_event_t, const auto&) {
      if (depth > kDeepest) throw not_a_profile(name, "a JSON object", "one in many others");
      return true;
    });
  } catch (const nlohmann::json::exception&) {
    throw not_a_profile(name, "a JSON object", "other bytes");
  }
  Section s(object, "", name);
  if (const std::string format = s.text("format"); format != kFormat)
    throw s.refuse(fmt::format("`format`: {}", kFormat), quote(format, 40));
  MachineProfile m;
  m.device = s.text("device");
  m.made_with = s.text("made_with");
  m.on_host = s.flag("on_host");
  m.memory_bytes = s.integer("memory_bytes");
  auto precision_of = [&](const std::string& word) {
    for (const Precision p : kPrecisions)
      if (precision_name(p) == word) return p;
    throw s.refuse("fp32, tf32, bf16 or fp16 as a precision", quote(word, 40));
  };
  m.usual = precision_of(s.text("usual_precision"));
  Section precisions = s.section("precisions");
  for (const std::string& word : precisions.keys())
    m.precisions[precision_of(word)] = parse_precision(precisions.section(word));
  s.finish();
  return m;
}

fs::path machine_profile_path(const Backend& backend) {
  std::string slug;
  for (const char c : backend.kind().device) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (plain) slug += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (!plain && !slug.empty() && slug.back() != '-') slug += '-';
  }
  return cache_folder() / "machines" / (slug + ".json");
}

MachineProfile recall_machine(const Backend& backend, std::string* note) {
  MachineProfile empty{
      .device = backend.kind().device,
      .made_with = made_with(backend),
      .on_host = backend.on_host(),
      .memory_bytes = backend.on_host() ? machine_memory_bytes() : backend.memory_bytes(),
      .usual = backend.usual_precision()};
  const fs::path path = machine_profile_path(backend);
  std::error_code fault;
  if (!fs::exists(path, fault)) return empty;
  try {
    MachineProfile found = parse_machine_profile(read_file(path, kMostBytes), path.string());
    if (found.device == empty.device && found.made_with == empty.made_with) return found;
    if (note) *note = "what was measured with other versions, or elsewhere, is measured anew";
  } catch (const Error& error) {
    if (note) *note = fmt::format("{} is not taken: {}", path.string(), error.fields().what);
  }
  return empty;
}

MachineProfile measured_machine(Backend& backend, Precision precision, const Ledger* seen) {
  MachineProfile machine = recall_machine(backend);
  const PrecisionProfile* known = machine.find(precision);
  if (known && (!seen || raised(known->ceiling, *seen) == known->ceiling)) return machine;
  const Ceiling measured = backend.measure_ceiling(precision);
  if (measured.flops <= 0 || measured.bytes <= 0) return machine;
  machine.precisions[precision].take_ceiling(seen ? raised(measured, *seen) : measured);
  remember_machine(machine, backend);
  return machine;
}

void remember_machine(const MachineProfile& machine, const Backend& backend) {
  try {
    const fs::path path = machine_profile_path(backend);
    create_folders(path.parent_path());
    write_file(path, machine.text());
  } catch (const Error&) {
  }
}

}  // namespace millrace
