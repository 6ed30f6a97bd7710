#include "data/data_request.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "core/text.h"
#include "data/checked_json.h"
#include "data/tokenizer_folder.h"
#include "io/quote.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// Part of every key: another number when the same files would give other tokens or other files.
constexpr int kVersion = 3;
constexpr int kMemo = 1;  // another number when the same request would have another key

void check_options(const DataOptions& options, bool grammar) {
  for (const auto& [key, value] :
       {std::pair("data.validation_fraction", options.validation_fraction),
        std::pair("data.test_fraction", options.test_fraction)})
    if (!(value >= 0 && value < 1))
      throw config_error(fmt::format("bad {}", key), key, "at least 0 and below 1",
                         fmt::format("{}", value), "0.1 keeps a tenth of the data");
  if (options.validation_fraction + options.test_fraction >= 1)
    throw config_error("nothing would be left for training", "data.test_fraction",
                       "less than 1 together with data.validation_fraction",
                       fmt::format("{}", options.validation_fraction + options.test_fraction),
                       "data.test_fraction=0.1");
  const std::string& kind = options.tokenizer.kind;
  const auto& kinds = tokenizer_kinds();
  if (!options.tokenizer.is_file() && std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
    std::vector<std::string> known = kinds;
    known.insert(known.end(), {"tokenizer.json", "tokenizer.model"});
    const std::string near = nearest(kind, known);
    throw config_error(
        "unknown tokenizer", "data.tokenizer",
        fmt::format("`{}`, or the path of a tokenizer.json or .model", fmt::join(kinds, "`, `")),
        quote(kind), near.empty() ? "data.tokenizer=char" : "did you mean `" + near + "`?");
  }
  std::error_code fault;
  if (options.tokenizer.is_file() && !fs::is_regular_file(kind, fault))
    throw config_error(fmt::format("cannot open `{}`", kind), "data.tokenizer",
                       "a tokenizer.json or .model", fault ? fault.message() : "not a file",
                       "check the spelling; a relative path starts at the current folder");
  if (grammar && kind == "ids")
    throw config_error("the grammar writes text, not ids", "data.tokenizer", "another tokenizer",
                       kind, "data.tokenizer=char");
  for (const auto& [key, value] : {std::pair("data.max_chars", options.max_chars),
                                   std::pair("data.max_records", options.max_records)})
    if (value < 0)
      throw config_error(fmt::format("bad {}", key), key, "0 (all) or more", std::to_string(value),
                         "leave it out to read everything");
  if (grammar && options.grammar_chars < 1)
    throw config_error("bad data.grammar_chars", "data.grammar_chars", "1 or more",
                       std::to_string(options.grammar_chars), "3000000 is plenty");
  const bool own =
      options.validation.empty() || options.validation == std::vector<std::string>{kBuiltinGrammar};
  if (grammar && !own)
    throw config_error("the grammar writes its own validation text", "data.validation", "no paths",
                       options.validation[0], "leave data.validation out");
  if (grammar && (!options.test.empty() || !options.train_target.empty() ||
                  (options.format != "auto" && options.format != "text")))
    throw config_error("the grammar is one long text", "data.train", "files for anything else",
                       kBuiltinGrammar, "leave the other keys of data out");
}

struct SplitPaths {
  const std::vector<std::string>&files, &targets;
};

SplitPaths paths_of(const DataOptions& o, SplitName split) {
  return split == SplitName::train        ? SplitPaths{o.train, o.train_target}
         : split == SplitName::validation ? SplitPaths{o.validation, o.validation_target}
                                          : SplitPaths{o.test, o.test_target};
}

void check_class_column(const ClassColumn& column, bool paths, DataFormat format) {
  constexpr const char* kKey = "data.class_column";
  if (!column.is_asked_for()) return;
  if (!paths)
    throw config_error("points of paths have classes, and this format has none", kKey,
                       "data.format=trajectories", std::string(format_name(format)),
                       "leave data.class_column out");
  if (column.classes < 1)
    throw config_error("there is no class", kKey, "how many classes there are", "none",
                       "model.classes=2");
}

// Files, their partners, and what they are called, for one split.
void add_files(DataRequest& request, SplitName split, const SplitPaths& given, bool pairs) {
  const auto& [paths, targets] = given;
  const std::string key = fmt::format("data.{}", split_name(split));
  if (split != SplitName::train && paths.empty() && targets.empty()) return;
  SplitFiles source{.split = split};
  source.files = find_files(paths, key, request.records.format);
  if (pairs || !targets.empty()) {
    source.targets = find_files(targets, key + "_target", request.records.format);
    if (source.targets.size() != source.files.size())
      throw config_error("files that belong together differ in number", key + "_target",
                         fmt::format("{} files, as {}", source.files.size(), key),
                         fmt::format("{}", source.targets.size()),
                         "name the second file of each pair, in the same order");
  }
  for (const auto* files : {&source.files, &source.targets})
    for (const fs::path& file : *files) {
      request.stamps.push_back(stamp_of(file));
      request.file_bytes += request.stamps.back().bytes;
    }
  request.sources.push_back(std::move(source));
}

