#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text.h"
#include "io/config_edit.h"
#include "io/csv.h"
#include "io/manifest.h"
#include "io/safetensors.h"
#include "io/schema.h"
#include "io/weight_folder.h"
#include "io/yaml.h"
#include "model/model.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/fuzz.h"
#include "train/settings.h"
#include "train/trainer_state.h"

namespace millrace::fuzz {
namespace {

// --- safetensors

void check_same(const SafetensorsFile& a, const SafetensorsFile& b) {
  require(a.metadata() == b.metadata(), "metadata changed when written again");
  require(a.entries().size() == b.entries().size(), "tensors were lost when written again");
  for (const auto& entry : a.entries()) {
    const auto* other = b.find(entry.name);
    require(other != nullptr && other->dtype == entry.dtype && other->shape == entry.shape,
            "a tensor changed when written again");
    const auto left = a.bytes(entry), right = b.bytes(*other);
    require(std::equal(left.begin(), left.end(), right.begin(), right.end()),
            "a tensor's bytes changed when written again");
  }
}

Verdict run_safetensors(std::string_view bytes) {
  // A copy of exactly this size: a byte too far is then seen.
  const auto span = std::as_bytes(std::span(bytes));
  const std::vector<std::byte> copy(span.begin(), span.end());
  return verdict_of("input.safetensors", [&] {
    const SafetensorsFile file(copy, "input.safetensors");
    int64_t covered = 0;
    std::vector<TensorToWrite> tensors;
    for (const auto& entry : file.entries()) {
      require(entry.begin == covered && file.find(entry.name) == &entry, "tensors are misplaced");
      covered = entry.end;
      const auto stored = file.bytes(entry);
      require(static_cast<int64_t>(stored.size()) ==
                  entry.numel() * safetensors_dtype_bytes(entry.dtype),
              "a tensor's bytes do not fit its shape");
      tensors.push_back({entry.name, entry.dtype, entry.shape, stored});
      verdict_of("input.safetensors", [&] {  // a type that is no float is refused here
        require(static_cast<int64_t>(file.to_f32(entry).size()) == entry.numel(),
                "converted values do not fit the shape");
      });
    }
    const std::string written = safetensors_bytes(tensors, file.metadata());
    const SafetensorsFile again(std::as_bytes(std::span(written)), "written");
    check_same(file, again);
  });
}

// A valid file of random tensors.
std::string generate_safetensors(RandomStream& random) {
  static const std::vector<std::string> kTypes = {"F64", "F32", "F16", "BF16",    "I64",
                                                  "I32", "I16", "I8",  "U8",      "BOOL",
                                                  "U16", "U32", "U64", "F8_E4M3", "F8_E5M2"};
  std::vector<std::vector<std::byte>> storage;
  std::vector<TensorToWrite> tensors;
  for (uint64_t i = 0, count = random.below(5); i < count; ++i) {
    TensorToWrite tensor{fmt::format("h.{}.w", i), kTypes[random.below(kTypes.size())], {}, {}};
    int64_t size = safetensors_dtype_bytes(tensor.dtype);
    for (uint64_t rank = random.below(4), d = 0; d < rank; ++d) {
      tensor.shape.push_back(static_cast<int64_t>(random.below(4)));
      size *= tensor.shape.back();
    }
    std::vector<std::byte> bytes(static_cast<size_t>(size));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.below(256));
    storage.push_back(std::move(bytes));
    tensor.bytes = storage.back();
    tensors.push_back(std::move(tensor));
  }
  std::map<std::string, std::string> metadata;
  for (uint64_t i = 0, count = random.below(3); i < count; ++i)
    metadata[fmt::format("k{}", i)] = "v";
  return safetensors_bytes(tensors, metadata);
}

// --- configuration

struct Configuration {
  Settings settings;
  Schema schema;
  std::unique_ptr<Model> model = make_model("gpt");
  Configuration() {
    settings.declare(schema);
    model->declare(schema);
  }
};

// A resolved configuration as overrides.
void flatten(const YamlNode& node, const std::string& path, std::vector<std::string>* out) {
  for (const YamlEntry& entry : node.entries) {
    flatten(entry.value, path.empty() ? entry.key : path + "." + entry.key, out);
  }
  if (node.kind == YamlNode::Kind::map) return;
  std::string value = node.text;
  for (const YamlNode& item : node.items) value += (value.empty() ? "" : ", ") + item.text;
  out->push_back(path + "=" + (node.kind == YamlNode::Kind::list ? "[" + value + "]" : value));
}
std::vector<std::string> assignments_of(const std::string& resolved) {
  std::vector<std::string> values;
  flatten(parse_yaml(resolved, "resolved.yaml"), "", &values);
  return values;
}

// The text with all values and the same origin everywhere.
std::string values_of(Schema* schema) {
  static const std::vector<std::string> kPaths = [] {
    std::vector<std::string> paths;
    for (const std::string& a : assignments_of(Configuration().schema.resolved_yaml())) {
      paths.push_back(a.substr(0, a.find('=')));
    }
    return paths;
  }();
  for (const std::string& path : kPaths) schema->note(path, "somewhere");
  return schema->resolved_yaml();
}

// What was accepted: the model can judge it, and it can be written down and read again.
void check_configuration(Configuration* configuration) {
  configuration->schema.finish();
  configuration->model->resolve(
      configuration->schema, 65,
      {configuration->settings.max_length, configuration->settings.max_length});
  static Configuration again;  // every input gives it all keys
  try {
    again.schema.load_text(configuration->schema.resolved_yaml(), "resolved.yaml");
  } catch (const Error&) {
    throw Broken("the resolved configuration cannot be read");
  }
  require(values_of(&configuration->schema) == values_of(&again.schema),
          "the resolved configuration reads as other values");
}

// A configuration is costly to declare, so most inputs meet one that others met before; what that
// one takes goes through a new one. Nothing of earlier inputs may show in the answer.
template <typename Read>
Verdict configure(const std::string& place, Read read) {
  static Configuration used;
  const Verdict first = verdict_of(place, [&] { read(&used.schema); });
  if (!first.accepted) return first;
  return verdict_of(place, [&] {
    Configuration configuration;
    try {
      read(&configuration.schema);
    } catch (const Error&) {
      throw Broken("the answer depends on what was read before");
    }
    try {
      check_configuration(&configuration);
    } catch (const Error& error) {  // sizes that contradict each other; a default may be to blame
      ErrorFields fields = error.fields();
      fields.where = place + ": " + fields.where;
      throw Error(fields);
    }
  });
}

Verdict run_yaml(std::string_view bytes) {
  return configure("input.yaml", [&](Schema* schema) { schema->load_text(bytes, "input.yaml"); });
}

// What can be loaded can be edited, and then says the same but for the changes; anything else is an
// Error or a text, too.
Verdict run_config_edit(std::string_view bytes) {
  static const std::vector<ConfigChange> kChanges = {{"training.batch_size", "3", "was 1; +200 %"},
                                                     {"data.train", "[a, \"b, c\"]", "faster"},
                                                     {"runtime.memory_limit", "1GiB", ""},
                                                     {"run_name", "\"7\"", "a text"}};
  static Configuration names, used;
  std::string edited;
  const Verdict edit = verdict_of(
      "input.yaml", [&] { edited = edit_config(bytes, kChanges, names.schema, "input.yaml"); });
  const Verdict first =
      verdict_of("input.yaml", [&] { used.schema.load_text(bytes, "input.yaml"); });
  if (!first.accepted) return first;
  Configuration before;
  const Verdict verdict =
      verdict_of("input.yaml", [&] { before.schema.load_text(bytes, "input.yaml"); });
  if (!verdict.accepted) return verdict;
  require(edit.accepted, "what can be loaded cannot be edited");
  for (const ConfigChange& change : kChanges)
    before.schema.override_with(change.path + "=" + change.value);
  Configuration after;
  read_again([&] {
    after.schema.load_text(edited, "edited.yaml");
    return true;
  });
  require(values_of(&before.schema) == values_of(&after.schema), "an edit changed another key");
  require(before.schema.alternative_names() == after.schema.alternative_names(),
          "an edit changed the alternatives");
  return verdict;
}

// Arguments as the system hands them over: separated by zero bytes.
Verdict run_command(std::string_view bytes) {
  return configure("command line", [&](Schema* schema) {
    for (std::string_view rest = bytes;;) {
      const size_t end = rest.find('\0');
      schema->override_with(std::string(rest.substr(0, end)));
      if (end == rest.npos) break;
      rest.remove_prefix(end + 1);
    }
  });
}

// --- the JSON files of a model's folder

Verdict run_manifest(std::string_view bytes) {
  return verdict_of("manifest.json", [&] {
    const Manifest m = parse_manifest(bytes, "manifest.json");
    require(m.step >= 0, "a negative step");
    for (const auto& [name, digest] : m.files)
      require(digest.bytes >= 0 && digest.xxh3.size() == 32, "a digest that is none");
    const Manifest again = read_again([&] { return parse_manifest(manifest_text(m), "written"); });
    require(again.version == m.version && again.step == m.step && again.plan == m.plan &&
                again.metric == m.metric && again.files == m.files &&
                (!m.metric || again.metric_name == m.metric_name),
            "the manifest changed when written and read");
  });
}

// The checksum of what is there now, where there is a place for one.
std::string repair_manifest(const std::string& bytes) {
  const size_t first = bytes.find('\n');
  const size_t second = first == bytes.npos ? first : bytes.find('\n', first + 1);
  return second == bytes.npos ? bytes : signed_manifest(bytes.substr(second + 1));
}

Verdict run_trainer_state(std::string_view bytes) {
  return verdict_of("trainer_state.json", [&] {
    const TrainerState state = TrainerState::from_json(bytes, "trainer_state.json");
    require(state.step >= 0 && state.samples >= 0 && state.tokens >= 0 && state.window.steps >= 0 &&
                state.epoch.steps >= 0 && state.metrics_bytes >= 0 && state.evaluated_step >= -1 &&
                state.sampled_step >= -1,
            "a negative count");
    const std::string text = state.to_json(10, 0.5);
    const TrainerState again = read_again([&] { return TrainerState::from_json(text, "written"); });
    require(again.to_json(10, 0.5) == text, "the state changed when written and read");
  });
}

Verdict run_model_config(std::string_view bytes) {
  return verdict_of("config.json", [&] {
    const auto model = model_from_external_config(bytes, "config.json");
    const std::string text = model->external_config();
    const auto again = read_again([&] { return model_from_external_config(text, "written"); });
    require(again->external_config() == text, "the model changed when written and read");
    require(
        again->vocab_size() == model->vocab_size() && again->max_lengths() == model->max_lengths(),
        "the model has other sizes when written and read");
    require(model->vocab_size() >= 2 && model->max_lengths().target >= 1, "a size that is none");
  });
}

Verdict run_weight_index(std::string_view bytes) {
  return verdict_of("index.json", [&] {
    const auto files = parse_weight_index(bytes, "index.json");
    for (const auto& [tensor, file] : files) {
      require(file.ends_with(".safetensors") && !file.starts_with('.') &&
                  file.find('/') == file.npos && clean_text_length(file) == file.size(),
              "the name of a file that is none");
    }
    const std::string text = nlohmann::json{{"weight_map", files}}.dump();
    require(read_again([&] { return parse_weight_index(text, "written"); }) == files,
            "the index changed when written and read");
  });
}

// --- separated values

Verdict run_csv(std::string_view bytes) {
  std::vector<std::vector<std::string>> all;
  auto read = [&](std::string_view text, std::vector<std::vector<std::string>>& to) {
    CsvRecords records(text, ',', {"data.csv"});
    for (std::vector<std::string> fields; records.next(fields);) {
      require(!fields.empty(), "a record without a field");
      to.push_back(fields);
    }
  };
  const Verdict verdict = verdict_of("data.csv", [&] { read(bytes, all); });
  if (!verdict.accepted) return verdict;
  // Cut where it may be cut, the records are the same; and quoted, they come back.
  std::vector<std::vector<std::string>> parts, again;
  const size_t cut = whole_csv_records(bytes, ',');
  require(cut <= bytes.size(), "cut behind the end");
  read_again([&] {
    read(bytes.substr(0, cut), parts);
    read(bytes.substr(cut), parts);
    return true;
  });
  require(parts == all, "other records when cut");
  std::string quoted;
  for (const auto& fields : all) {
    for (size_t i = 0; i < fields.size(); ++i) {
      quoted += i ? ",\"" : "\"";
      for (const char c : fields[i]) quoted += c == '"' ? "\"\"" : std::string(1, c);
      quoted += '"';
    }
    quoted += '\n';
  }
  read_again([&] {
    read(quoted, again);
    return true;
  });
  require(again == all, "other records when written and read");
  return verdict;
}

// --- what the fuzzer works with

const std::vector<std::string> kNumbers = {"0",
                                           "-0",
                                           "1",
                                           "-1",
                                           "1e3",
                                           "0.5",
                                           "255",
                                           "65536",
                                           "2147483647",
                                           "2147483648",
                                           "-2147483649",
                                           "4294967295",
                                           "4294967296",
                                           "9007199254740992",
                                           "9007199254740993",
                                           "9223372036854775807",
                                           "9223372036854775808",
                                           "-9223372036854775808",
                                           "-9223372036854775809",
                                           "18446744073709551615",
                                           "18446744073709551616",
                                           "99999999999999999999999999",
                                           "1e308",
                                           "1e309",
                                           "-1e999",
                                           "4.9e-324",
                                           "1e-400",
                                           "nan",
                                           "inf",
                                           "-inf",
                                           "0x10",
                                           "1_000"};
const std::vector<std::string> kJson = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        ":",
                                        ",",
                                        "\"",
                                        "\"\"",
                                        "null",
                                        "true",
                                        "false",
                                        "{}",
                                        "[]",
                                        "\\u0000",
                                        "\\u0041",
                                        "\\ud83d\\ude00",
                                        "\\ud800",
                                        "\\\"",
                                        "\\\\",
                                        "\\n",
                                        "\xEF\xBB\xBF",
                                        "ü",
                                        "\xF4\x8F\xBF\xBF"};

