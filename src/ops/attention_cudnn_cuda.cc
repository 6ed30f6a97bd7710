// Attention as an operation graph for cuDNN. The library recognises the pattern as a whole and runs
// one of its flash attention kernels; tensors marked intermediate never exist. The pattern is that
// of NVIDIA's documentation of scaled dot product attention (cuDNN backend, "Fused attention") and
// of cudnn-frontend's open source: other graphs of the same value are not recognised.
//
// q, k and v are read from their packed buffers by strides, dq, dk and dv written to theirs.
//
// Backward is deterministic because dQ is a product like the others: dS goes through workspace,
// [B,H,T,S] halves. Where the graph has dQ in f32 in memory, the library adds it up by atomics.
#include "ops/attention_cudnn_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/context.h"
#include "cuda/cudnn_graph.h"
#include "cuda/gemm.h"
#include "cuda/kernel.h"
#include "ops/attention.h"

namespace millrace::cuda {

namespace {

using Tensor = CudnnGraph::Tensor;
using Mask = AttentionSite::Mask;

constexpr int64_t kAlignment = 256;  // of what lies in workspace
constexpr int64_t kTile = 128;       // the widest of the library's

int64_t padded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Where the memory of a tensor of the graph is found when a plan is bound.
struct Place {
  enum class Buffer { input, output, row_sums, dq_sums, all_queries, all_keys };
  int64_t id = 0;
  Buffer buffer = Buffer::input;
  size_t index = 0;    // of the input or output
  int64_t halves = 0;  // to skip
};

struct Built {
  CudnnPlan plan;
  std::vector<Place> places;
  int64_t row_sum_bytes = 0, dq_sum_bytes = 0;
  // The softmax sums, then dq where it is added up, then what the library wants; the start is
  // aligned by us.
  int64_t dq_sums_at() const { return padded(row_sum_bytes); }
  int64_t library_at() const { return dq_sums_at() + padded(dq_sum_bytes); }
  int64_t workspace_bytes() const { return kAlignment + library_at() + plan.workspace_bytes(); }
};

// The parts that forward and backward share.
class AttentionGraph {
 public:
  AttentionGraph(const AttentionSite& site, DType dtype)
      : s_(site), half_(dtype == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF) {}

  Built forward(cudnnHandle_t handle) &&;
  // `any_order`: dq is added up in f32 by whoever comes first.
  Built backward(cudnnHandle_t handle, bool any_order) &&;

 private:
  using Buffer = Place::Buffer;
  enum class Part { keys, values };

  Tensor memory(CudnnGraph::Sizes sizes, CudnnGraph::Sizes strides, cudnnDataType_t type,
                Place place) {
    const Tensor made = graph_.memory(sizes, strides, type);
    place.id = made.id;
    places_.push_back(place);
    return made;
  }
  // The queries or their gradient: [B,H,T,K].
  Tensor query_heads(Buffer buffer) {
    return memory({s_.B, s_.H, s_.T, s_.K}, {s_.T * s_.q_row(), s_.K, s_.q_row(), 1}, half_,
                  {.buffer = buffer, .index = 0});
  }
  // Keys, values or their gradients: [B,G,S,K].
  Tensor key_heads(Buffer buffer, Part part) {
    return memory({s_.B, s_.G, s_.S, s_.K}, {s_.S * s_.kv_row(), s_.K, s_.kv_row(), 1}, half_,
                  key_place(buffer, part));
  }
  // Keys or values with the last two dimensions exchanged.
  Tensor key_heads_transposed(Part part) {
    return memory({s_.B, s_.G, s_.K, s_.S}, {s_.S * s_.kv_row(), s_.K, 1, s_.kv_row()}, half_,
                  key_place(Buffer::input, part));
  }
  Place key_place(Buffer buffer, Part part) const {
    return {.buffer = buffer,
            .index = buffer == Buffer::input ? s_.kv_input : s_.kv_output,
            .halves = part == Part::keys ? s_.k_at(0, 0, 0) : s_.v_at(0, 0, 0)};
  }
  Tensor out_heads(Buffer buffer, size_t index) {
    return memory({s_.B, s_.H, s_.T, s_.K}, {s_.T * s_.H * s_.K, s_.K, s_.H * s_.K, 1}, half_,
                  {.buffer = buffer, .index = index});
  }
  Tensor dq_sums() {
    dq_sum_bytes_ = s_.B * s_.H * s_.T * s_.K * static_cast<int64_t>(sizeof(float));
    return memory({s_.B, s_.H, s_.T, s_.K}, {s_.H * s_.T * s_.K, s_.T * s_.K, s_.K, 1},
                  CUDNN_DATA_FLOAT, {.buffer = Buffer::dq_sums});
  }
  Tensor row_values(Buffer buffer, size_t index) {
    return memory(rows(), {s_.H * s_.T, s_.T, 1, 1}, CUDNN_DATA_FLOAT,
                  {.buffer = buffer, .index = index});
  }

