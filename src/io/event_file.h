// TensorBoard event files: the curves and sample texts of a run, for those who look at runs there.
// A file is records of (length, checksum, bytes, checksum); the bytes are one Event message in
// protocol buffer encoding, of which a few fields are enough, so no library is needed.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "core/file.h"

namespace millrace {

// CRC-32C (Castagnoli), as in RFC 3720.
uint32_t crc32c(std::string_view bytes);

// One file of a run's folder. Times are seconds since 1970. Records are gathered in memory and only
// whole ones are written, so a reader that looks while a run goes on sees whole records.
class EventFile {
 public:
  // Makes the folder and a file of a new name in it. `first_step` is the first step that will be
  // recorded: TensorBoard then forgets what earlier files of the folder hold from that step on, as
  // a run that was killed may have written beyond the state it is continued from.
  EventFile(const fs::path& folder, int64_t first_step, double wall_time);
  ~EventFile();  // writes what is left, as far as that is possible
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Values that are not finite are written as they are; TensorBoard shows them as such.
  void scalar(std::string_view tag, int64_t step, double wall_time, double value);
  // All of one step in one record.
  void scalars(const std::map<std::string, double>& values, int64_t step, double wall_time);
  // TensorBoard shows texts as Markdown. Bytes that are not UTF-8 become U+FFFD, since it would
  // refuse the whole file because of them.
  void text(std::string_view tag, int64_t step, double wall_time, std::string_view text);

  // Hands all records to the system. An Error (no space) closes the file, as a record may have been
  // cut and nothing may follow it; every later call is then an Error too.
  void flush();
  void close();
  const fs::path& path() const { return path_; }

 private:
  void add(std::string_view event);
  void require_open() const;

  fs::path path_;
  OutputFile file_;
  std::string pending_;  // whole records
};

}  // namespace millrace
