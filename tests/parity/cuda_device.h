// The CUDA device of the tests, opened once. Where there is none, no parity test is instantiated,
// and CudaDevice.IsUsed is skipped and says why.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "core/error.h"
#include "exec/cuda_library.h"

namespace millrace {

struct TestDevice {
  std::unique_ptr<Backend> backend;
  std::string reason;  // why there is none
};

inline TestDevice& test_device() {
  static TestDevice& device = *new TestDevice([] {
    TestDevice d;
    try {
      d.backend = open_cuda(0, {});
    } catch (const Error& error) {
      d.reason = error.fields().what;
    }
    return d;
  }());
  return device;
}

}  // namespace millrace
