#include "data/sequence_index.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>
#include <optional>

#include "core/text.h"
#include "data/checked_json.h"
#include "data/kept_index.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;  // another number when the same tokens would give other sequences
constexpr const char *kMeta = "meta.json", *kEntries = "sequences.bin";
constexpr int64_t kEntryBytes = kSequenceBytes;
constexpr int64_t kMost = int64_t{1} << 40;        // sequences: times kLongest it stays in range
constexpr int64_t kMostTokens = int64_t{1} << 48;  // as in a token store
constexpr int64_t kLongest = int64_t{1} << 21;     // places: more than training.max_length may be
constexpr int64_t kBars = 16;
constexpr int64_t kSortedAtOnce = int64_t{4} << 20;  // entries: 64 MiB
constexpr int64_t kRecordsAtOnce = 1 << 16;
constexpr uint32_t kOpens = uint32_t{1} << 31;

// What may end after a token, by its text.
class Ends {
 public:
  Ends(const Tokenizer& tokenizer, bool paragraphs) : paragraphs_(paragraphs) {
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
      classes_.push_back(class_of(tokenizer.token_text(id)));
  }
  // Between two neighbours.
  bool between(int32_t left, int32_t right) const {
    const uint8_t l = at(left), r = at(right);
    if (l & kEndsLine) return !(r & kStartsLine);
    return !paragraphs_ && (l & kEndsSentence) && (r & (kStartsSpace | kStartsLine));
  }

 private:
  enum : uint8_t { kEndsSentence = 1, kEndsLine = 2, kStartsSpace = 4, kStartsLine = 8 };
  static uint8_t class_of(std::string_view text) {
    uint8_t found = 0;
    if (text.empty()) return found;
    if (text.front() == '\n') found |= kStartsLine;
    if (text.front() == ' ') found |= kStartsSpace;
    if (text.back() == '\n') found |= kEndsLine;
    while (!text.empty() && std::string_view(" \"')]}").find(text.back()) != text.npos)
      text.remove_suffix(1);
    for (const std::string_view end : {".", "!", "?", "\u3002", "\uFF01", "\uFF1F"})
      if (text.ends_with(end)) found |= kEndsSentence;
    return found;
  }
  uint8_t at(int32_t id) const {
    return static_cast<size_t>(id) < classes_.size() ? classes_[static_cast<size_t>(id)] : 0;
  }
  std::vector<uint8_t> classes_;
  bool paragraphs_;
};

class Cutter {
 public:
  Cutter(const Dataset& data, const TokenArray& tokens, const SequenceOptions& options)
      : data_(data), tokens_(tokens), options_(options) {
    if (options.chunking != "hard")
      ends_.emplace(data.tokenizer(), options.chunking == "paragraph");
  }

  // All sequences of all records, in order.
  template <typename Use, typename Record>
  void run(Use use, Record record) const {
    const int64_t fields = data_.fields, records = tokens_.records() / fields;
    std::vector<int64_t> begins;
    for (int64_t first = 0; first < records; first += kRecordsAtOnce) {
      const int64_t count = std::min(kRecordsAtOnce, records - first);
      begins.resize(static_cast<size_t>(count * fields + 1));
      tokens_.record_begins(first * fields, begins);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t* b = begins.data() + i * fields;
        record(b[fields] - b[0],
               fields == 2 ? cut_pair(b[0], b[1], b[2], use) : cut_record(b[0], b[1], use));
      }
    }
  }
  // What a sequence takes in a row.
  int64_t places(const Sequence& s) const {
    return s.length - (s.opens && data_.start_id < 0 ? 1 : 0);
  }

 private:
  struct Outcome {
    int64_t sequences = 0;
    bool lost = false;
  };
  int64_t room(bool opens) const {
    return options_.max_length + (opens && data_.start_id < 0 ? 1 : 0);
  }
  template <typename Use>
  void emit(const Sequence& s, Use& use, Outcome& outcome) const {
    if (places(s) - s.context < 1) return;  // nothing to predict
    use(s);
    ++outcome.sequences;
  }

  template <typename Use>
  Outcome cut_record(int64_t begin, int64_t end, Use& use) const {
    Outcome outcome;
    for (int64_t at = begin; at < end;) {
      const int64_t context = std::min(options_.overlap, at - begin), from = at - context;
      int64_t to = std::min(end, from + room(from == begin));
      if (to < end && ends_) to = last_end(at, to);
      emit({from, static_cast<int32_t>(to - from), static_cast<int32_t>(context), from == begin},
           use, outcome);
      at = to;
    }
    return outcome;
  }

  // The source is cut at its front, so that what stands next to the target stays.
  template <typename Use>
  Outcome cut_pair(int64_t begin, int64_t middle, int64_t end, Use& use) const {
    Outcome outcome;
    if (end - begin > room(true)) {
      outcome.lost = true;
      const int64_t record = begin;
      end = std::min(end, middle + options_.max_length - 1);
      begin = end - options_.max_length;
      emit({begin, static_cast<int32_t>(end - begin), static_cast<int32_t>(middle - begin),
            begin == record},
           use, outcome);
    } else {
      const int64_t unseen = data_.start_id < 0 ? 1 : 0;  // the first token is no target
      emit({begin, static_cast<int32_t>(end - begin),
            static_cast<int32_t>(std::max<int64_t>(0, middle - begin - unseen)), true},
           use, outcome);
    }
    return outcome;
  }

  // The last good end in the second half of [at, to], or `to`.
  int64_t last_end(int64_t at, int64_t to) const {
    const int64_t from = at + (to - at) / 2;
    window_.resize(static_cast<size_t>(to + 1 - from));
    tokens_.read(from, window_);
    for (int64_t place = to; place > from; --place)
      if (ends_->between(window_[static_cast<size_t>(place - 1 - from)],
                         window_[static_cast<size_t>(place - from)]))
        return place;
    return to;
  }

  const Dataset& data_;
  const TokenArray& tokens_;
  const SequenceOptions& options_;
  std::optional<Ends> ends_;
  mutable std::vector<int32_t> window_;
};

