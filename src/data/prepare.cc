#include "data/prepare.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "core/text.h"
#include "data/sentence_piece.h"
#include "data/token_store.h"
#include "data/word_tokenizer.h"
#include "io/token_file.h"

namespace millrace {
namespace {

template <typename Use>
void for_each_field(const RecordBlock& block, Use use) {
  size_t begin = 0;
  for (size_t i = 0; i < block.fields.size(); ++i) {
    const size_t end = block.fields[i].end;
    use(std::string_view(block.text).substr(begin, end - begin), block.place(i));
    begin = end;
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
  std::vector<int32_t> target_bytes = {};  // of pairs that are validated
  std::vector<size_t> target_ends = {};
};

// The stores of one split.
struct SplitWriters {
  std::unique_ptr<TokenStoreWriter> tokens, target_texts;
};

// Records end to end, the last of them with more to come unless it `closes`.
void add_records(TokenStoreWriter& writer, std::span<const int32_t> ids,
                 const std::vector<size_t>& ends, bool closes) {
  size_t at = 0;
  for (const size_t end : ends) {
    writer.add(ids.subspan(at, end - at));
    if (closes || end < ids.size()) writer.end_record();
    at = end;
  }
}

// Lines, and of long ones pieces that the library takes.
void add_sentences(std::string_view text, std::vector<std::string>& out) {
  constexpr size_t kLongest = 4000;
  while (!text.empty()) {
    const size_t line = std::min(text.find('\n'), text.size());
    size_t end = std::min(line, kLongest);
    if (end < line) {
      const size_t space = text.rfind(' ', end);
      if (space != text.npos && space > 0) end = space;
      while (end > 1 && end < line && (text[end] & 0xC0) == 0x80) --end;  // not inside a character
    }
    if (end > 0) out.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + (end == line ? 1 : 0)));
  }
}

// As many sentences as learning takes in reasonable time, whatever their order: those whose hash is
// below a bound, which is halved when there are too many.
class SentenceSample {
 public:
  void add(const std::vector<std::string>& sentences) {
    for (const std::string& s : sentences) {
      if (XXH3_64bits(s.data(), s.size()) > bound_) continue;
      bytes_ += s.size();
      sentences_.push_back(s);
      while (bytes_ > kMostBytes) {
        bound_ /= 2;
        std::erase_if(sentences_, [&](const std::string& kept) {
          const bool out = XXH3_64bits(kept.data(), kept.size()) > bound_;
          bytes_ -= out ? kept.size() : 0;
          return out;
        });
      }
    }
  }
  const std::vector<std::string>& sentences() const { return sentences_; }

 private:
  static constexpr size_t kMostBytes = size_t{64} << 20;
  uint64_t bound_ = UINT64_MAX;
  size_t bytes_ = 0;
  std::vector<std::string> sentences_;
};

}  // namespace

const std::vector<std::string>& tokenizer_kinds() {
  static const std::vector<std::string> kinds = {"char", "byte", "word", "bpe", "unigram", "ids"};
  return kinds;
}

