// The loss head, a chunk of rows at a time: logits by a product, losses and the gradient of the
// logits in one pass over them, the gradients of x and w by two more products.
#include "ops/linear_cross_entropy_cuda.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "cuda/context.h"
#include "cuda/gemm.h"
#include "cuda/kernel.h"
#include "ops/linear_cross_entropy_sizes.h"

namespace millrace::cuda {
namespace {

// The largest power of two up to 64 that divides it.
constexpr int64_t alignment_of(int64_t bytes) {
  int64_t alignment = 64;
  while (bytes % alignment != 0) alignment /= 2;
  return alignment;
}

struct Sizes : HeadSizes {
  explicit Sizes(const OpSite& site)
      : HeadSizes(site),
        form(site.attrs.integer("copy", 0) != 0 ? HeadForm::copy
             : label.off > 0                    ? HeadForm::smooth
                                                : HeadForm::plain) {}
  HeadForm form;
};

// The products of a chunk of `rows` rows.
class Chunk {
 public:
  Chunk(const Sizes& s, int64_t rows, bool tf32, Context& context)
      : logits(
            spec_of(
                s, tf32,
                {.m = rows, .n = s.width(), .k = s.D, .tb = true, .out = s.type, .ldd = s.stride}),
            context) {
    if (!s.gradients) return;
    dx.emplace(
        spec_of(s, tf32, {.m = rows, .n = s.D, .k = s.width(), .out = s.dx_type, .lda = s.stride}),
        context);
    if (s.frozen) return;
    dw.emplace(spec_of(s, tf32,
                       {.m = s.dw_width(),
                        .n = s.D,
                        .k = rows,
                        .ta = true,
                        .out = s.dw_apart() ? DType::f32 : s.dw_type,
                        .adds = s.chunks() > 1,
                        .lda = s.stride}),
               context);
  }
  int64_t workspace_bytes() const {
    int64_t bytes = logits.workspace_bytes();
    if (dx) bytes = std::max(bytes, dx->workspace_bytes());
    if (dw) bytes = std::max(bytes, dw->workspace_bytes());
    return bytes;
  }

  Gemm logits;
  std::optional<Gemm> dx, dw;

 private:
  static GemmSpec spec_of(const Sizes& s, bool tf32, GemmSpec spec) {
    spec.in = s.type;
    spec.tf32 = tf32 && s.type == DType::f32;
    // Later chunks begin inside x and its gradient.
    if (s.chunks() > 1)
      spec.alignment = std::min(alignment_of(s.rows * s.D * dtype_bytes(s.type)),
                                alignment_of(s.rows * s.D * dtype_bytes(s.dx_type)));
    return spec;
  }
};

struct Head : Sizes {
  Head(const OpSite& site, Context& context)
      : Sizes(site), shared_bytes(context.device().shared_bytes / 2 - kReserved) {
    const bool tf32 = site.attrs.text("math") == "tf32";
    if (N >= rows) whole.emplace(*this, rows, tf32, context);
    if (N % rows != 0) last.emplace(*this, N % rows, tf32, context);
  }
  int64_t workspace_bytes() const {
    return own_bytes() +
           std::max(whole ? whole->workspace_bytes() : 0, last ? last->workspace_bytes() : 0);
  }