  CudnnGraph::Sizes rows() const { return {s_.B, s_.H, s_.T, 1}; }
  CudnnGraph::Sizes pairs() const { return {s_.B, s_.H, s_.T, s_.S}; }
  Tensor pointwise(cudnnPointwiseMode_t mode, std::initializer_list<Tensor> in) {
    const Tensor out = graph_.intermediate(in.begin()->sizes);
    graph_.pointwise(mode, in, out);
    return out;
  }
  Tensor matmul(Tensor a, Tensor b, CudnnGraph::Sizes sizes, CudnnGraph::MatmulSizes counted) {
    const Tensor out = graph_.intermediate(sizes);
    graph_.matmul(a, b, out, counted);
    return out;
  }

  void use_lengths();
  Tensor masked(Tensor scores);
  Tensor select(Tensor scores, Tensor kept);
  Tensor index(int64_t axis, Tensor scores, cudnnDataType_t compute);
  Tensor compare(cudnnPointwiseMode_t mode, Tensor a, Tensor b);
  Tensor transposed(Tensor pairs_tensor);
  void sum_over_queries(Tensor pairs_tensor, Tensor per_query, Tensor out);
  Built finish(cudnnHandle_t handle, bool any_order) {
    return {std::move(graph_).plan(handle, any_order), std::move(places_), row_sum_bytes_,
            dq_sum_bytes_};
  }

