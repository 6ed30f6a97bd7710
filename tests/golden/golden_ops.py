"""The single operations of the golden values (make_golden.py), and what its models share with them.

ops.safetensors     single operations, float64 throughout
    op/<case>/in<i>        F64, or I32 for ids, targets, lengths, positions
    op/<case>/out<i>       F64
    op/<case>/cotangent0   F64, the random gradient of out0
    op/<case>/grad<i>      F64, gradient of in<i> = d sum(out0 * cotangent0) / d in<i>; none for I32
  case                        inputs -> out0
  layer_norm                  x [3,4,10], weight [10], bias [10]; over the last axis, eps 1e-5
  rms_norm                    x [3,4,10], weight [10]; x / sqrt(mean x^2 + eps) * weight, eps 1e-5
  gelu, gelu_tanh, silu       x [4,9]; row 0 holds the tails (0, +-1e-3, +-5, +-10, +-40)
  softmax                     x [3,4,7], over the last axis; one row is shifted by 1000
  attention_causal            q, k, v [2,7,4,8] = [B,T,H,K]; scale 1/sqrt(K)
  attention_causal_gqa        q [2,7,4,8], k, v [2,7,2,8]; query head h reads key head h / 2
  attention_padding           q, k, v as causal, key lengths I32 [2] = 7, 4; not causal
  attention_causal_padding    the same inputs, causal as well; padded queries are computed too
  attention_cross             q [2,7,4,8], k, v [2,5,2,8] of another sequence, key lengths I32 [2] = 5, 3
  cross_entropy               logits [6,11], targets I32 [6], -1 ignored; mean over the others
  cross_entropy_smoothed      as cross_entropy, with label_smoothing 0.1
  embedding                   table [7,5], ids I32 [3,4] with repeats
  rotary                      x [2,7,4,8] = [B,T,H,K], positions I32 [7] = 0..6; theta 10000, rotate_half:
                              the pairs are (i, i + K/2), as in transformers' Llama
  adamw, adam, adagrad, sgd_momentum, sgd_nesterov       three steps, hyper-parameters in OPTIMIZERS:
    in0 = weight [5,3], in1..in3 = its gradient in steps 1..3 (element [0,0] always 0),
    out0..out2 = weight after each step, out3.. = state after the third: exp_avg, exp_avg_sq (Adam,
    AdamW); sum (Adagrad); momentum_buffer (SGD). No cotangent.
"""
import math

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.llama import modeling_llama

IGNORED = -1
OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, dict(lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)),
    "adam": (torch.optim.Adam, dict(lr=0.05, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)),
    "adagrad": (torch.optim.Adagrad, dict(lr=0.1, lr_decay=0.0, weight_decay=0.0,
                                          initial_accumulator_value=0.1, eps=1e-10)),
    "sgd_momentum": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.01)),
    "sgd_nesterov": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.01,
                                           nesterov=True)),
}


class Float64Only(TorchDispatchMode):
    """Fails on any operation that produces another floating-point type."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                assert value.dtype == torch.float64, f"{func} gave {value.dtype}"
        return out


def rotary_cos_sin(positions, head_width, rope={"rope_type": "default", "rope_theta": 10000.0}):
    frequency = rope["rope_theta"] ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    if rope["rope_type"] == "llama3":  # as transformers' _compute_llama3_parameters
        wave, length = 2 * math.pi / frequency, rope["original_max_position_embeddings"]
        low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
        smooth = (length / wave - low) / (high - low)
        between = (1 - smooth) * frequency / factor + smooth * frequency
        frequency = torch.where(wave < length / high, frequency, torch.where(wave > length / low, frequency / factor, between))
    angle = positions[..., None].double() * frequency
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def attention(q, k, v, lengths=None, causal=False):
    """torch's scaled_dot_product_attention on [B,T,H,K] with right-padded keys."""
    t, s = q.shape[1], k.shape[1]
    keep = torch.ones(t, s, dtype=torch.bool).tril() if causal else torch.ones(t, s, dtype=torch.bool)
    keep = keep[None, None]
    if lengths is not None:
        keep = keep & (torch.arange(s)[None, :] < lengths[:, None])[:, None, None, :]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=True).transpose(1, 2)


def rotary(x, positions):
    cos, sin = rotary_cos_sin(positions[None], x.shape[-1])
    return modeling_llama.apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=2)[0]


