#include "data/dataset.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>

#include "core/process.h"
#include "core/text.h"
#include "data/checked_json.h"
#include "data/data_request.h"
#include "data/dataset_header.h"
#include "data/grammar.h"
#include "data/kept.h"
#include "data/token_store.h"
#include "data/trajectory_source.h"

namespace millrace {
namespace {

constexpr const char* kMeta = "dataset.json";

std::string plain_text_note(const PlainTextCounts& counts) {
  if (counts.files == 0) return "";
  std::string text = fmt::format("{} file{} written as on Windows: ", with_commas(counts.files),
                                 counts.files == 1 ? "" : "s");
  if (counts.line_ends > 0)
    text += fmt::format("{} line ends CR LF are read as LF", with_commas(counts.line_ends));
  if (counts.marks > 0)
    text += fmt::format("{}{} byte-order mark{} at the start passed over",
                        counts.line_ends > 0 ? ", " : "", with_commas(counts.marks),
                        counts.marks == 1 ? "" : "s");
  return text;
}

// --- opening and making

// Makes the tokens of a request in the cache, and again when they were damaged there.
class Maker {
 public:
  Maker(std::string key, DataRequest request, DataOptions options, DataObserver& observer)
      : key_(std::move(key)),
        request_(std::move(request)),
        options_(std::move(options)),
        observer_(observer) {}
  const std::string& key() const { return key_; }
  fs::path folder() const { return data_cache_folder() / key_; }
  DataObserver& observer() const { return observer_; }
  // Of a point; 0: none were asked for.
  int64_t classes() const {
    return options_.class_column.is_asked_for() ? options_.class_column.classes : 0;
  }
  Prepared make() const;
  std::string place_of_path(SplitName split, int64_t path) const;
  // Whether a header speaks of what was asked for.
  bool agrees(const DatasetHeader& header) const {
    const DataFormat format = request_.records.format;
    if (header.trajectories != (format == DataFormat::trajectories)) return false;
    return header.trajectories ||
           (header.records == has_records(format) && header.fields == fields());
  }

 private:
  int64_t fields() const {
    return request_.records.fields.size() == 2 || !request_.sources[0].targets.empty() ? 2 : 1;
  }
  using SceneUse = std::function<void(SplitName, const fs::path& file, const Trajectories&)>;
  void for_each_scene(const SceneUse& use) const;
  Prepared write_trajectories(const fs::path& staging) const;
  std::string key_;
  DataRequest request_;
  DataOptions options_;
  DataObserver& observer_;
};

// The tokens of one split.
class KeptTokens : public TokenArray {
 public:
  // `stored_size`: the ids are below it.
  // `name`: of the store in the maker's folder.
  KeptTokens(std::shared_ptr<const Maker> maker, const std::string& name, int64_t stored_size)
      : store_(open(*maker, name, stored_size), [=](const Error& error, const TokenStore& damaged) {
          const CacheLock making(maker->folder(), maker->observer());
          maker->observer().note(again_text(error));
          maker->make();
          auto made = open(*maker, name, stored_size);
          // Places were counted in what turned out to be damaged.
          if (made->info() != damaged.info())
            throw damaged_cache(maker->folder(), "as many tokens as were made again",
                                "another number");
          return made;
        }) {}
  int64_t tokens() const override { return store_.current()->tokens(); }
  int64_t records() const override { return store_.current()->records(); }
  void read(int64_t begin, std::span<int32_t> out) const override {
    store_.read([&](const TokenStore& store) { store.read(begin, out); });
  }
  void record_begins(int64_t first, std::span<int64_t> out) const override {
    store_.read([&](const TokenStore& store) { store.record_begins(first, out); });
  }

