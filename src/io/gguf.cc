#include "io/gguf.h"

#include <bit>
#include <cstring>

#include "core/error.h"
#include "core/half.h"

namespace millrace {
namespace {

static_assert(std::endian::native == std::endian::little);
constexpr uint32_t kVersion = 3;
constexpr size_t kAlignment = 32;

// Numbers of the format.
enum class Type : uint32_t { u32 = 4, i32 = 5, f32 = 6, boolean = 7, string = 8, array = 9 };

uint32_t tensor_type(DType dtype) {
  MR_CHECK(dtype == DType::f32 || is_half(dtype), "no GGUF type for {}", dtype_name(dtype));
  return dtype == DType::f32 ? 0 : dtype == DType::f16 ? 1 : 30;
}

class Header {
 public:
  template <typename T>
  void put(T value) {
    const size_t at = bytes.size();
    bytes.resize(at + sizeof(T));
    std::memcpy(bytes.data() + at, &value, sizeof(T));
  }
  void put(const std::string& text) {
    put(uint64_t{text.size()});
    bytes += text;
  }
  void put(Type type) { put(static_cast<uint32_t>(type)); }

  void value(uint32_t v) { put(Type::u32), put<uint32_t>(v); }
  void value(float v) { put(Type::f32), put<float>(v); }
  void value(bool v) { put(Type::boolean), put<uint8_t>(v); }
  void value(const std::string& v) { put(Type::string), put(v); }
  void value(const std::vector<std::string>& list) { array(Type::string, list); }
  void value(const std::vector<float>& list) { array(Type::f32, list); }
  void value(const std::vector<int32_t>& list) { array(Type::i32, list); }

  std::string bytes;

 private:
  template <typename T>
  void array(Type type, const std::vector<T>& list) {
    put(Type::array);
    put(type);
    put(uint64_t{list.size()});
    for (const T& v : list) put(v);
  }
};

size_t padding(size_t bytes) { return (kAlignment - bytes % kAlignment) % kAlignment; }

}  // namespace

void write_gguf(OutputFile& file, std::span<const GgufEntry> metadata,
                std::span<const GgufTensor> tensors) {
  Header header;
  header.bytes = "GGUF";
  header.put(kVersion);
  header.put(uint64_t{tensors.size()});
  header.put(uint64_t{metadata.size()});
  for (const GgufEntry& entry : metadata) {
    header.put(entry.key);
    std::visit([&](const auto& value) { header.value(value); }, entry.value);
  }
  auto count_of = [](const GgufTensor& t) {
    int64_t count = 1;
    for (const int64_t n : t.shape) count *= n;
    return static_cast<size_t>(count);
  };
  uint64_t offset = 0;
  for (const GgufTensor& t : tensors) {
    header.put(t.name);
    header.put(static_cast<uint32_t>(t.shape.size()));
    for (size_t i = t.shape.size(); i-- > 0;) header.put(static_cast<uint64_t>(t.shape[i]));
    header.put(tensor_type(t.dtype));
    header.put(offset);
    const size_t bytes = count_of(t) * static_cast<size_t>(dtype_bytes(t.dtype));
    offset += bytes + padding(bytes);
  }
  header.bytes.append(padding(header.bytes.size()), '\0');
  file.write(header.bytes);
  for (const GgufTensor& t : tensors) {
    const std::vector<float> values = t.values();
    MR_CHECK(values.size() == count_of(t), "{} has {} numbers", t.name, values.size());
    std::string bytes(values.size() * static_cast<size_t>(dtype_bytes(t.dtype)), '\0');
    if (t.dtype == DType::f32) {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    } else {
      for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t half = float_to_half(t.dtype, values[i]);
        std::memcpy(bytes.data() + 2 * i, &half, 2);
      }
    }
    bytes.append(padding(bytes.size()), '\0');
    file.write(bytes);
  }
}

}  // namespace millrace