LengthSummary summary_of(const std::map<int64_t, int64_t>& counts) {
  LengthSummary s;
  for (const auto& [length, count] : counts) {
    s.count += count;
    s.sum += length * count;
  }
  if (s.count == 0) return s;
  s.least = counts.begin()->first;
  s.most = counts.rbegin()->first;
  auto quantile = [&](double share) {
    auto left = static_cast<int64_t>(share * static_cast<double>(s.count - 1));
    for (const auto& [length, count] : counts)
      if ((left -= count) < 0) return length;
    return s.most;
  };
  s.median = quantile(0.5);
  s.p99 = quantile(0.99);
  return s;
}

// Bars of equal width over lengths up to the 99th percentile and a little more.
void draw_bars(const std::map<int64_t, int64_t>& counts, SequenceSummary& s) {
  // A round width: 1, 2 or 5 and zeros.
  const int64_t least = (s.before.p99 + kBars - 2) / (kBars - 1);
  int64_t ten = 1;
  while (ten * 10 <= least) ten *= 10;
  for (const int64_t round : {ten, 2 * ten, 5 * ten, 10 * ten})
    if ((s.bar_width = round) >= least) break;
  s.bars.assign(kBars, 0);
  for (const auto& [length, count] : counts)
    s.bars[static_cast<size_t>(std::clamp<int64_t>((length - 1) / s.bar_width, 0, kBars - 1))] +=
        count;
  while (s.bars.size() > 1 && s.bars.back() == 0) s.bars.pop_back();
}

// Pairs of a length and how many sequences have it, shortest first.
std::map<int64_t, int64_t> lengths_from(const CheckedJson& meta, int64_t size) {
  constexpr const char* kKey = "lengths";
  std::map<int64_t, int64_t> lengths;
  int64_t longest = 0, left = size;
  for (const Json& pair : meta.list(kKey)) {
    if (!pair.is_array() || pair.size() != 2)
      throw meta.refuse("pairs of a length and a count", pair.type_name());
    longest = meta.integer(pair[0], kKey, longest + 1, kLongest);
    const int64_t count = meta.integer(pair[1], kKey, 1, left);
    lengths.emplace_hint(lengths.end(), longest, count);
    left -= count;
  }
  if (left != 0)
    throw meta.refuse(fmt::format("lengths of {} sequences", size), fmt::format("{} fewer", left));
  return lengths;
}

