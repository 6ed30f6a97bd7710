// What the tests of SentencePiece share: models written by hand, field by field.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::sentence_piece_testing {

inline std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(0x80 | (value & 0x7F));
  return bytes + static_cast<char>(value);
}
inline std::string integer(uint64_t field, uint64_t value) {
  return varint(field << 3) + varint(value);
}
inline std::string text(uint64_t field, std::string_view bytes) {
  return varint(field << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}
inline std::string real(uint64_t field, float value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return varint(field << 3 | 5) + bytes;
}

// Types of pieces: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
inline std::string piece(std::string_view bytes, float score = 0, uint64_t type = 1) {
  return text(1, text(1, bytes) + real(2, score) + integer(3, type));
}
inline std::string start_pieces() {
  return piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3);
}
inline std::string byte_pieces() {
  std::string all;
  for (const char high : std::string_view("0123456789ABCDEF"))
    for (const char low : std::string_view("0123456789ABCDEF"))
      all += piece({"<0x" + std::string(1, high) + low + ">"}, 0, 6);
  return all;
}
constexpr uint64_t kUnigram = 1, kBpe = 2;
inline std::string trainer(uint64_t kind, std::string_view more = {}) {
  return text(2, integer(3, kind) + std::string(more));
}
inline std::string normalizer(std::string_view fields) { return text(3, fields); }

// Normalisation rules as the double array that a model holds, every node's children in 256 units of
// their own.
inline std::string rules(const std::vector<std::pair<std::string, std::string>>& list) {
  constexpr uint32_t kBlock = 256;
  std::vector<uint32_t> units(2 * kBlock);
  std::string replacements;
  const auto base_of = [&](uint32_t at) { return at ^ units[at] >> 10; };
  units[0] = kBlock << 10;
  for (const auto& [from, to] : list) {
    uint32_t at = 0;
    for (const char c : from) {
      const auto label = static_cast<uint8_t>(c);
      at = base_of(at) ^ label;
      if (units[at] == 0) {
        const auto base = static_cast<uint32_t>(units.size());
        units.resize(units.size() + kBlock);
        units[at] = (at ^ base) << 10 | label;
      }
    }
    units[at] |= 1 << 8;
    units[base_of(at)] = uint32_t{1} << 31 | static_cast<uint32_t>(replacements.size());
    replacements += to + '\0';
  }
  const auto size = static_cast<uint32_t>(4 * units.size());
  std::string blob(4 + size, '\0');
  std::memcpy(blob.data(), &size, 4);
  std::memcpy(blob.data() + 4, units.data(), size);
  return blob + replacements;
}

}  // namespace millrace::sentence_piece_testing
