#include "io/csv.h"

#include <algorithm>

#include "core/error.h"
#include "io/quote.h"

namespace millrace {

bool CsvRecords::next(std::vector<std::string>& fields) {
  fields.clear();
  auto advance = [&](size_t to) {
    place_.line += std::count(text_.begin() + static_cast<ptrdiff_t>(at_),
                              text_.begin() + static_cast<ptrdiff_t>(to), '\n');
    at_ = to;
  };
  while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) advance(at_ + 1);
  if (at_ == text_.size()) return false;
  record_ = at_;
  record_line_ = place_.line;
  begins_.clear();
  auto refuse = [&](const char* what, size_t at, const std::string& expected) {
    const auto line = place_.line + std::count(text_.begin() + static_cast<ptrdiff_t>(at_),
                                               text_.begin() + static_cast<ptrdiff_t>(at), '\n');
    const std::string got = quote(text_.substr(at, 40), 40);
    const size_t line_end = std::min(text_.find('\n', at), text_.size() - 1);
    const auto byte = place_.byte + static_cast<int64_t>(at);
    const Error error(
        {.code = ErrorCode::config,
         .what = what,
         .where = fmt::format("{}:{} (byte {})", place_.file, line, byte),
         .expected = expected,
         .got = got,
         .remedy = "mend the record, or pass over such with data.on_bad_record=skip"});
    advance(line_end + 1);
    return error;
  };
  size_t at = at_;
  for (;;) {
    std::string field;
    const bool quoted = at < text_.size() && text_[at] == '"';
    begins_.push_back({at + (quoted ? 1 : 0), quoted});
    if (quoted) {
      const size_t open = at++;
      for (;;) {
        const size_t close = text_.find('"', at);
        if (close == text_.npos) throw refuse("a quoted field has no end", open, "a closing quote");
        field += text_.substr(at, close - at);
        at = close + 1;
        if (at == text_.size() || text_[at] != '"') break;
        field += '"';
        ++at;
      }
      const bool ends =
          at == text_.size() || text_[at] == separator_ || text_[at] == '\n' || text_[at] == '\r';
      if (!ends)
        throw refuse("something follows a quoted field", at,
                     "a separator or the end of the line; a quote inside is written twice");
    } else {
      const char ends[] = {separator_, '\n', '\r'};
      const size_t end = std::min(text_.find_first_of({ends, 3}, at), text_.size());
      field = text_.substr(at, end - at);
      at = end;
    }
    fields.push_back(std::move(field));
    if (at == text_.size() || text_[at] != separator_) break;
    ++at;
  }
  advance(at);
  return true;
}

TextPlace CsvRecords::place() const {
  return {place_.file, record_line_, 1, place_.byte + static_cast<int64_t>(record_)};
}

TextPlace CsvRecords::place(size_t field) const {
  TextPlace here = place();
  here.advance(text_.substr(record_, begins_[field].at - record_));
  if (begins_[field].quoted) here.form = TextPlace::Form::doubled_quotes;
  return here;
}

size_t whole_csv_records(std::string_view text, char separator) {
  size_t whole = 0;
  bool field_start = true;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' && field_start) {
      // To the closing quote; a doubled one opens again at once.
      for (++at; at < text.size(); ++at) {
        if (text[at] != '"') continue;
        if (at + 1 < text.size() && text[at + 1] == '"') {
          ++at;
          continue;
        }
        break;
      }
      if (at == text.size()) break;  // still open
      ++at;
      field_start = false;
      continue;
    }
    ++at;
    field_start = c == separator || c == '\n' || c == '\r';
    if (c == '\n') whole = at;
  }
  return whole;
}

}  // namespace millrace