void make_index(const fs::path& folder, const std::string& key, const Dataset& data,
                const TokenArray& tokens, const SequenceOptions& options, DataObserver& observer) {
  const fs::path staging = new_staging_folder(folder);
  const Cutter cutter(data, tokens, options);
  SequenceIndexInfo info{.key = key};
  SequenceSummary& summary = info.summary;
  LengthHistogram lengths;
  lengths.count.assign(1, 0);
  std::map<int64_t, int64_t> before;
  cutter.run(
      [&](const Sequence& s) {
        const auto places = static_cast<size_t>(cutter.places(s));
        if (places >= lengths.count.size()) lengths.count.resize(places + 1);
        ++lengths.count[places];
      },
      [&](int64_t length, auto outcome) {
        ++before[length];
        summary.split += outcome.sequences > 1 ? 1 : 0;
        summary.cut += outcome.lost ? 1 : 0;
        summary.too_short += outcome.sequences == 0 ? 1 : 0;
      });
  for (size_t length = 0; length < lengths.count.size(); ++length)
    if (const int64_t count = lengths.count[length]; count > 0) {
      info.lengths[static_cast<int64_t>(length)] = count;
      info.size += count;
    }
  summary.before = summary_of(before);
  draw_bars(before, summary);

  // Sorted by length, some lengths at a time: as many as fit into a block of memory.
  CheckedFileWriter file(staging / kEntries);
  for (size_t low = 1, high = 1; low < lengths.count.size(); low = high) {
    std::vector<int64_t> next;  // place of the next sequence of each length
    int64_t total = 0;
    for (high = low; high < lengths.count.size() &&
                     (total == 0 || total + lengths.count[high] <= kSortedAtOnce);
         ++high) {
      next.push_back(total);
      total += lengths.count[high];
    }
    std::vector<SequenceBytes> entries(static_cast<size_t>(total));
    cutter.run(
        [&](const Sequence& s) {
          const auto places = static_cast<size_t>(cutter.places(s));
          if (places < low || places >= high) return;
          entries[static_cast<size_t>(next[places - low]++)] = encode_sequence(s);
        },
        [](int64_t, auto) {});
    file.write({reinterpret_cast<const char*>(entries.data()), entries.size() * kEntryBytes});
    observer.progress("sorting by length", static_cast<int64_t>(high),
                      static_cast<int64_t>(lengths.count.size()));
  }
  file.close();
  write_new_file(staging / kMeta, sequence_index_header_text(info));
  put_folder_in_place(staging, folder);
}

}  // namespace

nlohmann::json length_summary_json(const LengthSummary& s) {
  return {s.count, s.sum, s.least, s.median, s.p99, s.most};
}

LengthSummary length_summary_from(const CheckedJson& meta, const char* key) {
  const Json& list = meta.list(key);
  if (list.size() != 6)
    throw meta.refuse(fmt::format("6 numbers for `{}`", key), fmt::format("{}", list.size()));
  LengthSummary s;
  s.count = meta.integer(list[0], key, 0, kMostTokens);
  const int64_t most = s.count > 0 ? kMostTokens : 0;
  s.sum = meta.integer(list[1], key, 0, most);
  s.least = meta.integer(list[2], key, 0, most);
  s.median = meta.integer(list[3], key, s.least, most);
  s.p99 = meta.integer(list[4], key, s.median, most);
  s.most = meta.integer(list[5], key, s.p99, most);
  if (s.count == 0) return s;
  const int64_t mean = s.sum / s.count, rest = s.sum % s.count;
  if (mean < s.least || mean + (rest > 0 ? 1 : 0) > s.most)
    throw meta.refuse("a mean between the least and the most length",
                      fmt::format("{} tokens in {} records", s.sum, s.count));
  return s;
}

SequenceSummary summary_of_lengths(const std::map<int64_t, int64_t>& counts) {
  SequenceSummary s;
  s.before = s.after = summary_of(counts);
  draw_bars(counts, s);
  return s;
}

std::string sequence_index_header_text(const SequenceIndexInfo& info) {
  const SequenceSummary& s = info.summary;
  Json lengths = Json::array();
  for (const auto& [length, count] : info.lengths) lengths.push_back({length, count});
  return checked_json_text({{"key", info.key},
                            {"size", info.size},
                            {"lengths", std::move(lengths)},
                            {"before", length_summary_json(s.before)},
                            {"split", s.split},
                            {"cut", s.cut},
                            {"too_short", s.too_short},
                            {"bar_width", s.bar_width},
                            {"bars", s.bars}});
}

SequenceIndexInfo read_sequence_index_header(std::string_view text, const fs::path& name) {
  const CheckedJson meta(text, name);
  SequenceIndexInfo info{.key = meta.text("key")};
  info.size = meta.integer("size", 0, kMost);
  info.lengths = lengths_from(meta, info.size);
  SequenceSummary& s = info.summary;
  s.before = length_summary_from(meta, "before");
  s.after = summary_of(info.lengths);
  s.split = meta.integer("split", 0, s.before.count);
  s.cut = meta.integer("cut", 0, s.before.count);
  s.too_short = meta.integer("too_short", 0, s.before.count);
  s.bar_width = meta.integer("bar_width", 1, kMostTokens);
  const Json& bars = meta.list("bars");
  if (bars.empty() || std::ssize(bars) > kBars)
    throw meta.refuse(fmt::format("1 to {} bars", kBars), std::to_string(bars.size()));
  int64_t left = s.before.count;
  for (const Json& bar : bars) left -= s.bars.emplace_back(meta.integer(bar, "bars", 0, left));
  if (left != 0)
    throw meta.refuse("as many records in bars as there are", fmt::format("{} fewer", left));
  return info;
}

