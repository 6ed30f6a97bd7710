#include "data/dataset_header.h"

#include <algorithm>

#include "data/checked_json.h"
#include "data/tokenizer.h"
#include "io/quote.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMost = int64_t{1} << 48;  // of anything that is counted
constexpr int64_t kMostIds = int64_t{1} << 31;

// The message about a bad record names a file, and a file may be called anything: what a terminal
// would take for orders, and JSON for no text, is a question mark.
std::string clean_lines(std::string_view text) {
  std::string clean;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (at > 0) clean += '\n';
    clean += printable(text.substr(at, end - at), text.size());
    at = end + 1;
  }
  return clean;
}

std::array<int64_t, kSplits> counts_of(const CheckedJson& meta, const char* key) {
  const Json& list = meta.list(key);
  if (list.size() != kSplits)
    throw meta.refuse(fmt::format("{} {}", kSplits, key), std::to_string(list.size()));
  std::array<int64_t, kSplits> counts;
  for (size_t i = 0; i < kSplits; ++i) counts[i] = meta.integer(list[i], key, 0, kMost);
  return counts;
}

// Names of splits, each at most once and in their order.
std::array<bool, kSplits> splits_of(const CheckedJson& meta, const char* key) {
  std::array<bool, kSplits> splits{};
  size_t next = 0;
  for (const Json& name : meta.list(key)) {
    while (next < kSplits && name != split_name(static_cast<SplitName>(next))) ++next;
    if (next == kSplits)
      throw meta.refuse(fmt::format("{}: train, validation, test", key),
                        printable(meta.list(key).dump(), 80));
    splits[next++] = true;
  }
  return splits;
}

Json names_of(const std::array<bool, kSplits>& splits) {
  Json names = Json::array();
  for (size_t i = 0; i < kSplits; ++i)
    if (splits[i]) names.push_back(split_name(static_cast<SplitName>(i)));
  return names;
}

int32_t id_of(const CheckedJson& meta, const char* key, int64_t least, int64_t vocab_size) {
  return static_cast<int32_t>(meta.integer(key, least, vocab_size - 1));
}

}  // namespace

DatasetHeader read_dataset_header(std::string_view text, const fs::path& name) {
  const CheckedJson meta(text, name);
  DatasetHeader h;
  h.key = meta.text("key");
  h.file_bytes = meta.integer("file_bytes", 0, INT64_MAX);
  h.counts.records = counts_of(meta, "counts");
  h.counts.bad = meta.integer("bad", 0, kMost);
  h.trajectories = meta.has("trajectories");
  h.splits = splits_of(meta, h.trajectories ? "trajectories" : "splits");
  for (size_t i = 0; i < kSplits; ++i)
    if (h.splits[i] != (h.counts.records[i] > 0))
      throw meta.refuse("records in the splits that there are, and in no other",
                        printable(meta.value("counts").dump(), 80));
  if (h.trajectories) {
    if (h.splits == std::array<bool, kSplits>{}) throw meta.refuse("trajectories", "none");
    return h;
  }
  h.counts.chars = counts_of(meta, "chars");
  h.counts.empty = meta.integer("empty", 0, kMost);
  h.counts.first_bad = clean_lines(meta.text("first_bad"));
  h.records = meta.flag("records");
  h.fields = meta.integer("fields", 1, h.records ? 2 : 1);
  h.vocab_size = meta.integer("vocab_size", 0, kMostIds);
  h.stored_size = meta.integer("stored_size", h.vocab_size, kMostIds);
  // Ids behind the vocabulary are read as the unknown one, so there must be one.
  h.unknown_id = id_of(meta, "unknown_id", h.stored_size > h.vocab_size ? 0 : -1, h.vocab_size);
  h.start_id = id_of(meta, "start_id", -1, h.vocab_size);
  for (const Json& id : meta.list("end_ids"))
    h.end_ids.push_back(static_cast<int32_t>(meta.integer(id, "end_ids", 0, h.vocab_size - 1)));
  h.tokenizer_file = meta.text("tokenizer");
  if (std::find(kTokenizerFiles.begin(), kTokenizerFiles.end(), h.tokenizer_file) ==
      kTokenizerFiles.end())
    throw meta.refuse("a tokenizer file in this folder", quote(h.tokenizer_file, 40));
  h.tokenizer_xxh3 = meta.digest("tokenizer_xxh3");
  h.tokenizer_name = clean_lines(meta.text("tokenizer_name"));
  return h;
}

std::string dataset_header_text(const DatasetHeader& h) {
  Json meta{{"key", h.key},
            {h.trajectories ? "trajectories" : "splits", names_of(h.splits)},
            {"file_bytes", h.file_bytes},
            {"counts", h.counts.records},
            {"bad", h.counts.bad}};
  if (!h.trajectories)
    meta.update({{"chars", h.counts.chars},
                 {"empty", h.counts.empty},
                 {"first_bad", clean_lines(h.counts.first_bad)},
                 {"records", h.records},
                 {"fields", h.fields},
                 {"vocab_size", h.vocab_size},
                 {"stored_size", h.stored_size},
                 {"unknown_id", h.unknown_id},
                 {"start_id", h.start_id},
                 {"end_ids", h.end_ids},
                 {"tokenizer", h.tokenizer_file},
                 {"tokenizer_xxh3", h.tokenizer_xxh3},
                 {"tokenizer_name", h.tokenizer_name}});
  return checked_json_text(std::move(meta));
}

}  // namespace millrace
