#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <tuple>

#include "core/error.h"
#include "core/half.h"
#include "io/quote.h"

namespace millrace {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr size_t kMaxRank = 64;
constexpr std::string_view kMetadata = "__metadata__";

constexpr std::array<std::pair<std::string_view, int64_t>, 15> kDtypes = {{{"F64", 8},
                                                                           {"F32", 4},
                                                                           {"F16", 2},
                                                                           {"BF16", 2},
                                                                           {"I64", 8},
                                                                           {"I32", 4},
                                                                           {"I16", 2},
                                                                           {"I8", 1},
                                                                           {"U64", 8},
                                                                           {"U32", 4},
                                                                           {"U16", 2},
                                                                           {"U8", 1},
                                                                           {"BOOL", 1},
                                                                           {"F8_E4M3", 1},
                                                                           {"F8_E5M2", 1}}};

using Entry = SafetensorsFile::Entry;
using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& where, std::string what, std::string expected,
                         std::string got) {
  throw Error({.code = ErrorCode::failure,
               .what = std::move(what),
               .where = where,
               .expected = std::move(expected),
               .got = std::move(got),
               .remedy = "the file is damaged or not safetensors; fetch or write it again"});
}

// false when a dimension is negative or the product does not fit.
bool multiply(const std::vector<int64_t>& shape, int64_t* product) {
  *product = 1;
  for (int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(*product, dim, product)) return false;
  }
  return true;
}

