// One file of records, from front to back: lines, JSON lines, separated values, or two files whose
// lines belong together. Memory is that of the longest record and a buffer.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/source_files.h"
#include "io/text_place.h"

namespace millrace {

class RecordFile {
 public:
  virtual ~RecordFile() = default;
  enum class Got { record, bad, end };
  // The fields of the next record, and where the text of each begins. A bad one has a fault(), with
  // file, line and byte, and reading goes on behind it. Error when the file itself cannot be read
  // on.
  virtual Got next(std::vector<std::string>& fields, std::vector<TextPlace>& places) = 0;
  virtual int64_t file_bytes_read() const = 0;
  const Error& fault() const { return *fault_; }

 protected:
  std::optional<Error> fault_;
};

// `names`: the fields wanted, for formats that have names; `asked`: where they are said. `target`,
// when not empty, is the file of the second fields. Error when the file begins as UTF-16 does: it
// has no lines that could be told apart, whoever reads them.
std::unique_ptr<RecordFile> open_record_file(DataFormat format, const fs::path& path,
                                             const fs::path& target,
                                             const std::vector<std::string>& names,
                                             const std::string& asked = "data.fields");

}  // namespace millrace
