// The descriptors behind an operation graph, and the search for a plan. Which attributes a
// descriptor wants: cuDNN backend API reference, version 9.
#include "cuda/cudnn_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/error.h"

namespace millrace::cuda {

namespace {

// The library tells a stack of conditions, the one that failed first.
std::string last_words() {
  std::string words(4096, '\0');
  cudnnGetLastErrorString(words.data(), words.size());
  words.resize(std::min(words.find_first_of(std::string_view("\n\0", 2)), words.size()));
  return words;
}

void require(cudnnStatus_t status, std::string_view action) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error({.what = fmt::format("cuDNN did not {}", action),
               .got = fmt::format("{}: {}", cudnnGetErrorString(status), last_words())});
}

CudnnGraph::Sizes packed(const CudnnGraph::Sizes& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
}

// The library fills descriptors that the caller made: at most `limit` of them.
std::vector<CudnnDescriptor> children(const CudnnDescriptor& parent,
                                      cudnnBackendAttributeName_t name,
                                      cudnnBackendDescriptorType_t type, int64_t limit) {
  std::vector<CudnnDescriptor> made;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < limit; ++i) raw.push_back(made.emplace_back(type).raw());
  int64_t count = 0;
  require(cudnnBackendGetAttribute(parent.raw(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, limit, &count,
                                   raw.data()),
          "tell the parts of a descriptor");
  while (static_cast<int64_t>(made.size()) > count) made.pop_back();
  return made;
}

int64_t integer(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name) {
  int64_t value = 0, count = 0;
  require(cudnnBackendGetAttribute(descriptor.raw(), name, CUDNN_TYPE_INT64, 1, &count, &value),
          "tell a number of a descriptor");
  return value;
}

// As the library says, which is not all: its attention engines add in any order where a graph has a
// sum in memory, and are not marked so.
bool is_deterministic(const CudnnDescriptor& engine) {
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  int64_t count = 0;
  require(cudnnBackendGetAttribute(engine.raw(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                   CUDNN_TYPE_NUMERICAL_NOTE, notes.size(), &count, notes.data()),
          "tell the notes of an engine");
  const auto end = notes.begin() + std::min<int64_t>(count, notes.size());
  return std::find(notes.begin(), end, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == end;
}

// "engine 6 24=31 14=2": the knobs by number, as the library counts them.
std::string name_of(const CudnnDescriptor& config, const CudnnDescriptor& engine) {
  std::string name = fmt::format("engine {}", integer(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
  for (const CudnnDescriptor& knob :
       children(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                CUDNN_KNOB_TYPE_COUNTS)) {
    cudnnBackendKnobType_t type{};
    int64_t count = 0;
    require(cudnnBackendGetAttribute(knob.raw(), CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                     CUDNN_TYPE_KNOB_TYPE, 1, &count, &type),
            "tell a knob");
    name += fmt::format(" {}={}", static_cast<int>(type),
                        integer(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE));
  }
  return name;
}

// Best first. None when the library knows no engine in this mode: `refusal` says why.
std::vector<CudnnDescriptor> proposals(const CudnnDescriptor& graph, cudnnBackendHeurMode_t mode,
                                       std::string& refusal) {
  try {
    CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
    heuristics.finalize();
    int64_t count = 0;
    require(cudnnBackendGetAttribute(heuristics.raw(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
            "count its engines");
    std::vector<CudnnDescriptor> configs = children(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                    CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, count);
    if (configs.empty()) refusal = fmt::format("no engine fits {}", last_words());
    return configs;
  } catch (const Error& error) {
    refusal = error.fields().got;
    return {};
  }
}

}  // namespace

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  require(cudnnBackendCreateDescriptor(type, &raw_), "make a descriptor");
}

CudnnDescriptor::~CudnnDescriptor() {
  if (raw_ != nullptr) cudnnBackendDestroyDescriptor(raw_);
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          size_t count, const void* values) {
  const auto elements = static_cast<int64_t>(count);
  require(cudnnBackendSetAttribute(raw_, name, type, elements, values),
          fmt::format("take attribute {}", static_cast<int>(name)));
}

void CudnnDescriptor::finalize() { require(cudnnBackendFinalize(raw_), "accept a descriptor"); }

CudnnGraph::Tensor CudnnGraph::tensor(Sizes sizes, Sizes strides, cudnnDataType_t type,
                                      bool is_virtual, bool by_value) {
  const auto id = static_cast<int64_t>(tensors_.size()) + 1;
  CudnnDescriptor descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  descriptor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  descriptor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, sizes.size(), sizes.data());
  descriptor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides.size(), strides.data());
  descriptor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  descriptor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t{16});
  if (is_virtual) descriptor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
  if (by_value) descriptor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true);
  descriptor.finalize();
  tensors_.push_back(std::move(descriptor));
  return {id, sizes, strides};
}

CudnnGraph::Tensor CudnnGraph::memory(Sizes sizes, Sizes strides, cudnnDataType_t type) {
  return tensor(sizes, strides, type, false, false);
}

CudnnGraph::Tensor CudnnGraph::intermediate(Sizes sizes, cudnnDataType_t type) {
  return tensor(sizes, packed(sizes), type, true, false);
}

CudnnGraph::Tensor CudnnGraph::intermediate(Sizes sizes, Sizes strides, cudnnDataType_t type) {
  return tensor(sizes, strides, type, true, false);
}

CudnnGraph::Tensor CudnnGraph::scalar(float value) {
  const Sizes one{1, 1, 1, 1};
  const Tensor made = tensor(one, one, CUDNN_DATA_FLOAT, false, true);
  scalars_.emplace_back(made.id, value);
  return made;
}

void CudnnGraph::set_tensor(CudnnDescriptor& operation, cudnnBackendAttributeName_t name,
                            Tensor tensor) {
  if (tensor.id != 0) operation.set(name, tensors_[static_cast<size_t>(tensor.id - 1)]);
}

void CudnnGraph::add_operation(CudnnDescriptor operation) {
  operation.finalize();
  operations_.push_back(std::move(operation));
}

void CudnnGraph::pointwise(CudnnDescriptor mode, std::initializer_list<Tensor> in, Tensor out) {
  constexpr cudnnBackendAttributeName_t kInputs[] = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                                                     CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                                     CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
  mode.finalize();
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode);
  const cudnnBackendAttributeName_t* name = kInputs;
  for (const Tensor& input : in) set_tensor(operation, *name++, input);
  set_tensor(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out);
  add_operation(std::move(operation));
  modes_.push_back(std::move(mode));
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, std::initializer_list<Tensor> in, Tensor out,
                           cudnnDataType_t compute) {
  CudnnDescriptor descriptor(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  descriptor.set(CUDNN_ATTR_POINTWISE_MODE, mode);
  descriptor.set(CUDNN_ATTR_POINTWISE_MATH_PREC, compute);
  pointwise(std::move(descriptor), in, out);
}

void CudnnGraph::index(int64_t axis, Tensor like, Tensor out, cudnnDataType_t compute) {
  CudnnDescriptor descriptor(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  descriptor.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_GEN_INDEX);
  descriptor.set(CUDNN_ATTR_POINTWISE_MATH_PREC, compute);
  descriptor.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
  pointwise(std::move(descriptor), {like}, out);
}

void CudnnGraph::matmul(Tensor a, Tensor b, Tensor out, MatmulSizes sizes) {
  CudnnDescriptor mode(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  mode.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  mode.set(CUDNN_ATTR_MATMUL_PADDING_VALUE, 0.0);
  mode.finalize();
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, mode);
  set_tensor(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  set_tensor(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  set_tensor(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, out);
  set_tensor(operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, sizes.m);
  set_tensor(operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, sizes.n);
  set_tensor(operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, sizes.k);
  add_operation(std::move(operation));
  modes_.push_back(std::move(mode));
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t operator_, Tensor in, Tensor out) {
  CudnnDescriptor mode(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  mode.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  mode.set(CUDNN_ATTR_REDUCTION_OPERATOR, operator_);
  mode.finalize();
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, mode);
  set_tensor(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, in);
  set_tensor(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out);
  add_operation(std::move(operation));
  modes_.push_back(std::move(mode));
}

void CudnnGraph::reshape(Tensor in, Tensor out) {
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  set_tensor(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, in);
  set_tensor(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, out);
  add_operation(std::move(operation));
}

CudnnPlan CudnnGraph::plan(cudnnHandle_t handle, bool any_order) && {
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const CudnnDescriptor& operation : operations_) operations.push_back(operation.raw());
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations.size(),
            operations.data());
  graph.finalize();

  std::string refusal;  // the last one
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (CudnnDescriptor& config : proposals(graph, mode, refusal)) {
      try {
        const std::vector<CudnnDescriptor> engine =
            children(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
        std::string name = name_of(config, engine.at(0));
        if (!any_order && !is_deterministic(engine[0])) {
          refusal = fmt::format("{} is not deterministic", name);
          continue;
        }
        CudnnPlan made{CudnnDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)};
        made.plan_.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
        made.plan_.finalize();
        made.workspace_bytes_ = integer(made.plan_, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
        made.name_ = std::move(name);
        made.scalars_ = std::move(scalars_);
        for (auto* list : {&tensors_, &modes_, &operations_})
          for (CudnnDescriptor& part : *list) made.parts_.push_back(std::move(part));
        made.parts_.push_back(std::move(graph));
        made.parts_.push_back(std::move(config));
        return made;
      } catch (const Error& error) {
        refusal = error.fields().got;
      }
    }
  }
  throw Error({.what = "cuDNN has no plan for this graph", .got = std::move(refusal)});
}

CudnnDescriptor CudnnPlan::bind(std::span<const std::pair<int64_t, void*>> pointers,
                                void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<void*> data;
  for (const auto& [id, pointer] : pointers) {
    ids.push_back(id);
    data.push_back(pointer);
  }
  for (const auto& [id, value] : scalars_) {  // read by the host when the plan is executed
    ids.push_back(id);
    data.push_back(const_cast<float*>(&value));
  }
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids.size(), ids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, data.size(), data.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finalize();
  return pack;
}

}  // namespace millrace::cuda