std::string target_texts_name(SplitName split) { return fmt::format("{}-text", split_name(split)); }

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options,
                                          const RecordOptions& records,
                                          const std::vector<SplitFiles>& sources, int threads,
                                          int64_t bytes_all, const ProgressFunction& progress) {
  const bool with_end = has_records(records.format);
  const bool trains = std::any_of(sources.begin(), sources.end(),
                                  [](const SplitFiles& s) { return s.split == SplitName::train; });
  std::unique_ptr<Tokenizer> known;
  if (options.is_file()) known = read_tokenizer(options.kind);
  const auto* known_words = dynamic_cast<const WordTokenizer*>(known.get());
  if (known && (trains || !known_words)) return known;
  if (options.kind == "byte") return make_byte_tokenizer(with_end);
  if (options.kind == "ids") return make_id_tokenizer(options.vocab_size);
  constexpr const char* kStage = "learning the vocabulary";
  std::vector<SplitFiles> training = sources;
  if (options.kind == "word" || known_words) {
    // Words of validation and test are known too, so that they can be copied.
    WordCounts counts;
    RecordReader reader(records, sources);
    reader.set_cut([](std::string_view text) { return text.find_last_of(" \n") + 1; });
    for_each_block<WordCounts>(
        reader, threads,
        [](const RecordBlock& block) {
          WordCounts part;
          for_each_field(block, [&](std::string_view text, const TextPlace&) {
            part.add(text, block.split == SplitName::train);
          });
          return part;
        },
        [&](const WordCounts& part, int64_t file_bytes) {
          counts.add(part);
          progress(kStage, file_bytes, bytes_all);
        });
    if (known_words) return known_words->knowing(counts);
    return make_word_tokenizer(counts,
                               {options.vocab_size, options.min_frequency, options.lower_case});
  }
  std::erase_if(training, [](const SplitFiles& s) { return s.split != SplitName::train; });
  RecordReader reader(records, training);
  if (options.kind == "char") {
    CharacterSet characters;
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
          progress(kStage, file_bytes, bytes_all);
        });
    return make_char_tokenizer(characters.sorted(), with_end);
  }
  MR_CHECK(options.kind == "bpe" || options.kind == "unigram", "tokenizer {}", options.kind);
  reader.set_cut([](std::string_view text) { return text.find_last_of('\n') + 1; });
  SentenceSample sample;
  for_each_block<std::vector<std::string>>(
      reader, threads,
      [](const RecordBlock& block) {
        std::vector<std::string> sentences;
        for_each_field(block, [&](std::string_view text, const TextPlace&) {
          add_sentences(text, sentences);
        });
        return sentences;
      },
      [&](const std::vector<std::string>& sentences, int64_t file_bytes) {
        sample.add(sentences);
        progress(kStage, file_bytes, bytes_all);
      });
  progress("learning the pieces of the vocabulary", 0, -1);
  return make_sentence_piece_tokenizer(
      train_sentence_piece({.kind = options.kind, .vocab_size = options.vocab_size},
                           sample.sentences()),
      "the training text");
}

Prepared write_token_stores(const fs::path& folder, const std::string& key,
                            const Tokenizer& tokenizer, RecordOptions records,
                            const std::vector<SplitFiles>& sources, int threads, int64_t bytes_all,
                            const ProgressFunction& progress) {
  Prepared prepared;
  const int64_t begin = now_ns();
  std::array<SplitWriters, kSplits> writers;
  const int32_t end_id = has_records(records.format) ? tokenizer.end_id() : -1;
  const bool pairs =
      records.fields.size() == 2 || (!sources.empty() && !sources[0].targets.empty());
  records.any_bytes = tokenizer.takes_any_bytes();
  RecordReader reader(records, sources);
  reader.set_cut([&](std::string_view text) { return tokenizer.last_cut(text); });
  prepared.times = for_each_block<EncodedBlock>(
      reader, threads,
      [&](const RecordBlock& block) {
        EncodedBlock encoded{.split = block.split, .closes = block.closes};
        for_each_field(block, [&](std::string_view text, const TextPlace& place) {
          if (block.token_width > 0)
            widen_tokens(std::as_bytes(std::span(text)), block.token_width, tokenizer.vocab_size(),
                         place.file, place.byte, encoded.ids);
          else
            tokenizer.encode_stored(text, place, encoded.ids);
          const bool source = pairs && encoded.ends.size() % 2 == 0;
          if (pairs && !source && block.split != SplitName::train) {
            for (const char c : text) encoded.target_bytes.push_back(static_cast<unsigned char>(c));
            encoded.target_ends.push_back(encoded.target_bytes.size());
          }
          if (end_id >= 0 && !(source && records.joined)) encoded.ids.push_back(end_id);
          encoded.ends.push_back(encoded.ids.size());
        });
        return encoded;
      },
      [&](const EncodedBlock& encoded, int64_t file_bytes) {
        SplitWriters& to = writers[static_cast<size_t>(encoded.split)];
        const bool validated = pairs && encoded.split != SplitName::train;
        if (!to.tokens)
          to.tokens = std::make_unique<TokenStoreWriter>(folder / split_name(encoded.split), key,
                                                         tokenizer.stored_size());
        if (!to.target_texts && validated)
          to.target_texts = std::make_unique<TokenStoreWriter>(
              folder / target_texts_name(encoded.split), key, 256);
        add_records(*to.tokens, encoded.ids, encoded.ends, encoded.closes);
        if (validated)
          add_records(*to.target_texts, encoded.target_bytes, encoded.target_ends, true);
        progress("tokenizing", file_bytes, bytes_all);
      });
  for (const SplitWriters& of : writers)
    for (const auto* writer : {&of.tokens, &of.target_texts})
      if (*writer) (*writer)->commit();
  prepared.counts = reader.counts();
  prepared.plain_text = reader.plain_text();
  prepared.seconds = seconds_since(begin);
  return prepared;
}

}  // namespace millrace
