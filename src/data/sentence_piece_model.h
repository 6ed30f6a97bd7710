// A SentencePiece model file: the reader of its wire format (a protocol buffer, ModelProto), which
// takes nothing on trust. The library's own reader does: it follows the offsets in the table of
// normalisation rules wherever they lead.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Texts look into the bytes that were read.
struct SentencePieceModel {
  enum class Kind : uint8_t { unigram = 1, bpe = 2 };
  enum class Type : uint8_t { normal = 1, unknown, control, user_defined, unused, byte };
  struct Piece {
    std::string_view text;  // every one once, never empty
    float score = 0;        // finite
    Type type = Type::normal;
    bool is_text() const {
      return type == Type::normal || type == Type::user_defined || type == Type::unused;
    }
  };

  Kind kind = Kind::unigram;
  std::vector<Piece> pieces;  // by id; at least one is text, exactly one unknown
  bool byte_fallback = false;
  int32_t byte_ids[256];  // of the pieces <0x00> to <0xFF>: all there with byte_fallback, else -1
  int32_t unknown_id = -1, start_id = -1, end_id = -1;  // -1: none
  std::string_view unknown_surface = " \u2047 ";

  bool space_is_suffix = false, add_space = true, remove_extra_spaces = true, escape_spaces = true;
  // Normalisation: a double array over the bytes of what is replaced. From unit `at` the bytes
  // `label` lead to at ^ rule_offset(unit) ^ label, all inside the table; a value is a place in
  // `replacements`, from where a text runs to a zero byte.
  std::vector<uint32_t> rules;
  std::string_view replacements;
};

inline uint32_t rule_offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }
// The byte that leads to this unit; one that holds a value has none.
inline uint32_t rule_label(uint32_t unit) { return unit & 0x800000FF; }
inline bool rule_has_value(uint32_t unit) { return (unit & 0x100) != 0; }
inline uint32_t rule_value(uint32_t unit) { return unit & 0x7FFFFFFF; }

// How long a piece or either side of a rule may be: work per byte of text is bounded by it.
inline constexpr size_t kLongestSentencePiece = 1024;

// Error (config) with `source_name` and the place when the bytes are no such model, or one of a
// kind that is not known here.
SentencePieceModel read_sentence_piece_model(std::string_view bytes,
                                             const std::string& source_name);

}  // namespace millrace
