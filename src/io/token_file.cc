#include "io/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/error.h"

namespace millrace {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

struct KnownHeader {
  int32_t magic, version;
  int width;
};
constexpr std::array<KnownHeader, 2> kKnownHeaders = {{{20240520, 1, 2},    // GPT-2
                                                       {20240801, 7, 4}}};  // Llama 3

[[noreturn]] void refuse(const std::string& what, const std::string& where,
                         const std::string& expected, const std::string& got) {
  throw Error({.what = what,
               .where = where,
               .expected = expected,
               .got = got,
               .remedy = "the file is damaged or not of token ids; fetch or write it again"});
}

template <typename Id>
void widen(std::span<const std::byte> bytes, int64_t vocab_size, const std::string& name,
           int64_t byte_offset, std::vector<int32_t>& out) {
  const size_t before = out.size(), count = bytes.size() / sizeof(Id);
  out.resize(before + count);
  auto id_at = [&](size_t i) {
    Id id;
    std::memcpy(&id, bytes.data() + i * sizeof(Id), sizeof(Id));
    return id;
  };
  Id largest = 0;  // instead of a look at every id, which would keep the loop from being a fast one
  for (size_t i = 0; i < count; ++i) {
    const Id id = id_at(i);
    largest = std::max(largest, id);
    out[before + i] = static_cast<int32_t>(id);
  }
  if (int64_t{largest} < vocab_size) return;
  out.resize(before);
  size_t bad = 0;
  while (int64_t{id_at(bad)} < vocab_size) ++bad;
  throw Error({.code = ErrorCode::config,
               .what = "a token id is outside the vocabulary",
               .where = fmt::format("{} (byte {})", name,
                                    byte_offset + static_cast<int64_t>(bad * sizeof(Id))),
               .expected = fmt::format("ids below {}", vocab_size),
               .got = std::to_string(id_at(bad)),
               .remedy = "use the tokenizer the file was made with; ids may also be of another "
                         "width (uint16, uint32)"});
}

}  // namespace

TokenFileHeader read_token_header(std::span<const std::byte> first_bytes, int64_t file_bytes,
                                  int width_hint, const std::string& name) {
  MR_CHECK(width_hint == 0 || width_hint == 2 || width_hint == 4, "width {}", width_hint);
  MR_CHECK(std::ssize(first_bytes) >= std::min(file_bytes, kTokenHeaderBytes), "{} of {} bytes",
           first_bytes.size(), file_bytes);
  struct {
    int32_t magic = 0, version = 0, tokens = 0;
  } head;
  if (!first_bytes.empty())
    std::memcpy(&head, first_bytes.data(), std::min(first_bytes.size(), sizeof head));
  for (const KnownHeader& known : kKnownHeaders) {
    if (head.magic != known.magic) continue;
    if (file_bytes < kTokenHeaderBytes)
      refuse("the file ends inside its header", name, fmt::format("{} bytes", kTokenHeaderBytes),
             std::to_string(file_bytes));
    if (head.version != known.version)
      refuse("the token file has a version that is not known", name + " (byte 4)",
             std::to_string(known.version), std::to_string(head.version));
    if (head.tokens < 0)
      refuse("the header counts less than no tokens", name + " (byte 8)", "0 or more",
             std::to_string(head.tokens));
    const int64_t expected = kTokenHeaderBytes + int64_t{head.tokens} * known.width;
    if (file_bytes != expected)
      refuse("the file has not the size its header says", name,
             fmt::format("{} bytes, for {} ids of {} bytes", expected, head.tokens, known.width),
             fmt::format("{} bytes", file_bytes));
    return {kTokenHeaderBytes, known.width, head.tokens};
  }
  const int width = width_hint == 0 ? 2 : width_hint;
  if (file_bytes % width != 0)
    refuse("the file does not hold whole token ids", name,
           fmt::format("a multiple of {} bytes", width), fmt::format("{} bytes", file_bytes));
  return {0, width, file_bytes / width};
}

void widen_tokens(std::span<const std::byte> bytes, int width, int64_t vocab_size,
                  const std::string& name, int64_t byte_offset, std::vector<int32_t>& out) {
  MR_CHECK(width == 2 || width == 4, "width {}", width);
  MR_CHECK(std::ssize(bytes) % width == 0, "{} bytes of width {}", bytes.size(), width);
  MR_CHECK(vocab_size > 0 && vocab_size <= int64_t{1} << 31, "a vocabulary of {}", vocab_size);
  if (width == 2) {
    widen<uint16_t>(bytes, vocab_size, name, byte_offset, out);
  } else {
    widen<uint32_t>(bytes, vocab_size, name, byte_offset, out);
  }
}

}  // namespace millrace
