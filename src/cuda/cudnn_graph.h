// An operation graph for cuDNN, told through its backend API (cudnn_graph.h of the library), and
// the plan the library makes of it. Whatever the library refuses is an Error that carries its own
// words.
#pragma once
#include <cudnn.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace millrace::cuda {

// One object of the backend API, destroyed with this one.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }

  template <typename T>
  void set(cudnnBackendAttributeName_t name, const T& value) {
    set(name, type_of(value), 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    set(name, value.raw_);
  }
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, size_t count,
           const void* values);
  void finalize();
  cudnnBackendDescriptor_t raw() const { return raw_; }

 private:
  using Type = cudnnBackendAttributeType_t;
  static Type type_of(bool) { return CUDNN_TYPE_BOOLEAN; }
  static Type type_of(int64_t) { return CUDNN_TYPE_INT64; }
  static Type type_of(float) { return CUDNN_TYPE_FLOAT; }
  static Type type_of(double) { return CUDNN_TYPE_DOUBLE; }
  static Type type_of(void*) { return CUDNN_TYPE_BACKEND_DESCRIPTOR; }
  static Type type_of(cudnnHandle_t) { return CUDNN_TYPE_HANDLE; }
  static Type type_of(cudnnDataType_t) { return CUDNN_TYPE_DATA_TYPE; }
  static Type type_of(cudnnPointwiseMode_t) { return CUDNN_TYPE_POINTWISE_MODE; }
  static Type type_of(cudnnReduceTensorOp_t) { return CUDNN_TYPE_REDUCTION_OPERATOR_TYPE; }
  static Type type_of(cudnnBackendHeurMode_t) { return CUDNN_TYPE_HEUR_MODE; }

  cudnnBackendDescriptor_t raw_ = nullptr;
};

class CudnnPlan;

// Tensors have four dimensions. Each operation writes a tensor made before it.
class CudnnGraph {
 public:
  using Sizes = std::array<int64_t, 4>;
  struct Tensor {
    int64_t id = 0;  // 0: none
    Sizes sizes{}, strides{};
  };

  // Lies in device memory, 16-byte aligned; its pointer is given to CudnnPlan::bind.
  Tensor memory(Sizes sizes, Sizes strides, cudnnDataType_t type);
  // Exists only inside the kernel that the library makes; packed.
  Tensor intermediate(Sizes sizes, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  Tensor intermediate(Sizes sizes, Sizes strides, cudnnDataType_t type);
  Tensor scalar(float value);

  // BINARY_SELECT takes in[0] where in[2] is true, else in[1].
  void pointwise(cudnnPointwiseMode_t mode, std::initializer_list<Tensor> in, Tensor out,
                 cudnnDataType_t compute = CUDNN_DATA_FLOAT);
  // Each element's own index along one dimension.
  void index(int64_t axis, Tensor like, Tensor out, cudnnDataType_t compute);
  // The sizes of out that count, one per batch, may lie in device memory: m, n, k.
  struct MatmulSizes {
    Tensor m, n, k;
  };
  void matmul(Tensor a, Tensor b, Tensor out, MatmulSizes sizes);
  void reduce(cudnnReduceTensorOp_t mode, Tensor in, Tensor out);
  void reshape(Tensor in, Tensor out);

  // The first plan in the order of the library's heuristics; without `any_order`, the first that is
  // not marked nondeterministic.
  CudnnPlan plan(cudnnHandle_t handle, bool any_order) &&;

 private:
  Tensor tensor(Sizes sizes, Sizes strides, cudnnDataType_t type, bool is_virtual, bool by_value);
  void pointwise(CudnnDescriptor mode, std::initializer_list<Tensor> in, Tensor out);
  void set_tensor(CudnnDescriptor& operation, cudnnBackendAttributeName_t name, Tensor tensor);
  void add_operation(CudnnDescriptor operation);

  std::vector<CudnnDescriptor> tensors_, modes_, operations_;  // of tensors: the id less 1
  std::vector<std::pair<int64_t, float>> scalars_;
};

class CudnnPlan {
 public:
  int64_t workspace_bytes() const { return workspace_bytes_; }
  const std::string& name() const { return name_; }  // engine and knobs
  // What cudnnBackendExecute wants beside the plan. Refers to the plan's scalars.
  CudnnDescriptor bind(std::span<const std::pair<int64_t, void*>> pointers, void* workspace) const;
  cudnnBackendDescriptor_t raw() const { return plan_.raw(); }

 private:
  friend class CudnnGraph;
  explicit CudnnPlan(CudnnDescriptor plan) : plan_(std::move(plan)) {}

  CudnnDescriptor plan_;
  std::vector<CudnnDescriptor> parts_;  // what the plan was made of: kept as long as the plan
  std::vector<std::pair<int64_t, float>> scalars_;
  int64_t workspace_bytes_ = 0;
  std::string name_;
};

}  // namespace millrace::cuda
