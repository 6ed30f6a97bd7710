// A data set's files as blocks of text: what the tokenizing threads get. One thread reads; memory
// does not grow with the files.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/plain_text.h"
#include "data/record_file.h"
#include "io/text_place.h"

namespace millrace {

enum class SplitName : uint8_t { train, validation, test };
constexpr size_t kSplits = 3;
std::string_view split_name(SplitName split);

// Some records of one split, or a piece of a long text.
struct RecordBlock {
  struct Field {
    size_t end = 0;  // in `text`; it begins where the one before ends
    int64_t line = 1, column = 1, byte = 0;
    TextPlace::Form form = TextPlace::Form::plain;
  };
  SplitName split = SplitName::train;
  int token_width = 0;        // of a file of tokens: `text` is ids of so many bytes
  std::string file;           // that all of it is from,
  std::string target_file;    // but every second field, when this is not empty
  std::string text;           // of all fields, end to end
  std::vector<Field> fields;  // as many of each record as the records have
  bool closes = true;         // the last field is whole: no piece of it follows
  TextPlace place(size_t field) const;
};

// The files of one split. `targets`, when there are any, hold the second fields of the records that
// `files` hold the first of, line by line. Or a text that is no file's.
struct SplitFiles {
  SplitName split = SplitName::train;
  std::vector<fs::path> files = {}, targets = {};
  std::string text_name = {}, text = {};
};

struct RecordOptions {
  DataFormat format = DataFormat::text;
  std::vector<std::string> fields;  // names, for formats that have them
  // Of the training records so many go to validation and to test, by a draw for each.
  double validation_fraction = 0, test_fraction = 0;
  uint64_t seed = 0;
  int64_t max_chars = 0, max_records = 0;  // of the training files; 0: no limit
  bool count_bytes = false;                // characters are bytes
  bool skip_bad = false;
  // A long text that is read as such. Where characters are bytes, a file is its bytes.
  bool is_plain_text() const { return format == DataFormat::text && !count_bytes; }
  bool joined = false;     // no end token between source and target
  bool any_bytes = false;  // texts need not be UTF-8: the tokenizer takes whatever bytes there are
  int token_width = 2;     // of files of tokens that do not say
};

// Where record `number` of all goes that comes from the files of split `from`.
SplitName drawn_split(const RecordOptions& options, SplitName from, int64_t number);

// What was read so far. Empty records have no text but spaces: they are passed over. A pair that
// has some on one side only is a bad record.
struct RecordCounts {
  std::array<int64_t, kSplits> records{}, chars{};
  int64_t all_records() const {
    return std::accumulate(records.begin(), records.end(), int64_t{0});
  }
  int64_t bad = 0, empty = 0;
  std::string first_bad;  // what was wrong with it
};

// What was read otherwise than it stands in the files (data/plain_text.h).
struct PlainTextCounts {
  int64_t files = 0, line_ends = 0, marks = 0;
};

class RecordReader {
 public:
  RecordReader(RecordOptions options, std::vector<SplitFiles> sources);

  // Where a long text may be cut: as Tokenizer::last_cut. Behind a whole character unless set.
  void set_cut(std::function<size_t(std::string_view)> cut) { cut_ = std::move(cut); }
  // The next block, or false behind the last. Error with file, line and byte at a bad record,
  // unless those are passed over, and at a long text that is not UTF-8. Error when there is nothing
  // in the files of a split.
  bool next(RecordBlock& block);

  const RecordCounts& counts() const { return counts_; }
  const PlainTextCounts& plain_text() const { return plain_text_; }
  int64_t file_bytes_read() const;  // of the files as they are, for progress

 private:
  bool next_piece(RecordBlock& block);
  bool open_text();
  void close_source();
  void skip_token_header(const fs::path& path);
  void read_record();
  void pass_over(const Error& fault);  // or throw it
  Error half_empty() const;
  void close_records();
  bool open_record_file();
  void give(RecordBlock& open);
  bool in_training() const { return sources_[source_].split == SplitName::train; }
  int64_t characters(std::string_view text) const;
  // How many bytes of the text the limit of characters leaves; counts them.
  size_t within_limit(std::string_view text);

  RecordOptions options_;
  std::vector<SplitFiles> sources_;
  std::function<size_t(std::string_view)> cut_;
  RecordCounts counts_;
  PlainTextCounts plain_text_;
  size_t source_ = 0, file_ = 0;  // the next to be opened
  RecordCounts before_;           // of the sources before
  int64_t bytes_done_ = 0;        // of the files before the one at hand
  int64_t training_chars_ = 0;    // of the files of data.train
  bool full_ = false;             // a limit was reached

  std::unique_ptr<ByteStream> stream_;  // of a long text
  const PlainText* plain_ = nullptr;    // the same, where it is read as text
  int token_width_ = 0;                 // of the file at hand
  std::string pending_;
  TextPlace place_;

  std::unique_ptr<RecordFile> records_;
  std::vector<std::string> fields_;
  std::vector<TextPlace> places_;          // of the fields
  std::array<RecordBlock, kSplits> open_;  // being filled
  std::vector<RecordBlock> ready_;
};

}  // namespace millrace
