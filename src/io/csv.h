// Comma- or tab-separated records (RFC 4180): fields may be quoted, a quoted one may hold
// separators, line ends and doubled quotes. Read in pieces: a piece of a file is cut where a record
// ends, and its records are then taken apart, by another thread if one likes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/text_place.h"

namespace millrace {

class CsvRecords {
 public:
  // `text` begins at a record; `place` says where that is.
  CsvRecords(std::string_view text, char separator, TextPlace place)
      : text_(text), separator_(separator), place_(std::move(place)) {}

  // The next record, or false behind the last one. Empty lines are passed over. Error with file,
  // line and byte when a quote is not closed or something follows one that is; reading can then go
  // on behind the line.
  bool next(std::vector<std::string>& fields);

  // Of the record that was read last, while `text` is there: where it begins, and where the text of
  // a field does, behind the quote when it is quoted.
  TextPlace place() const;
  TextPlace place(size_t field) const;

 private:
  std::string_view text_;
  char separator_;
  TextPlace place_;
  size_t at_ = 0;
  size_t record_ = 0;  // where the last one begins
  int64_t record_line_ = 0;
  struct FieldBegin {
    size_t at;
    bool quoted;
  };
  std::vector<FieldBegin> begins_;  // of its fields
};

// How much of `text`, which begins at a record, are whole records: behind the last line end outside
// of quotes. 0: none.
size_t whole_csv_records(std::string_view text, char separator);

}  // namespace millrace