Json stamps_json(const std::vector<FileStamp>& stamps) {
  Json list = Json::array();
  for (const FileStamp& s : stamps)  // a path may be no text that JSON could hold
    list.push_back({digest_of(s.path).xxh3, s.bytes, s.modified_ns, s.changed_ns, s.inode});
  return list;
}

// How far apart two writes are, at the most, that a file's stamp does not tell apart: whole seconds
// are those of a file system that counts in one or two of them, all else ticks of the kernel.
int64_t resolution_of(const FileStamp& stamp) {
  constexpr int64_t kSecond = 1'000'000'000, kTick = kSecond / 100;
  return stamp.modified_ns % kSecond == 0 ? 2 * kSecond : 2 * kTick;
}

// Which key this request had the last time, if none of its files has another stamp since. A file
// that was written at about the time it was looked at may have been written again within the
// clock's resolution, so such a stamp is not taken on trust (as git has it with its index).
std::optional<std::string> remembered_key(const DataRequest& request, const fs::path& memo) {
  try {
    const CheckedJson seen(read_header_file(memo), memo);
    if (seen.value("choices") != request.choices ||
        seen.value("stamps") != stamps_json(request.stamps))
      return std::nullopt;
    const int64_t noted = seen.integer("noted_ns", 0, INT64_MAX);
    for (const FileStamp& s : request.stamps)
      if (std::max(s.modified_ns, s.changed_ns) > noted - resolution_of(s)) return std::nullopt;
    return seen.digest("key");  // it becomes the name of a folder, which may be removed
  } catch (const Error&) {
    return std::nullopt;  // the first time
  }
}

std::string key_of_content(const DataRequest& request, DataObserver& observer) {
  Json all{{"choices", request.choices}};
  int64_t done = 0;
  for (const FileStamp& s : request.stamps) {
    observer.progress("looking at the files", done, request.file_bytes);
    all["content"].push_back(digest_of_file(s.path).xxh3);
    done += s.bytes;
  }
  // Only where it matters: what was made of other files before this was known is still good.
  if (request.records.is_plain_text())
    for (const SplitFiles& source : request.sources)
      for (const fs::path& file : source.files)
        if (!is_plain_text(file)) all["plain_text"] = true;
  return digest_of(all.dump()).xxh3;
}

int64_t clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

