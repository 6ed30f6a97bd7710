#include "data/record_file.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "core/text.h"
#include "io/byte_stream.h"
#include "io/csv.h"
#include "io/json_lines.h"
#include "io/quote.h"
#include "io/utf8.h"

namespace millrace {
namespace {

constexpr size_t kPiece = 1 << 20;
constexpr size_t kLongestRecord = size_t{1} << 28;

// A file as pieces that end where a record ends.
class WholeRecords {
 public:
  explicit WholeRecords(const fs::path& path)
      : stream_(open_byte_stream(path)), place_{path.string()} {}

  // The next piece, which stays valid until the next call; empty at the end. `whole` says how much
  // of a text are whole records.
  template <typename Whole>
  std::string_view next(Whole whole) {
    place_.advance(std::string_view(buffer_).substr(0, given_));
    buffer_.erase(0, given_);
    given_ = 0;
    for (size_t step = kPiece; given_ == 0 && !(ended_ && buffer_.empty()); step *= 2) {
      if (!ended_) fill(step);
      // What follows the last line end is a record too when the file ends there.
      given_ = ended_ ? buffer_.size() : whole(std::string_view(buffer_));
      if (given_ == 0 && buffer_.size() > kLongestRecord)
        throw Error({.code = ErrorCode::config,
                     .what = "a record is too long",
                     .where = fmt::format("{}:{} (byte {})", place_.file, place_.line, place_.byte),
                     .expected = fmt::format("at most {}", human_bytes(kLongestRecord)),
                     .got = fmt::format("more than {}", human_bytes(kLongestRecord)),
                     .remedy = "is a quote open, or is it not a file of records at all?"});
    }
    return std::string_view(buffer_).substr(0, given_);
  }
  const TextPlace& place() const { return place_; }  // of the piece
  int64_t file_bytes_read() const { return stream_->file_bytes_read(); }

 private:
  void fill(size_t bytes) {
    const bool first = place_.byte == 0 && buffer_.empty();
    const size_t before = buffer_.size();
    buffer_.resize(before + bytes);
    const size_t got = stream_->read(std::span(buffer_).subspan(before));
    buffer_.resize(before + got);
    ended_ = got < bytes;
    if (!first) return;
    refuse_utf16(buffer_, place_.file);
    constexpr std::string_view kMark = "\xEF\xBB\xBF";  // that some editors put first
    if (buffer_.starts_with(kMark)) {
      buffer_.erase(0, kMark.size());
      place_.byte += static_cast<int64_t>(kMark.size());
    }
  }
  std::unique_ptr<ByteStream> stream_;
  std::string buffer_;
  size_t given_ = 0;
  bool ended_ = false;
  TextPlace place_;
};

size_t whole_lines(std::string_view text) {
  return text.rfind('\n') + 1;  // npos + 1 == 0
}

class Lines {
 public:
  explicit Lines(const fs::path& path) : pieces_(path) {}
  bool next(std::string& line, TextPlace& place) {
    if (at_ == piece_.size()) {
      piece_ = pieces_.next(whole_lines);
      at_ = 0;
      number_ = pieces_.place().line;
      if (piece_.empty()) return false;
    }
    const size_t end = std::min(piece_.find('\n', at_), piece_.size());
    std::string_view text = piece_.substr(at_, end - at_);
    if (text.ends_with('\r')) text.remove_suffix(1);
    line = text;
    place = {pieces_.place().file, number_++, 1, pieces_.place().byte + static_cast<int64_t>(at_)};
    at_ = std::min(end + 1, piece_.size());
    return true;
  }
  int64_t file_bytes_read() const { return pieces_.file_bytes_read(); }

 private:
  WholeRecords pieces_;
  std::string_view piece_;
  size_t at_ = 0;
  int64_t number_ = 1;
};

class LineFile : public RecordFile {
 public:
  explicit LineFile(const fs::path& path) : lines_(path) {}
  Got next(std::vector<std::string>& fields, std::vector<TextPlace>& places) override {
    fields.resize(1);
    places.resize(1);
    return lines_.next(fields[0], places[0]) ? Got::record : Got::end;
  }
  int64_t file_bytes_read() const override { return lines_.file_bytes_read(); }

 private:
  Lines lines_;
};

class ParallelFile : public RecordFile {
 public:
  ParallelFile(const fs::path& source, const fs::path& target)
      : source_(source), target_(target), source_name_(source), target_name_(target) {}
  Got next(std::vector<std::string>& fields, std::vector<TextPlace>& places) override {
    fields.resize(2);
    places.resize(2);
    const bool first = source_.next(fields[0], places[0]),
               second = target_.next(fields[1], places[1]);
    lines_ += first && second ? 1 : 0;
    if (first != second)
      throw Error({.code = ErrorCode::config,
                   .what = "files that belong together have different numbers of lines",
                   .where = (first ? target_name_ : source_name_).string(),
                   .expected = fmt::format("a line for each line of {}",
                                           (first ? source_name_ : target_name_).string()),
                   .got = fmt::format("{} lines", with_commas(lines_)),
                   .remedy = "check that the two are of the same data and whole"});
    return first ? Got::record : Got::end;
  }
  int64_t file_bytes_read() const override {
    return source_.file_bytes_read() + target_.file_bytes_read();
  }

