#include "cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/text.h"
#include "cuda/context.h"
#include "cuda/executable.h"
#include "cuda/gemm.h"
#include "cuda/kernel.h"
#include "cuda/memory_ceiling.h"
#include "cuda/run_queue.h"

namespace millrace::cuda {
namespace {

class CudaArena : public Arena {
 public:
  CudaArena(int64_t bytes, const Device& device) : bytes_(bytes) {
    if (bytes == 0) return;
    const cudaError_t status = cudaMalloc(&data_, static_cast<size_t>(bytes));
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();  // or every later call would report it again
      size_t free = 0, total = 0;
      MR_CUDA(cudaMemGetInfo(&free, &total));
      throw Error({.code = ErrorCode::does_not_fit,
                   .what = fmt::format("{} has no room for {}", device.name, human_bytes(bytes)),
                   .expected = "the arena of the plan",
                   .got = fmt::format("{} free of {}", human_bytes(static_cast<int64_t>(free)),
                                      human_bytes(static_cast<int64_t>(total))),
                   .remedy = "a smaller batch, runtime.memory_limit, or end the other processes "
                             "on the device (nvidia-smi lists them)"});
    }
    check(status, "cudaMalloc");
  }
  ~CudaArena() override { (void)cudaFree(data_); }
  std::byte* data() override { return static_cast<std::byte*>(data_); }
  int64_t bytes() const override { return bytes_; }

 private:
  int64_t bytes_;
  void* data_ = nullptr;
};

// Two pinned blocks in turn: one is filled while the other one may still be on its way.
class CudaStaging : public Staging {
 public:
  CudaStaging(std::byte* device, int64_t bytes, cudaStream_t stream)
      : device_(device), bytes_(static_cast<size_t>(bytes)), stream_(stream) {
    for (Block& b : blocks_) {
      MR_CUDA(cudaMallocHost(&b.host, bytes_));
      MR_CUDA(cudaEventCreateWithFlags(&b.sent, cudaEventDisableTiming));
      std::memset(b.host, 0, bytes_);
    }
  }
  ~CudaStaging() override {
    for (Block& b : blocks_) {
      (void)cudaEventSynchronize(b.sent);
      (void)cudaEventDestroy(b.sent);
      (void)cudaFreeHost(b.host);
    }
  }
  std::byte* data() override { return static_cast<std::byte*>(blocks_[now_].host); }
  void send() override {
    Block& b = blocks_[now_];
    MR_CUDA(cudaMemcpyAsync(device_, b.host, bytes_, cudaMemcpyHostToDevice, stream_));
    MR_CUDA(cudaEventRecord(b.sent, stream_));
    now_ = 1 - now_;
    MR_CUDA(cudaEventSynchronize(blocks_[now_].sent));
    std::memcpy(blocks_[now_].host, b.host, bytes_);  // inputs that are not written anew stay
  }

 private:
  struct Block {
    void* host = nullptr;
    cudaEvent_t sent = nullptr;
  };
  std::byte* device_;
  size_t bytes_;
  cudaStream_t stream_;
  Block blocks_[2];
  int now_ = 0;
};

// A few pinned numbers and the event after which they are there.
class Numbers {
 public:
  explicit Numbers(size_t count) : count_(count) {
    MR_CUDA(cudaMallocHost(reinterpret_cast<void**>(&host_), count_ * sizeof(float)));
  }
  ~Numbers() { (void)cudaFreeHost(host_); }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  size_t count() const { return count_; }
  void start(std::span<const std::byte* const> places, cudaStream_t stream) {
    for (size_t i = 0; i < count_; ++i)
      MR_CUDA(cudaMemcpyAsync(host_ + i, places[i], sizeof(float), cudaMemcpyDeviceToHost, stream));
    MR_CUDA(cudaEventRecord(there_.get(), stream));
  }
  std::vector<float> wait() {
    MR_CUDA(cudaEventSynchronize(there_.get()));
    return {host_, host_ + count_};
  }
  bool is_there() const { return there_.is_over(); }

 private:
  size_t count_;
  float* host_ = nullptr;
  Event there_{cudaEventDisableTiming};
};

// Gives its pinned memory back for the next step: taking some from the system stops the device.
class Borrowed : public Late {
 public:
  using Pool = std::vector<std::unique_ptr<Numbers>>;
  Borrowed(std::unique_ptr<Numbers> numbers, Pool& pool)
      : numbers_(std::move(numbers)), pool_(pool) {}
  ~Borrowed() override { pool_.push_back(std::move(numbers_)); }
  std::vector<float> wait() override { return numbers_->wait(); }
  bool is_there() const override { return numbers_->is_there(); }

