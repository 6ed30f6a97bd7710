#include "data/tokenizer_folder.h"

#include <limits>

#include "core/error.h"
#include "io/json_parser.h"
#include "io/quote.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// The largest published ones take 2 MB.
constexpr int64_t kMostBytes = int64_t{16} << 20;
constexpr const char* kSpecialTokensFile = "special_tokens_map.json";
constexpr const char* kModelConfigFile = "config.json";
// Names of ours, never of what is read: no file can lead out of the folder.
constexpr const char* kCompanions[] = {kTokenizerConfigFile, kSpecialTokensFile,
                                       kGenerationConfigFile, "chat_template.jinja"};

Error refuse(const std::string& source_name, const std::string& expected, const std::string& got) {
  return Error(
      {.code = ErrorCode::config,
       .what = fmt::format("this {} cannot be used", fs::path(source_name).filename().string()),
       .where = source_name,
       .expected = expected,
       .got = got,
       .remedy = "take the one that the tokenizer came with, or none"});
}

Json parse_object(std::string_view text, const std::string& source_name) {
  Json root;
  try {
    root = parse_json(text);
  } catch (const Json::exception&) {
    throw refuse(source_name, "JSON", "something else");
  }
  if (!root.is_object()) throw refuse(source_name, "an object", root.type_name());
  return root;
}

int32_t read_id(const Json& value, const char* key, const std::string& source_name) {
  if (!value.is_number_integer())
    throw refuse(source_name, fmt::format("an id as `{}`, or a list of them", key),
                 printable(value.dump(-1, ' ', true), 60));
  const bool fits = value >= 0 && value <= std::numeric_limits<int32_t>::max();
  return fits ? value.get<int32_t>() : -1;  // as good as none
}

// "</s>", or what stands around it: {"content": "</s>", ...}.
std::string read_text(const Json& root, const char* key) {
  const auto found = root.find(key);
  if (found == root.end()) return {};
  const Json& value = found->is_object() ? found->value("content", Json()) : *found;
  return value.is_string() ? value.get<std::string>() : std::string();
}

struct Special {
  int32_t id;
  std::string text;
  Json part() const { return {{"SpecialToken", {{"id", text}, {"type_id", 0}}}}; }
};
struct Frame {
  std::vector<Special> before, behind;  // one each, or none
};

Json sequence(const char* name, int type) {
  return {{"Sequence", {{"id", name}, {"type_id", type}}}};
}

// False: not a template, or one that nobody could have read.
bool put_around(Json& processor, const Frame& frame) {
  if (!processor.is_object() || processor.value("type", Json()) != "TemplateProcessing")
    return false;
  for (const char* form : {"single", "pair"}) {
    Json& parts = processor[form];
    if (!parts.is_array()) return false;
    for (const Special& s : frame.before)
      if (parts.empty() || parts.front() != s.part()) parts.insert(parts.begin(), s.part());
    for (const Special& s : frame.behind)
      if (parts.empty() || parts.back() != s.part()) parts.push_back(s.part());
  }
  Json& tokens = processor["special_tokens"];
  if (!tokens.is_object() && !tokens.is_null()) return false;
  for (const auto* list : {&frame.before, &frame.behind})
    for (const Special& s : *list)
      tokens[s.text] = {{"id", s.text}, {"ids", {s.id}}, {"tokens", {s.text}}};
  return true;
}

}  // namespace

DeclaredTokens read_declared_tokens(std::string_view json, const std::string& source_name) {
  const Json root = parse_object(json, source_name);
  DeclaredTokens tokens{.start_text = read_text(root, "bos_token"),
                        .end_text = read_text(root, "eos_token")};
  const auto ids = [&](const char* key) {
    std::vector<int32_t> list;
    const auto found = root.find(key);
    if (found == root.end() || found->is_null()) return list;
    if (!found->is_array()) return std::vector{read_id(*found, key, source_name)};
    for (const Json& id : *found) list.push_back(read_id(id, key, source_name));
    return list;
  };
  if (const auto starts = ids("bos_token_id"); !starts.empty()) tokens.start = starts[0];
  tokens.ends = ids("eos_token_id");
  return tokens;
}