  const AttentionSite& s_;
  cudnnDataType_t half_;
  CudnnGraph graph_;
  std::vector<Place> places_;
  Tensor query_lengths_, key_lengths_;  // none: T, S
  int64_t row_sum_bytes_ = 0, dq_sum_bytes_ = 0;
};

// The library masks queries as well as keys; ours all count, so their length is T everywhere.
void AttentionGraph::use_lengths() {
  const CudnnGraph::Sizes batch{s_.B, 1, 1, 1}, strides{1, 1, 1, 1};
  const Place all{.buffer = Buffer::all_keys},
      given{.buffer = Buffer::input, .index = s_.mask_input};
  query_lengths_ = memory(batch, strides, CUDNN_DATA_INT32, {.buffer = Buffer::all_queries});
  key_lengths_ = memory(batch, strides, CUDNN_DATA_INT32, s_.mask == Mask::lengths ? given : all);
}

Tensor AttentionGraph::index(int64_t axis, Tensor scores, cudnnDataType_t compute) {
  const Tensor out = graph_.intermediate(pairs(), CUDNN_DATA_INT32);
  graph_.index(axis, scores, out, compute);
  return out;
}

Tensor AttentionGraph::compare(cudnnPointwiseMode_t mode, Tensor a, Tensor b) {
  const Tensor out = graph_.intermediate(pairs(), CUDNN_DATA_BOOLEAN);
  graph_.pointwise(mode, {a, b}, out, CUDNN_DATA_BOOLEAN);
  return out;
}

Tensor AttentionGraph::select(Tensor scores, Tensor kept) {
  const Tensor nothing = graph_.scalar(-std::numeric_limits<float>::infinity());
  return pointwise(CUDNN_POINTWISE_BINARY_SELECT, {scores, nothing, kept});
}

// The types of the index computations differ between the two masks as they do in the pattern.
Tensor AttentionGraph::masked(Tensor scores) {
  if (query_lengths_.id != 0) {
    const Tensor row = index(2, scores, CUDNN_DATA_INT32);
    const Tensor column = index(3, scores, CUDNN_DATA_INT32);
    const Tensor row_counts = compare(CUDNN_POINTWISE_CMP_LT, row, query_lengths_);
    const Tensor column_counts = compare(CUDNN_POINTWISE_CMP_LT, column, key_lengths_);
    scores = select(scores, compare(CUDNN_POINTWISE_LOGICAL_AND, row_counts, column_counts));
  }
  if (s_.causal) {
    const Tensor row = index(2, scores, CUDNN_DATA_FLOAT);
    const Tensor column = index(3, scores, CUDNN_DATA_FLOAT);
    scores = select(scores, compare(CUDNN_POINTWISE_CMP_GE, row, column));
  }
  return scores;
}

Built AttentionGraph::forward(cudnnHandle_t handle) && {
  const Tensor q = query_heads(Buffer::input);
  const Tensor k = key_heads_transposed(Part::keys);
  const Tensor v = key_heads(Buffer::input, Part::values);
  const Tensor out = out_heads(Buffer::output, 0);
  const Tensor lse = row_values(Buffer::output, 1);
  if (s_.mask == Mask::lengths) use_lengths();

  Tensor scores = matmul(q, k, pairs(), {.m = query_lengths_, .n = key_lengths_, .k = {}});
  scores = pointwise(CUDNN_POINTWISE_MUL, {scores, graph_.scalar(static_cast<float>(s_.scale))});
  scores = masked(scores);

  const Tensor top = graph_.intermediate(rows()), sum = graph_.intermediate(rows());
  graph_.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, top);
  const Tensor exponentials =
      pointwise(CUDNN_POINTWISE_EXP, {pointwise(CUDNN_POINTWISE_SUB, {scores, top})});
  graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, sum);
  graph_.pointwise(CUDNN_POINTWISE_ADD, {top, pointwise(CUDNN_POINTWISE_LOG, {sum})}, lse);
  const Tensor probabilities = graph_.intermediate(pairs(), half_);
  graph_.pointwise(CUDNN_POINTWISE_DIV, {exponentials, sum}, probabilities);
  graph_.matmul(probabilities, v, out, {.m = query_lengths_, .n = {}, .k = key_lengths_});
  return finish(handle, false);
}

Tensor AttentionGraph::transposed(Tensor pairs_tensor) {
  const int64_t scores = s_.T * s_.S;
  const Tensor out =
      graph_.intermediate({s_.B, s_.H, s_.S, s_.T}, {s_.H * scores, scores, 1, s_.S}, half_);
  graph_.reshape(pairs_tensor, out);
  return out;
}

// out = pairs' per_query for each query head, summed over the query heads that share a key head.
void AttentionGraph::sum_over_queries(Tensor pairs_tensor, Tensor per_query, Tensor out) {
  const CudnnGraph::MatmulSizes counted{.m = key_lengths_, .n = {}, .k = query_lengths_};
  if (s_.H == s_.G) return graph_.matmul(transposed(pairs_tensor), per_query, out, counted);
  const Tensor each = graph_.intermediate({s_.B, s_.H, s_.S, s_.K}, half_);
  graph_.matmul(transposed(pairs_tensor), per_query, each, counted);
  graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, each, out);
}

