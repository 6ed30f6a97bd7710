#include "io/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/text.h"

namespace millrace {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr size_t kPendingBytes = 1 << 16;

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    table[i] = crc;
  }
  return table;
}();

template <typename T>
std::string little_endian(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

// The format rotates and shifts its checksums, so that the checksum of bytes that hold checksums
// is not degenerate.
std::string masked_crc(std::string_view bytes) {
  return little_endian(std::rotr(crc32c(bytes), 15) + 0xA282EAD8u);
}

std::string record(std::string_view event) {
  const std::string length = little_endian(static_cast<uint64_t>(event.size()));
  return length + masked_crc(length) + std::string(event) + masked_crc(event);
}

// The encoding of protocol buffers: a key of field number and wire type, then the value.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string key(int field, int wire_type) {
  return varint(static_cast<uint64_t>(field << 3 | wire_type));
}
std::string integer_field(int field, int64_t value) {
  return key(field, 0) + varint(static_cast<uint64_t>(value));
}
std::string double_field(int field, double value) { return key(field, 1) + little_endian(value); }
std::string float_field(int field, float value) { return key(field, 5) + little_endian(value); }
std::string bytes_field(int field, std::string_view value) {  // also texts and messages
  return key(field, 2) + varint(value.size()) + std::string(value);
}

// Field numbers of tensorboard/compat/proto/{event,summary,tensor}.proto.
std::string event(double wall_time, int64_t step, std::string_view rest) {
  // A field that is zero is left out, as the language's rules have it.
  return double_field(1, wall_time) + (step == 0 ? "" : integer_field(2, step)) + std::string(rest);
}
std::string file_version() { return bytes_field(3, "brain.Event:2"); }
std::string summary(std::string_view values) { return bytes_field(5, values); }
std::string session_start() { return bytes_field(7, integer_field(1, 1)); }

std::string utf8_text(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t length = code_point_at(text, 0).bytes;
    if (length == 0) {
      result += "\xEF\xBF\xBD";
    } else {
      result += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return result;
}

std::string scalar_value(std::string_view tag, double value) {
  // A double beyond the largest float becomes infinite; the conversion itself would be undefined.
  const bool fits = !(std::fabs(value) > std::numeric_limits<float>::max());
  const float narrow =
      fits ? static_cast<float>(value)
           : std::copysign(std::numeric_limits<float>::infinity(), value < 0 ? -1.0f : 1.0f);
  return bytes_field(1, bytes_field(1, utf8_text(tag)) + float_field(2, narrow));
}

std::string text_value(std::string_view tag, std::string_view text) {
  constexpr int kString = 7, kTensorClass = 2;  // DT_STRING, DATA_CLASS_TENSOR
  const std::string plugin = bytes_field(1, "text");
  const std::string metadata = bytes_field(1, plugin) + integer_field(4, kTensorClass);
  const std::string shape;  // no dimensions: one text
  const std::string tensor =
      integer_field(1, kString) + bytes_field(2, shape) + bytes_field(8, utf8_text(text));
  return bytes_field(
      1, bytes_field(1, utf8_text(tag)) + bytes_field(8, tensor) + bytes_field(9, metadata));
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return ~crc;
}

EventFile::EventFile(const fs::path& folder, int64_t first_step, double wall_time) {
  // TensorBoard reads the files of a folder in the order of their names, hence the time in front.
  static std::atomic<int> counter{0};
  path_ = folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}",
                               static_cast<int64_t>(std::floor(wall_time)), host_name(), getpid(),
                               counter++);
  create_folders(folder);
  file_ = OutputFile(path_, OutputFile::Mode::append);
  add(event(wall_time, 0, file_version()));
  // Also in a run's first file: TensorBoard takes a folder's first start for no restart, and purges
  // at the second.
  add(event(wall_time, first_step, session_start()));
  flush();
}

EventFile::~EventFile() {
  try {
    if (file_.is_open()) flush();
  } catch (const Error&) {
    // close() is for those who want to know.
  }
}

void EventFile::scalar(std::string_view tag, int64_t step, double wall_time, double value) {
  add(event(wall_time, step, summary(scalar_value(tag, value))));
}

void EventFile::scalars(const std::map<std::string, double>& values, int64_t step,
                        double wall_time) {
  if (values.empty()) return;
  std::string all;
  for (const auto& [tag, value] : values) all += scalar_value(tag, value);
  add(event(wall_time, step, summary(all)));
}

void EventFile::text(std::string_view tag, int64_t step, double wall_time, std::string_view text) {
  add(event(wall_time, step, summary(text_value(tag, text))));
}

void EventFile::require_open() const {
  if (file_.is_open()) return;
  throw Error({.what = "the event file is closed",
               .where = path_.string(),
               .expected = "an open file",
               .got = "a call after close() or after a write that failed",
               .remedy = "begin another event file"});
}

void EventFile::add(std::string_view event) {
  require_open();
  pending_ += record(event);
  if (pending_.size() >= kPendingBytes) flush();
}

void EventFile::flush() {
  require_open();
  try {
    file_.write(pending_);
    pending_.clear();
  } catch (...) {
    file_ = OutputFile();
    throw;
  }
}

void EventFile::close() {
  flush();
  file_.close();
}

}  // namespace millrace
