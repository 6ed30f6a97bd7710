#include "data/long_records.h"

#include <algorithm>

#include "core/text.h"
#include "data/data_request.h"

namespace millrace {
namespace {

constexpr int64_t kRecordsAtOnce = 1 << 16;

// Those of one kind: whole records, or the sources or targets of pairs.
struct Long {
  const char *what, *key;
  int64_t limit = 0;
  int64_t count = 0, most = 0;
  int64_t record = 0, length = 0;  // the first
  void add(int64_t number, int64_t tokens) {
    if (tokens <= limit) return;
    if (count++ == 0) {
      record = number;
      length = tokens;
    }
    most = std::max(most, tokens);
  }
};

// File and line of record `number` of a split, in the second of two files when `in_target`.
std::string place_of(const DataOptions& source, const Tokenizer& tokenizer, SplitName split,
                     int64_t number, bool in_target) {
  DataRequest request = make_data_request(source);
  request.records.any_bytes = tokenizer.takes_any_bytes();
  RecordReader reader(request.records, request.sources);
  const size_t fields =
      request.records.fields.size() == 2 || !request.sources[0].targets.empty() ? 2 : 1;
  RecordBlock block;
  while (reader.next(block)) {
    if (block.split != split) continue;
    const auto records = static_cast<int64_t>(block.fields.size() / fields);
    if (number >= records) {
      number -= records;
      continue;
    }
    const TextPlace place = block.place(static_cast<size_t>(number) * fields + (in_target ? 1 : 0));
    return fmt::format("{}:{}", place.file, place.line);
  }
  return fmt::format("data.{}", split_name(split));  // another reads less of it by now
}

}  // namespace

void refuse_long_records(const Dataset& data, SplitName split, const BatchOptions& options,
                         const DataOptions& source) {
  const Split& of = data.split(split);
  if (!data.records || !of.tokens || options.batching == "windows") return;
  const bool apart = options.max_source > 0;
  const int64_t max_length = options.sequences.max_length;
  // In a row the first token is read, not predicted, unless a start token stands before it.
  Long whole{"record", "max_length", max_length + (data.start_id < 0 ? 1 : 0)},
      sources{"source", "max_source_length", options.max_source},
      targets{"target", "max_length", max_length};
  const int64_t fields = data.fields, records = of.tokens->records() / fields;
  std::vector<int64_t> begins;
  for (int64_t first = 0; first < records; first += kRecordsAtOnce) {
    const int64_t count = std::min(kRecordsAtOnce, records - first);
    begins.resize(static_cast<size_t>(count * fields + 1));
    of.tokens->record_begins(first * fields, begins);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t* b = begins.data() + i * fields;
      if (apart) {
        sources.add(first + i, b[1] - b[0]);
        targets.add(first + i, b[2] - b[1]);
      } else {
        whole.add(first + i, b[fields] - b[0]);
      }
    }
  }
  for (const Long* found : {&whole, &sources, &targets}) {
    if (found->count == 0) continue;
    throw Error(
        {.code = ErrorCode::config,
         .what = fmt::format("a {} is longer than training.{}", found->what, found->key),
         .where = place_of(source, data.tokenizer(), split, found->record, found == &targets),
         .expected =
             fmt::format("at most {} tokens, its end token among them", with_commas(found->limit)),
         .got = fmt::format("{} tokens; {} of {} are too long, the longest has {}",
                            with_commas(found->length), with_commas(found->count),
                            with_commas(records), with_commas(found->most)),
         .remedy = fmt::format(
             "training.{}={}, or data.on_long_record=cut", found->key,
             found->most - found->limit + (found == &sources ? options.max_source : max_length))});
  }
}

}  // namespace millrace