DataRequest make_data_request(const DataOptions& options) {
  DataRequest request;
  request.grammar = !options.only && options.train == std::vector<std::string>{kBuiltinGrammar};
  check_options(options, request.grammar);
  // What is evaluated alone is read as the training data was.
  const SplitPaths first = paths_of(
      options, options.train.empty() ? options.only.value_or(SplitName::train) : SplitName::train);
  const bool pairs = !first.targets.empty();
  RecordOptions& records = request.records;
  records.format = pairs && options.format == "auto" ? DataFormat::lines
                                                     : format_of(options.format, first.files);
  if (pairs && records.format != DataFormat::lines)
    throw config_error("pairs of files are read line by line", "data.train_target",
                       "data.format=lines or auto", options.format,
                       "formats with names have pairs in data.fields: [source, target]");
  const bool named = has_names(records.format);
  records.fields = options.fields;
  if (named && records.fields.empty()) records.fields = {"text"};
  if (!named && !records.fields.empty())
    throw config_error("this format has no named fields", "data.fields",
                       "data.format=jsonl, csv or tsv", std::string(format_name(records.format)),
                       "leave data.fields out");
  if (records.fields.size() > 2)
    throw config_error("too many fields", "data.fields", "one, or two for source and target",
                       fmt::format("{}", fmt::join(records.fields, ", ")), "data.fields=text");
  if (records.fields.size() == 2 && records.fields[0] == records.fields[1])
    throw config_error("source and target are the same field", "data.fields",
                       "two fields, or one that the model goes on with",
                       fmt::format("{}", fmt::join(records.fields, ", ")),
                       "data.fields=[SOURCE, TARGET]");
  const bool paths = records.format == DataFormat::trajectories,
             separate = has_records(records.format) || paths;
  check_class_column(options.class_column, paths, records.format);
  const bool draws = separate && !options.only;
  if (draws && options.validation.empty())
    records.validation_fraction = options.validation_fraction;
  if (draws && options.test.empty()) records.test_fraction = options.test_fraction;
  if (!separate && options.test_fraction > 0)
    throw config_error("a long text has no test fraction", "data.test_fraction", "records, or 0",
                       fmt::format("{}", options.test_fraction), "name a file in data.test");
  records.seed = options.seed;
  records.max_chars = options.max_chars;
  records.max_records = options.max_records;
  records.count_bytes = options.tokenizer.kind == "byte" || records.format == DataFormat::tokens;
  if (records.format == DataFormat::tokens) {
    if (!options.tokenizer.is_file() && options.tokenizer.kind != "ids")
      throw config_error("files of tokens are not tokenized", "data.tokenizer",
                         "`ids`, or the tokenizer.json or .model that they were made with",
                         options.tokenizer.kind, "data.tokenizer=ids and data.vocab_size");
    const int64_t size = options.tokenizer.is_file()
                             ? read_tokenizer(options.tokenizer.kind)->vocab_size()
                             : options.tokenizer.vocab_size;
    records.token_width = size <= 65536 ? 2 : 4;
  } else if (options.tokenizer.kind == "ids") {
    throw config_error("text is no ids", "data.tokenizer",
                       "another tokenizer, or data.format=tokens", "ids", "data.tokenizer=char");
  }
  records.skip_bad = options.skip_bad_records;
  records.joined = options.joined_pairs;
  if (request.grammar) {
    const auto validation = static_cast<int64_t>(options.validation_fraction *
                                                 static_cast<double>(options.grammar_chars));
    request.grammar_chars = {options.grammar_chars, validation, 0};
    request.sources = {{.split = SplitName::train, .text_name = kBuiltinGrammar}};
    if (validation > 0)
      request.sources.push_back({.split = SplitName::validation, .text_name = kBuiltinGrammar});
    request.choices["grammar"] = {options.seed, options.grammar_chars, validation};
  } else {
    for (const SplitName split : {SplitName::train, SplitName::validation, SplitName::test})
      if (split == options.only.value_or(split))
        add_files(request, split, paths_of(options, split), pairs);
  }
  if (options.tokenizer.is_file() && !paths)
    request.stamps.push_back(stamp_of(options.tokenizer.kind));
  Json counts = Json::array();
  for (const SplitFiles& s : request.sources)
    counts.push_back({split_name(s.split), s.files.size(), s.targets.size()});
  request.choices["version"] = kVersion;
  request.choices["files"] = counts;
  request.choices["format"] = format_name(records.format);
  request.choices["fields"] = records.fields;
  request.choices["limits"] = {records.max_chars, records.max_records};
  request.choices["skip_bad"] = records.skip_bad;
  if (records.joined) request.choices["joined"] = true;
  if (options.class_column.is_asked_for())
    request.choices["classes"] = {options.class_column.name, options.class_column.classes};
  if (records.validation_fraction + records.test_fraction > 0)
    request.choices["split"] = {records.seed, records.validation_fraction, records.test_fraction};
  if (paths) return request;  // nothing is tokenized
  const TokenizerOptions& t = options.tokenizer;
  request.choices["tokenizer"] = t.is_file() ? fs::path(t.kind).extension().string() : t.kind;
  if (t.is_file()) {
    const DeclaredTokens d = declared_tokens(fs::path(t.kind).parent_path());
    if (d != DeclaredTokens())
      request.choices["declared"] = {d.start, d.ends, d.start_text, d.end_text};
  }
  if (t.kind == "word")
    request.choices["words"] = {t.vocab_size, t.min_frequency, t.lower_case};
  else if (t.kind == "bpe" || t.kind == "unigram" || t.kind == "ids")
    request.choices["vocab_size"] = t.vocab_size;
  return request;
}

std::string key_of(const DataRequest& request, DataObserver& observer) {
  const fs::path memo =
      data_cache_folder() / "seen" /
      (digest_of(Json{kMemo, request.choices, stamps_json(request.stamps)}.dump()).xxh3 + ".json");
  if (const auto remembered = remembered_key(request, memo)) return *remembered;
  const int64_t noted = clock_ns();
  const std::string key = key_of_content(request, observer);
  check_unchanged(request);
  create_folders(memo.parent_path());
  write_file(memo, checked_json_text({{"choices", request.choices},
                                      {"stamps", stamps_json(request.stamps)},
                                      {"noted_ns", noted},
                                      {"key", key}}));
  return key;
}

void check_unchanged(const DataRequest& request) {
  for (const FileStamp& before : request.stamps)
    if (stamp_of(before.path) != before)
      throw Error({.what = "a file changed while it was read",
                   .where = before.path,
                   .expected = "files that stay as they are",
                   .got = "another size or time",
                   .remedy = "start again when it is written"});
}

fs::path data_cache_folder() { return cache_folder() / "data"; }

}  // namespace millrace
