// The files of the data cache as targets: headers, checksums of blocks, places of sequences. They
// are ours, but a disk may fail and a folder may be shared.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "data/checked_file.h"
#include "data/checked_json.h"
#include "data/dataset_header.h"
#include "data/normalisation.h"
#include "data/pair_index.h"
#include "data/sequence_index.h"
#include "data/token_store.h"
#include "data/tokenizer.h"
#include "data/value_store.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/fuzz.h"

namespace millrace::fuzz {
namespace {

// --- headers

// What was accepted is the same when written and read, and written again the same bytes.
template <typename Read, typename Write, typename Check>
Verdict run_header(std::string_view bytes, const char* name, Read read, Write write, Check check) {
  const std::string copy(bytes);
  return verdict_of(name, [&] {
    const auto header = read(copy, name);
    check(header);
    const std::string text = write(header);
    const auto again = read_again([&] { return read(text, "written"); });
    require(write(again) == text, "the header changed when written and read");
  });
}

Verdict run_token_store_header(std::string_view bytes) {
  return run_header(bytes, "meta.json", read_token_store_header, token_store_header_text,
                    [](const TokenStoreInfo& info) {
                      require(info.tokens >= 0 && info.records >= 0 && info.vocab_size >= 0,
                              "a negative size");
                      require(std::max(info.tokens, info.records) < int64_t{1} << 58,
                              "files of more bytes than can be counted");
                    });
}

Verdict run_value_store_header(std::string_view bytes) {
  return run_header(bytes, "meta.json", read_value_store_header, value_store_header_text,
                    [](const ValueStoreInfo& info) {
                      require(info.channels >= 1 && info.paths >= 0 && info.points >= info.paths,
                              "sizes of no paths");
                      require(info.points < (int64_t{1} << 60) / info.channels,
                              "files of more bytes than can be counted");
                    });
}

Verdict run_normalisation(std::string_view bytes) {
  return run_header(
      bytes, "normalisation.json", read_normalisation,
      [](const Normalisation& n) { return n.text(); },
      [](const Normalisation& n) {
        require(!n.mean.empty() && n.mean.size() == n.deviation.size(), "channels of one only");
        for (size_t c = 0; c < n.mean.size(); ++c)
          require(std::isfinite(n.mean[c]) && std::isfinite(n.deviation[c]) && n.deviation[c] > 0,
                  "numbers that nothing can be scaled by");
      });
}

// Orders are made of the lengths without another look at them.
void check_index(const SequenceIndexInfo& info) {
  int64_t size = 0, places = 0;
  for (const auto& [length, count] : info.lengths) {
    require(length >= 1 && count >= 1, "a length that none has");
    size += count;
    places += length * count;
  }
  const SequenceSummary& s = info.summary;
  require(info.size == size && s.after.count == size && s.after.sum == places,
          "the lengths are not those of all sequences");
  require(size * static_cast<int64_t>(kSequenceBytes) >= size, "more bytes than can be counted");
  const LengthSummary& b = s.before;
  require(0 <= b.least && b.least <= b.median && b.median <= b.p99 && b.p99 <= b.most,
          "lengths of records that do not increase");
  int64_t records = 0;
  for (const int64_t bar : s.bars) {
    require(bar >= 0, "a negative bar");
    records += bar;
  }
  require(records == b.count && s.bar_width >= 1 && !s.bars.empty(), "bars of other records");
}

Verdict run_sequence_index_header(std::string_view bytes) {
  return run_header(bytes, "meta.json", read_sequence_index_header, sequence_index_header_text,
                    check_index);
}

Verdict run_dataset_header(std::string_view bytes) {
  return run_header(
      bytes, "dataset.json", read_dataset_header, dataset_header_text, [](const DatasetHeader& h) {
        require(h.file_bytes >= 0 && h.counts.bad >= 0 && h.counts.empty >= 0, "a negative count");
        for (size_t i = 0; i < kSplits; ++i) {
          require(h.counts.records[i] >= 0 && h.counts.chars[i] >= 0, "a negative count");
          require(h.splits[i] == (h.counts.records[i] > 0), "a split without records");
        }
        require(!h.trajectories || h.splits[0], "nothing to train on");
        if (h.trajectories) return;
        require(h.fields == 1 || (h.fields == 2 && h.records), "fields of no records");
        require(0 <= h.vocab_size && h.vocab_size <= h.stored_size, "sizes of no vocabulary");
        for (const int32_t id : {h.unknown_id, h.start_id})
          require(-1 <= id && id < h.vocab_size, "id out of range");
        for (const int32_t id : h.end_ids) require(0 <= id && id < h.vocab_size, "id out of range");
        require(h.stored_size == h.vocab_size || h.unknown_id >= 0, "rare words without an id");
        require(std::find(kTokenizerFiles.begin(), kTokenizerFiles.end(), h.tokenizer_file) !=
                    kTokenizerFiles.end(),
                "a file outside the folder");
        for (const std::string& shown : {h.tokenizer_name, h.counts.first_bad})
          require(clean_text_length(shown) == shown.size(), "control characters");
      });
}

// The checksum that belongs to what is there now, where one stands; all else stays as it is.
std::string repair_header(const std::string& bytes) {
  // Deeper ones are refused before the checksum matters, and cannot be written.
  constexpr int kDeepest = 64;
  bool deep = false;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
    deep = deep || depth > kDeepest;
    return !deep;
  };
  nlohmann::json object = nlohmann::json::parse(bytes, watch, false);
  const size_t key = bytes.rfind("\"xxh3\"");
  if (deep || !object.is_object() || key == bytes.npos) return bytes;
  object.erase("xxh3");
  const size_t begin = bytes.find('"', key + 6),
               end = begin == bytes.npos ? begin : bytes.find('"', begin + 1);
  if (end == bytes.npos) return bytes;
  std::string repaired = bytes;
  return repaired.replace(begin + 1, end - begin - 1, digest_of(object.dump(1)).xxh3);
}

// --- checksums of blocks

Verdict run_block_sums(std::string_view bytes) {
  const std::vector<char> copy(bytes.begin(), bytes.end());
  const std::string_view text(copy.data(), copy.size());
  const auto blocks = static_cast<int64_t>(copy.size() / 8) - 1;
  for (const int64_t others : {int64_t{0}, blocks + 1, int64_t{1} << 40})
    require(
        others == blocks || !verdict_of("tokens.bin.xxh3",
                                        [&] { parse_block_sums(text, others, "tokens.bin.xxh3"); })
                                 .accepted,
        "checksums of another number of blocks");
  return verdict_of("tokens.bin.xxh3", [&] {
    const auto sums = parse_block_sums(text, std::max<int64_t>(blocks, 0), "tokens.bin.xxh3");
    require(std::ssize(sums) == blocks, "checksums were lost");
    require(block_sums_bytes(sums) == text, "checksums changed when written");
  });
}

std::string repair_block_sums(const std::string& bytes) {
  if (bytes.size() < 8) return bytes;
  std::vector<uint64_t> sums(bytes.size() / 8 - 1);
  if (!sums.empty()) std::memcpy(sums.data(), bytes.data(), sums.size() * 8);
  return block_sums_bytes(std::move(sums));
}

std::string generate_block_sums(RandomStream& random) {
  std::vector<uint64_t> sums(random.below(20));
  for (uint64_t& sum : sums) sum = random.next_u64();
  return block_sums_bytes(std::move(sums));
}

// --- places of sequences

constexpr int64_t kTokensOfEntries = 100;

// Entries of an index whose sequences take 1, 2, 3 and so on places, for a tokenizer with a start
// token; what one without makes of them must be as sound.
Verdict run_sequence_entries(std::string_view bytes) {
  const auto entries = static_cast<int64_t>(bytes.size() / kSequenceBytes);
  Verdict verdict{true, ""};
  for (int64_t i = 0; i < 2 * entries && verdict.accepted; ++i) {
    SequenceBytes entry;
    std::memcpy(entry.data(), bytes.data() + static_cast<size_t>(i / 2) * kSequenceBytes,
                kSequenceBytes);
    const int64_t places = i / 2 % 128 + 1;
    const SequenceBounds bounds{
        .tokens = kTokensOfEntries, .max_length = 128, .has_start = i % 2 == 1};
    const Verdict one = verdict_of("sequences.bin", [&] {
      const Sequence s = decode_sequence(entry, places, bounds, "sequences.bin");
      // As batches read it: with the token before it, or the start token.
      const bool start = s.opens && bounds.has_start, before = !s.opens;
      const int64_t first = s.begin - (before ? 1 : 0), read = s.length + (before ? 1 : 0),
                    ids = read + (start ? 1 : 0);
      require(first >= 0 && read >= 0 && read <= kTokensOfEntries - first,
              "tokens outside the store");
      require(ids - 1 == places, "a sequence of another length than its row has room for");
      require(0 <= s.context && s.context < places, "nothing to predict");
      require(encode_sequence(s) == entry, "the entry changed when written");
    });
    if (bounds.has_start) verdict = one;
  }
  return verdict;
}

std::string generate_sequence_entries(RandomStream& random) {
  std::string bytes;
  for (int64_t i = 0, count = static_cast<int64_t>(random.below(9)); i < count; ++i) {
    Sequence s;
    s.opens = random.below(2) == 0;
    s.length = static_cast<int32_t>(i + 1);
    s.context = static_cast<int32_t>(random.below(static_cast<uint64_t>(i + 1)));
    s.begin = s.opens ? 0 : 1;
    s.begin += static_cast<int64_t>(
        random.below(static_cast<uint64_t>(kTokensOfEntries - s.length - s.begin + 1)));
    const SequenceBytes entry = encode_sequence(s);
    bytes.append(reinterpret_cast<const char*>(entry.data()), entry.size());
  }
  return bytes;
}

// --- places of pairs

constexpr PairCell kCellOfEntries{.source = 6, .target = 4, .count = 9};

Verdict run_pair_index_header(std::string_view bytes) {
  return run_header(
      bytes, "meta.json", read_pair_index_header, pair_index_header_text,
      [](const PairIndexInfo& info) {
        int64_t size = 0, places = 0;
        for (const PairCell& cell : info.cells) {
          require(cell.source >= 1 && cell.target >= 1 && cell.count >= 1, "a cell of none");
          size += cell.count;
          places += cell.count * (cell.source + cell.target);
        }
        require(size * static_cast<int64_t>(kPairBytes) >= size, "more bytes than can be counted");
        require(info.summary.useful >= 0 && info.summary.useful <= places,
                "more tokens than places");
      });
}

Verdict run_pair_entries(std::string_view bytes) {
  return verdict_of("pairs.bin", [&] {
    for (size_t at = 0; at + kPairBytes <= bytes.size(); at += kPairBytes) {
      PairBytes entry;
      std::memcpy(entry.data(), bytes.data() + at, kPairBytes);
      const Pair pair =
          decode_pair(entry, kCellOfEntries, kCellOfEntries.source, kTokensOfEntries, "pairs.bin");
      require(pair.begin >= 0 && pair.source >= 1 && pair.target >= 1 &&
                  pair.begin + pair.source + pair.target <= kTokensOfEntries,
              "tokens outside the store");
      require(pair.target <= kCellOfEntries.target, "a target longer than its row");
      require(encode_pair(pair) == entry, "the entry changed when written");
    }
  });
}

}  // namespace

