// What one number of a tensor is. Apart from shape.h because device code reads it too.
#pragma once
#include <cstdint>
#include <string_view>

namespace millrace {

enum class DType : uint8_t { f32, i32, bf16, f16 };

constexpr bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }
constexpr int64_t dtype_bytes(DType dtype) { return is_half(dtype) ? 2 : 4; }
constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::i32:
      return "i32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
  }
  return "";
}

}  // namespace millrace