Built AttentionGraph::backward(cudnnHandle_t handle, bool any_order) && {
  const Tensor q = query_heads(Buffer::input);
  const Tensor k = key_heads_transposed(Part::keys);
  const Tensor v = key_heads_transposed(Part::values);
  const Tensor out = out_heads(Buffer::input, 1);
  const Tensor lse = row_values(Buffer::input, 2);
  const Tensor dout = out_heads(Buffer::input, 3);
  const Tensor dq = query_heads(Buffer::output);
  const Tensor dk = key_heads(Buffer::output, Part::keys);
  const Tensor dv = key_heads(Buffer::output, Part::values);
  // What a tile has beyond T or S counts as score 0 in some versions, and exp(0 - lse) may be
  // infinite: pytorch issue 196678, cudnn-frontend issue 1072. Lengths prevent that.
  if (s_.mask == Mask::lengths || s_.T % kTile != 0 || s_.S % kTile != 0) use_lengths();
  const CudnnGraph::MatmulSizes counted{.m = query_lengths_, .n = key_lengths_, .k = {}};

  // rowsum(dO O): the pattern has it in memory, and times what dropout would divide it by.
  const Tensor row_sums = row_values(Buffer::row_sums, 0);
  row_sum_bytes_ = s_.B * s_.H * s_.T * static_cast<int64_t>(sizeof(float));
  const Tensor row_sum = graph_.intermediate(rows());
  graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, pointwise(CUDNN_POINTWISE_MUL, {dout, out}), row_sum);
  graph_.pointwise(CUDNN_POINTWISE_MUL, {row_sum, graph_.scalar(1)}, row_sums);

  const Tensor scale = graph_.scalar(static_cast<float>(s_.scale));
  Tensor scores = pointwise(CUDNN_POINTWISE_MUL, {matmul(q, k, pairs(), counted), scale});
  scores = masked(pointwise(CUDNN_POINTWISE_SUB, {scores, lse}));
  const Tensor probabilities = pointwise(CUDNN_POINTWISE_EXP, {scores});
  sum_over_queries(probabilities, dout, dv);

  Tensor dscores = matmul(dout, v, pairs(), counted);
  dscores = pointwise(CUDNN_POINTWISE_SUB, {dscores, row_sums});
  dscores = pointwise(CUDNN_POINTWISE_MUL, {dscores, probabilities});
  dscores = pointwise(CUDNN_POINTWISE_MUL, {dscores, scale});
  sum_over_queries(dscores, q, dk);

  const Tensor k_rows =
      graph_.intermediate({k.sizes[0], k.sizes[1], k.sizes[3], k.sizes[2]},
                          {k.strides[0], k.strides[1], k.strides[3], k.strides[2]}, half_);
  graph_.reshape(k, k_rows);
  const Tensor sums = any_order ? dq_sums() : dq;
  graph_.matmul(dscores, k_rows, sums, {.m = query_lengths_, .n = {}, .k = key_lengths_});
  if (any_order) graph_.pointwise(CUDNN_POINTWISE_IDENTITY, {sums}, dq);
  return finish(handle, any_order);
}

// What needs no library to be refused.
std::string refusal(const OpSite& site, const AttentionSite& s, bool backward) {
  const DType dtype = site.in[0].dtype;
  if (!is_half(dtype)) return "wants bf16 or f16";
  if (site.in[s.kv_input].dtype != dtype || site.out[0].dtype != dtype ||
      (backward && (site.in[1].dtype != dtype || site.in[3].dtype != dtype ||
                    site.out[s.kv_output].dtype != dtype)))
    return "wants one half type";
  if (s.mask == Mask::segments) return "no segment masks";
  if (s.dropout > 0) return "no dropout from our random numbers";
  if (s.K % 8 != 0 || s.K > 256) return "head_dim is not a multiple of 8 up to 256";
  if (s.B == 0 || s.T < 2 || s.S < 2) return "too few rows";
  if (!(s.scale > 0)) return "scale is not positive";
  return "";
}

// As the remembered cost of a fixed order names them.
std::string sizes_text(const AttentionSite& s) {
  const std::string over = s.cross ? fmt::format(" over {}", s.S) : "";
  return fmt::format("{}x{}x{}x{}x{}{}", s.B, s.T, s.H, s.G, s.K, over);
}