 private:
  static std::shared_ptr<const TokenStore> open(const Maker& maker, const std::string& name,
                                                int64_t stored_size) {
    const fs::path folder = maker.folder() / name;
    auto store = std::make_shared<TokenStore>(folder, maker.key());
    if (store->info().vocab_size != stored_size)
      throw damaged_cache(folder, fmt::format("{} ids", with_commas(stored_size)),
                          fmt::format("{}", with_commas(store->info().vocab_size)));
    return store;
  }
  Kept<TokenStore> store_;
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
                      std::shared_ptr<Tokenizer> t = read_tokenizer(file);
                      t->declare({.start = header.start_id, .ends = header.end_ids});
                      if (t->vocab_size() != header.vocab_size ||
                          t->stored_size() != header.stored_size ||
                          t->start_id() != header.start_id || t->end_ids() != header.end_ids)
                        throw damaged_cache(file, "the tokenizer of the tokens", "another");
                      return std::shared_ptr<const Tokenizer>(std::move(t));
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
      const int64_t channels = data.first_trajectories()->channels();
      if (data.trajectories[i]->channels() != channels)
        throw damaged_cache(store, fmt::format("{} channels, as in the others", channels),
                            fmt::format("{}", data.trajectories[i]->channels()));
      if (data.trajectories[i]->classes() != maker->classes())
        throw damaged_cache(store, fmt::format("{} classes", maker->classes()),
                            fmt::format("{}", data.trajectories[i]->classes()));
    }
    if (!header.splits[0]) return data;
    const fs::path file = folder / kNormalisationFile;
    data.normalisation = read_normalisation(read_header_file(file), file);
    if (data.normalisation.channels() != data.trajectories[0]->channels())
      throw damaged_cache(file, "as many channels as the points have", "another number");
    data.place_of_path = [maker](SplitName split, int64_t path) {
      return maker->place_of_path(split, path);
    };
    return data;
  }
  data.records = header.records;
  data.fields = static_cast<int>(header.fields);
  data.vocab_size = header.vocab_size;
  data.start_id = header.start_id;
  data.end_id = header.end_ids.empty() ? -1 : header.end_ids[0];
  data.tokenizer_name = header.tokenizer_name;
  for (size_t i = 0; i < kSplits; ++i) {
    if (!header.splits[i]) continue;
    const auto name = static_cast<SplitName>(i);
    Split& split = data.split(name);
    split.open =
        std::make_shared<KeptTokens>(maker, std::string(split_name(name)), header.stored_size);
    check_count(i, split.open->records(), header.fields);
    split.tokens = split.open;
    if (header.stored_size != header.vocab_size)
      split.tokens =
          std::make_shared<WithoutRare>(split.open, header.vocab_size, header.unknown_id);
    split.end = split.tokens->tokens();
    if (header.fields == 1 || name == SplitName::train) continue;
    split.target_texts = std::make_shared<KeptTokens>(maker, target_texts_name(name), 256);
    check_count(i, split.target_texts->records(), 1);
  }
  data.shared_tokenizer = open_tokenizer(folder / header.tokenizer_file, header);
  return data;
}

void Maker::for_each_scene(const SceneUse& use) const {
  int64_t done = 0;
  for (const SplitFiles& source : request_.sources)
    for (const fs::path& file : source.files) {
      observer_.progress("reading the paths", done, request_.file_bytes);
      std::string bytes;
      append_unpacked_file(file, bytes);
      done += static_cast<int64_t>(bytes.size());
      const bool tensors = file.extension() == ".safetensors", skip = request_.records.skip_bad;
      use(source.split, file,
          tensors ? read_ragged_safetensors(std::as_bytes(std::span(bytes)), file, skip,
                                            options_.class_column)
                  : parse_trajectory_table(bytes, file.string(), skip, options_.class_column));
    }
}

std::string Maker::place_of_path(SplitName split, int64_t path) const {
  std::string place = fmt::format("data.{}", split_name(split));
  int64_t number = 0;
  for_each_scene([&](SplitName of, const fs::path& file, const Trajectories& scene) {
    for (const Trajectory& t : scene.paths)
      if (drawn_split(request_.records, of, number++) == split && path-- == 0)
        place = path_place(file.string(), t);
  });
  return place;
}

