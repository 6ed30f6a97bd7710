// attention_decoder and its gradient on a GPU: the hooks, the workspace, and the products of the
// gradient that can wait until every step is done.
#include "ops/attention_decoder_cuda.h"

#include <algorithm>
#include <cstddef>

#include "cuda/context.h"
#include "cuda/gemm.h"
#include "cuda/kernel.h"
#include "ops/attention_decoder.h"

namespace millrace::cuda {
namespace {

constexpr int64_t kMaxGrid = 65535;  // in y and z
constexpr int64_t kMaxSize = int64_t{1} << 24;

// Hands out pieces of the workspace; without one it counts.
class Pieces {
 public:
  explicit Pieces(void* base) : base_(static_cast<std::byte*>(base)) {}
  void* take(int64_t numbers, DType dtype) {
    void* piece = base_ ? base_ + used_ : nullptr;
    used_ += (numbers * dtype_bytes(dtype) + 255) / 256 * 256;
    return piece;
  }
  float* floats(int64_t numbers) { return static_cast<float*>(take(numbers, DType::f32)); }
  int64_t bytes() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

DecoderShape shape_of(const OpSite& site) {
  const DecoderSite s(site);
  DecoderShape shape = {};
  shape.T = static_cast<int>(s.T);
  shape.B = static_cast<int>(s.B);
  shape.S = static_cast<int>(s.S);
  shape.H = static_cast<int>(s.H);
  shape.M = static_cast<int>(s.M);
  shape.A = static_cast<int>(s.A);
  shape.beams = static_cast<int>(s.beams);
  shape.coverage = s.coverage;
  shape.dtype = site.in[kDecoderW].dtype;
  cut_decoder(shape);
  return shape;
}

// A problem of that shape that has no data yet.
template <typename Problem>
Problem problem_of(const DecoderShape& shape) {
  Problem p = {};
  static_cast<DecoderShape&>(p) = shape;
  return p;
}

// Inputs have one type; results have it too, or are exact.
std::string decline_types(const OpSite& site, std::initializer_list<size_t> in,
                          std::initializer_list<size_t> out) {
  const DType type = site.in[kDecoderW].dtype;
  for (size_t i : in)
    if (site.in[i].dtype != type)
      return fmt::format("{} next to {}", site.in[i].str(), site.in[kDecoderW].str());
  for (size_t o : out)
    if (site.out[o].dtype != type && site.out[o].dtype != DType::f32)
      return fmt::format("{} out of {}", site.out[o].str(), dtype_name(type));
  return "";
}

std::string decline_sizes(const OpSite& site, int64_t (*shared_bytes)(const DecoderShape&)) {
  const DecoderSite s(site);
  if (s.B > kMaxGrid) return fmt::format("{} sequences over {}", s.B, kMaxGrid);
  for (int64_t size : {s.T, s.S, s.H, s.M, s.A})
    if (size > kMaxSize) return fmt::format("a size of {} over {}", size, kMaxSize);
  const int64_t shared = shared_bytes(shape_of(site));
  if (shared > kDecoderMaxShared)
    return fmt::format("wants {} bytes of shared memory, over {}", shared, kDecoderMaxShared);
  return "";
}

DecoderResult result_of(const Call& call, size_t o) {
  return {call.out_data[o], call.out_type(o).dtype == DType::f32};
}

// --- forward

std::string decline(const OpSite& site, Context&) {
  if (auto fault =
          decline_types(site, {kDecoderX, kDecoderMemory, kDecoderKeys, kDecoderWq}, {0, 1, 3});
      !fault.empty())
    return fault;
  return decline_sizes(site, decoder_shared_bytes);
}

// Gives `p` its scratch, and says how much that is.
int64_t lay_out(DecoderForward& p, void* workspace) {
  Pieces pieces(workspace);
  const int64_t B = p.B, S = p.S;
  p.w_panels = pieces.take(decoder_gate_panel_numbers(p), p.dtype);
  p.wq_panels = pieces.take(decoder_panel_numbers(p.H, p.A), p.dtype);
  p.state = pieces.floats(int64_t{2} * p.chunks * (p.H + p.M) * p.rows);
  p.q = pieces.floats(B * p.A);
  p.scores = pieces.floats(B * S);
  p.tops = pieces.floats(B * p.splits);
  p.sums = pieces.floats(B * p.splits);
  p.shares = pieces.floats(B * p.splits * p.M);
  p.covered = pieces.floats(p.coverage ? B * S : 0);
  return pieces.bytes();
}

int64_t workspace_bytes(const OpSite& site, Context&) {
  auto p = problem_of<DecoderForward>(shape_of(site));
  return lay_out(p, nullptr);
}

std::shared_ptr<const void> prepare(const Call& call, Context&) {
  MR_CUDA(allow_decoder(call.in_type(kDecoderW).dtype));
  return nullptr;
}

void run(const Call& c) {
  auto p = problem_of<DecoderForward>(shape_of(c.site));
  if (p.T == 0 || p.B == 0) return;
  lay_out(p, c.workspace);
  p.x = c.in_data[kDecoderX];
  p.w = c.in_data[kDecoderW];
  p.memory = c.in_data[kDecoderMemory];
  p.keys = c.in_data[kDecoderKeys];
  p.wq = c.in_data[kDecoderWq];
  p.v = c.in(kDecoderV);
  p.lengths = c.ids(kDecoderLengths);
  p.h0 = c.in(kDecoderH0);
  p.c0 = c.in(kDecoderC0);
  p.h = result_of(c, 0);
  p.context = result_of(c, 1);
  p.attention = c.out(2);
  p.gates = result_of(c, 3);
  p.cells = c.out(4);
  if (p.coverage) {
    p.wc = c.in(kDecoderWc);
    p.overlap = c.out(5);
  }
  if (const DecoderSite s(c.site); s.resumed) {
    p.context0 = c.in(s.context0());
    if (s.coverage) p.covered0 = c.in(s.covered0());
  }
  launch_decoder(p, c.stream);
}

// --- gradient

std::string grad_decline(const OpSite& site, Context&) {
  if (auto fault = decline_types(
          site,
          {kDecoderMemory, kDecoderKeys, kDecoderWq, kDecoderH, kDecoderContext, kDecoderGates},
          {0, 1, 2, 3, 4});
      !fault.empty())
    return fault;
  return decline_sizes(site, decoder_gradient_shared_bytes);
}

// The shape and the products over all steps.
struct Gradient {
  Gradient(const OpSite& site, Context& context)
      : shape(shape_of(site)),
        q({.m = rows(), .n = shape.A, .k = shape.H, .in = shape.dtype}, context),
        dw({.m = shape.H + shape.M,
            .n = 4 * int64_t{shape.H},
            .k = rows(),
            .ta = true,
            .in = shape.dtype,
            .out = site.out[1].dtype},
           context),
        dmemory({.m = shape.S,
                 .n = shape.M,
                 .k = shape.T,
                 .batch = shape.B,
                 .ta = true,
                 .in = shape.dtype,
                 .out = site.out[2].dtype},
                context),
        dwq({.m = shape.H,
             .n = shape.A,
             .k = rows(),
             .ta = true,
             .in = shape.dtype,
             .out = site.out[4].dtype},
            context) {}
  int64_t rows() const { return int64_t{shape.T} * shape.B; }
  int64_t library_bytes() const {
    return std::max({q.workspace_bytes(), dw.workspace_bytes(), dmemory.workspace_bytes(),
                     dwq.workspace_bytes()});
  }

