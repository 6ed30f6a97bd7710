#include "io/utf8.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "core/text.h"

namespace millrace {
namespace {

// "E9 74 65": the first bytes of a text.
std::string hexadecimal(std::string_view text, size_t most) {
  std::string bytes;
  for (const char c : text.substr(0, most))
    bytes += fmt::format("{}{:02X}", bytes.empty() ? "" : " ", static_cast<unsigned char>(c));
  return bytes;
}

static_assert(std::endian::native == std::endian::little, "ascii_length counts from the low byte");

// How many bytes from the front on are below 0x80. Eight at a time: reading a data set waits for
// this, as it does for the next.
size_t ascii_length(const char* text, size_t size) {
  size_t at = 0;
  for (; at + 8 <= size; at += 8) {
    uint64_t eight;
    std::memcpy(&eight, text + at, 8);
    eight &= 0x8080808080808080;
    if (eight != 0) return at + static_cast<size_t>(std::countr_zero(eight)) / 8;
  }
  while (at < size && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

// How many bytes from the front on are characters of two bytes, as those of Greek and Cyrillic are.
size_t pairs_length(const char* text, size_t size) {
  size_t at = 0;
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  while (at + 2 <= size && byte(at) >= 0xC2 && byte(at) < 0xE0 && (byte(at + 1) & 0xC0) == 0x80)
    at += 2;
  return at;
}

}  // namespace

size_t utf8_length(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    at += ascii_length(text.data() + at, text.size() - at);
    at += pairs_length(text.data() + at, text.size() - at);
    if (at == text.size() || static_cast<unsigned char>(text[at]) < 0x80) continue;
    const size_t length = code_point_at(text, at).bytes;  // longer, or none
    if (length == 0) return at;
    at += length;
  }
  return at;
}

std::optional<Error> utf8_fault(std::string_view text, const TextPlace& place,
                                std::string_view remedy) {
  const size_t at = utf8_length(text);
  if (at == text.size()) return std::nullopt;
  return Error({.code = ErrorCode::config,
                .what = "the text is not UTF-8",
                .where = place.inside(text, at),
                .expected = "UTF-8",
                .got = "bytes " + hexadecimal(text.substr(at), 4),
                .remedy = std::string(remedy)});
}

void refuse_utf16(std::string_view begin, const std::string& file) {
  if (!begin.starts_with("\xFF\xFE") && !begin.starts_with("\xFE\xFF")) return;
  throw Error({.code = ErrorCode::config,
               .what = "the file is UTF-16",
               .where = fmt::format("{}:1:1 (byte 0)", file),
               .expected = "UTF-8",
               .got = fmt::format("bytes {}, the byte order mark of UTF-16", hexadecimal(begin, 2)),
               .remedy = "save it as UTF-8, or convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW"});
}

}  // namespace millrace