// Reads the header's events as they come. The grammar is fixed, so the state is where we stand:
// outside, among the tensors, in one tensor, in one of its lists, or in the metadata. Whatever does
// not belong there is refused at once, which also bounds the depth.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(std::string file) : file_(std::move(file)) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool null() override { return misplaced("null"); }
  bool boolean(bool) override { return misplaced("true or false"); }
  bool number_float(double, const std::string& text) override {
    return misplaced("the number " + quote(text));
  }
  bool binary(binary_t&) override { return misplaced("binary data"); }
  bool number_integer(int64_t value) override {
    return misplaced("the number " + std::to_string(value));  // the parser calls this for < 0
  }
  bool number_unsigned(uint64_t value) override {
    if (state_ != State::list) return misplaced("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      refuse(place(), quote(field_) + " holds a number that is too large", "a 64-bit integer",
             std::to_string(value));
    }
    auto& list = field_ == "shape" ? entries.back().shape : offsets_;
    if (list.size() == (field_ == "shape" ? kMaxRank : 2)) {
      refuse(place(), quote(field_) + " has too many numbers",
             field_ == "shape" ? fmt::format("at most {} dimensions", kMaxRank)
                               : "two numbers, begin and end",
             "more");
    }
    list.push_back(static_cast<int64_t>(value));
    return true;
  }
  bool string(std::string& value) override {
    if (state_ == State::metadata) {
      metadata[field_] = std::move(value);
      return true;
    }
    if (state_ != State::tensor || field_ != "dtype") return misplaced("the text " + quote(value));
    if (safetensors_dtype_bytes(value) == 0) {
      refuse(place(), "unknown dtype", known_dtypes(), quote(value));
    }
    entries.back().dtype = std::move(value);
    return true;
  }

  bool start_object(size_t) override {
    if (state_ == State::outside) {
      state_ = State::tensors;
    } else if (state_ == State::tensors) {
      state_ = name_ == kMetadata ? State::metadata : State::tensor;
    } else {
      return misplaced("an object");
    }
    fields_.clear();
    return true;
  }
  bool key(std::string& key) override {
    if (state_ == State::tensors) {
      name_ = std::move(key);
      field_.clear();
      if (!names_.insert(name_).second) refuse(place(), "the name appears twice", "one", "two");
      if (name_ != kMetadata) {
        entries.emplace_back();
        entries.back().name = name_;
        offsets_.clear();
      }
      return true;
    }
    field_ = std::move(key);
    if (state_ == State::tensor && field_ != "dtype" && field_ != "shape" &&
        field_ != "data_offsets") {
      refuse(place(), "unknown field", "`dtype`, `shape` and `data_offsets`", quote(field_));
    }
    if (!fields_.insert(field_).second) {
      refuse(place(), quote(field_) + " appears twice", "one", "two");
    }
    return true;
  }
  bool end_object() override {
    if (state_ == State::tensor) finish_tensor();
    state_ = state_ == State::tensors ? State::outside : State::tensors;
    return true;
  }
  bool start_array(size_t) override {
    if (state_ != State::tensor || field_ == "dtype") return misplaced("a list");
    state_ = State::list;
    return true;
  }
  bool end_array() override {
    state_ = State::tensor;
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    refuse(file_, fmt::format("the header is not JSON (byte {})", position), "a JSON object",
           quote(error.what(), 200));
  }

 private:
  enum class State { outside, tensors, tensor, list, metadata };

  static std::string known_dtypes() {
    std::string text;
    for (const auto& [name, size] : kDtypes)
      text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
    return "one of " + text;
  }

  std::string place() const {
    if (state_ == State::outside) return file_;
    if (name_ == kMetadata) return file_ + ": `__metadata__`";
    return file_ + ": tensor " + quote(name_);
  }
  bool misplaced(const std::string& got) const {
    const char* expected = "";
    switch (state_) {
      case State::outside:
        expected = "a JSON object";
        break;
      case State::tensors:
        expected = "an object";
        break;
      case State::metadata:
        expected = "text";
        break;
      case State::list:
        expected = "an integer that is not negative";
        break;
      case State::tensor:
        expected = field_ == "dtype" ? "text" : "a list of integers";
        break;
    }
    refuse(place(), field_.empty() ? "the header is malformed" : quote(field_) + " is malformed",
           expected, got);
  }

  // All three fields are there and agree.
  void finish_tensor() {
    Entry& entry = entries.back();
    if (fields_.size() != 3) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(field)) {
          refuse(place(), fmt::format("`{}` is missing", field),
                 "`dtype`, `shape` and `data_offsets`",
                 fmt::format("{} of the three", fields_.size()));
        }
      }
    }
    if (offsets_.size() != 2) {
      refuse(place(), "`data_offsets` is incomplete", "two numbers, begin and end",
             std::to_string(offsets_.size()));
    }
    entry.begin = offsets_[0];
    entry.end = offsets_[1];
    int64_t bytes = 0;
    if (!multiply(entry.shape, &bytes) ||
        __builtin_mul_overflow(bytes, safetensors_dtype_bytes(entry.dtype), &bytes)) {
      refuse(place(), "the shape is too large", "a size that fits 64 bits",
             fmt::format("[{}]", fmt::join(entry.shape, ", ")));
    }
    if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
      refuse(place(), "`data_offsets` do not fit the shape",
             fmt::format("{} bytes for {} [{}]", bytes, entry.dtype, fmt::join(entry.shape, ", ")),
             fmt::format("{} to {}", entry.begin, entry.end));
    }
  }

  std::string file_;
  State state_ = State::outside;
  std::string name_, field_;
  std::set<std::string, std::less<>> names_, fields_;
  std::vector<int64_t> offsets_;
};

// Element by element through memcpy: the bytes may stand at any address.
template <typename Stored, typename Convert>
void convert_all(std::span<const std::byte> bytes, std::vector<float>* out, Convert convert) {
  for (size_t i = 0; i < out->size(); ++i) {
    Stored value;
    std::memcpy(&value, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    (*out)[i] = convert(value);
  }
}

}  // namespace

int64_t safetensors_dtype_bytes(std::string_view dtype) {
  for (const auto& [name, size] : kDtypes) {
    if (name == dtype) return size;
  }
  return 0;
}

int64_t SafetensorsFile::Entry::numel() const {
  int64_t count = 0;
  MR_CHECK(multiply(shape, &count), "shape of {}", name);
  return count;
}

SafetensorsFile::SafetensorsFile(const fs::path& path)
    : path_(path), map_(std::make_unique<const MappedFile>(path)) {
  parse(map_->bytes());
}

