#include "cuda/run_time_compiler.h"

#include <nvrtc.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "core/error.h"

namespace millrace::cuda {

extern const char* const kDeviceHeader;  // the text of cuda/device.cuh, put here by the build

namespace {

// NVRTC has the CUDA language built in but not the 16-bit types, and a user need not have the
// toolkit's headers: these two have what device.cuh asks of them.
constexpr const char* kBf16Header = R"(#pragma once
struct __nv_bfloat16 {
  unsigned short bits;
};
__device__ __forceinline__ float __bfloat162float(__nv_bfloat16 x) {
  return __uint_as_float((unsigned)x.bits << 16);
}
__device__ __forceinline__ __nv_bfloat16 __float2bfloat16_rn(float x) {
  __nv_bfloat16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
)";
constexpr const char* kFp16Header = R"(#pragma once
struct __half {
  unsigned short bits;
};
__device__ __forceinline__ float __half2float(__half x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ __forceinline__ __half __float2half_rn(float x) {
  __half y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
)";

constexpr std::array<const char*, 3> kHeaderNames = {"cuda/device.cuh", "cuda_bf16.h",
                                                     "cuda_fp16.h"};
std::array<const char*, 3> header_texts() { return {kDeviceHeader, kBf16Header, kFp16Header}; }

void check_nvrtc(nvrtcResult status, const char* call) {
  if (status == NVRTC_SUCCESS) return;
  throw Error({.what = fmt::format("NVRTC: {}", nvrtcGetErrorString(status)), .where = call});
}
#define MR_NVRTC(call) check_nvrtc((call), #call)

// The architecture itself, or, of a device that is newer than this compiler, the newest one's PTX,
// which its driver translates.
std::string known(const std::string& architecture) {
  int count = 0;
  MR_NVRTC(nvrtcGetNumSupportedArchs(&count));
  std::vector<int> list(static_cast<size_t>(count));
  MR_NVRTC(nvrtcGetSupportedArchs(list.data()));
  int newest = 0;
  for (const int sm : list) {
    if (architecture == fmt::format("sm_{}", sm)) return architecture;
    newest = std::max(newest, sm);
  }
  return fmt::format("compute_{}", newest);
}

}  // namespace

std::string compile_program(const std::string& source, const std::string& name,
                            const std::string& architecture) {
  const std::string file = name + ".cu", target = "--gpu-architecture=" + known(architecture);
  const std::array<const char*, 3> options = {target.c_str(), "--std=c++17", "--fmad=true"};
  const auto headers = header_texts();
  nvrtcProgram raw = nullptr;
  MR_NVRTC(nvrtcCreateProgram(&raw, source.c_str(), file.c_str(), static_cast<int>(headers.size()),
                              headers.data(), kHeaderNames.data()));
  auto destroy = [](nvrtcProgram program) { nvrtcDestroyProgram(&program); };
  const std::unique_ptr<std::remove_pointer_t<nvrtcProgram>, decltype(destroy)> program(raw,
                                                                                        destroy);
  if (const nvrtcResult result =
          nvrtcCompileProgram(raw, static_cast<int>(options.size()), options.data());
      result != NVRTC_SUCCESS) {
    size_t bytes = 0;
    MR_NVRTC(nvrtcGetProgramLogSize(raw, &bytes));
    std::string log(bytes, '\0');
    MR_NVRTC(nvrtcGetProgramLog(raw, log.data()));
    throw Error({.what = fmt::format("NVRTC: {}", nvrtcGetErrorString(result)),
                 .where = fmt::format("{} for {}", file, architecture),
                 .got = log.c_str()});
  }
  size_t bytes = 0;
  MR_NVRTC(nvrtcGetCUBINSize(raw, &bytes));
  if (bytes > 0) {
    std::string cubin(bytes, '\0');
    MR_NVRTC(nvrtcGetCUBIN(raw, cubin.data()));
    return cubin;
  }
  MR_NVRTC(nvrtcGetPTXSize(raw, &bytes));
  std::string ptx(bytes, '\0');
  MR_NVRTC(nvrtcGetPTX(raw, ptx.data()));
  return ptx;
}

std::string run_time_compiler() {
  int major = 0, minor = 0;
  MR_NVRTC(nvrtcVersion(&major, &minor));
  std::string all = fmt::format("nvrtc {}.{}\n", major, minor);
  for (const char* header : header_texts()) all += header;
  return all;
}

}  // namespace millrace::cuda