def op_cases(generator):
    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    tails = 3 * randn(4, 9)
    tails[0] = torch.tensor([-40.0, -10.0, -5.0, -1e-3, 0.0, 1e-3, 5.0, 10.0, 40.0])
    shifted = 2 * randn(3, 4, 7)
    shifted[1, 2] += 1000.0
    qkv = [randn(2, 7, 4, 8) for _ in range(3)]
    gqa = [randn(2, 7, 4, 8), randn(2, 7, 2, 8), randn(2, 7, 2, 8)]
    lengths = torch.tensor([7, 4])
    targets = torch.tensor([3, IGNORED, 0, 10, IGNORED, 3])
    ids = torch.tensor([[0, 3, 3, 6], [1, 0, 3, 2], [6, 6, 1, 0]])  # 4 and 5 never
    return {
        "layer_norm": (lambda x, w, b: F.layer_norm(x, (10,), w, b, eps=1e-5),
                       [2 * randn(3, 4, 10) + 0.5, 1 + 0.3 * randn(10), randn(10)]),
        "rms_norm": (lambda x, w: F.rms_norm(x, (10,), w, eps=1e-5),
                     [2 * randn(3, 4, 10) + 0.5, 1 + 0.3 * randn(10)]),
        "gelu": (F.gelu, [tails]),
        "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), [tails]),
        "silu": (F.silu, [tails]),
        "softmax": (lambda x: F.softmax(x, dim=-1), [shifted]),
        "attention_causal": (lambda q, k, v: attention(q, k, v, causal=True), qkv),
        "attention_causal_gqa": (lambda q, k, v: attention(q, k, v, causal=True), gqa),
        "attention_padding": (attention, [*qkv, lengths]),
        "attention_causal_padding": (lambda q, k, v, n: attention(q, k, v, n, causal=True), [*qkv, lengths]),
        "cross_entropy": (lambda x, t: F.cross_entropy(x, t, ignore_index=IGNORED), [2 * randn(6, 11), targets]),
        "embedding": (lambda table, i: F.embedding(i, table), [randn(7, 5), ids]),
        "rotary": (rotary, [randn(2, 7, 4, 8), torch.arange(7)]),
        "attention_cross": (attention, [randn(2, 7, 4, 8), randn(2, 5, 2, 8), randn(2, 5, 2, 8), torch.tensor([5, 3])]),
        "cross_entropy_smoothed": (lambda x, t: F.cross_entropy(x, t, ignore_index=IGNORED, label_smoothing=0.1),
                                   [2 * randn(6, 11), targets]),
    }


def make_ops(seed):
    """Tensors, and what the file says of them."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for case, (function, inputs) in op_cases(generator).items():
        inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        with Float64Only():
            out = function(*inputs)
            cotangent = torch.randn(out.shape, generator=generator, dtype=torch.float64)
            out.backward(cotangent)
        tensors[f"op/{case}/out0"], tensors[f"op/{case}/cotangent0"] = out, cotangent
        for i, x in enumerate(inputs):
            tensors[f"op/{case}/in{i}"] = x if x.is_floating_point() else x.to(torch.int32)
            if x.is_floating_point():
                tensors[f"op/{case}/grad{i}"] = x.grad
    for case, (optimizer_type, options) in OPTIMIZERS.items():
        weight = torch.randn(5, 3, generator=generator, dtype=torch.float64).requires_grad_()
        optimizer = optimizer_type([weight], foreach=False, **options)
        tensors[f"op/{case}/in0"] = weight.detach().clone()
        for step in range(3):
            weight.grad = torch.randn(5, 3, generator=generator, dtype=torch.float64)
            weight.grad[0, 0] = 0.0
            tensors[f"op/{case}/in{step + 1}"] = weight.grad.clone()
            optimizer.step()
            tensors[f"op/{case}/out{step}"] = weight.detach().clone()
        state = [optimizer.state[weight][key] for key in ("exp_avg", "exp_avg_sq", "sum", "momentum_buffer")
                 if key in optimizer.state[weight]]
        tensors.update({f"op/{case}/out{3 + i}": value for i, value in enumerate(state)})
    about = {"seed": seed, "norm_eps": 1e-5, "rope_theta": 10000.0,
             "ignored": IGNORED, "optimizers": {case: options for case, (_, options) in OPTIMIZERS.items()}}
    return tensors, about
