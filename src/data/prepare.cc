#include "data/prepare.h"

#include <algorithm>
#include <utility>

#include "core/text.h"
#include "data/token_store.h"
#include "io/quote.h"

namespace millrace {
namespace {

template <typename Use>
void for_each_field(const RecordBlock& block, Use use) {
  size_t begin = 0;
  for (const RecordBlock::Field& field : block.fields) {
    use(std::string_view(block.text).substr(begin, field.end - begin),
        TextPlace{block.file, field.line, field.column, field.byte});
    begin = field.end;
  }
}

// A block and how far reading had come with it: the reader itself is another thread's.
struct ReadBlock {
  RecordBlock block;
  int64_t file_bytes = 0;
};

// All blocks of the reader, worked on by `threads`, in order.
template <typename Result>
OrderedWorkTimes for_each_block(RecordReader& reader, int threads,
                                const std::function<Result(const RecordBlock&)>& work,
                                const std::function<void(const Result&, int64_t)>& take) {
  using Worked = std::pair<Result, int64_t>;
  return ordered_work<ReadBlock, Worked>(
      threads,
      [&](ReadBlock& read) {
        const bool got = reader.next(read.block);
        read.file_bytes = reader.file_bytes_read();
        return got;
      },
      [&](const ReadBlock& read) { return Worked(work(read.block), read.file_bytes); },
      [&](const Worked& worked) { take(worked.first, worked.second); });
}

struct EncodedBlock {
  SplitName split = SplitName::train;
  std::vector<int32_t> ids = {};
  std::vector<size_t> ends = {};  // of fields
  bool closes = true;
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options,
                                          const RecordOptions& records,
                                          const std::vector<SplitFiles>& sources, int threads,
                                          int64_t bytes_all, const ProgressFunction& progress) {
  const bool with_end = has_records(records.format);
  if (options.kind == "byte") return make_byte_tokenizer(with_end);
  if (options.kind != "char") return read_tokenizer(options.kind);
  CharacterSet characters;
  std::vector<SplitFiles> training = sources;
  std::erase_if(training, [](const SplitFiles& s) { return s.split != SplitName::train; });
  RecordReader reader(records, training);
  for_each_block<CharacterSet>(
      reader, threads,
      [](const RecordBlock& block) {
        CharacterSet part;
        for_each_field(
            block, [&](std::string_view text, const TextPlace& place) { part.add(text, place); });
        return part;
      },
      [&](const CharacterSet& part, int64_t file_bytes) {
        characters.add(part);
        progress("learning the vocabulary", file_bytes, bytes_all);
      });
  return make_char_tokenizer(characters.sorted(), with_end);
}

Prepared write_token_stores(const fs::path& folder, const std::string& key,
                            const Tokenizer& tokenizer, const RecordOptions& records,
                            const std::vector<SplitFiles>& sources, int threads, int64_t bytes_all,
                            const ProgressFunction& progress) {
  Prepared prepared;
  const int64_t begin = now_ns();
  std::array<std::unique_ptr<TokenStoreWriter>, kSplits> writers;
  const int32_t end_id = has_records(records.format) ? tokenizer.end_id() : -1;
  RecordReader reader(records, sources);
  reader.set_cut([&](std::string_view text) { return tokenizer.last_cut(text); });
  prepared.times = for_each_block<EncodedBlock>(
      reader, threads,
      [&](const RecordBlock& block) {
        EncodedBlock encoded{.split = block.split, .closes = block.closes};
        for_each_field(block, [&](std::string_view text, const TextPlace& place) {
          tokenizer.encode(text, place, encoded.ids);
          if (end_id >= 0) encoded.ids.push_back(end_id);
          encoded.ends.push_back(encoded.ids.size());
        });
        return encoded;
      },
      [&](const EncodedBlock& encoded, int64_t file_bytes) {
        auto& writer = writers[static_cast<size_t>(encoded.split)];
        if (!writer)
          writer = std::make_unique<TokenStoreWriter>(folder / split_name(encoded.split), key,
                                                      tokenizer.vocab_size());
        size_t at = 0;
        for (const size_t end : encoded.ends) {
          writer->add(std::span(encoded.ids).subspan(at, end - at));
          if (encoded.closes || end < encoded.ids.size()) writer->end_record();
          at = end;
        }
        progress("tokenizing", file_bytes, bytes_all);
      });
  for (size_t i = 0; i < kSplits; ++i) {
    if (!writers[i]) continue;
    prepared.splits[i] = {writers[i]->info().tokens, writers[i]->info().records};
    writers[i]->commit();
  }
  prepared.counts = reader.counts();
  prepared.seconds = seconds_since(begin);
  return prepared;
}

}  // namespace millrace
