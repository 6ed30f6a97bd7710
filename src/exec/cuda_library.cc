#include "exec/cuda_library.h"

#include <dlfcn.h>

#include <array>
#include <string>

#include "core/error.h"
#include "core/file.h"

namespace millrace {
namespace {

constexpr const char* kLibrary = "libmillrace_cuda.so";

// Shared libraries that the backend needs and the Debian/Ubuntu packages of NVIDIA's repository
// they come in.
struct Needed {
  const char *file, *package;
};
constexpr std::array<Needed, 3> kNeeded = {{{"libcublasLt.so", "libcublas-13-0"},
                                            {"libcudnn", "libcudnn9-cuda-13"},
                                            {"libnvrtc", "cuda-nvrtc-13-0"}}};

[[noreturn]] void refuse(const std::string& what, const std::string& got,
                         const std::string& remedy) {
  throw Error({.code = ErrorCode::config,
               .what = what,
               .where = "device",
               .expected = "an NVIDIA GPU, its driver, and the CUDA backend of Millrace",
               .got = got,
               .remedy = remedy});
}

// Beside the program, or in the lib folder of an installation; empty when it is in neither.
fs::path find_library() {
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& place : {here / kLibrary, here.parent_path() / "lib" / kLibrary})
    if (fs::exists(place, ignored)) return place;
  return {};
}

void* open_library() {
  const fs::path place = find_library();
  if (place.empty())
    refuse("the CUDA backend is not there", "no " + std::string(kLibrary),
           "build Millrace where a CUDA toolkit is installed, or device: cpu");
  // The driver first: without one there is no reason to load hundreds of megabytes of libraries.
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (!driver)
    refuse("no NVIDIA driver is installed", dlerror(),
           "device=cpu, or install the driver (Debian: nvidia-driver)");
  dlclose(driver);
  if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const std::string reason = dlerror();
  for (const Needed& n : kNeeded)
    if (reason.find(std::string(n.file)) != reason.npos)
      refuse(fmt::format("a library that the CUDA backend needs is missing: {}", n.file), reason,
             fmt::format("apt-get install {} from NVIDIA's repository, or put the library on "
                         "LD_LIBRARY_PATH",
                         n.package));
  refuse("the CUDA backend cannot be loaded", reason, "build it on this machine, or device: cpu");
}

}  // namespace

bool has_cuda_library() { return !find_library().empty(); }

bool has_nvidia_driver() {
  std::error_code ignored;
  return fs::exists("/proc/driver/nvidia/version", ignored);
}

std::unique_ptr<Backend> open_cuda(int index, const BackendOptions& options) {
  static void* const library = open_library();
  using Open = Backend*(const char*, int, const BackendOptions&);
  auto* open = reinterpret_cast<Open*>(dlsym(library, "millrace_cuda_open"));
  if (!open) refuse("the CUDA backend is of another build", kLibrary, "build both together");
  return std::unique_ptr<Backend>(open(kBackendInterface, index, options));
}

}  // namespace millrace
