// How far the work on a stream has come, in memory of the host: it can still be read when the
// device has failed.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>

namespace millrace::cuda {

class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `name` says what comes after so many marks of the run that begins now.
  void begin(std::function<std::string(uint32_t done)> name, cudaStream_t stream);
  void mark(uint32_t done, cudaStream_t stream);  // as soon as everything before it is over
  void forget() { name_ = nullptr; }  // who would be asked for it is gone
  std::string where() const { return name_ ? name_(*done_) : ""; }

 private:
  volatile uint32_t* done_ = nullptr;
  std::function<std::string(uint32_t)> name_;
};

}  // namespace millrace::cuda
