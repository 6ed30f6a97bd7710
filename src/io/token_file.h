// Files of token ids that others have made: nothing but uint16 or uint32 ids, little-endian, as
// nanoGPT writes them, or the same behind the header of llm.c (dev/data/data_common.py): 256 int32,
// of which the first three are a magic number, a version and the count of ids, and the rest zero.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace {

inline constexpr int64_t kTokenHeaderBytes = 1024;

struct TokenFileHeader {
  int64_t offset = 0;  // of the first id, in bytes
  int width = 2;       // of an id, in bytes
  int64_t tokens = 0;
};

// What the file is: by its header or, when it has none, by `width_hint` (2 or 4; 0: 2).
// `first_bytes` are the first kTokenHeaderBytes, or all of a shorter file. Error when the version
// is not known or the size of the file does not fit.
TokenFileHeader read_token_header(std::span<const std::byte> first_bytes, int64_t file_bytes,
                                  int width_hint, const std::string& name);

// Appends the ids in `bytes`, which are whole ones and stand at `byte_offset` of the file. Error
// with the place of the first id outside the vocabulary; `out` is then as it was.
void widen_tokens(std::span<const std::byte> bytes, int width, int64_t vocab_size,
                  const std::string& name, int64_t byte_offset, std::vector<int32_t>& out);

}  // namespace millrace
