#include "data/sentence_piece_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/text.h"
#include "data/bpe_tables.h"
#include "io/quote.h"

namespace millrace {
namespace {

// The largest published ones have 262,144 pieces and 5 MB.
constexpr size_t kMostBytes = size_t{64} << 20;
constexpr size_t kMostPieces = size_t{1} << 20;
constexpr size_t kMostPieceBytes = size_t{8} << 20;  // all together: the search tree grows with it

using Type = SentencePieceModel::Type;
using Piece = SentencePieceModel::Piece;

class File {
 public:
  File(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {
    if (bytes.size() > kMostBytes) {
      throw refuse("", "at most " + human_bytes(kMostBytes),
                   human_bytes(static_cast<int64_t>(bytes.size())));
    }
  }
  Error refuse(const std::string& where, const std::string& expected,
               const std::string& got) const {
    return Error({.code = ErrorCode::config,
                  .what = "this SentencePiece model cannot be used",
                  .where = where.empty() ? name_ : name_ + ": " + where,
                  .expected = expected,
                  .got = got,
                  .remedy = "take a .model file of SentencePiece, of kind unigram or bpe"});
  }
  Error refuse_at(const char* at, const std::string& expected, const std::string& got) const {
    return refuse(fmt::format("byte {}", at - bytes_.data()), expected, got);
  }
  std::string_view bytes() const { return bytes_; }

 private:
  std::string_view bytes_;
  const std::string& name_;
};

// --- the wire format: fields of a number, a type and a value

enum class Wire : uint8_t { varint = 0, eight_bytes = 1, text = 2, four_bytes = 5 };

struct Field {
  const char* at = nullptr;
  uint64_t number = 0;
  Wire wire = Wire::varint;
  uint64_t value = 0;     // unless it is text
  std::string_view text;  // of a text or a message
};

class Fields {
 public:
  Fields(const File& file, std::string_view message) : file_(file), rest_(message) {}

  bool next(Field& field) {
    if (rest_.empty()) return false;
    field = {};
    field.at = rest_.data();
    const uint64_t tag = varint();
    field.number = tag >> 3;
    field.wire = static_cast<Wire>(tag & 7);
    if (field.number == 0) throw file_.refuse_at(field.at, "a field", "field number 0");
    switch (field.wire) {
      case Wire::varint:
        field.value = varint();
        break;
      case Wire::eight_bytes:
        field.value = number(take(8, field.at));
        break;
      case Wire::four_bytes:
        field.value = number(take(4, field.at));
        break;
      case Wire::text:
        field.text = take(varint(), field.at);
        break;
      default:
        throw file_.refuse_at(field.at, "a field of a known type", fmt::format("type {}", tag & 7));
    }
    return true;
  }

