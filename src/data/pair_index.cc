#include "data/pair_index.h"

#include <algorithm>
#include <bit>

#include "data/checked_json.h"
#include "data/kept_index.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;  // another number when the same tokens would give other pairs
constexpr const char *kMeta = "meta.json", *kEntries = "pairs.bin";
constexpr int64_t kEntryBytes = kPairBytes;
constexpr int64_t kMost = int64_t{1} << 40;     // pairs: times kLongest it stays in range
constexpr int64_t kLongest = int64_t{1} << 21;  // more than max_length may be
constexpr int64_t kMostCells = 4096;
constexpr int64_t kMostTokens = int64_t{1} << 48;    // as in a token store
constexpr int64_t kSortedAtOnce = int64_t{4} << 20;  // entries: 64 MiB
constexpr int64_t kRecordsAtOnce = 1 << 16;

// All pairs of a split, in order; those without a token on one side are passed over.
template <typename Use>
void for_each_pair(const TokenArray& tokens, const PairOptions& options, Use use) {
  const int64_t records = tokens.records() / 2;
  std::vector<int64_t> begins;
  for (int64_t first = 0; first < records; first += kRecordsAtOnce) {
    const int64_t count = std::min(kRecordsAtOnce, records - first);
    begins.resize(static_cast<size_t>(2 * count + 1));
    tokens.record_begins(2 * first, begins);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t* b = begins.data() + 2 * i;
      const int64_t source = b[1] - b[0], target = b[2] - b[1];
      if (source < 1 || target < 1 || source > INT32_MAX) continue;
      const Pair pair{b[0], static_cast<int32_t>(source),
                      static_cast<int32_t>(std::min(target, options.max_target))};
      use(pair, target);
    }
  }
}

int64_t read_source(const Pair& pair, int64_t max_source) {
  return std::min<int64_t>(pair.source, max_source);
}

void make_index(const fs::path& folder, const std::string& key, const TokenArray& tokens,
                const PairOptions& options, DataObserver& observer) {
  const fs::path staging = new_staging_folder(folder);
  PairIndexInfo info{.key = key};
  PairSummary& summary = info.summary;
  PairCounts counts;
  std::map<int64_t, int64_t> sources, targets;
  for_each_pair(tokens, options, [&](const Pair& pair, int64_t target) {
    const int64_t source = read_source(pair, options.max_source);
    ++counts[{source, pair.target}];
    ++sources[pair.source];
    ++targets[target];
    summary.cut_sources += source < pair.source ? 1 : 0;
    summary.cut_targets += pair.target < target ? 1 : 0;
    summary.useful += source + pair.target;
  });
  summary.source = summary_of_lengths(sources).before;
  summary.target = summary_of_lengths(targets).before;
  const PairCells cells(counts, {.least = options.least});
  info.cells = cells.cells();

  // Some cells at a time: as many as fit into a block of memory.
  CheckedFileWriter file(staging / kEntries);
  for (size_t low = 0, high = 0; low < info.cells.size(); low = high) {
    std::vector<int64_t> next;  // place of the next pair of each cell
    int64_t total = 0;
    for (high = low; high < info.cells.size() &&
                     (total == 0 || total + info.cells[high].count <= kSortedAtOnce);
         ++high) {
      next.push_back(total);
      total += info.cells[high].count;
    }
    std::vector<PairBytes> entries(static_cast<size_t>(total));
    for_each_pair(tokens, options, [&](const Pair& pair, int64_t) {
      const size_t cell = cells.cell_of(read_source(pair, options.max_source), pair.target);
      if (cell < low || cell >= high) return;
      entries[static_cast<size_t>(next[cell - low]++)] = encode_pair(pair);
    });
    file.write({reinterpret_cast<const char*>(entries.data()), entries.size() * kEntryBytes});
    observer.progress("sorting by length", static_cast<int64_t>(high), std::ssize(info.cells));
  }
  file.close();
  write_new_file(staging / kMeta, pair_index_header_text(info));
  put_folder_in_place(staging, folder);
}

}  // namespace

std::string pair_index_header_text(const PairIndexInfo& info) {
  Json cells = Json::array();
  for (const PairCell& cell : info.cells) cells.push_back({cell.source, cell.target, cell.count});
  const PairSummary& s = info.summary;
  return checked_json_text({{"key", info.key},
                            {"cells", std::move(cells)},
                            {"source", length_summary_json(s.source)},
                            {"target", length_summary_json(s.target)},
                            {"cut_sources", s.cut_sources},
                            {"cut_targets", s.cut_targets},
                            {"useful", s.useful}});
}