std::vector<Target> cache_targets() {
  const std::vector<std::string> store_words = {"\"key\"",    "\"format\"",   "\"vocab_size\"",
                                                "\"tokens\"", "\"records\"",  "\"xxh3\"",
                                                "\"paths\"",  "\"channels\"", "\"points\""};
  return {
      {"token_store_header",
       run_token_store_header,
       token_store_header_examples,
       store_words,
       {},
       {},
       nullptr,
       false,
       repair_header},
      {"value_store_header",
       run_value_store_header,
       value_store_header_examples,
       store_words,
       {},
       {},
       nullptr,
       false,
       repair_header},
      {"normalisation",
       run_normalisation,
       normalisation_examples,
       {"\"mean\"", "\"deviation\"", "\"xxh3\"", "1e308", "-0.0", "5e-324"},
       {},
       {},
       nullptr,
       false,
       repair_header},
      {"sequence_index_header",
       run_sequence_index_header,
       sequence_index_header_examples,
       {"\"key\"", "\"size\"", "\"lengths\"", "\"before\"", "\"split\"", "\"cut\"", "\"too_short\"",
        "\"bar_width\"", "\"bars\"", "\"xxh3\"", "[1,1]", "[2,1],", "[2097152,1]", "[0,1]"},
       {},
       {},
       nullptr,
       false,
       repair_header},
      {"dataset_header",
       run_dataset_header,
       dataset_header_examples,
       {"\"key\"", "\"splits\"", "\"trajectories\"", "\"counts\"", "\"chars\"", "\"vocab_size\"",
        "\"stored_size\"", "\"unknown_id\"", "\"start_id\"", "\"tokenizer\"", "\"tokenizer.model\"",
        "\"../tokenizer.json\"", "\"train\"", "\"validation\"", "\"test\"", "\"records\"",
        "\"fields\"", "\\u001b[31m", "\"xxh3\""},
       {},
       {},
       nullptr,
       false,
       repair_header},
      {"block_sums",
       run_block_sums,
       block_sums_examples,
       {std::string(8, '\0'), "\xff\xff\xff\xff\xff\xff\xff\xff", "12345678"},
       {},
       {},
       generate_block_sums,
       false,
       repair_block_sums},
      {"sequence_entries",
       run_sequence_entries,
       sequence_entries_examples,
       {std::string("\x64\0\0\0", 4), std::string("\0\0\0\x80", 4), std::string("\x01\0\0\x80", 4),
        std::string("\xff\xff\xff\xff", 4), std::string(4, '\0'), std::string("\x01\0\0\0", 4)},
       {},
       {},
       generate_sequence_entries},
      {"pair_index_header",
       run_pair_index_header,
       pair_index_header_examples,
       {"\"key\"", "\"cells\"", "\"source\"", "\"target\"", "\"cut_sources\"", "\"useful\"",
        "\"xxh3\"", "[1,1,1]", "[2097152,1,1],"},
       {},
       {},
       nullptr,
       false,
       repair_header},
      {"pair_entries",
       run_pair_entries,
       pair_entries_examples,
       {std::string("\x64\0\0\0", 4), std::string("\xff\xff\xff\xff", 4), std::string(4, '\0'),
        std::string("\x01\0\0\0", 4)},
       {},
       {}},
  };
}

}  // namespace millrace::fuzz