DeclaredTokens declared_tokens(const fs::path& folder) {
  DeclaredTokens all;
  for (const char* name :
       {kTokenizerConfigFile, kSpecialTokensFile, kGenerationConfigFile, kModelConfigFile}) {
    const fs::path file = folder / name;
    if (!fs::is_regular_file(file)) continue;
    DeclaredTokens more = read_declared_tokens(read_file(file, kMostBytes), file.string());
    if (all.start < 0) all.start = more.start;
    if (all.ends.empty()) all.ends = std::move(more.ends);
    if (all.start_text.empty()) all.start_text = std::move(more.start_text);
    if (all.end_text.empty()) all.end_text = std::move(more.end_text);
  }
  return all;
}

TokenizerCompanions tokenizer_companions(const fs::path& folder) {
  TokenizerCompanions found;
  for (const char* name : kCompanions)
    if (fs::is_regular_file(folder / name)) found[name] = read_file(folder / name, kMostBytes);
  return found;
}

PromptForm read_prompt_form(std::string_view tokenizer_config, const std::string& source_name) {
  const Json root = parse_object(tokenizer_config, source_name);
  auto flag = [&](const char* name) {
    const auto found = root.find(name);
    if (found == root.end() || found->is_null()) return false;
    if (!found->is_boolean())
      throw refuse(source_name, fmt::format("true or false as `{}`", name),
                   printable(found->dump(-1, ' ', true), 40));
    return found->get<bool>();
  };
  return {flag("add_bos_token"), flag("add_eos_token")};
}

TokenizerCompanions companions_of(const Tokenizer& tokenizer, bool opens, PromptForm form,
                                  TokenizerCompanions before) {
  // What does not change keeps its bytes.
  const auto change = [&](const char* name, auto edit) {
    const auto found = before.find(name);
    const Json old = found == before.end() ? Json::object() : parse_object(found->second, name);
    Json root = old;
    edit(root);
    if (root != old) before[name] = root.dump(2) + "\n";
  };
  change(kTokenizerConfigFile, [&](Json& root) {
    if (root.contains("add_bos_token") || (form.start && !opens))
      root["add_bos_token"] = form.start;
    if (root.contains("add_eos_token") || form.end) root["add_eos_token"] = form.end;
  });
  change(kGenerationConfigFile, [&](Json& root) {
    if (tokenizer.start_id() >= 0) root["bos_token_id"] = tokenizer.start_id();
    const auto& ends = tokenizer.end_ids();
    if (ends.size() == 1) root["eos_token_id"] = ends[0];
    if (ends.size() > 1) root["eos_token_id"] = ends;
  });
  return before;
}

std::optional<std::string> with_frame(const TokenizerFile& file, const Tokenizer& tokenizer,
                                      int32_t start, int32_t end) {
  if (file.name.ends_with(".model")) return std::nullopt;
  Json root = parse_json(file.bytes);
  if (!root.contains("model")) return std::nullopt;  // one of our own kinds
  Frame frame;
  if (start >= 0) frame.before = {{start, tokenizer.decode({&start, 1})}};
  if (end >= 0) frame.behind = {{end, tokenizer.decode({&end, 1})}};
  Json fresh{{"type", "TemplateProcessing"},
             {"single", {sequence("A", 0)}},
             {"pair", {sequence("A", 0), sequence("B", 1)}},
             {"special_tokens", Json::object()}};
  put_around(fresh, frame);
  Json& processor = root["post_processor"];
  const Json type = processor.is_object() ? processor.value("type", Json()) : Json();
  if (processor.is_null()) {
    processor = fresh;
  } else if (type == "ByteLevel") {
    processor = {{"type", "Sequence"}, {"processors", {processor, fresh}}};
  } else if (type == "Sequence" && processor.value("processors", Json()).is_array()) {
    Json& parts = processor["processors"];
    if (std::ranges::none_of(parts, [&](Json& part) { return put_around(part, frame); }))
      parts.push_back(fresh);
  } else if (!put_around(processor, frame)) {
    return std::nullopt;
  }
  return root.dump() + "\n";
}

}  // namespace millrace
