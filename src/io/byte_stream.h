// The bytes of a file from front to back: as they are, or unpacked when they begin as gzip (RFC
// 1952) or Zstandard (RFC 8878) do. Memory does not grow with the file.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/file.h"

namespace millrace {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills `out` as far as there are bytes; less than asked for only at the end. Error with the file
  // and the place when it is damaged or cut off.
  virtual size_t read(std::span<char> out) = 0;
  // How much of the file itself was read, for progress.
  virtual int64_t file_bytes_read() const = 0;
};

std::unique_ptr<ByteStream> open_byte_stream(const fs::path& path);

// All of it, behind what `to` holds. Error when it does not fit into memory.
void append_unpacked_file(const fs::path& path, std::string& to);

}  // namespace millrace