SafetensorsFile::SafetensorsFile(std::span<const std::byte> bytes, const fs::path& name)
    : path_(name) {
  parse(bytes);
}

void SafetensorsFile::parse(std::span<const std::byte> all) {
  const std::string file = path_.string();
  if (all.size() < 8) {
    refuse(file, "the file is too short", "at least 8 bytes", std::to_string(all.size()));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, all.data(), 8);
  if (header_bytes > static_cast<uint64_t>(kMaxHeaderBytes) || header_bytes > all.size() - 8) {
    refuse(file, "the header length is impossible",
           fmt::format("at most {} and within the file of {} bytes", kMaxHeaderBytes, all.size()),
           std::to_string(header_bytes));
  }
  const std::string_view header(reinterpret_cast<const char*>(all.data()) + 8, header_bytes);
  tensor_bytes_ = all.subspan(8 + header_bytes);
  if (!header.starts_with('{')) {
    refuse(file, "the header is not a JSON object", "`{` at byte 8",
           header.empty() ? "an empty header" : quote(header.substr(0, 8)));
  }
  // The parser would take a NUL for the end of the text.
  if (const size_t at = header.find('\0'); at != header.npos) {
    refuse(file, "the header is not JSON", "text", fmt::format("a zero byte at {}", 8 + at));
  }

  HeaderReader reader(file);
  const bool parsed = Json::sax_parse(header.begin(), header.end(), &reader);
  MR_CHECK(parsed, "the reader refuses by throwing");
  entries_ = std::move(reader.entries);
  metadata_ = std::move(reader.metadata);

  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t covered = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.begin != covered) {
      refuse(file + ": tensor " + quote(entry.name),
             entry.begin < covered ? "the tensor overlaps another"
                                   : "there is a hole before the tensor",
             fmt::format("bytes from {}", covered), fmt::format("bytes from {}", entry.begin));
    }
    covered = entry.end;
    if (static_cast<uint64_t>(covered) > tensor_bytes_.size()) {
      refuse(file + ": tensor " + quote(entry.name), "the file ends before the tensor does",
             fmt::format("{} bytes after the header", covered),
             std::to_string(tensor_bytes_.size()));
    }
    index_.emplace(entry.name, i);
  }
  if (static_cast<uint64_t>(covered) != tensor_bytes_.size()) {
    refuse(file, "there are bytes that belong to no tensor",
           fmt::format("{} bytes after the header", covered), std::to_string(tensor_bytes_.size()));
  }
}