 private:
  std::unique_ptr<Numbers> numbers_;
  Pool& pool_;
};

class CudaBackend : public Backend {
 public:
  CudaBackend(int index, const BackendOptions& options) : context_(index), options_(options) {
    MR_CUDA(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
  }
  ~CudaBackend() override { (void)cudaStreamDestroy(copies_); }
  std::string name() const override {
    return fmt::format("cuda:{} {}", context_.device().index, context_.device().name);
  }
  DeviceKind kind() const override {
    return {context_.device().name,
            fmt::format("sm{}, driver {}, cuBLASLt {}, cuDNN {}", context_.device().sm,
                        driver_version(), cublasLtGetVersion(), cudnnGetVersion())};
  }
  bool on_host() const override { return false; }
  int64_t memory_bytes() const override { return context_.device().memory_bytes; }
  bool computes(Precision) const override { return true; }
  Precision usual_precision() const override { return Precision::bf16; }
  int64_t room_bytes() const override {
    size_t free = 0, total = 0;
    MR_CUDA(cudaMemGetInfo(&free, &total));
    // Where nobody tells what is ours, whoever takes memory finds out.
    const auto now = vitals();
    return now && now->bytes ? static_cast<int64_t>(free) + *now->bytes : memory_bytes();
  }
  Ceiling measure_ceiling(Precision precision) override;
  std::optional<DeviceVitals> vitals() const override { return context_.nvml().vitals(); }
  std::optional<int64_t> overhead_bytes(Precision precision, int64_t graphs) const override {
    auto bytes = context_.choices().number(overhead_key(precision));
    if (bytes && options_.capture)
      *bytes += graphs * context_.choices().number(graph_key()).value_or(kGraphBytes);
    // The cache may be damaged.
    return bytes && *bytes < memory_bytes() ? bytes : std::nullopt;
  }
  void note_overhead(Precision precision, int64_t bytes) override {
    // What neighbours take meanwhile cannot be told apart from what graphs do; nor, where the list
    // of processes is not to be had, from what is ours.
    if (const auto now = vitals(); now && now->shared()) return;
    const auto& [count, of_graphs] = context_.captures;
    const int64_t overhead = std::max<int64_t>(0, bytes - of_graphs);
    const auto was = context_.choices().number(overhead_key(precision));
    if (overhead > (was ? *was + (int64_t{1} << 30) : int64_t{4} << 30)) return;
    context_.choices().note_number(overhead_key(precision), overhead);
    constexpr int64_t kEnough = 8;  // memory is taken in pieces that several graphs share
    if (count >= kEnough) context_.choices().note_number(graph_key(), of_graphs / count);
  }
  bool failed() const override { return context_.failed(); }
  std::string choices() const override { return context_.choices().used(); }
  void pin_choices(const std::string& choices) override { context_.choices().pin(choices); }
  bool allow_timing(bool allowed) override { return context_.choices().allow_timing(allowed); }
  bool set_sizes_only(bool on) override { return context_.choices().set_sizes_only(on); }

  bool runs_beside() const override { return options_.capture; }
  int64_t runs_at_once() const override { return options_.capture ? options_.runs_at_once : 1; }
  KernelChoice choose(const OpCard& op, const OpSite& site) override {
    KernelChoice choice;
    const Kernel* k = pick_kernel(op, site, context_, &choice.declined);
    if (!k) {
      std::string reasons;
      for (const std::string& r : choice.declined) reasons += (reasons.empty() ? "" : "; ") + r;
      throw Error({.what = fmt::format("{} has no CUDA kernel for this site", op.name),
                   .where = op_site_text(site),
                   .got = reasons.empty() ? "no kernels at all" : reasons,
                   .remedy = "device: cpu, or sizes of the model that a kernel takes"});
    }
    choice.name = k->name;
    if (k->detail) choice.name += fmt::format(" [{}]", k->detail(site, context_));
    if (k->workspace_bytes) choice.workspace_bytes = k->workspace_bytes(site, context_);
    if (k->order_seconds) choice.order_seconds = k->order_seconds(site, context_);
    choice.end_from = k->end_from;
    return choice;
  }
  std::unique_ptr<Arena> allocate(int64_t bytes) override {
    return std::make_unique<CudaArena>(bytes, context_.device());
  }
  std::unique_ptr<Staging> stage(std::byte* inputs, int64_t bytes, std::byte* ring) override {
    if (runs_at_once() > 1)
      return std::make_unique<RunQueue>(context_, inputs, ring, bytes,
                                        static_cast<size_t>(runs_at_once()));
    return std::make_unique<CudaStaging>(inputs, bytes, context_.stream());
  }
  std::unique_ptr<Executable> load(const Plan& plan, std::span<std::byte* const> place) override {
    return make_executable(plan, place, context_, options_.capture);
  }
  std::unique_ptr<Late> fetch(std::span<const std::byte* const> places) override {
    if (context_.queue)
      if (auto put_off = context_.queue->fetch(places)) return put_off;
    std::unique_ptr<Numbers> numbers;
    for (auto at = pool_.begin(); at != pool_.end() && !numbers; ++at)
      if ((*at)->count() == places.size()) {
        numbers = std::move(*at);
        pool_.erase(at);
        break;
      }
    if (!numbers) numbers = std::make_unique<Numbers>(places.size());
    numbers->start(places, context_.stream());
    return std::make_unique<Borrowed>(std::move(numbers), pool_);
  }
  void copy_in(std::byte* device, std::span<const std::byte> host) override {
    copy(device, host.data(), host.size(), cudaMemcpyHostToDevice);
  }
  void copy_out(std::span<std::byte> host, const std::byte* device) override {
    copy(host.data(), device, host.size(), cudaMemcpyDeviceToHost);
  }

 private:
  // A context is as large as its driver makes it; the precision decides which libraries load
  // kernels. Device and libraries are in the name of the file.
  static std::string overhead_key(Precision precision) {
    return fmt::format("overhead in {}, driver {}", precision_name(precision), driver_version());
  }
  static int driver_version() {
    int driver = 0;
    MR_CUDA(cudaDriverGetVersion(&driver));
    return driver;
  }
  static std::string graph_key() { return "bytes of a graph"; }
  // Until it was measured: a driver takes memory in pieces of this size.
  static constexpr int64_t kGraphBytes = 2 << 20;
  // By any thread: the one that writes a checkpoint reads while the next step is under way.
  void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return;
    MR_CUDA(cudaSetDevice(context_.device().index));
    if (context_.queue && context_.queue->is_of_this_thread()) context_.queue->flush();
    {
      const std::lock_guard lock(context_.capture_mutex());
      MR_CUDA(cudaStreamSynchronize(context_.stream()));
    }
    MR_CUDA(cudaMemcpyAsync(to, from, bytes, kind, copies_));
    MR_CUDA(cudaStreamSynchronize(copies_));
  }