std::vector<std::string> join(std::initializer_list<std::vector<std::string>> lists) {
  std::vector<std::string> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

std::vector<Target> make_targets() {
  // The full configuration and its keys come from the declarations themselves.
  const std::string resolved = Configuration().schema.resolved_yaml();
  const std::vector<std::string> assignments = assignments_of(resolved);
  std::vector<std::string> keys;
  for (const std::string& a : assignments) {
    std::string path = a.substr(0, a.find('='));
    keys.push_back(path.substr(path.rfind('.') + 1));
    keys.push_back(std::move(path));
  }
  const std::vector<std::string> tensor_words = {
      "\"dtype\"",
      "\"shape\"",
      "\"data_offsets\"",
      "\"__metadata__\"",
      "F64",
      "F32",
      "F16",
      "BF16",
      "I64",
      "U8",
      "BOOL",
      "F8_E4M3",
      "[0,0]",
      "[0,4]",
      "\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}"};
  const std::vector<std::string> yaml_words = {"- ",          "? ",           ": ",
                                               "  ",          "\t",           "\n",
                                               "\r\n",        "---\n",        "...\n",
                                               "%YAML 1.2\n", "&a ",          "*a",
                                               "!t ",         "!!str ",       "<<",
                                               "|",           "|+",           "|2-",
                                               ">",           ">-",           "'",
                                               "''",          "# ",           "~",
                                               "auto",        "8GiB",         "builtin:grammar",
                                               "\\x04",       "\\e",          "\\U0010FFFF",
                                               "\\ud800",     "\\N",          "\\L",
                                               "\xC2\x85",    "\xE2\x80\xA8", "\xC2\x9B"};
  const std::vector<std::string> command_words = {
      "=",       "+",    "++",    ".",      std::string(1, '\0'), "auto", "8GiB", "512 MB",
      "'",       "true", "False", "[1, 2]", "[a, 'b']",           " ",    "\n",   "\xC2\x9B",
      "\x1b[31m"};

  const std::vector<std::string> manifest_words = {
      "\"checksum\"", "\"format\"", "\"version\"",   "\"step\"",          "\"plan\"",
      "\"metric\"",   "\"name\"",   "\"value\"",     "\"files\"",         "\"bytes\"",
      "\"xxh3\"",     "../",        "manifest.json", "model.safetensors", "\\u002e"};
  const std::vector<std::string> index_words = {"\"weight_map\"",
                                                "\"metadata\"",
                                                "\"total_size\"",
                                                ".safetensors",
                                                "\"a.safetensors\"",
                                                "../",
                                                "/",
                                                "\\u002e",
                                                "\\u002f",
                                                "\\u009b"};
  const std::vector<std::string> state_words = {"\"nan\"", "\"inf\"", "\"-inf\"", "-1"};
  const std::vector<std::string> model_words = {"\"gpt2\"",         "\"llama\"",
                                                "\"millrace\"",     "\"gelu_new\"",
                                                "\"relu\"",         "\"silu\"",
                                                "\"swiglu\"",       "\"rotary\"",
                                                "\"learned\"",      "\"rms_norm\"",
                                                "\"layer_norm\"",   "\"auto\"",
                                                "\"dropout\"",      "\"rope_theta\"",
                                                "\"rms_norm_eps\"", "\"norm_eps\"",
                                                "\"init_std\"",     "\"bias\"",
                                                "\"mlp_bias\"",     "\"attention_bias\"",
                                                "\"head_dim\"",     "\"rope_parameters\"",
                                                "\"d_ff\"",         "\"tied_embeddings\"",
                                                "\"activation\"",   "\"tie_word_embeddings\""};

  // A further reader of bytes from outside is a line here or in a file beside this one.
  std::vector<Target> all = {
      {"safetensors", run_safetensors, safetensors_examples, join({kNumbers, kJson, tensor_words})},
      {"yaml", run_yaml, yaml_examples, join({kNumbers, kJson, keys, yaml_words})},
      {"config_edit", run_config_edit, config_edit_examples,
       join({kNumbers, kJson, keys, yaml_words})},
      {"command", run_command, command_examples, join({kNumbers, kJson, keys, command_words})},
      {"csv", run_csv, csv_examples, {"\"", "\"\"", ",", "\n", "\r\n", "\",\"", "\"\n\"", "a"}},
      {"manifest",
       run_manifest,
       manifest_examples,
       join({kNumbers, kJson, manifest_words}),
       {},
       {},
       nullptr,
       false,
       repair_manifest},
      {"trainer_state", run_trainer_state, trainer_state_examples,
       join({kNumbers, kJson, state_words})},
      {"model_config", run_model_config, model_config_examples,
       join({kNumbers, kJson, model_words})},
      {"weight_index", run_weight_index, weight_index_examples,
       join({kNumbers, kJson, index_words})},
  };
  for (auto* more : {tokenizer_targets, data_targets, cache_targets, run_targets})
    for (Target& target : more()) {
      target.words = join({kNumbers, kJson, target.words});
      all.push_back(std::move(target));
    }
  all[0].generate = generate_safetensors;
  all[0].has_length = true;
  all[1].good = {resolved};
  all[2].good = {resolved};
  all[3].good = assignments;
  for (Target& target : all) {
    constexpr size_t kLongestSeed = 4096;
    for (Example& example : target.examples()) {
      if (example.bytes.size() > kLongestSeed) continue;
      (example.words.empty() ? target.good : target.bad).push_back(std::move(example.bytes));
    }
  }
  return all;
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> kTargets = make_targets();
  return kTargets;
}

const Target* find_target(std::string_view name) {
  for (const Target& target : targets()) {
    if (target.name == name) return &target;
  }
  return nullptr;
}

std::string with_length(std::string_view text, std::string_view rest) {
  const uint64_t length = text.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes.append(text).append(rest);
}

std::string repeated(std::string_view unit, int count) {
  std::string text(unit.size() * static_cast<size_t>(count), unit[0]);
  for (size_t at = 0; unit.size() > 1 && at < text.size(); at += unit.size()) {
    unit.copy(text.data() + at, unit.size());
  }
  return text;
}

}  // namespace millrace::fuzz