  static constexpr int64_t kReserved = 1536;  // by the system, and for what a kernel has besides
  int64_t shared_bytes;                       // of a block, where two are on a multiprocessor
  std::optional<Chunk> whole, last;
};

std::string decline(const OpSite& site, Context&) {
  const Sizes s(site);
  if (site.in[1].dtype != s.type)
    return fmt::format("x is {} and w {}", dtype_name(s.type), dtype_name(site.in[1].dtype));
  if (s.type == DType::f32 && (is_half(s.dx_type) || is_half(s.dw_type)))
    return "gradients in half precision of numbers in single precision";
  return "";
}

int64_t workspace_bytes(const OpSite& site, Context& context) {
  return Head(site, context).workspace_bytes();
}

std::shared_ptr<const void> prepare(const Call& call, Context& context) {
  auto head = std::make_shared<const Head>(call.site, context);
  MR_CUDA(allow_head_rows(head->type, head->form, head->shared_bytes));
  return head;
}

HeadCopy copy_of(const Call& c, const Sizes& s, int64_t begin) {
  if (s.form != HeadForm::copy) return {};
  return {.gate = c.in(4) + begin,
          .mass = c.in(5) + begin,
          .dgate = s.gradients ? c.out(3) + begin : nullptr,
          .dmass = s.gradients ? c.out(4) + begin : nullptr};
}

void run(const Call& c) {
  const auto& head = *static_cast<const Head*>(c.prepared);
  auto* const logits = static_cast<std::byte*>(c.workspace);
  auto* const losses = reinterpret_cast<float*>(logits + head.logits_bytes());
  auto* const dw_sum = reinterpret_cast<float*>(logits + head.logits_bytes() + head.losses_bytes());
  void* const workspace = logits + head.own_bytes();
  const auto* const x = static_cast<const std::byte*>(c.in_data[0]);
  const void* w = c.in_data[1];
  if (head.padded()) {
    std::byte* const copy = logits + head.own_bytes() - head.w_bytes();
    const auto bytes = static_cast<size_t>(head.V * head.D * dtype_bytes(head.type));
    MR_CUDA(cudaMemcpyAsync(copy, w, bytes, cudaMemcpyDeviceToDevice, c.stream));
    MR_CUDA(
        cudaMemsetAsync(copy + bytes, 0, static_cast<size_t>(head.w_bytes()) - bytes, c.stream));
    w = copy;
  }
  const float* const scale = c.in(3);
  auto* const dx = head.gradients ? static_cast<std::byte*>(c.out_data[1]) : nullptr;
  void* const dw = !head.gradients || head.frozen ? nullptr
                   : head.dw_apart()              ? dw_sum
                                                  : c.out_data[2];
  const LabelFloats label{static_cast<float>(head.label.on), static_cast<float>(head.label.off)};
  for (int64_t begin = 0; begin < head.N; begin += head.rows) {
    const int64_t rows = std::min(head.rows, head.N - begin);
    const Chunk& chunk = rows == head.rows ? *head.whole : *head.last;
    const void* const x_rows = x + begin * head.D * dtype_bytes(head.type);
    chunk.logits.run({.a = x_rows, .b = w, .d = logits, .workspace = workspace}, c.stream);
    launch_head_rows(head.type, head.form, logits, head.stride, c.ids(2) + begin, label,
                     copy_of(c, head, begin), scale, losses + begin, rows, head.V, head.gradients,
                     head.shared_bytes, c.stream);
    if (!head.gradients) continue;
    chunk.dx->run({.a = logits,
                   .b = w,
                   .d = dx + begin * head.D * dtype_bytes(head.dx_type),
                   .workspace = workspace},
                  c.stream);
    if (!chunk.dw) continue;
    chunk.dw->run(
        {.a = logits, .b = x_rows, .d = dw, .c = begin > 0 ? dw : nullptr, .workspace = workspace},
        c.stream);
  }
  launch_head_loss(losses, head.N, scale, c.out(0), c.stream);
  if (!head.gradients || head.frozen) return;
  if (head.N == 0)
    MR_CUDA(
        cudaMemsetAsync(c.out_data[2], 0, static_cast<size_t>(c.out_type(2).bytes()), c.stream));
  else if (head.dw_apart() && is_half(head.dw_type))
    launch_head_round(dw_sum, c.out_data[2], head.dw_type, head.V * head.D, c.stream);
  else if (head.dw_apart())
    MR_CUDA(cudaMemcpyAsync(c.out_data[2], dw_sum, static_cast<size_t>(c.out_type(2).bytes()),
                            cudaMemcpyDeviceToDevice, c.stream));
}

std::string detail(const OpSite& site, Context& context) {
  const Head head(site, context);
  const Chunk* chunk = head.whole ? &*head.whole : head.last ? &*head.last : nullptr;
  std::string text = fmt::format("{} rows at a time", head.rows);
  if (!chunk) return text;
  text += "; logits " + chunk->logits.detail();
  if (chunk->dx) text += "; dx " + chunk->dx->detail();
  if (chunk->dw) text += "; dw " + chunk->dw->detail();
  return text;
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(linear_cross_entropy, {.name = "chunked",
                                       .decline = decline,
                                       .workspace_bytes = workspace_bytes,
                                       .prepare = prepare,
                                       .run = run,
                                       .detail = detail})