  mutable Context context_;
  BackendOptions options_;
  cudaStream_t copies_ = nullptr;
  Borrowed::Pool pool_;
};

Ceiling CudaBackend::measure_ceiling(Precision precision) {
  Ceiling best;
  try {
    const DType type = precision == Precision::bf16   ? DType::bf16
                       : precision == Precision::fp16 ? DType::f16
                                                      : DType::f32;
    for (const int64_t size : {4096, 8192}) {
      const int64_t bytes = size * size * dtype_bytes(type);
      const Gemm product({.m = size,
                          .n = size,
                          .k = size,
                          .tb = true,
                          .in = type,
                          .out = type,
                          .tf32 = precision == Precision::tf32},
                         context_);
      const DeviceBytes a(bytes), b(bytes), d(bytes), workspace(product.workspace_bytes());
      fill_random(a.data(), bytes, type, context_);
      fill_random(b.data(), bytes, type, context_);
      const double seconds = seconds_of(context_, [&](int) {
        product.run({.a = a.data(), .b = b.data(), .d = d.data(), .workspace = workspace.data()},
                    context_.stream());
      });
      best.flops = std::max(best.flops, 2.0 * static_cast<double>(size * size * size) / seconds);
    }
    constexpr int64_t kBytes = 1 << 30;  // that no cache holds
    const DeviceBytes from(kBytes), to(kBytes);
    best.bytes = 2.0 * kBytes / context_.time([&] {
      MR_CUDA(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice,
                              context_.stream()));
    });
    // What was written last may lie in the cache that all multiprocessors share. Its rate is the
    // best of some sizes: how much of it one of them reaches fast differs between devices.
    const int64_t capacity = context_.device().l2_bytes;
    double rate = 0;
    for (const int64_t part : {2, 4, 8}) {
      constexpr int kPasses = 20;
      const int64_t bytes = capacity / part / 16 * 16;
      if (bytes == 0) continue;
      const double seconds = context_.time([&] {
        launch_move(to.data(), bytes, kPasses, context_.device().multiprocessors,
                    context_.stream());
      });
      rate = std::max(rate, 2.0 * kPasses * static_cast<double>(bytes) / seconds);
    }
    if (rate > best.bytes) best.caches = {{static_cast<double>(capacity), rate}};
  } catch (const Error&) {
    (void)cudaGetLastError();  // no memory left for it: what was measured so far stands
  }
  return best;
}

}  // namespace

std::unique_ptr<Backend> make_backend(int index, const BackendOptions& options) {
  return std::make_unique<CudaBackend>(index, options);
}

}  // namespace millrace::cuda

// What exec/cuda_library.cc looks up.
extern "C" __attribute__((visibility("default"))) millrace::Backend* millrace_cuda_open(
    const char* interface_name, int index, const millrace::BackendOptions& options) {
  if (std::strcmp(interface_name, millrace::kBackendInterface) != 0)
    throw millrace::Error({.code = millrace::ErrorCode::config,
                           .what = "libmillrace_cuda is of another build than the program",
                           .expected = interface_name,
                           .got = millrace::kBackendInterface,
                           .remedy = "build or install both together"});
  return millrace::cuda::make_backend(index, options).release();
}