Prepared Maker::write_trajectories(const fs::path& staging) const {
  Prepared prepared;
  const int64_t begin = now_ns();
  std::array<std::unique_ptr<ValueStoreWriter>, kSplits> writers;
  std::optional<ChangeStatistics> changes;
  std::array<int64_t, kSplits> read{}, bad{};  // paths of the files of each split
  int64_t channels = 0, number = 0;
  for_each_scene([&](SplitName of, const fs::path& file, const Trajectories& scene) {
    read[static_cast<size_t>(of)] += std::ssize(scene.paths);
    bad[static_cast<size_t>(of)] += scene.skipped;
    prepared.counts.bad += scene.skipped;
    if (scene.paths.empty()) return;
    if (channels == 0) channels = scene.channels;
    if (scene.channels != channels)
      throw config_error("scenes of different kinds", file.string(),
                         fmt::format("{} numbers a point, as the files before it", channels),
                         fmt::format("{}", scene.channels), "give files of one kind");
    for (const Trajectory& path : scene.paths) {
      const auto split = static_cast<size_t>(drawn_split(request_.records, of, number++));
      auto& writer = writers[split];
      if (!writer)
        writer = std::make_unique<ValueStoreWriter>(
            staging / split_name(static_cast<SplitName>(split)), key_, channels, classes());
      writer->add_path(scene.values_of(path), scene.classes_of(path));
      if (of != SplitName::train) continue;
      // Also of what is drawn from it for validation: other files to validate on, and the same to
      // train on, must not scale a model's states otherwise.
      if (!changes) changes.emplace(channels);
      changes->add_path(scene.values_of(path));
    }
  });
  for (const SplitFiles& source : request_.sources)
    if (const auto split = static_cast<size_t>(source.split); read[split] == 0)
      throw config_error(
          fmt::format("no path in {}", file_names(source.files)),
          fmt::format("data.{}", split_name(source.split)), "at least one trajectory",
          fmt::format("none; {} bad ones were passed over", bad[split]), "check the files");
  if (const SplitName first = request_.sources[0].split; !writers[static_cast<size_t>(first)])
    throw config_error(
        fmt::format("no path of {} is left to train on", file_names(request_.sources[0].files)),
        "data.train", "at least one trajectory",
        fmt::format("all {} drawn for validation and test", number),
        "more paths, or a smaller data.validation_fraction");
  check_unchanged(request_);
  DatasetHeader header{.key = key_, .file_bytes = request_.file_bytes, .trajectories = true};
  for (size_t i = 0; i < kSplits; ++i) {
    if (!writers[i]) continue;
    writers[i]->commit();
    prepared.counts.records[i] = writers[i]->paths();
    header.splits[i] = true;
  }
  header.counts = prepared.counts;
  if (changes) write_new_file(staging / kNormalisationFile, changes->result().text());
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
      put_folder_in_place(staging, folder);
      return prepared;
    }
    std::vector<SplitFiles> sources = request_.sources;
    if (request_.grammar)
      for (SplitFiles& s : sources)
        s.text =
            grammar_stories(options_.seed, request_.grammar_chars[static_cast<size_t>(s.split)],
                            static_cast<uint64_t>(s.split));
    const int threads = options_.threads > 0 ? options_.threads : usable_cores();
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
    if (const std::string note = plain_text_note(prepared.plain_text); !note.empty())
      observer_.note(note);
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
                         .end_ids = tokenizer->end_ids(),
                         .tokenizer_file = file.name,
                         .tokenizer_xxh3 = write_new_file(staging / file.name, file.bytes).xxh3,
                         .tokenizer_name = tokenizer->name()};
    for (size_t i = 0; i < kSplits; ++i) header.splits[i] = prepared.counts.records[i] > 0;
    write_new_file(staging / kMeta, dataset_header_text(header));
    put_folder_in_place(staging, folder);
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
      fault = again_text(error);
      return std::nullopt;
    }
  };
  if (auto data = open()) return std::move(*data);
  create_folders(data_cache_folder());
  const CacheLock lock(folder, observer);
  fault.clear();
  if (auto data = open()) return std::move(*data);
  if (!fault.empty()) observer.note(fault);
  Prepared prepared = maker->make();
  Dataset data = open_folder(maker);
  data.prepared = std::move(prepared);
  return data;
}

}  // namespace

std::string again_text(const Error& error) {
  return fmt::format("{} in {}; it is made again", error.fields().what, error.fields().where);
}

CacheLock::CacheLock(const fs::path& what, DataObserver& observer) {
  std::string owner;
  const std::string me = fmt::format("process {}", getpid());
  for (bool said = false; !lock_.take(what.string() + ".lock", me, &owner); said = true) {
    if (!said) observer.note(fmt::format("{} is preparing the same data; waiting for it", owner));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

Dataset open_dataset(const DataOptions& options, DataObserver& observer) {
  const DataRequest request = make_data_request(options);
  Dataset data =
      open_or_make(std::make_shared<Maker>(key_of(request, observer), request, options, observer));
  size_t files = 0;
  for (const SplitFiles& source : request.sources)
    files += source.files.size() + source.targets.size();
  data.source = request.grammar ? kBuiltinGrammar
                : request.sources[0].files.size() == 1 && request.sources[0].targets.empty()
                    ? request.sources[0].files[0].string()
                    : fmt::format("{} files", files);
  data.sources.fill(data.source);
  for (const SplitFiles& s : request.sources)
    if (!s.files.empty()) data.sources[static_cast<size_t>(s.split)] = file_names(s.files);
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
  data.sources.fill(data.source);
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
  // Of the training data and what it is validated with; where nothing trains, of what is evaluated.
  std::vector<SplitName> splits{SplitName::train, SplitName::validation};
  if (!has(SplitName::train))
    splits = {has(SplitName::test) ? SplitName::test : SplitName::validation};
  std::vector<std::string> sizes, numbers;
  for (const SplitName name : splits) {
    const std::string number = with_commas(counts.records[static_cast<size_t>(name)]);
    numbers.push_back(number);
    sizes.push_back(fmt::format("{} {}",
                                has_trajectories() ? number : with_commas(split(name).size()),
                                name == SplitName::train ? "training" : split_name(name)));
  }
  if (has_trajectories())
    return fmt::format("{}: {} paths, {} points of {} numbers{}", source, fmt::join(sizes, " and "),
                       with_commas(first_trajectories()->points()),
                       first_trajectories()->channels(),
                       classes() > 0 ? fmt::format(" and one of {} classes", classes()) : "");
  std::string text = fmt::format("{}: {} tokens", source, fmt::join(sizes, " and "));
  if (records) text += fmt::format(" in {} records", fmt::join(numbers, " and "));
  return text + fmt::format(", {} tokenizer with a vocabulary of {}", tokenizer_name, vocab_size);
}

}  // namespace millrace
