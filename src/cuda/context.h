// What the kernels of one device share: its properties, library handles, compiled functions, and
// the algorithms that were chosen by timing.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/error.h"
#include "cuda/choices.h"
#include "cuda/nvml.h"

namespace millrace::cuda {

// Every call into CUDA and its libraries is checked: an Error names the call and what it said.
void check(cudaError_t status, const char* call);
void check(cublasStatus_t status, const char* call);
void check(cudnnStatus_t status, const char* call);
#define MR_CUDA(call) ::millrace::cuda::check((call), #call)

struct Device {
  int index = 0;
  std::string name, uuid;
  int sm = 0;  // 80, 90, …
  int multiprocessors = 0;
  int64_t memory_bytes = 0, l2_bytes = 0;
  int64_t shared_bytes = 0;  // of one block, when asked for
};

class RunQueue;

// Device memory of its own, for tables that a kernel prepares.
class DeviceBytes {
 public:
  explicit DeviceBytes(int64_t bytes);
  DeviceBytes(const void* host, int64_t bytes);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  void* data() const { return data_; }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

class Context {
 public:
  explicit Context(int device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int64_t number() const { return number_; }  // no other context of this process has it
  const Device& device() const { return device_; }
  const NvmlDevice& nvml() const { return nvml_; }
  cudaStream_t stream() const { return stream_; }
  cudaStream_t side_stream() const { return side_stream_; }  // gives way to the other
  // What was captured in this process, and what of the device's memory it took.
  struct Captures {
    int64_t count = 0, bytes = 0;
  };
  Captures captures;
  RunQueue* queue = nullptr;  // of the session whose runs are put off; null: none are
  // Held while the stream is captured: a thread that waits for it then would spoil the capture.
  std::mutex& capture_mutex() { return capture_mutex_; }
  cublasLtHandle_t lt();  // libraries are opened when first used: that takes a while
  cudnnHandle_t cudnn();
  // The function `name` of a program in CUDA C++, for this device; "cuda/device.cuh" can be
  // included. What was compiled once stays in memory and in the cache folder.
  cudaKernel_t compiled(const std::string& source, const std::string& name);
  // Algorithms chosen by timing, by what they were chosen for.
  Choices& choices() { return choices_; }

  bool failed() const;  // nothing can be done on the device any more

  // Median seconds of `run` on the stream, after warming up.
  template <typename Run>
  double time(Run run, int repeats = 5);

 private:
  inline static std::atomic<int64_t> made_ = 0;
  const int64_t number_ = made_++;
  Device device_;
  NvmlDevice nvml_;  // made before the device is used
  cudaStream_t stream_ = nullptr, side_stream_ = nullptr;
  std::mutex capture_mutex_;
  cublasLtHandle_t lt_ = nullptr;
  cudnnHandle_t cudnn_ = nullptr;
  std::map<std::string, std::pair<cudaLibrary_t, cudaKernel_t>> compiled_;
  Choices choices_;
};

template <typename Run>
double Context::time(Run run, int repeats) {
  cudaEvent_t begin = nullptr, end = nullptr;
  MR_CUDA(cudaEventCreate(&begin));
  MR_CUDA(cudaEventCreate(&end));
  run();
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    MR_CUDA(cudaEventRecord(begin, stream_));
    run();
    MR_CUDA(cudaEventRecord(end, stream_));
    MR_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    MR_CUDA(cudaEventElapsedTime(&ms, begin, end));
    seconds.push_back(1e-3 * ms);
  }
  MR_CUDA(cudaEventDestroy(begin));
  MR_CUDA(cudaEventDestroy(end));
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace millrace::cuda
