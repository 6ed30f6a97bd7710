// Events, and launches that were captured as a CUDA graph.
#pragma once
#include <cuda_runtime_api.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "cuda/context.h"

namespace millrace::cuda {

class Event {
 public:
  explicit Event(unsigned flags = cudaEventDefault) {
    MR_CUDA(cudaEventCreateWithFlags(&event_, flags));
  }
  ~Event() {
    if (event_) (void)cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }
  bool is_over() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    check(status, "cudaEventQuery");
    return true;
  }
  // Nanoseconds from `before`; both must have happened.
  int64_t ns_since(const Event& before) const {
    float ms = 0;
    MR_CUDA(cudaEventElapsedTime(&ms, before.event_, event_));
    return static_cast<int64_t>(1e6 * static_cast<double>(ms));
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// What the device's clock was when the host's was something: for spans of a timeline.
class ClockPair {
 public:
  // Once; waits for the stream.
  void set(cudaStream_t stream) {
    if (host_ns_ != 0) return;
    MR_CUDA(cudaEventRecord(device_.get(), stream));
    MR_CUDA(cudaEventSynchronize(device_.get()));
    host_ns_ = now_ns();
  }
  // When that was, by the host's clock; 0: nobody has asked before.
  int64_t ns_of(const Event& event) const {
    return host_ns_ == 0 ? 0 : host_ns_ + event.ns_since(device_);
  }

 private:
  Event device_;
  int64_t host_ns_ = 0;
};

// A captured stretch of launches.
class Captured {
 public:
  Captured() = default;
  ~Captured() {
    if (exec_) (void)cudaGraphExecDestroy(exec_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  bool ready() const { return exec_ != nullptr; }
  int64_t kernels() const { return kernels_; }  // that a launch starts
  void launch(cudaStream_t stream) const { MR_CUDA(cudaGraphLaunch(exec_, stream)); }
  // Of so many steps; of 0, which is timed and not kept, the memory does not count. Why it could
  // not be captured, or "".
  template <typename Launch>
  std::string capture(Context& context, int64_t steps, Launch launches) {
    const std::lock_guard lock(context.capture_mutex());
    const cudaStream_t stream = context.stream();
    MR_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    std::string reason;
    try {
      launches();
    } catch (const Error& error) {
      reason = error.fields().what;
    }
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    if (reason.empty() && ended != cudaSuccess) reason = cudaGetErrorString(ended);
    if (reason.empty()) {
      size_t before = 0, after = 0, all = 0;
      MR_CUDA(cudaMemGetInfo(&before, &all));
      cudaError_t made = cudaGraphInstantiate(&exec_, graph, 0);
      if (made == cudaSuccess) made = cudaGraphUpload(exec_, stream);
      if (made != cudaSuccess) reason = cudaGetErrorString(made);
      MR_CUDA(cudaMemGetInfo(&after, &all));
      kernels_ = count_kernels(graph);
      context.captures.count += steps;
      if (steps > 0 && before > after)
        context.captures.bytes += static_cast<int64_t>(before - after);
    }
    if (graph) (void)cudaGraphDestroy(graph);
    if (!reason.empty()) {
      (void)cudaGetLastError();
      if (exec_) (void)cudaGraphExecDestroy(exec_);
      exec_ = nullptr;
    }
    return reason;
  }

 private:
  static int64_t count_kernels(cudaGraph_t graph) {
    size_t count = 0;
    MR_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    MR_CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
    return std::count_if(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
      cudaGraphNodeType type;
      MR_CUDA(cudaGraphNodeGetType(node, &type));
      return type == cudaGraphNodeTypeKernel;
    });
  }

  cudaGraphExec_t exec_ = nullptr;
  int64_t kernels_ = 0;
};

}  // namespace millrace::cuda
