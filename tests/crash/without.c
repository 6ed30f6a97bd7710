// Loaded before the CUDA libraries (LD_PRELOAD), leaves out some of what they offer, to find whose kernels are at fault:
//   WITHOUT=nvjet       products by cuBLASLt's kernels for Hopper (algorithm 66)
//   WITHOUT=clusters    products whose blocks work together in clusters; what says AUTO is not known to
//   WITHOUT=workspace   products that want memory to work in: shares of a sum, tiles handed out on the device
//   WITHOUT=cudnn       attention by cuDNN
// or several of them with commas. tests/crash/shared_device.py --without WORDS compiles and uses it; with WITHOUT_SAYS=1 every answer
// of cuBLASLt is printed with its algorithm, cluster, stages, split and workspace, and whether it is left out.
#define _GNU_SOURCE
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMost = 64, kNvjet = 66, kNotSupported = 3000 };

static int without(const char* what) {
  const char* wish = getenv("WITHOUT");
  return wish && strstr(wish, what);
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
    int32_t id = 0, split = 0;
    uint32_t stages = 0;
    uint16_t cluster = 0;
    size_t written = 0;
    attribute(&all[i].algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &written);
    attribute(&all[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split, &written);
    attribute(&all[i].algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, &stages, sizeof stages, &written);
    attribute(&all[i].algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster, sizeof cluster, &written);
    const int out = (without("nvjet") && id == kNvjet) || (without("clusters") && cluster > CUBLASLT_CLUSTER_SHAPE_1x1x1) ||
                    (without("workspace") && all[i].workspaceSize != 0);
    if (getenv("WITHOUT_SAYS"))
      fprintf(stderr, "cublasLt answer: algorithm %d cluster %u stages %u split %d workspace %zu%s\n", id, cluster, stages, split,
              all[i].workspaceSize, out ? ", left out" : "");
    if (out) continue;
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