SequenceBytes encode_sequence(const Sequence& s) {
  const std::array<uint32_t, 4> words = {
      static_cast<uint32_t>(s.begin), static_cast<uint32_t>(s.begin >> 32),
      static_cast<uint32_t>(s.length), static_cast<uint32_t>(s.context) | (s.opens ? kOpens : 0)};
  return std::bit_cast<SequenceBytes>(words);
}

Sequence decode_sequence(const SequenceBytes& bytes, int64_t places, const SequenceBounds& bounds,
                         const fs::path& name) {
  const auto words = std::bit_cast<std::array<uint32_t, 4>>(bytes);
  const uint64_t begin = words[0] | uint64_t{words[1]} << 32;
  const int64_t length = words[2], context = words[3] & ~kOpens;
  const bool opens = (words[3] & kOpens) != 0;
  // Without a start token the first one of a record is no target. One that does not open a record
  // follows another token.
  const int64_t wanted = places + (opens && !bounds.has_start ? 1 : 0);
  const uint64_t first = opens ? 0 : 1;
  if (length != wanted || context >= places || wanted > bounds.tokens || begin < first ||
      begin > static_cast<uint64_t>(bounds.tokens - wanted))
    throw damaged_cache(
        name, fmt::format("{} of {} tokens, some to be predicted", wanted, bounds.tokens),
        fmt::format("{} from {} on, {} not to be predicted", length, begin, context));
  return {static_cast<int64_t>(begin), static_cast<int32_t>(length), static_cast<int32_t>(context),
          opens};
}

SequenceIndex::SequenceIndex(const fs::path& folder, const std::string& key,
                             const SequenceBounds& bounds)
    : bounds_(bounds) {
  const fs::path meta = folder / kMeta;
  info_ = read_sequence_index_header(read_header_file(meta), meta);
  check_key(info_.key, key, meta);
  if (info_.summary.after.most > bounds.max_length)
    throw damaged_cache(meta, fmt::format("sequences of at most {} places", bounds.max_length),
                        fmt::format("{}", info_.summary.after.most));
  lengths_.count.resize(static_cast<size_t>(info_.summary.after.most) + 1);
  for (const auto& [length, count] : info_.lengths)
    lengths_.count[static_cast<size_t>(length)] = count;
  std::partial_sum(lengths_.count.begin(), lengths_.count.end(), std::back_inserter(ends_));
  entries_ = std::make_unique<CheckedFile>(folder / kEntries, info_.size * kEntryBytes);
}

Sequence SequenceIndex::at(int64_t rank) const {
  SequenceBytes bytes;
  entries_->read(rank * kEntryBytes, bytes);
  // Those who asked for this rank have left as much room as the lengths say.
  const auto length = std::upper_bound(ends_.begin(), ends_.end(), rank) - ends_.begin();
  return decode_sequence(bytes, length, bounds_, entries_->path());
}

std::unique_ptr<KeptSequences> open_sequence_index(const Dataset& data, SplitName split,
                                                   const SequenceOptions& options,
                                                   DataObserver& observer) {
  const Split& of = data.split(split);
  MR_CHECK(data.records && of.tokens && !data.folder.empty(), "no records to index");
  const std::string key = digest_of(Json{kVersion, data.key, split_name(split), options.max_length,
                                         options.chunking, options.overlap}
                                        .dump())
                              .xxh3;
  const fs::path folder = data.folder / fmt::format("{}-{}", split_name(split), key);
  const SequenceBounds bounds{of.tokens->tokens(), options.max_length, data.start_id >= 0};
  return open_kept_index<SequenceIndex>(
      folder, [=] { return std::make_shared<SequenceIndex>(folder, key, bounds); },
      [=, &observer] {
        make_index(folder, key, data, *data.split(split).tokens, options, observer);
      },
      [](const SequenceIndex& a, const SequenceIndex& b) {
        return a.lengths().count == b.lengths().count;
      },
      observer);
}

}  // namespace millrace