  void expect(const Field& field, Wire wire) const {
    if (field.wire == wire) return;
    throw file_.refuse_at(field.at,
                          fmt::format("field {} of type {}", field.number, static_cast<int>(wire)),
                          fmt::format("type {}", static_cast<int>(field.wire)));
  }
  std::string_view text(const Field& field) const {
    expect(field, Wire::text);
    return field.text;
  }
  uint64_t integer(const Field& field) const {
    expect(field, Wire::varint);
    return field.value;
  }
  bool flag(const Field& field) const { return integer(field) != 0; }
  float real(const Field& field) const {
    expect(field, Wire::four_bytes);
    return std::bit_cast<float>(static_cast<uint32_t>(field.value));
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    const char* begin = rest_.data();
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    throw file_.refuse_at(begin, "a number of at most ten bytes", "one without an end");
  }
  std::string_view take(uint64_t size, const char* at) {
    if (size > rest_.size()) {
      throw file_.refuse_at(at, fmt::format("a field of {} bytes", size),
                            fmt::format("{} bytes", rest_.size()));
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  static uint64_t number(std::string_view bytes) {  // the lowest byte first
    uint64_t value = 0;
    for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
    return value;
  }

  const File& file_;
  std::string_view rest_;
};

// --- the messages; field numbers as in sentencepiece_model.proto

Piece read_piece(const File& file, std::string_view message, size_t id) {
  Piece piece;
  Fields fields(file, message);
  for (Field field; fields.next(field);) {
    if (field.number == 1) piece.text = fields.text(field);
    if (field.number == 2) piece.score = fields.real(field);
    if (field.number == 3) {
      const uint64_t type = fields.integer(field);
      if (type < 1 || type > 6)
        throw file.refuse_at(field.at, "a type of piece from 1 to 6", std::to_string(type));
      piece.type = static_cast<Type>(type);
    }
  }
  const std::string where = fmt::format("pieces[{}]", id);
  if (piece.text.empty()) throw file.refuse(where, "a text", "an empty one");
  if (piece.text.size() > kLongestSentencePiece) {
    throw file.refuse(where, fmt::format("at most {} bytes", kLongestSentencePiece),
                      fmt::format("{} bytes", piece.text.size()));
  }
  if (piece.text.find('\0') != piece.text.npos)
    throw file.refuse(where, "a text without zero bytes", quote(piece.text, 40));
  if (!std::isfinite(piece.score))
    throw file.refuse(where, "a finite score", fmt::format("{}", piece.score));
  return piece;
}

struct TrainerSpec {
  std::string_view start = "<s>", end = "</s>";
};

void read_trainer_spec(const File& file, std::string_view message, SentencePieceModel& model,
                       TrainerSpec& spec) {
  Fields fields(file, message);
  for (Field field; fields.next(field);) {
    switch (field.number) {
      case 3: {
        const uint64_t kind = fields.integer(field);
        if (kind != 1 && kind != 2) {
          throw file.refuse("trainer_spec.model_type", "1 (unigram) or 2 (bpe)",
                            std::to_string(kind));
        }
        model.kind = static_cast<SentencePieceModel::Kind>(kind);
        break;
      }
      case 24:
        model.space_is_suffix = fields.flag(field);
        break;
      case 35:
        model.byte_fallback = fields.flag(field);
        break;
      case 44:
        model.unknown_surface = fields.text(field);
        break;
      case 46:
        if (!fields.text(field).empty()) spec.start = field.text;
        break;
      case 47:
        if (!fields.text(field).empty()) spec.end = field.text;
        break;
      default:
        break;
    }
  }
}

void read_rules(const File& file, std::string_view blob, SentencePieceModel& model) {
  const auto refuse = [&](const std::string& expected, const std::string& got) {
    return file.refuse("normalizer_spec.precompiled_charsmap", expected, got);
  };
  model.rules.clear();
  if (blob.empty()) return;  // text is taken as it is
  uint32_t size = 0;
  if (blob.size() > sizeof(size)) std::memcpy(&size, blob.data(), sizeof(size));
  // Whole units, and at least one byte of replacements behind them.
  if (size == 0 || size % 4 != 0 || size >= blob.size() - sizeof(size)) {
    throw refuse("a table of rules and their replacements",
                 fmt::format("{} bytes, of which {} are a table", blob.size(), size));
  }
  model.rules.resize(size / 4);
  std::memcpy(model.rules.data(), blob.data() + sizeof(size), size);
  model.replacements = blob.substr(sizeof(size) + size);
  if (model.replacements.back() != '\0') throw refuse("a zero byte at the end", "another");
  for (size_t at = 0; at < model.rules.size(); ++at) {
    const uint32_t unit = model.rules[at];
    if (at > 0 && rule_label(unit) > 0xFF) continue;  // a value, which leads nowhere
    const size_t next = at ^ rule_offset(unit);
    if ((next | 0xFF) >= model.rules.size()) {
      throw refuse(fmt::format("rules that stay among {} units", model.rules.size()),
                   fmt::format("unit {} that leads to {}", at, next));
    }
    if (!rule_has_value(unit)) continue;
    const size_t value = rule_value(model.rules[next]);
    if (value >= model.replacements.size()) {
      throw refuse(fmt::format("replacements inside {} bytes", model.replacements.size()),
                   fmt::format("one at {}", value));
    }
    if (model.replacements.substr(value, kLongestSentencePiece + 1).find('\0') ==
        std::string_view::npos) {
      throw refuse(fmt::format("replacements of at most {} bytes", kLongestSentencePiece),
                   fmt::format("a longer one at {}", value));
    }
  }
}

void read_normalizer_spec(const File& file, std::string_view message, SentencePieceModel& model) {
  Fields fields(file, message);
  for (Field field; fields.next(field);) {
    if (field.number == 2) read_rules(file, fields.text(field), model);
    if (field.number == 3) model.add_space = fields.flag(field);
    if (field.number == 4) model.remove_extra_spaces = fields.flag(field);
    if (field.number == 5) model.escape_spaces = fields.flag(field);
  }
}

void refuse_denormalizer(const File& file, std::string_view message) {
  Fields fields(file, message);
  for (Field field; fields.next(field);) {
    if (field.number == 2 && !fields.text(field).empty())
      throw file.refuse("denormalizer_spec", "no rules for decoding", "some");
  }
}

// The byte of <0x4F>, or -1.
int byte_of(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  const size_t high = kDigits.find(text[3]), low = kDigits.find(text[4]);
  return high == kDigits.npos || low == kDigits.npos ? -1 : static_cast<int>(16 * high + low);
}

void check_pieces(const File& file, SentencePieceModel& model, const TrainerSpec& spec) {
  bpe::Words ids(model.pieces.size());
  std::fill(std::begin(model.byte_ids), std::end(model.byte_ids), -1);
  bool has_text = false;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    const std::string where = fmt::format("pieces[{}]", i);
    if (ids.get(piece.text) >= 0)
      throw file.refuse(where, "every text once", quote(piece.text, 40) + " twice");
    ids.set(piece.text, id);
    has_text = has_text || piece.is_text();
    if (piece.type == Type::unknown) {
      if (model.unknown_id >= 0) throw file.refuse(where, "one piece for the unknown", "two");
      model.unknown_id = id;
    }
    if (piece.type == Type::control && piece.text == spec.start) model.start_id = id;
    if (piece.type == Type::control && piece.text == spec.end) model.end_id = id;
    if (piece.type == Type::byte) {
      const int byte = byte_of(piece.text);
      if (byte < 0 || !model.byte_fallback) {
        throw file.refuse(where, byte < 0 ? "a byte, <0x00> to <0xFF>" : "byte_fallback with it",
                          quote(piece.text, 40));
      }
      model.byte_ids[byte] = id;
    }
  }
  if (model.unknown_id < 0) throw file.refuse("pieces", "one for the unknown", "none");
  if (!has_text) throw file.refuse("pieces", "at least one that is text", "none");
  for (int b = 0; model.byte_fallback && b < 256; ++b) {
    if (model.byte_ids[b] < 0) {
      throw file.refuse("pieces", "all 256 bytes, because of byte_fallback",
                        fmt::format("none for <0x{:02X}>", b));
    }
  }
}

}  // namespace

SentencePieceModel read_sentence_piece_model(std::string_view bytes,
                                             const std::string& source_name) {
  const File file(bytes, source_name);
  SentencePieceModel model;
  TrainerSpec spec;
  size_t piece_bytes = 0;
  Fields fields(file, bytes);
  for (Field field; fields.next(field);) {
    if (field.number == 1) {
      if (model.pieces.size() == kMostPieces)
        throw file.refuse("pieces", fmt::format("at most {}", kMostPieces), "more");
      model.pieces.push_back(read_piece(file, fields.text(field), model.pieces.size()));
      piece_bytes += model.pieces.back().text.size();
      if (piece_bytes > kMostPieceBytes)
        throw file.refuse("pieces", human_bytes(kMostPieceBytes) + " of text", "more");
    }
    // A message that stands here twice is one whose later fields count.
    if (field.number == 2) read_trainer_spec(file, fields.text(field), model, spec);
    if (field.number == 3) read_normalizer_spec(file, fields.text(field), model);
    if (field.number == 5) refuse_denormalizer(file, fields.text(field));
  }
  check_pieces(file, model, spec);
  return model;
}

}  // namespace millrace
