// Attention and its gradient on a GPU: the hooks. cuDNN comes first, then our own kernels on tensor
// cores, then those that multiply floats.
#include "ops/attention_cuda.h"

#include "cuda/context.h"
#include "cuda/kernel.h"
#include "graph/scalar_functions.h"
#include "ops/attention.h"
#include "ops/attention_cudnn_cuda.h"
#include "ops/row_hooks_cuda.h"

namespace millrace::cuda {
namespace {

enum class Family { tensor, tiled };

// Inputs before the optional kv, mask and key.
constexpr size_t tensors(AttentionPass pass) { return pass == AttentionPass::forward ? 1 : 4; }

// The problem without its data.
AttentionProblem problem_of(const OpSite& site, AttentionPass pass) {
  const AttentionSite s = attention_site(site, tensors(pass));
  return {.dtype = site.in[0].dtype,
          .B = static_cast<int>(s.B),
          .T = static_cast<int>(s.T),
          .S = static_cast<int>(s.S),
          .H = static_cast<int>(s.H),
          .G = static_cast<int>(s.G),
          .K = static_cast<int>(s.K),
          .q_row = s.q_row(),
          .kv_row = s.kv_row(),
          .kv_first = s.kv_first(),
          .causal = s.causal,
          .scale = static_cast<float>(s.scale),
          .stream = s.stream,
          .threshold = keep_threshold(s.dropout),
          .keep_scale = static_cast<float>(keep_scale(s.dropout))};
}

AttentionProblem problem_of(const Call& call, AttentionPass pass) {
  const AttentionSite s = attention_site(call.site, tensors(pass));
  AttentionProblem p = problem_of(call.site, pass);
  p.q = call.in_data[0];
  p.kv = call.in_data[s.kv_input];
  if (s.mask == AttentionSite::Mask::lengths) p.lengths = call.ids(s.mask_input);
  if (s.mask == AttentionSite::Mask::segments) p.segments = call.ids(s.mask_input);
  if (s.dropout > 0) p.key = call.ids(s.key_input);
  return p;
}

// The kernels write what they read; a result that the optimizer reads is f32 in any program.
template <AttentionPass kPass>
std::string mixed_types(const OpSite& site) {
  const auto in = [&](size_t i) { return site.in[i].dtype; };
  const auto out = [&](size_t i) { return site.out[i].dtype; };
  const AttentionSite s = attention_site(site, tensors(kPass));
  if (kPass == AttentionPass::forward) return decline_mixed({in(0), in(s.kv_input), out(0)});
  return decline_mixed({in(0), in(s.kv_input), in(1), in(3), out(0), out(s.kv_output)});
}

template <Family kFamily, AttentionPass kPass>
std::string decline(const OpSite& site, Context& context) {
  constexpr bool kTensor = kFamily == Family::tensor;
  constexpr int kMaxWidth = kTensor ? kTensorMaxWidth : kTiledMaxWidth;
  const int64_t width = site.attrs.integer("head_dim");
  if (kTensor && !is_half(site.in[0].dtype)) return "tensor cores multiply halves";
  if (kTensor && width % 8 != 0) return fmt::format("head_dim {} is no multiple of 8", width);
  if (width > kMaxWidth) return fmt::format("head_dim {} over {}", width, kMaxWidth);
  if (std::string fault = mixed_types<kPass>(site); !fault.empty()) return fault;
  const AttentionProblem p = problem_of(site, kPass);
  const int shared = kTensor ? attention_tensor_shared(p, kPass) : attention_tiled_shared(p, kPass);
  if (shared > context.device().shared_bytes)
    return fmt::format("wants {} bytes of shared memory, the device has {}", shared,
                       context.device().shared_bytes);
  return "";
}

template <Family kFamily, AttentionPass kPass>
std::shared_ptr<const void> prepare(const Call& call, Context&) {
  const AttentionProblem p = problem_of(call, kPass);
  if constexpr (kFamily == Family::tensor)
    MR_CUDA(attention_tensor_allow(p, kPass));
  else
    MR_CUDA(attention_tiled_allow(p, kPass));
  return nullptr;
}

template <Family kFamily>
void run(const Call& call) {
  const auto launch = kFamily == Family::tensor ? attention_tensor : attention_tiled;
  launch(problem_of(call, AttentionPass::forward), {call.out_data[0], call.out(1)}, call.stream);
}

template <Family kFamily>
void grad_run(const Call& call) {
  const auto launch =
      kFamily == Family::tensor ? attention_tensor_gradient : attention_tiled_gradient;
  const size_t kv_output = attention_site(call.site, tensors(AttentionPass::backward)).kv_output;
  launch(problem_of(call, AttentionPass::backward),
         {.out = call.in_data[1],
          .dout = call.in_data[3],
          .lse = call.in(2),
          .delta = static_cast<float*>(call.workspace),
          .dq = call.out_data[0],
          .dkv = call.out_data[kv_output]},
         call.stream);
}

int64_t grad_workspace(const OpSite& site, Context&) {
  const AttentionSite s = attention_site(site, tensors(AttentionPass::backward));
  return s.B * s.H * s.T * static_cast<int64_t>(sizeof(float));
}

template <Family kFamily>
Kernel kernel(std::string_view name) {
  constexpr AttentionPass kPass = AttentionPass::forward;
  return {.name = name,
          .decline = decline<kFamily, kPass>,
          .prepare = prepare<kFamily, kPass>,
          .run = run<kFamily>};
}

template <Family kFamily>
Kernel grad_kernel(std::string_view name) {
  constexpr AttentionPass kPass = AttentionPass::backward;
  return {.name = name,
          .decline = decline<kFamily, kPass>,
          .workspace_bytes = grad_workspace,
          .prepare = prepare<kFamily, kPass>,
          .run = grad_run<kFamily>};
}

}  // namespace
}  // namespace millrace::cuda

MR_CUDA_KERNELS(attention, cudnn_attention_kernel(), kernel<Family::tensor>("tensor"),
                kernel<Family::tiled>("tiled"))
MR_CUDA_KERNELS(attention_grad, cudnn_attention_grad_kernel(),
                grad_kernel<Family::tensor>("tensor"), grad_kernel<Family::tiled>("tiled"))
