#include "data/dataset.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "core/text.h"
#include "data/checked_json.h"
#include "data/dataset_header.h"
#include "data/grammar.h"
#include "data/token_store.h"
#include "data/trajectory_source.h"
#include "io/quote.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// Part of every key: another number when the same files would give other tokens or other files.
constexpr int kVersion = 1;
constexpr const char* kMeta = "dataset.json";

Error config_error(std::string what, std::string where, std::string expected, std::string got,
                   std::string remedy) {
  return Error({.code = ErrorCode::config,
                .what = std::move(what),
                .where = std::move(where),
                .expected = std::move(expected),
                .got = std::move(got),
                .remedy = std::move(remedy)});
}

// --- what is asked for

struct Request {
  RecordOptions records;
  std::vector<SplitFiles> sources;
  bool grammar = false;
  std::vector<FileStamp> stamps;  // of all files, the tokenizer's last
  int64_t file_bytes = 0;         // of the data
  Json choices;                   // everything besides content that changes a token
};

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

// Files, their partners, and what they are called, for one split.
void add_files(Request& request, SplitName split, const std::vector<std::string>& paths,
               const std::vector<std::string>& targets) {
  const std::string key = fmt::format("data.{}", split_name(split));
  if (split != SplitName::train && paths.empty() && targets.empty()) return;
  SplitFiles source{.split = split};
  source.files = find_files(paths, key, request.records.format);
  if (!targets.empty()) {
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

Request make_request(const DataOptions& options) {
  Request request;
  request.grammar = options.train == std::vector<std::string>{kBuiltinGrammar};
  check_options(options, request.grammar);
  const bool pairs = !options.train_target.empty();
  RecordOptions& records = request.records;
  records.format = pairs && options.format == "auto" ? DataFormat::lines
                                                     : format_of(options.format, options.train);
  if (pairs && records.format != DataFormat::lines)
    throw config_error("pairs of files are read line by line", "data.train_target",
                       "data.format=lines or auto", options.format,
                       "formats with names have pairs in data.fields: [source, target]");
  const bool named = records.format == DataFormat::json_lines ||
                     records.format == DataFormat::csv || records.format == DataFormat::tsv;
  records.fields = options.fields;
  if (named && records.fields.empty()) records.fields = {"text"};
  if (!named && !records.fields.empty())
    throw config_error("this format has no named fields", "data.fields",
                       "data.format=jsonl, csv or tsv", std::string(format_name(records.format)),
                       "leave data.fields out");
  if (records.fields.size() > 2)
    throw config_error("too many fields", "data.fields", "one, or two for source and target",
                       fmt::format("{}", fmt::join(records.fields, ", ")), "data.fields=text");
  const bool paths = records.format == DataFormat::trajectories,
             separate = has_records(records.format) || paths;
  if (separate && options.validation.empty())
    records.validation_fraction = options.validation_fraction;
  if (separate && options.test.empty()) records.test_fraction = options.test_fraction;
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
  if (request.grammar) {
    const auto validation = static_cast<int64_t>(options.validation_fraction *
                                                 static_cast<double>(options.grammar_chars));
    request.sources = {{.split = SplitName::train, .text_name = kBuiltinGrammar}};
    if (validation > 0)
      request.sources.push_back({.split = SplitName::validation, .text_name = kBuiltinGrammar});
    request.choices["grammar"] = {options.seed, options.grammar_chars, validation};
  } else {
    add_files(request, SplitName::train, options.train, options.train_target);
    add_files(request, SplitName::validation, options.validation, options.validation_target);
    add_files(request, SplitName::test, options.test, options.test_target);
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
  if (records.validation_fraction + records.test_fraction > 0)
    request.choices["split"] = {records.seed, records.validation_fraction, records.test_fraction};
  if (paths) return request;  // nothing is tokenized
  const TokenizerOptions& t = options.tokenizer;
  request.choices["tokenizer"] = t.is_file() ? fs::path(t.kind).extension().string() : t.kind;
  if (t.kind == "word")
    request.choices["words"] = {t.vocab_size, t.min_frequency, t.lower_case};
  else if (t.kind == "bpe" || t.kind == "unigram" || t.kind == "ids")
    request.choices["vocab_size"] = t.vocab_size;
  return request;
}

// --- the key, by content or by what is remembered of it

fs::path data_folder() { return cache_folder() / "data"; }

Json stamps_json(const std::vector<FileStamp>& stamps) {
  Json list = Json::array();
  for (const FileStamp& s : stamps)  // a path may be no text that JSON could hold
    list.push_back({digest_of(s.path).xxh3, s.bytes, s.modified_ns, s.changed_ns, s.inode});
  return list;
}

// Which key this request had the last time, if none of its files has another stamp since. A file
// that was written at about the time it was looked at may have been written again within the
// clock's resolution, so such a stamp is not taken on trust (as git has it with its index).
std::optional<std::string> remembered_key(const Request& request, const fs::path& memo) {
  try {
    const CheckedJson seen(read_header_file(memo), memo);
    if (seen.value("choices") != request.choices ||
        seen.value("stamps") != stamps_json(request.stamps))
      return std::nullopt;
    const int64_t noted = seen.integer("noted_ns", 0, INT64_MAX);
    constexpr int64_t kResolution = 2'000'000'000;
    for (const FileStamp& s : request.stamps)
      if (std::max(s.modified_ns, s.changed_ns) > noted - kResolution) return std::nullopt;
    return seen.digest("key");  // it becomes the name of a folder, which may be removed
  } catch (const Error&) {
    return std::nullopt;  // the first time
  }
}

std::string key_of_content(const Request& request, DataObserver& observer) {
  Json all{{"choices", request.choices}};
  int64_t done = 0;
  for (const FileStamp& s : request.stamps) {
    observer.progress("looking at the files", done, request.file_bytes);
    all["content"].push_back(digest_of_file(s.path).xxh3);
    done += s.bytes;
  }
  return digest_of(all.dump()).xxh3;
}

int64_t clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void check_unchanged(const Request& request) {
  for (const FileStamp& before : request.stamps)
    if (stamp_of(before.path) != before)
      throw Error({.what = "a file changed while it was read",
                   .where = before.path,
                   .expected = "files that stay as they are",
                   .got = "another size or time",
                   .remedy = "start again when it is written"});
}

// --- opening and making

// Makes the tokens of a request in the cache, and again when they were damaged there.
class Maker {
 public:
  Maker(std::string key, Request request, DataOptions options, DataObserver& observer)
      : key_(std::move(key)),
        request_(std::move(request)),
        options_(std::move(options)),
        observer_(observer) {}
  const std::string& key() const { return key_; }
  fs::path folder() const { return data_folder() / key_; }
  DataObserver& observer() const { return observer_; }
  Prepared make() const;
  // Whether a header speaks of what was asked for.
  bool agrees(const DatasetHeader& header) const {
    const DataFormat format = request_.records.format;
    if (header.trajectories != (format == DataFormat::trajectories)) return false;
    return header.trajectories ||
           (header.records == has_records(format) && header.fields == fields());
  }

 private:
  int64_t fields() const {
    return request_.records.fields.size() == 2 || !options_.train_target.empty() ? 2 : 1;
  }
  Prepared write_trajectories(const fs::path& staging) const;
  void put_in_place(const fs::path& staging) const;
  std::string key_;
  Request request_;
  DataOptions options_;
  DataObserver& observer_;
};

// The tokens of one split. A block that is not what was written is noticed when it is first read,
// which may be in the middle of a run: the store is then made again, of the same files.
class KeptTokens : public TokenArray {
 public:
  // `stored_size`: the ids are below it.
  KeptTokens(std::shared_ptr<const Maker> maker, SplitName split, int64_t stored_size)
      : maker_(std::move(maker)),
        folder_(maker_->folder() / split_name(split)),
        stored_size_(stored_size),
        store_(open()) {}
  int64_t tokens() const override { return current()->tokens(); }
  int64_t records() const override { return current()->records(); }
  void read(int64_t begin, std::span<int32_t> out) const override {
    attempt([&](const TokenStore& store) { store.read(begin, out); });
  }
  void record_begins(int64_t first, std::span<int64_t> out) const override {
    attempt([&](const TokenStore& store) { store.record_begins(first, out); });
  }

 private:
  using Store = std::shared_ptr<const TokenStore>;
  Store open() const {
    auto store = std::make_shared<TokenStore>(folder_, maker_->key());
    if (store->info().vocab_size != stored_size_)
      throw damaged_cache(folder_, fmt::format("{} ids", with_commas(stored_size_)),
                          fmt::format("{}", with_commas(store->info().vocab_size)));
    return store;
  }
  Store current() const {
    const std::lock_guard lock(mutex_);
    return store_;
  }
  template <typename Read>
  void attempt(Read read) const {
    const Store store = current();
    try {
      return read(*store);
    } catch (const Error& error) {
      if (!is_damaged_cache(error)) throw;
      const std::lock_guard lock(mutex_);
      if (store_ == store) {  // another thread may have mended it
        const CacheLock making(maker_->folder(), maker_->observer());
        maker_->observer().note(
            fmt::format("{} in {}; it is made again", error.fields().what, error.fields().where));
        maker_->make();
        Store made = open();
        // Places were counted in what turned out to be damaged.
        if (made->info() != store->info())
          throw damaged_cache(folder_, "as many tokens as were made again", "another number");
        store_ = std::move(made);
      }
    }
    read(*current());
  }
  std::shared_ptr<const Maker> maker_;
  fs::path folder_;
  int64_t stored_size_;
  mutable std::mutex mutex_;
  mutable Store store_;
};

// Rare words as models without a copy mechanism read them.
class WithoutRare : public TokenArray {
 public:
  WithoutRare(std::shared_ptr<const TokenArray> all, int64_t vocab_size, int32_t unknown)
      : all_(std::move(all)), vocab_size_(vocab_size), unknown_(unknown) {}
  int64_t tokens() const override { return all_->tokens(); }
  int64_t records() const override { return all_->records(); }
  void read(int64_t begin, std::span<int32_t> out) const override {
    all_->read(begin, out);
    for (int32_t& id : out)
      if (id >= vocab_size_) id = unknown_;
  }
  void record_begins(int64_t first, std::span<int64_t> out) const override {
    all_->record_begins(first, out);
  }

 private:
  std::shared_ptr<const TokenArray> all_;
  int64_t vocab_size_;
  int32_t unknown_;
};

// In the background: a large vocabulary takes a while to read, and the first batch needs none.
std::shared_future<std::shared_ptr<const Tokenizer>> open_tokenizer(const fs::path& file,
                                                                    const DatasetHeader& header) {
  if (digest_of_file(file).xxh3 != header.tokenizer_xxh3)
    throw damaged_cache(file, "what was written", "other bytes");
  return std::async(std::launch::async,
                    [file, header] {
                      std::shared_ptr<const Tokenizer> t = read_tokenizer(file);
                      if (t->vocab_size() != header.vocab_size ||
                          t->stored_size() != header.stored_size ||
                          t->start_id() != header.start_id || t->end_id() != header.end_id)
                        throw damaged_cache(file, "the tokenizer of the tokens", "another");
                      return t;
                    })
      .share();
}

// Error when the folder is not there, or not what was written.
Dataset open_folder(const std::shared_ptr<Maker>& maker) {
  const fs::path folder = maker->folder(), meta_file = folder / kMeta;
  const DatasetHeader header = read_dataset_header(read_header_file(meta_file), meta_file);
  check_key(header.key, maker->key(), meta_file);
  if (!maker->agrees(header))
    throw damaged_cache(meta_file, "the kind of data that was asked for", "another");
  Dataset data;
  data.key = header.key;
  data.folder = folder;
  data.file_bytes = header.file_bytes;
  data.counts = header.counts;
  auto check_count = [&](size_t split, int64_t stored, int64_t fields) {
    if (const int64_t wanted = header.counts.records[split] * fields; stored != wanted)
      throw damaged_cache(folder / split_name(static_cast<SplitName>(split)),
                          fmt::format("{} records", with_commas(wanted)),
                          fmt::format("{}", with_commas(stored)));
  };
  if (header.trajectories) {
    for (size_t i = 0; i < kSplits; ++i) {
      if (!header.splits[i]) continue;
      const fs::path store = folder / split_name(static_cast<SplitName>(i));
      data.trajectories[i] = std::make_shared<ValueStore>(store, header.key);
      check_count(i, data.trajectories[i]->paths(), 1);
      const int64_t channels = data.trajectories[0]->channels();
      if (data.trajectories[i]->channels() != channels)
        throw damaged_cache(store, fmt::format("{} channels, as in the others", channels),
                            fmt::format("{}", data.trajectories[i]->channels()));
    }
    return data;
  }
  data.records = header.records;
  data.fields = static_cast<int>(header.fields);
  data.vocab_size = header.vocab_size;
  data.start_id = header.start_id;
  data.end_id = header.end_id;
  data.tokenizer_name = header.tokenizer_name;
  Split* const splits[] = {&data.train, &data.validation, &data.test};
  for (size_t i = 0; i < kSplits; ++i) {
    if (!header.splits[i]) continue;
    Split& split = *splits[i];
    split.open = std::make_shared<KeptTokens>(maker, static_cast<SplitName>(i), header.stored_size);
    check_count(i, split.open->records(), header.fields);
    split.tokens = split.open;
    if (header.stored_size != header.vocab_size)
      split.tokens =
          std::make_shared<WithoutRare>(split.open, header.vocab_size, header.unknown_id);
    split.end = split.tokens->tokens();
  }
  data.shared_tokenizer = open_tokenizer(folder / header.tokenizer_file, header);
  return data;
}

void Maker::put_in_place(const fs::path& staging) const {
  sync_folder(staging);
  if (fs::exists(folder())) remove_folder(folder());
  rename_path(staging, folder());
  sync_folder(folder().parent_path());
}

Prepared Maker::write_trajectories(const fs::path& staging) const {
  Prepared prepared;
  const int64_t begin = now_ns();
  std::array<std::unique_ptr<ValueStoreWriter>, kSplits> writers;
  int64_t channels = 0, number = 0, done = 0;
  const RecordOptions& o = request_.records;
  for (const SplitFiles& source : request_.sources)
    for (const fs::path& file : source.files) {
      observer_.progress("reading the paths", done, request_.file_bytes);
      std::string bytes;
      append_unpacked_file(file, bytes);
      done += static_cast<int64_t>(bytes.size());
      const bool tensors = file.extension() == ".safetensors";
      const Trajectories scene =
          tensors ? read_ragged_safetensors(std::as_bytes(std::span(bytes)), file, "values",
                                            "offsets", o.skip_bad)
                  : parse_trajectory_table(bytes, file.string(), o.skip_bad);
      prepared.counts.bad += scene.skipped;
      if (scene.paths.empty()) continue;
      if (channels == 0) channels = scene.channels;
      if (scene.channels != channels)
        throw config_error("scenes of different kinds", file.string(),
                           fmt::format("{} numbers a point, as the files before it", channels),
                           fmt::format("{}", scene.channels), "give files of one kind");
      for (const Trajectory& path : scene.paths) {
        const auto split = static_cast<size_t>(drawn_split(o, source.split, number++));
        auto& writer = writers[split];
        if (!writer)
          writer = std::make_unique<ValueStoreWriter>(
              staging / split_name(static_cast<SplitName>(split)), key_, channels);
        writer->add_path(scene.values_of(path));
      }
    }
  if (!writers[0])
    throw config_error("no path to train on", "data.train", "at least one trajectory", "none",
                       "check the files");
  check_unchanged(request_);
  DatasetHeader header{.key = key_, .file_bytes = request_.file_bytes, .trajectories = true};
  for (size_t i = 0; i < kSplits; ++i) {
    if (!writers[i]) continue;
    writers[i]->commit();
    prepared.counts.records[i] = writers[i]->paths();
    header.splits[i] = true;
  }
  header.counts = prepared.counts;
  write_new_file(staging / kMeta, dataset_header_text(header));
  prepared.seconds = seconds_since(begin);
  return prepared;
}

Prepared Maker::make() const {
  const fs::path folder = this->folder();
  check_unchanged(request_);
  const fs::path staging = folder.string() + ".making";
  if (fs::exists(staging)) remove_folder(staging);
  create_folders(staging);
  try {
    if (request_.records.format == DataFormat::trajectories) {
      Prepared prepared = write_trajectories(staging);
      put_in_place(staging);
      return prepared;
    }
    std::vector<SplitFiles> sources = request_.sources;
    if (request_.grammar)
      for (SplitFiles& s : sources)
        s.text = grammar_stories(
            options_.seed,
            request_.choices["grammar"][s.split == SplitName::train ? 1 : 2].get<int64_t>(),
            s.split == SplitName::train ? 0 : 1);
    const int threads = options_.threads > 0
                            ? options_.threads
                            : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    const auto progress = [&](const char* stage, int64_t done, int64_t all) {
      observer_.progress(stage, done, all);
    };
    const std::unique_ptr<Tokenizer> tokenizer =
        request_.grammar && options_.tokenizer.kind == "char"
            ? make_char_tokenizer(grammar_alphabet(), {kBuiltinGrammar})
            : make_tokenizer(options_.tokenizer, request_.records, sources, threads,
                             request_.file_bytes, progress);
    Prepared prepared = write_token_stores(staging, key_, *tokenizer, request_.records, sources,
                                           threads, request_.file_bytes, progress);
    check_unchanged(request_);
    const TokenizerFile file = tokenizer->file();
    DatasetHeader header{.key = key_,
                         .file_bytes = request_.file_bytes,
                         .counts = prepared.counts,
                         .records = has_records(request_.records.format),
                         .fields = fields(),
                         .vocab_size = tokenizer->vocab_size(),
                         .stored_size = tokenizer->stored_size(),
                         .unknown_id = tokenizer->unknown_id(),
                         .start_id = tokenizer->start_id(),
                         .end_id = tokenizer->end_id(),
                         .tokenizer_file = file.name,
                         .tokenizer_xxh3 = write_new_file(staging / file.name, file.bytes).xxh3,
                         .tokenizer_name = tokenizer->name()};
    for (size_t i = 0; i < kSplits; ++i) header.splits[i] = prepared.splits[i].records > 0;
    write_new_file(staging / kMeta, dataset_header_text(header));
    put_in_place(staging);
    return prepared;
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(staging, ignored);
    throw;
  }
}

Dataset open_or_make(const std::shared_ptr<Maker>& maker) {
  const fs::path folder = maker->folder();
  DataObserver& observer = maker->observer();
  std::string fault;
  auto open = [&]() -> std::optional<Dataset> {
    if (!fs::exists(folder)) return std::nullopt;
    try {
      return open_folder(maker);
    } catch (const Error& error) {
      fault = fmt::format("{} in {}", error.fields().what, error.fields().where);
      return std::nullopt;
    }
  };
  if (auto data = open()) return std::move(*data);
  create_folders(data_folder());
  const CacheLock lock(folder, observer);
  fault.clear();
  if (auto data = open()) return std::move(*data);
  if (!fault.empty()) observer.note(fault + "; it is made again");
  Prepared prepared = maker->make();
  Dataset data = open_folder(maker);
  data.prepared = std::move(prepared);
  return data;
}

}  // namespace

CacheLock::CacheLock(const fs::path& what, DataObserver& observer) {
  std::string owner;
  const std::string me = fmt::format("process {}", getpid());
  for (bool said = false; !lock_.take(what.string() + ".lock", me, &owner); said = true) {
    if (!said) observer.note(fmt::format("{} is preparing the same data; waiting for it", owner));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

Dataset open_dataset(const DataOptions& options, DataObserver& observer) {
  const Request request = make_request(options);
  const fs::path memo =
      data_folder() / "seen" /
      (digest_of(Json{request.choices, stamps_json(request.stamps)}.dump()).xxh3 + ".json");
  const std::optional<std::string> remembered = remembered_key(request, memo);
  const int64_t noted = clock_ns();
  const std::string key = remembered ? *remembered : key_of_content(request, observer);
  Dataset data = open_or_make(std::make_shared<Maker>(key, request, options, observer));
  if (!remembered) {
    create_folders(memo.parent_path());
    write_file(memo, checked_json_text({{"choices", request.choices},
                                        {"stamps", stamps_json(request.stamps)},
                                        {"noted_ns", noted},
                                        {"key", key}}));
  }
  data.source = request.grammar ? kBuiltinGrammar
                : request.sources[0].files.size() == 1 && request.sources[0].targets.empty()
                    ? request.sources[0].files[0].string()
                    : fmt::format("{} files", request.stamps.size());
  const bool own_validation = data.validation.tokens != nullptr || !options.validation.empty();
  if (!data.records && !request.grammar && !own_validation && data.train.tokens) {
    // The end of a long text is kept for validation.
    const auto count =
        static_cast<int64_t>(options.validation_fraction * static_cast<double>(data.train.end));
    data.validation = {data.train.tokens, data.train.open, data.train.end - count, data.train.end};
    data.train.end -= count;
  }
  const bool characters = options.tokenizer.kind == "char" || options.tokenizer.kind == "byte";
  if (request.grammar && characters) data.entropy_per_token = grammar_entropy_per_char();
  return data;
}

Dataset dataset_in_memory(std::shared_ptr<const Tokenizer> tokenizer, std::vector<int32_t> train,
                          std::vector<int32_t> validation) {
  Dataset data;
  data.key =
      digest_of({reinterpret_cast<const char*>(train.data()), train.size() * sizeof(int32_t)}).xxh3;
  data.vocab_size = tokenizer->vocab_size();
  data.tokenizer_name = tokenizer->name();
  data.source = "memory";
  data.train.end = std::ssize(train);
  data.train.tokens = std::make_shared<TokensInMemory>(std::move(train));
  if (!validation.empty()) {
    data.validation.end = std::ssize(validation);
    data.validation.tokens = std::make_shared<TokensInMemory>(std::move(validation));
  }
  std::promise<std::shared_ptr<const Tokenizer>> ready;
  ready.set_value(std::move(tokenizer));
  data.shared_tokenizer = ready.get_future().share();
  return data;
}

std::string Dataset::description() const {
  if (has_trajectories())
    return fmt::format("{}: {} training and {} validation paths, {} points of {} numbers", source,
                       with_commas(counts.records[0]), with_commas(counts.records[1]),
                       with_commas(trajectories[0]->points()), trajectories[0]->channels());
  std::string text = fmt::format("{}: {} training and {} validation tokens", source,
                                 with_commas(train.size()), with_commas(validation.size()));
  if (records)
    text += fmt::format(" in {} and {} records", with_commas(counts.records[0]),
                        with_commas(counts.records[1]));
  return text + fmt::format(", {} tokenizer with a vocabulary of {}", tokenizer_name, vocab_size);
}

}  // namespace millrace
