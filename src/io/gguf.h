// GGUF, version 3: the one file in which llama.cpp and its kin keep a model. Written, not read.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/dtype.h"
#include "core/file.h"

namespace millrace {

struct GgufEntry {
  std::string key;
  std::variant<uint32_t, float, bool, std::string, std::vector<std::string>, std::vector<float>,
               std::vector<int32_t>>
      value;
};

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;                  // row-major; the file has it the other way round
  DType dtype = DType::f32;                    // f32, f16 or bf16
  std::function<std::vector<float>()> values;  // called when its turn comes
};

// Writes the whole of a file, which is then the caller's to flush and close. One tensor is in
// memory at a time.
void write_gguf(OutputFile& file, std::span<const GgufEntry> metadata,
                std::span<const GgufTensor> tensors);

}  // namespace millrace