  DecoderShape shape;
  Gemm q, dw, dmemory, dwq;
};

struct Scratch {
  float* q;
  void* library;
};

// Gives `p` its scratch, and says how much that is. `dx` is where dz is kept if it has its type.
int64_t lay_out(const Gradient& gradient, DType dx_type, void* dx, void* workspace,
                DecoderBackward& p, Scratch& scratch) {
  Pieces pieces(workspace);
  const int64_t rows = gradient.rows(), B = p.B, S = p.S, H = p.H, M = p.M, A = p.A;
  p.w_panels = pieces.take(decoder_panel_numbers(4 * H, H + M), p.dtype);
  p.wq_panels = pieces.take(decoder_panel_numbers(A, H), p.dtype);
  p.before = pieces.take(rows * (H + M), p.dtype);
  p.attention_copy = pieces.take(rows * S, p.dtype);
  p.dz_all = dx_type == p.dtype ? dx : pieces.take(rows * 4 * H, p.dtype);
  p.dq_all = pieces.take(rows * A, p.dtype);
  p.dcontext_all = pieces.take(rows * M, p.dtype);
  scratch.q = pieces.floats(rows * A);
  p.q = scratch.q;
  p.de = pieces.floats(rows * S);
  p.covered = pieces.floats(p.coverage ? rows * S : 0);
  p.dz = pieces.floats(int64_t{p.chunks} * 4 * H * p.rows);
  p.dq = pieces.floats(int64_t{p.chunks} * A * p.rows);
  p.dh = pieces.floats(B * H);
  p.dcontext = pieces.floats(B * M);
  p.da = pieces.floats(B * S);
  p.dcovered = pieces.floats(p.coverage ? B * S : 0);
  p.dots = pieces.floats(B * p.splits);
  p.shares = pieces.floats(B * p.splits * A);
  p.dv_shares = pieces.floats(decoder_key_blocks(p) * A);
  p.dwc_shares = pieces.floats(p.coverage ? decoder_key_blocks(p) * A : 0);
  scratch.library = pieces.take(gradient.library_bytes() / dtype_bytes(DType::f32) + 1, DType::f32);
  return pieces.bytes();
}

int64_t grad_workspace_bytes(const OpSite& site, Context& context) {
  const Gradient gradient(site, context);
  auto p = problem_of<DecoderBackward>(gradient.shape);
  Scratch scratch;
  return lay_out(gradient, site.out[0].dtype, nullptr, nullptr, p, scratch);
}

std::shared_ptr<const void> grad_prepare(const Call& call, Context& context) {
  MR_CUDA(allow_decoder_gradient(call.in_type(kDecoderW).dtype));
  return std::make_shared<const Gradient>(call.site, context);
}

void grad_run(const Call& c) {
  const auto& gradient = *static_cast<const Gradient*>(c.prepared);
  auto p = problem_of<DecoderBackward>(gradient.shape);
  if (p.T == 0 || p.B == 0) {
    for (size_t o = 0; o < c.out_data.size(); ++o)
      if (const int64_t bytes = c.out_type(o).bytes(); bytes > 0)
        MR_CUDA(cudaMemsetAsync(c.out_data[o], 0, static_cast<size_t>(bytes), c.stream));
    return;
  }
  Scratch scratch;
  lay_out(gradient, c.out_type(0).dtype, c.out_data[0], c.workspace, p, scratch);
  p.w = c.in_data[kDecoderW];
  p.memory = c.in_data[kDecoderMemory];
  p.keys = c.in_data[kDecoderKeys];
  p.wq = c.in_data[kDecoderWq];
  p.h = c.in_data[kDecoderH];
  p.context = c.in_data[kDecoderContext];
  p.gates = c.in_data[kDecoderGates];
  p.v = c.in(kDecoderV);
  p.lengths = c.ids(kDecoderLengths);
  p.h0 = c.in(kDecoderH0);
  p.c0 = c.in(kDecoderC0);
  p.attention = c.in(kDecoderAttention);
  p.cells = c.in(kDecoderCells);
  const DecoderRest rest(c.attrs());
  auto given = [&](DecoderCotangent which) {
    return rest.cotangent[which] ? c.in(rest.cotangent[which]) : nullptr;
  };
  p.dh_given = given(kGivenH);
  p.dcontext_given = given(kGivenContext);
  p.da_given = given(kGivenAttention);
  p.doverlap = given(kGivenOverlap);
  p.dx = result_of(c, 0);
  p.dkeys = result_of(c, 3);
  p.dv = c.out(5);
  p.dh0 = c.out(6);
  p.dc0 = c.out(7);
  if (p.coverage) {
    p.wc = c.in(rest.wc);
    p.dwc = c.out(8);
  }
  auto multiply = [&](const Gemm& product, const void* a, const void* b, void* d) {
    product.run({.a = a, .b = b, .d = d, .workspace = scratch.library}, c.stream);
  };
  launch_decoder_setup(p, c.stream);
  multiply(gradient.q, p.h, p.wq, scratch.q);
  launch_decoder_steps(p, c.stream);
  multiply(gradient.dw, p.before, p.dz_all, c.out_data[1]);
  multiply(gradient.dmemory, p.attention_copy, p.dcontext_all, c.out_data[2]);
  multiply(gradient.dwq, p.h, p.dq_all, c.out_data[4]);
  launch_decoder_keys(p, c.stream);
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(attention_decoder, {.name = "slices",
                                    .decline = decline,
                                    .workspace_bytes = workspace_bytes,
                                    .prepare = prepare,
                                    .run = run})
MR_CUDA_KERNELS(attention_decoder_grad, {.name = "slices",
                                         .decline = grad_decline,
                                         .workspace_bytes = grad_workspace_bytes,
                                         .prepare = grad_prepare,
                                         .run = grad_run})