const Entry* SafetensorsFile::find(std::string_view name) const {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &entries_[at->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const Entry& entry) const {
  MR_CHECK(find(entry.name) != nullptr && find(entry.name)->end == entry.end,
           "{} is of another file", entry.name);
  return tensor_bytes_.subspan(static_cast<size_t>(entry.begin),
                               static_cast<size_t>(entry.end - entry.begin));
}

std::string SafetensorsFile::place(const Entry& entry) const {
  return path_.string() + ": tensor " + quote(entry.name);
}

void SafetensorsFile::check_type(const Entry& entry) const {
  for (const char* type : {"F32", "F16", "BF16", "F64"})
    if (entry.dtype == type) return;
  throw Error({.code = ErrorCode::failure,
               .what = "the tensor does not hold floating-point numbers Millrace reads",
               .where = place(entry),
               .expected = "F32, F16, BF16 or F64",
               .got = entry.dtype,
               .remedy = "convert the tensor to one of these types"});
}

std::vector<float> SafetensorsFile::to_f32(const Entry& entry) const {
  check_type(entry);
  const std::span<const std::byte> stored = bytes(entry);
  std::vector<float> values(static_cast<size_t>(entry.numel()));
  if (entry.dtype == "F32") {
    if (!stored.empty()) std::memcpy(values.data(), stored.data(), stored.size());
  } else if (entry.dtype == "F16") {
    convert_all<uint16_t>(stored, &values, f16_to_float);
  } else if (entry.dtype == "BF16") {
    convert_all<uint16_t>(stored, &values, bf16_to_float);
  } else {
    convert_all<double>(stored, &values, [&](double value) {
      if (std::isfinite(value) && std::fabs(value) > std::numeric_limits<float>::max()) {
        throw Error({.code = ErrorCode::failure,
                     .what = "a value does not fit 32-bit floats",
                     .where = place(entry),
                     .expected = fmt::format("at most {:g}", std::numeric_limits<float>::max()),
                     .got = fmt::format("{:g}", value),
                     .remedy = "scale the weights, or check where they come from"});
      }
      return static_cast<float>(value);
    });
  }
  if (map_ && !stored.empty()) map_->let_go(stored);
  return values;
}

namespace {

std::vector<const TensorToWrite*> widest_first(std::span<const TensorToWrite> tensors) {
  std::vector<const TensorToWrite*> order;
  for (const TensorToWrite& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return safetensors_dtype_bytes(a->dtype) > safetensors_dtype_bytes(b->dtype);
  });
  return order;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Everything before the tensors: the length and the JSON.
std::string head_of(const std::vector<const TensorToWrite*>& order,
                    const std::map<std::string, std::string>& metadata, const std::string& where) {
  std::string header = "{";
  try {
    if (!metadata.empty()) header += Json(kMetadata).dump() + ":" + Json(metadata).dump();
    std::set<std::string_view> names;
    int64_t offset = 0;
    for (const TensorToWrite* tensor : order) {
      int64_t size = 0;
      MR_CHECK(tensor->name != kMetadata && names.insert(tensor->name).second, "tensor name {}",
               tensor->name);
      MR_CHECK(safetensors_dtype_bytes(tensor->dtype) > 0, "dtype {}", tensor->dtype);
      MR_CHECK(tensor->shape.size() <= kMaxRank && multiply(tensor->shape, &size) &&
                   !__builtin_mul_overflow(size, safetensors_dtype_bytes(tensor->dtype), &size) &&
                   (tensor->stream || size == static_cast<int64_t>(tensor->bytes.size())),
               "{} has {} bytes for [{}]", tensor->name, tensor->bytes.size(),
               fmt::join(tensor->shape, ","));
      header += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                            header.size() > 1 ? "," : "", Json(tensor->name).dump(), tensor->dtype,
                            fmt::join(tensor->shape, ","), offset, offset + size);
      offset += size;
    }
  } catch (const Json::exception& error) {
    throw Error({.code = ErrorCode::failure,
                 .what = "a tensor name or a metadata text is not UTF-8",
                 .where = where,
                 .expected = "UTF-8",
                 .got = quote(error.what(), 200),
                 .remedy = "rename it"});
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  MR_CHECK(static_cast<int64_t>(header.size()) <= kMaxHeaderBytes, "header of {}", header.size());
  const auto length = std::bit_cast<std::array<char, 8>>(static_cast<uint64_t>(header.size()));
  return std::string(length.data(), length.size()) + header;
}

}  // namespace

std::string safetensors_bytes(std::span<const TensorToWrite> tensors,
                              const std::map<std::string, std::string>& metadata) {
  const auto order = widest_first(tensors);
  std::string bytes = head_of(order, metadata, "memory");
  for (const TensorToWrite* tensor : order) bytes += text_of(tensor->bytes);
  return bytes;
}

void write_safetensors(OutputFile& file, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const auto order = widest_first(tensors);
  file.write(head_of(order, metadata, file.path().string()));
  for (const TensorToWrite* tensor : order) {
    if (!tensor->stream) {
      file.write(text_of(tensor->bytes));
      continue;
    }
    int64_t size = safetensors_dtype_bytes(tensor->dtype), put = 0;
    for (const int64_t n : tensor->shape) size *= n;
    tensor->stream([&](std::span<const std::byte> bytes) {
      file.write(text_of(bytes));
      put += static_cast<int64_t>(bytes.size());
    });
    MR_CHECK(put == size, "{}: {} bytes for {}", tensor->name, put, size);
  }
}

}  // namespace millrace
