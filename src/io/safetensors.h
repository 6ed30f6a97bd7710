// Safetensors, the weight format of Hugging Face: eight bytes of header length, a JSON header, then
// the tensors without gaps. Reading validates everything before any byte of a tensor is handed out,
// so a file that opens can be trusted; the bytes stay mapped and are never copied.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/file.h"

namespace millrace {

class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    std::string dtype;           // as in the file: "F32", "BF16", ...
    std::vector<int64_t> shape;  // the product fits int64_t
    int64_t begin = 0;           // into the tensor bytes, after the header
    int64_t end = 0;

    int64_t numel() const;
  };

  // Error names the file and the tensor when the file is not what the format asks for.
  explicit SafetensorsFile(const fs::path& path);
  // The same of bytes in memory, which must outlive this object; `name` is for messages.
  SafetensorsFile(std::span<const std::byte> bytes, const fs::path& name);

  const std::vector<Entry>& entries() const { return entries_; }  // in the order of their bytes
  const Entry* find(std::string_view name) const;                 // nullptr when there is none
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const fs::path& path() const { return path_; }

  // The tensor as stored, little-endian. Need not be aligned for its type.
  std::span<const std::byte> bytes(const Entry& entry) const;
  // The values of an F32, F16, BF16 or F64 tensor. Error for other types, which check_type alone
  // finds without reading any, and for a double that float cannot hold.
  std::vector<float> to_f32(const Entry& entry) const;
  void check_type(const Entry& entry) const;

 private:
  void parse(std::span<const std::byte> all);
  std::string place(const Entry& entry) const;  // for messages

  fs::path path_;
  std::unique_ptr<const MappedFile> map_;  // none when the bytes are the caller's
  std::span<const std::byte> tensor_bytes_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, size_t> index_;  // views into entries_
  std::map<std::string, std::string> metadata_;
};

// Bytes of one element, or 0 for a type the format does not have.
int64_t safetensors_dtype_bytes(std::string_view dtype);

struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // little-endian, row-major
  // Instead of `bytes`: called when the tensor's turn comes, puts them in order, in any pieces.
  using Put = std::function<void(std::span<const std::byte>)>;
  std::function<void(const Put&)> stream = {};
};

// Writes the whole of a file, which is then the caller's to flush and close. A failure leaves half
// of it: write into a folder that is staged under another name. Tensor bytes are streamed, never
// gathered. Tensors of wide types come first, whatever their order here, so that every one is
// aligned.
void write_safetensors(OutputFile& file, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata);
// The bytes of such a file.
std::string safetensors_bytes(std::span<const TensorToWrite> tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace millrace