 private:
  Lines source_, target_;
  fs::path source_name_, target_name_;
  int64_t lines_ = 0;
};

class SeparatedFile : public RecordFile {
 public:
  SeparatedFile(const fs::path& path, char separator, const std::vector<std::string>& names,
                const std::string& asked)
      : pieces_(path), separator_(separator), records_("", separator, {}) {
    std::vector<std::string> header;
    const Got got = next_row(header);
    if (got == Got::bad) throw Error(*fault_);
    if (got == Got::end)
      throw Error({.code = ErrorCode::config,
                   .what = "a file without a line of column names",
                   .where = path.string(),
                   .expected = "column names in the first line",
                   .got = "no line at all",
                   .remedy = "leave the file out"});
    columns_ = header.size();
    for (const std::string& name : names) {
      const auto found = std::find(header.begin(), header.end(), name);
      if (found == header.end()) {
        const std::string near = nearest(name, header);
        throw Error(
            {.code = ErrorCode::config,
             .what = fmt::format("no column is called {}", quote(name)),
             .where = fmt::format("{}:1", path.string()),
             .expected = fmt::format("a column for each of {}: {}", asked, fmt::join(names, ", ")),
             .got = names_of(header),
             .remedy = near.empty() ? fmt::format("set {} to columns of the file", asked)
                                    : "did you mean `" + printable(near, 80) + "`?"});
      }
      const auto first = static_cast<size_t>(found - header.begin());
      if (const auto again = std::find(found + 1, header.end(), name); again != header.end())
        throw Error({.code = ErrorCode::config,
                     .what = fmt::format("two columns are called {}", quote(name)),
                     .where = fmt::format("{}:1", path.string()),
                     .expected = "each of data.fields once among the column names",
                     .got = fmt::format("columns {} and {} of {}", first + 1,
                                        again - header.begin() + 1, names_of(header)),
                     .remedy = "rename one of the two in the file"});
      wanted_.push_back(first);
    }
  }
  Got next(std::vector<std::string>& fields, std::vector<TextPlace>& places) override {
    const Got got = next_row(row_);
    if (got != Got::record) return got;
    if (row_.size() != columns_) {
      const TextPlace place = records_.place();
      fault_ = Error({.code = ErrorCode::config,
                      .what = "a record has another number of fields than the header",
                      .where = fmt::format("{}:{} (byte {})", place.file, place.line, place.byte),
                      .expected = fmt::format("{} fields", columns_),
                      .got = fmt::format("{}", row_.size()),
                      .remedy = "mend the record, or pass over such with data.on_bad_record=skip"});
      return Got::bad;
    }
    fields.clear();
    places.clear();
    for (const size_t column : wanted_) {
      fields.push_back(row_[column]);
      places.push_back(records_.place(column));
    }
    return Got::record;
  }
  int64_t file_bytes_read() const override { return pieces_.file_bytes_read(); }

 private:
  static std::string names_of(const std::vector<std::string>& header) {
    return printable(fmt::format("{}", fmt::join(header, ", ")), 200);
  }
  Got next_row(std::vector<std::string>& row) {
    for (;;) {
      try {
        if (records_.next(row)) return Got::record;
      } catch (const Error& error) {
        fault_ = error;
        return Got::bad;
      }
      const std::string_view piece =
          pieces_.next([&](std::string_view text) { return whole_csv_records(text, separator_); });
      if (piece.empty()) return Got::end;
      records_ = CsvRecords(piece, separator_, pieces_.place());
    }
  }
  WholeRecords pieces_;
  char separator_;
  CsvRecords records_;
  size_t columns_ = 0;
  std::vector<size_t> wanted_;
  std::vector<std::string> row_;
};

class JsonLinesFile : public RecordFile {
 public:
  JsonLinesFile(const fs::path& path, const std::vector<std::string>& names)
      : pieces_(path), names_(names), records_("", names_, {}) {}
  Got next(std::vector<std::string>& fields, std::vector<TextPlace>& places) override {
    for (;;) {
      try {
        if (records_.next(fields)) break;
      } catch (const Error& error) {
        fault_ = error;
        return Got::bad;
      }
      const std::string_view piece = pieces_.next(whole_lines);
      if (piece.empty()) return Got::end;
      records_ = JsonLines(piece, names_, pieces_.place());
    }
    places.clear();
    for (size_t i = 0; i < fields.size(); ++i) places.push_back(records_.place(i));
    return Got::record;
  }
  int64_t file_bytes_read() const override { return pieces_.file_bytes_read(); }

 private:
  WholeRecords pieces_;
  std::vector<std::string> names_;
  JsonLines records_;
};

}  // namespace

std::unique_ptr<RecordFile> open_record_file(DataFormat format, const fs::path& path,
                                             const fs::path& target,
                                             const std::vector<std::string>& names,
                                             const std::string& asked) {
  if (!target.empty()) return std::make_unique<ParallelFile>(path, target);
  switch (format) {
    case DataFormat::json_lines:
      return std::make_unique<JsonLinesFile>(path, names);
    case DataFormat::csv:
      return std::make_unique<SeparatedFile>(path, ',', names, asked);
    case DataFormat::tsv:
      return std::make_unique<SeparatedFile>(path, '\t', names, asked);
    default:
      return std::make_unique<LineFile>(path);
  }
}

}  // namespace millrace