// Plans by what they were made for. They stay: kernels compiled at run time are unloaded with their
// plan, and a captured graph may still launch them.
class Plans {
 public:
  struct Entry {
    std::shared_ptr<const Built> built;
    std::string refusal;
  };

  static Entry find(const OpSite& site, Context& context, bool backward) {
    const AttentionSite s = attention_site(site, backward ? 4 : 1);
    if (std::string why = refusal(site, s, backward); !why.empty())
      return {nullptr, std::move(why)};
    static Plans& plans = *new Plans;  // the library may be gone before a static is destroyed
    const std::string key = fmt::format(
        "{} {} {} causal={} lengths={} scale={} context={}", backward, dtype_name(site.in[0].dtype),
        sizes_text(s), s.causal, s.mask == Mask::lengths, s.scale, context.number());
    const std::lock_guard lock(plans.mutex_);
    const auto [entry, added] = plans.entries_.try_emplace(key);
    if (added) entry->second = make(s, site.in[0].dtype, context, backward);
    return entry->second;
  }

 private:
  static Entry make(const AttentionSite& s, DType dtype, Context& context, bool backward) {
    try {
      AttentionGraph graph(s, dtype);
      Built built = backward ? std::move(graph).backward(context.cudnn(), false)
                             : std::move(graph).forward(context.cudnn());
      const int64_t limit = context.device().memory_bytes / 16;
      if (built.workspace_bytes() > limit)
        return {nullptr, fmt::format("workspace of {} bytes, over a sixteenth of the memory",
                                     built.workspace_bytes())};
      return {std::make_shared<const Built>(std::move(built)), ""};
    } catch (const Error& error) {
      return {nullptr, fmt::format("{}: {}", error.fields().what, error.fields().got)};
    }
  }

  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

template <bool backward>
std::string decline(const OpSite& site, Context& context) {
  return Plans::find(site, context, backward).refusal;
}

template <bool backward>
int64_t workspace_bytes(const OpSite& site, Context& context) {
  return Plans::find(site, context, backward).built->workspace_bytes();
}

template <bool backward>
std::string detail(const OpSite& site, Context& context) {
  return Plans::find(site, context, backward).built->plan.name();
}

// A plan with its pointers.
struct Bound {
  std::shared_ptr<const Built> built;
  cudnnHandle_t handle = nullptr;
  std::optional<DeviceBytes> all_queries, all_keys;  // [B]: T, S
  std::optional<CudnnDescriptor> pack;

