#include "cpu/machine.h"

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>

#include <cstdlib>
#include <fstream>

#include "cpu/parallel.h"

namespace millrace::cpu {

std::string_view isa_name(Isa isa) { return isa == Isa::avx2 ? "avx2" : "avx512"; }

bool supports(Isa isa) {
  __builtin_cpu_init();
  if (isa == Isa::avx2)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi2");
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

Isa best_isa() {
  const char* wish = std::getenv("MILLRACE_ISA");
  if (wish && std::string_view(wish) == "avx2") return Isa::avx2;
  return supports(Isa::avx512) ? Isa::avx512 : Isa::avx2;
}

bool multiplies_bf16() {
  __builtin_cpu_init();
  return best_isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16");
}

namespace {
std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown CPU";
}
}  // namespace

std::string machine_name() {
  return fmt::format("{}, {} threads, {}", cpu_model(), threads(), isa_name(best_isa()));
}

std::string onednn_version() {
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
}

std::string machine_fingerprint() {
  std::string id =
      fmt::format("{}-{}-onednn{}", cpu_model(), isa_name(best_isa()), onednn_version());
  for (char& ch : id)
    if (!std::isalnum(static_cast<unsigned char>(ch)) && ch != '.' && ch != '-') ch = '_';
  return id;
}

}  // namespace millrace::cpu