PairIndexInfo read_pair_index_header(std::string_view text, const fs::path& name) {
  const CheckedJson meta(text, name);
  PairIndexInfo info{.key = meta.text("key")};
  constexpr const char* kKey = "cells";
  int64_t size = 0, places = 0, last = 0;
  if (std::ssize(meta.list(kKey)) > kMostCells)
    throw meta.refuse(fmt::format("at most {} cells", kMostCells), "more");
  for (const Json& triple : meta.list(kKey)) {
    if (!triple.is_array() || triple.size() != 3)
      throw meta.refuse("a source, a target and a count", triple.type_name());
    const PairCell cell{meta.integer(triple[0], kKey, 1, kLongest),
                        meta.integer(triple[1], kKey, 1, kLongest),
                        meta.integer(triple[2], kKey, 1, kMost - size)};
    if (cell.source + cell.target < last)
      throw meta.refuse("cells behind those that fit into them", "another order");
    last = cell.source + cell.target;
    size += cell.count;
    places += cell.count * last;
    info.cells.push_back(cell);
  }
  PairSummary& s = info.summary;
  s.source = length_summary_from(meta, "source");
  s.target = length_summary_from(meta, "target");
  if (s.source.count != size || s.target.count != size)
    throw meta.refuse(fmt::format("lengths of {} pairs", size), "another number");
  s.cut_sources = meta.integer("cut_sources", 0, size);
  s.cut_targets = meta.integer("cut_targets", 0, size);
  s.useful = meta.integer("useful", 2 * size, places);
  return info;
}

PairBytes encode_pair(const Pair& pair) {
  const std::array<uint32_t, 4> words = {
      static_cast<uint32_t>(pair.begin), static_cast<uint32_t>(pair.begin >> 32),
      static_cast<uint32_t>(pair.source), static_cast<uint32_t>(pair.target)};
  return std::bit_cast<PairBytes>(words);
}

Pair decode_pair(const PairBytes& bytes, const PairCell& cell, int64_t max_source, int64_t tokens,
                 const fs::path& name) {
  const auto words = std::bit_cast<std::array<uint32_t, 4>>(bytes);
  const uint64_t begin = words[0] | uint64_t{words[1]} << 32;
  const int64_t source = words[2], target = words[3];
  if (source < 1 || source > INT32_MAX || target < 1 || target > cell.target ||
      std::min(source, max_source) > cell.source || source + target > tokens ||
      begin > static_cast<uint64_t>(tokens - source - target))
    throw damaged_cache(name,
                        fmt::format("a source of up to {} and a target of up to {} of {} tokens",
                                    cell.source, cell.target, tokens),
                        fmt::format("{} and {} from {} on", source, target, begin));
  return {static_cast<int64_t>(begin), static_cast<int32_t>(source), static_cast<int32_t>(target)};
}

PairIndex::PairIndex(const fs::path& folder, const std::string& key, const PairOptions& options,
                     int64_t tokens)
    : options_(options), tokens_(tokens) {
  const fs::path meta = folder / kMeta;
  info_ = read_pair_index_header(read_header_file(meta), meta);
  check_key(info_.key, key, meta);
  int64_t size = 0;
  for (const PairCell& cell : info_.cells) {
    if (cell.source > options.max_source || cell.target > options.max_target)
      throw damaged_cache(
          meta, fmt::format("cells of at most {} and {}", options.max_source, options.max_target),
          fmt::format("{} and {}", cell.source, cell.target));
    ends_.push_back(size += cell.count);
  }
  entries_ = std::make_unique<CheckedFile>(folder / kEntries, size * kEntryBytes);
}

Pair PairIndex::at(int64_t rank) const {
  PairBytes bytes;
  entries_->read(rank * kEntryBytes, bytes);
  const auto cell = std::upper_bound(ends_.begin(), ends_.end(), rank) - ends_.begin();
  return decode_pair(bytes, info_.cells[static_cast<size_t>(cell)], options_.max_source, tokens_,
                     entries_->path());
}

std::unique_ptr<KeptPairs> open_pair_index(const Dataset& data, SplitName split,
                                           const PairOptions& options, DataObserver& observer) {
  const Split& of = data.split(split);
  MR_CHECK(data.fields == 2 && of.tokens && !data.folder.empty(), "no pairs to index");
  const std::string key = digest_of(Json{"pairs", kVersion, data.key, split_name(split),
                                         options.max_source, options.max_target, options.least}
                                        .dump())
                              .xxh3;
  const fs::path folder = data.folder / fmt::format("{}-pairs-{}", split_name(split), key);
  const std::shared_ptr<const TokenArray> tokens = of.tokens;
  return open_kept_index<PairIndex>(
      folder, [=] { return std::make_shared<PairIndex>(folder, key, options, tokens->tokens()); },
      [=, &observer] { make_index(folder, key, *tokens, options, observer); },
      [](const PairIndex& a, const PairIndex& b) { return a.cells() == b.cells(); }, observer);
}

}  // namespace millrace
