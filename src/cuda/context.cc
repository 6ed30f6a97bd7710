#include "cuda/context.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>

#include "cuda/run_time_compiler.h"

namespace millrace::cuda {

namespace {

[[noreturn]] void fail(const std::string& library, const std::string& said, const char* call) {
  throw Error({.what = fmt::format("{}: {}", library, said), .where = call});
}

[[noreturn]] void cannot_open(const std::string& what, const std::string& remedy) {
  throw Error({.code = ErrorCode::config, .what = what, .remedy = remedy});
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

int device_count() {
  int count = 0, driver = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (status == cudaSuccess && count > 0) return count;
  if (status == cudaSuccess || status == cudaErrorNoDevice)
    cannot_open("no CUDA device is to be seen",
                "device=cpu; `nvidia-smi -L` lists the devices, CUDA_VISIBLE_DEVICES hides them");
  cudaDriverGetVersion(&driver);  // 0: there is none
  if (driver == 0)
    cannot_open("no NVIDIA driver is installed", "device=cpu, or install the driver");
  if (status == cudaErrorInsufficientDriver || status == cudaErrorCallRequiresNewerDriver)
    cannot_open(fmt::format("the NVIDIA driver is too old: it has CUDA {}, this program needs {}",
                            version_text(driver), version_text(CUDART_VERSION)),
                "update the driver, or device=cpu");
  cannot_open(fmt::format("CUDA does not start: {}", cudaGetErrorString(status)),
              "`nvidia-smi` shows whether the driver is well; device=cpu works without it");
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

// What is known of a device before it is used.
Device look_at_device(int index) {
  const int count = device_count();
  if (index < 0 || index >= count)
    cannot_open(fmt::format("there is no CUDA device {}: {} to be seen", index,
                            count == 1 ? "only 0 is" : fmt::format("0 to {} are", count - 1)),
                "device=cuda:0, or another CUDA_VISIBLE_DEVICES");
  cudaDeviceProp properties;
  MR_CUDA(cudaGetDeviceProperties(&properties, index));
  const int sm = 10 * properties.major + properties.minor;
  if (sm < 80)
    cannot_open(fmt::format("CUDA device {} ({}) has compute capability {}.{}, 8.0 is needed",
                            index, properties.name, properties.major, properties.minor),
                "device=cpu, or a device of the Ampere generation or newer");
  return {.index = index,
          .name = properties.name,
          .uuid = uuid_text(properties.uuid),
          .sm = sm,
          .multiprocessors = properties.multiProcessorCount,
          .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
          .l2_bytes = properties.l2CacheSize,
          .shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin)};
}

// Makes the CUDA context, which takes memory of the device.
void use_device(const Device& device) {
  const cudaError_t status = cudaSetDevice(device.index);
  if (status == cudaSuccess) return;
  cudaGetLastError();
  cannot_open(fmt::format("CUDA device {} ({}) cannot be used: {}", device.index, device.name,
                          cudaGetErrorString(status)),
              "`nvidia-smi` shows who uses it; another device, or device=cpu");
}

fs::path cuda_cache() { return cache_folder() / "cuda"; }

// Algorithms are numbered by the library, so its version is part of the name.
fs::path choices_file(const Device& device) {
  std::string id =
      fmt::format("choices-{}-sm{}-lt{}.txt", device.name, device.sm, cublasLtGetVersion());
  for (char& ch : id)
    if (!std::isalnum(static_cast<unsigned char>(ch)) && ch != '.' && ch != '-') ch = '_';
  return cuda_cache() / id;
}

// A compiled program is kept with its digest behind it: a driver is no place to try damaged ones.
constexpr size_t kDigestBytes = 32;

std::string read_kept(const fs::path& file) {
  try {
    if (!fs::exists(file)) return "";
    std::string bytes = read_file(file, 64 << 20);
    if (bytes.size() <= kDigestBytes) return "";
    const std::string digest = bytes.substr(bytes.size() - kDigestBytes);
    bytes.resize(bytes.size() - kDigestBytes);
    return digest_of(bytes).xxh3 == digest ? bytes : "";
  } catch (const std::exception&) {
    return "";  // a cache that cannot be read costs compiling again, nothing else
  }
}

void keep(const fs::path& file, const std::string& cubin) {
  try {
    create_folders(file.parent_path());
    write_file(file, cubin + digest_of(cubin).xxh3);
  } catch (const Error&) {
    // A cache that cannot be written costs the next start some time, nothing else.
  }
}

cudaError_t load(const std::string& cubin, cudaLibrary_t* library) {
  return cudaLibraryLoadData(library, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
}

}  // namespace

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // said here, not again by the next check
  if (status == cudaErrorMemoryAllocation)
    throw Error({.code = ErrorCode::does_not_fit,
                 .what = "CUDA: the device has not enough free memory",
                 .where = call,
                 .remedy = "a smaller batch; `nvidia-smi` shows who else uses the device"});
  fail("CUDA", fmt::format("{} ({})", cudaGetErrorString(status), cudaGetErrorName(status)), call);
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail("cuBLASLt", cublasLtGetStatusName(status), call);
}

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> said{};
  cudnnGetLastErrorString(said.data(), said.size());
  fail("cuDNN", fmt::format("{}: {}", cudnnGetErrorString(status), said.data()), call);
}

DeviceBytes::DeviceBytes(int64_t bytes) {
  if (bytes > 0) MR_CUDA(cudaMalloc(&data_, static_cast<size_t>(bytes)));
}

DeviceBytes::DeviceBytes(const void* host, int64_t bytes) : DeviceBytes(bytes) {
  if (bytes == 0) return;
  MR_CUDA(cudaMemcpy(data_, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
  // The copy returns when the bytes have left `host`; the context's stream does not wait for their
  // arrival.
  MR_CUDA(cudaStreamSynchronize(nullptr));
}

DeviceBytes::~DeviceBytes() { cudaFree(data_); }

Context::Context(int device)
    : device_(look_at_device(device)), nvml_(device_.uuid), choices_(choices_file(device_)) {
  use_device(device_);
  int least = 0, greatest = 0;
  MR_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  MR_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
  MR_CUDA(cudaStreamCreateWithPriority(&side_stream_, cudaStreamNonBlocking, least));
}

Context::~Context() {
  cudaStreamSynchronize(stream_);
  if (cudnn_) cudnnDestroy(cudnn_);
  if (lt_) cublasLtDestroy(lt_);
  for (const auto& [key, program] : compiled_) cudaLibraryUnload(program.first);
  cudaStreamDestroy(stream_);
  cudaStreamDestroy(side_stream_);
}

bool Context::failed() const {
  const cudaError_t status = cudaStreamQuery(stream_);
  return status != cudaSuccess && status != cudaErrorNotReady;
}

cublasLtHandle_t Context::lt() {
  if (!lt_) MR_CUDA(cublasLtCreate(&lt_));
  return lt_;
}

cudnnHandle_t Context::cudnn() {
  if (!cudnn_) {
    MR_CUDA(cudnnCreate(&cudnn_));
    MR_CUDA(cudnnSetStream(cudnn_, stream_));
  }
  return cudnn_;
}

cudaKernel_t Context::compiled(const std::string& source, const std::string& name) {
  const std::string architecture = fmt::format("sm_{}", device_.sm);
  const std::string key =
      digest_of(fmt::format("{} {} {}{}", name, architecture, run_time_compiler(), source)).xxh3;
  if (const auto found = compiled_.find(key); found != compiled_.end()) return found->second.second;

  const fs::path file = cuda_cache() / (key + ".cubin");
  cudaLibrary_t library = nullptr;
  const std::string kept = read_kept(file);
  if (kept.empty() || load(kept, &library) != cudaSuccess) {
    cudaGetLastError();
    const std::string cubin = compile_program(source, name, architecture);
    MR_CUDA(load(cubin, &library));
    keep(file, cubin);
  }
  cudaKernel_t kernel = nullptr;
  MR_CUDA(cudaLibraryGetKernel(&kernel, library, name.c_str()));
  // Asking brings the code to the device now: its first launch may stand inside a capture.
  cudaFuncAttributes attributes;
  MR_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  compiled_[key] = {library, kernel};
  return kernel;
}

}  // namespace millrace::cuda
