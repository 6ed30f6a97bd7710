// Loaded before the CUDA libraries (LD_PRELOAD), leaves out some of what they offer, to find whose kernels are at fault:
//   WITHOUT=nvjet       products by cuBLASLt's kernels for Hopper (algorithm 66)
//   WITHOUT=workspace   products that want memory to work in: shares of a sum, tiles handed out on the device
//   WITHOUT=cudnn       attention by cuDNN
// tests/crash/shared_device.py --without WORD compiles and uses it.
#define _GNU_SOURCE
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { kMost = 64, kNvjet = 66, kNotSupported = 3000 };

static int without(const char* what) {
  const char* wish = getenv("WITHOUT");
  return wish && strcmp(wish, what) == 0;
}

// The libraries are opened behind this one, and may be nobody else's to see.
static void* original(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  return dlsym(handle ? handle : RTLD_NEXT, name);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  typedef __typeof__(&cublasLtMatmulAlgoGetHeuristic) Function;
  typedef __typeof__(&cublasLtMatmulAlgoConfigGetAttribute) Attribute;
  static Function function;
  static Attribute attribute;
  if (!function) {
    attribute = (Attribute)original("libcublasLt.so.13", "cublasLtMatmulAlgoConfigGetAttribute");
    function = (Function)original("libcublasLt.so.13", "cublasLtMatmulAlgoGetHeuristic");
  }
  cublasLtMatmulHeuristicResult_t all[kMost];
  int found = 0;
  const cublasStatus_t status = function(handle, operation, a, b, c, d, preference, kMost, all, &found);
  *count = 0;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found && *count < asked; ++i) {
    int id = 0;
    size_t written = 0;
    attribute(&all[i].algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &written);
    if (without("nvjet") && id == kNvjet) continue;
    if (without("workspace") && all[i].workspaceSize != 0) continue;
    results[(*count)++] = all[i];
  }
  return status;
}

int cudnnBackendFinalize(void* descriptor) {
  typedef int (*Function)(void*);
  static Function function;
  if (!function) function = (Function)original("libcudnn.so.9", "cudnnBackendFinalize");
  return without("cudnn") ? kNotSupported : function(descriptor);
}