  void run(cudaStream_t stream) const {
    MR_CUDA(cudnnSetStream(handle, stream));
    MR_CUDA(cudnnBackendExecute(handle, built->plan.raw(), pack->raw()));
  }
};

std::shared_ptr<const Bound> bound_plan(std::shared_ptr<const Built> built, const AttentionSite& s,
                                        const Call& call, Context& context) {
  auto bound = std::make_shared<Bound>();
  bound->built = std::move(built);
  bound->handle = context.cudnn();
  const auto lengths = [&](std::optional<DeviceBytes>& on_device, int64_t length) {
    const std::vector<int32_t> all(static_cast<size_t>(s.B), static_cast<int32_t>(length));
    return on_device.emplace(all.data(), std::ssize(all) * 4).data();
  };
  const auto start = static_cast<int64_t>(reinterpret_cast<uintptr_t>(call.workspace));
  auto* row_sums = static_cast<std::byte*>(call.workspace) + (padded(start) - start);

  std::vector<std::pair<int64_t, void*>> pointers;
  for (const Place& place : bound->built->places) {
    void* base = nullptr;
    switch (place.buffer) {
      case Place::Buffer::input:
        base = const_cast<void*>(call.in_data[place.index]);
        break;
      case Place::Buffer::output:
        base = call.out_data[place.index];
        break;
      case Place::Buffer::row_sums:
        base = row_sums;
        break;
      case Place::Buffer::dq_sums:
        base = row_sums + bound->built->dq_sums_at();
        break;
      case Place::Buffer::all_queries:
        base = lengths(bound->all_queries, s.T);
        break;
      case Place::Buffer::all_keys:
        base = lengths(bound->all_keys, s.S);
        break;
    }
    pointers.emplace_back(place.id, static_cast<uint16_t*>(base) + place.halves);
  }
  bound->pack = bound->built->plan.bind(pointers, row_sums + bound->built->library_at());
  return bound;
}

template <bool backward>
std::shared_ptr<const void> prepare(const Call& call, Context& context) {
  return bound_plan(Plans::find(call.site, context, backward).built,
                    attention_site(call.site, backward ? 4 : 1), call, context);
}

template <bool backward>
void run(const Call& call) {
  static_cast<const Bound*>(call.prepared)->run(call.stream);
  const AttentionSite s = attention_site(call.site, backward ? 4 : 1);
  if (s.mask != Mask::lengths) return;
  const auto clear = [&](size_t output, float* rows) {
    const int64_t halves = call.out_type(output).numel() / s.B;
    clear_empty_batches(call.ids(s.mask_input), s.B, call.out_data[output], halves / 8, rows,
                        s.H * s.T, call.stream);
  };
  clear(0, backward ? nullptr : call.out(1));
  if (backward && s.cross) clear(s.kv_output, nullptr);
}

// With random memory of its own.
double seconds_of_plan(std::shared_ptr<const Built> built, const OpSite& site,
                       const AttentionSite& s, Context& context) {
  std::deque<DeviceBytes> memory;
  const auto random = [&](const TensorType& type) {
    DeviceBytes& bytes = memory.emplace_back(type.bytes());
    fill_random(bytes.data(), type.bytes(), type.dtype, context);
    return bytes.data();
  };
  std::vector<const void*> in;
  for (const TensorType& type : site.in) in.push_back(random(type));
  std::vector<void*> out;
  for (const TensorType& type : site.out) out.push_back(random(type));
  const DeviceBytes workspace(built->workspace_bytes());
  const auto bound = bound_plan(
      std::move(built), s, {site, in, out, workspace.data(), nullptr, context.stream()}, context);
  const double seconds = seconds_of(context, [&](int) { bound->run(context.stream()); });
  MR_CUDA(cudaStreamSynchronize(context.stream()));
  return seconds;
}

std::optional<double> order_seconds(const OpSite& site, Context& context) {
  const AttentionSite s = attention_site(site, 4);
  // With lengths, what would be timed is not what runs.
  if (s.mask != Mask::none) return {};
  const std::string key = fmt::format("order attention_grad {} {} causal={}",
                                      dtype_name(site.in[0].dtype), sizes_text(s), s.causal);
  std::optional<int64_t> nanoseconds = context.choices().number(key);
  if (!nanoseconds && !context.choices().may_time()) return {};
  if (!nanoseconds) try {
      AttentionGraph graph(s, site.in[0].dtype);
      const auto any_order =
          std::make_shared<const Built>(std::move(graph).backward(context.cudnn(), true));
      const double seconds =
          seconds_of_plan(Plans::find(site, context, true).built, site, s, context) -
          seconds_of_plan(any_order, site, s, context);
      nanoseconds = std::llround(std::max(seconds, 0.0) * 1e9);
      context.choices().note_number(key, *nanoseconds);
    } catch (const Error&) {
      (void)cudaGetLastError();  // no such plan, or no memory to spare
      return {};
    }
  return static_cast<double>(*nanoseconds) * 1e-9;
}

template <bool backward>
Kernel kernel() {
  return {.name = "cudnn",
          .decline = decline<backward>,
          .workspace_bytes = workspace_bytes<backward>,
          .prepare = prepare<backward>,
          .run = run<backward>,
          .order_seconds = backward ? order_seconds : nullptr,
          .detail = detail<backward>};
}

}  // namespace

Kernel cudnn_attention_kernel() { return kernel<false>(); }
Kernel cudnn_attention_grad_kernel() { return kernel<true>(); }

}  // namespace millrace::cuda
