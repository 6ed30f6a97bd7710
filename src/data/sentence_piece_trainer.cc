// Learning a SentencePiece model: the library does it, from sentences in memory.
#include <sentencepiece_trainer.h>

#include <charconv>
#include <mutex>
#include <unordered_map>

#include "core/error.h"
#include "core/text.h"
#include "data/sentence_piece.h"
#include "io/quote.h"

namespace millrace {
namespace {

constexpr int64_t kMostTrainingBytes = int64_t{1} << 30;  // the library counts with 32 bits
constexpr int64_t kFewestPieces = 3 + 256 + 1;            // <unk>, <s>, </s>, bytes, the space
constexpr int64_t kMostPieces = int64_t{1} << 20;
// The library passes over sentences longer than it is told, and ends the process at a word of more
// than 65,535 characters.
constexpr size_t kLongestSentence = 4096;

// Gives the library one sentence after the other, long ones in parts.
class Sentences : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(std::span<const std::string> sentences) : sentences_(sentences) { Next(); }
  bool done() const override { return is_done_; }
  const std::string& value() const override { return part_; }
  sentencepiece::util::Status status() const override { return {}; }
  void Next() override {
    while (rest_.empty()) {
      if (next_ == sentences_.size()) {
        is_done_ = true;
        return;
      }
      rest_ = sentences_[next_++];
    }
    const size_t size = part_size();
    part_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
  }

 private:
  // Up to a space, where there is one, else to the end of a character.
  size_t part_size() const {
    if (rest_.size() <= kLongestSentence) return rest_.size();
    const size_t space = rest_.rfind(' ', kLongestSentence);
    if (space != rest_.npos && space > 0) return space;
    size_t size = kLongestSentence;
    while (size > kLongestSentence - 3 && (rest_[size] & 0xC0) == 0x80) --size;
    return size;
  }

  std::span<const std::string> sentences_;
  size_t next_ = 0;
  std::string_view rest_;
  std::string part_;
  bool is_done_ = false;
};

// The number behind `words` in a message of the library; -1: it does not say that.
int64_t number_behind(std::string_view message, std::string_view words) {
  const size_t at = message.find(words);
  int64_t number = -1;
  if (at != message.npos)
    std::from_chars(message.data() + at + words.size(), message.data() + message.size(), number);
  return number;
}

Error bad_option(const char* key, const std::string& expected, const std::string& got,
                 const std::string& remedy) {
  return Error({.code = ErrorCode::config,
                .what = "no SentencePiece model can be learned like this",
                .where = key,
                .expected = expected,
                .got = got,
                .remedy = remedy});
}

void check_options(const SentencePieceOptions& options, std::span<const std::string> sentences) {
  if (options.kind != "unigram" && options.kind != "bpe")
    throw bad_option("data.tokenizer", "`unigram` or `bpe`", quote(options.kind), "choose one");
  if (options.vocab_size < kFewestPieces || options.vocab_size > kMostPieces) {
    throw bad_option("data.vocab_size", fmt::format("{} to {}", kFewestPieces, kMostPieces),
                     std::to_string(options.vocab_size), "choose another size");
  }
  if (!(options.character_coverage >= 0.98 && options.character_coverage <= 1)) {
    throw bad_option("data.character_coverage", "0.98 to 1",
                     fmt::format("{}", options.character_coverage), "choose another share");
  }
  int64_t bytes = 0;
  for (const std::string& sentence : sentences) bytes += static_cast<int64_t>(sentence.size());
  if (bytes == 0)
    throw bad_option("data.train", "text to learn from", "none", "give a text that is not empty");
  if (bytes > kMostTrainingBytes) {
    throw bad_option("data.train", "at most " + human_bytes(kMostTrainingBytes) + " of sentences",
                     human_bytes(bytes), "learn from a part of them");
  }
}

}  // namespace

std::string train_sentence_piece(const SentencePieceOptions& options,
                                 std::span<const std::string> sentences) {
  check_options(options, sentences);
  // The library sums up per thread, so their number is part of the result.
  const std::unordered_map<std::string, std::string> arguments = {
      {"model_type", options.kind},
      {"vocab_size", std::to_string(options.vocab_size)},
      {"character_coverage", fmt::format("{}", options.character_coverage)},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"byte_fallback", "true"},
      {"max_sentence_length", std::to_string(kLongestSentence)},
      {"num_threads", "16"},
      {"minloglevel", "3"},
  };
  static std::mutex one_at_a_time;  // its log level is one of the process
  const std::lock_guard lock(one_at_a_time);
  Sentences source(sentences);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &source, &model);
  if (status.ok()) return model;
  const std::string message = status.ToString();
  const std::string size = std::to_string(options.vocab_size);
  if (const int64_t most = number_behind(message, "set it to a value <= "); most >= 0) {
    throw bad_option("data.vocab_size", fmt::format("at most {} for these sentences", most), size,
                     fmt::format("a vocabulary of {}, or more text", most));
  }
  if (const int64_t least = number_behind(message, " vs "); least >= 0) {
    throw bad_option(
        "data.vocab_size",
        fmt::format("at least {}: the bytes and the characters of these sentences", least), size,
        fmt::format("a vocabulary of {} or more", least));
  }
  throw bad_option("data.train", "sentences that SentencePiece learns from",
                   printable(message, 300), "give more text, or another data.vocab_size");
}

}  // namespace millrace
