#!/usr/bin/env python3
"""Makes the golden values that the C++ tests compare with. Run by hand; the tests need no Python.

    python3 make_golden.py [output folder, default: beside this script [files to make, default: all]]

Needs torch, transformers and safetensors. Everything runs on the CPU with one thread and fixed seeds.
Every file carries one metadata entry, `golden`: JSON with the hyper-parameters below, the library
versions and, for the models, how far float32 torch is from float64 torch on the same ten steps.

gpt2_tiny.safetensors, llama_tiny.safetensors     transformers' GPT2LMHeadModel, LlamaForCausalLM
    init/<name>     F32          initial weight; <name> as in state_dict(), a tied lm_head left out
    tokens          I32 [10,3,16]  input ids, one batch per step; the last id (60) is never an input,
                                   so in an untied embedding its row only decays
    targets         I32 [10,3,16]  next ids; -1 = ignored (some positions of steps 3 and 7, from 0)
    logits          F32 [3,16,61]  of step 0, before the update
    losses          F32 [10]     mean over the targets that are not ignored, before each update
    grad_norm       F32 [10]     2-norm of all gradients together, before clipping
    final/<name>    F32          three chosen weights after ten steps
gpt2_tiny_grad.safetensors, llama_tiny_grad.safetensors     (apart, to keep each file under 200 KB)
    grad/<name>     F32          gradient of step 0 before clipping, for every init/<name>
  Layouts: GPT-2's c_attn, c_proj, c_fc are Conv1D, [in, out]; every Llama matrix is Linear, [out, in].
  Training: see TRAIN. AdamW is decoupled (p *= 1 - lr*wd, then the Adam step), decay on tensors with
  two or more dimensions (embeddings too), none on biases and norms. Clipping as clip_grad_norm_:
  gradients times min(1, 1 / (norm + 1e-6)).
  Initial weights: matrices and embeddings N(0, 0.2^2), biases N(0, 0.1^2), norm weights 1 + N(0, 0.1^2).
  Exactly zero in exact arithmetic: the gradient of the key third of GPT-2's c_attn.bias (softmax does
  not see a constant), so there the file holds rounding noise and only an absolute bound makes sense;
  also wpe rows 16..23 and the embedding rows of ids not in the batch (Llama), which are true zeros.

llama_lora.safetensors, with _grad     the same Llama with scaled rotary positions (as Llama 3.1) and low-rank additions
    Only the additions train: their init/, grad/ and final/ have the names PEFT gives them, beside the init/ of all others.
    q, k and v share one lora_A, which stands under all three names: Millrace's one matrix makes all three.

seq2seq_pre.safetensors, seq2seq_post.safetensors, each with _grad     torch.nn's TransformerEncoderLayer and
                                                                       TransformerDecoderLayer
    The same, with source I32 [10,3,11] and source_lengths I32 [10,3]. Names and layouts are Millrace's: torch's are put
    into them here (see as_millrace). pre: norms before, one embedding for all, gelu; post: norms behind, three
    embeddings, relu, label smoothing 0.1 (in `losses` too).

pointer_tiny.safetensors, with _grad     a pointer-generator: torch.nn's LSTM over packed sequences and LSTMCell, the
                                         distribution over the extended vocabulary written down in full
    The same, with source_open I32 [10,3,11] as well and without logits. Words from 61 on are rare ones: 0 in `source`, and
    in `targets` only where their source has them. `losses` holds the mean of -log P and of the repeated attention.

trajectory_mse.safetensors, trajectory_gaussian.safetensors, each with _grad     a causal Transformer over states, torch.nn's
                                                                                 TransformerEncoderLayer and GaussianNLLLoss
    The same, without tokens, targets and logits: states and state_targets F32 [10,3,16,2], weights F32 [10,3,16] (0: not
    scored), parts I32 [10,3,16]. `losses`: a state's error, summed over its numbers, as a mean over the states that are scored.

trajectory_classes.safetensors, trajectory_packed.safetensors, each with _grad     the same with a class for each part
    trajectory_classes (mse): class_targets I32 [10,3,16], -1 but at the last place of a part that has a class; step 5 has none.
    `losses` holds 0.7 times their mean cross-entropy as well. trajectory_packed (gaussian, classes): rows of two or three
    sequences and padding, which do not see each other; segments and positions I32 [10,3,16].

ops.safetensors     single operations: see golden_ops.py
"""

import copy
import json
import math
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here may depend on the network

import torch
import transformers
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers.models.llama import modeling_llama

from golden_ops import IGNORED, Float64Only, make_ops, rotary_cos_sin

STEPS, B, T, S, VOCAB = 10, 3, 16, 11, 61
TRAIN = dict(lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0)
GPT2 = dict(
    vocab_size=VOCAB, n_positions=24, n_embd=32, n_layer=2, n_head=4, activation_function="gelu_new",
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=1e-5, tie_word_embeddings=True,
    bos_token_id=0, eos_token_id=0,
)
LLAMA = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, hidden_act="silu",
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=False,
    attention_bias=False, mlp_bias=False, attention_dropout=0.0,
)
LORA = dict(r=3, lora_alpha=6.0, targets=["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"])
# With heads of width 8 one pair keeps its frequency, one is between, two are slowed down.
LLAMA_LORA = LLAMA | dict(rope_parameters={
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32})
FINAL = {
    "llama_lora": ["base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight",
                   "base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight",
                   "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"],
    "gpt2_tiny": ["transformer.wte.weight", "transformer.h.0.attn.c_attn.weight",
                  "transformer.h.1.mlp.c_fc.bias"],
    "llama_tiny": ["model.embed_tokens.weight", "model.layers.0.self_attn.k_proj.weight",
                   "model.norm.weight"],
    "seq2seq_pre": ["embedding.weight", "encoder.layers.0.attention.qkv.weight", "layers.1.cross.kv.weight"],
    "pointer_tiny": ["embedding.weight", "encoder.layers.0.recurrent.weight", "attention.coverage.weight"],
    "trajectory_mse": ["input.weight", "parts.weight", "mean.bias"],
    "trajectory_gaussian": ["positions.weight", "layers.1.mlp.up.weight", "log_std.bias"],
    "trajectory_classes": ["classes.weight", "input.weight", "norm.bias"],
    "trajectory_packed": ["classes.weight", "positions.weight", "layers.0.attention.qkv.weight"],
    "seq2seq_post": ["encoder.embedding.weight", "layers.0.cross.q.bias", "layers.1.norm_cross.weight"],
}
SEQ2SEQ = dict(width=32, heads=4, inner=48, encoder_layers=1, decoder_layers=2, max_length=24)
POINTER = dict(emb_dim=16, hidden_dim=16, num_layers=2, attention_dim=24, coverage_weight=0.7)
TRAJECTORY = dict(width=32, heads=4, inner=48, layers=2, max_length=24, channels=2)
CLASSES = dict(classes=3, class_weight=0.7)
RARE = 5  # words behind the vocabulary


# --- models -------------------------------------------------------------------------------------


def initialise(model, generator):
    """Larger than the default, so that attention is not uniform and no gradient is tiny by design."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not p.requires_grad:
                continue
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() >= 2 or isinstance(model, PointerGenerator) and "bias" not in name:
                p.copy_(0.2 * noise)
            else:
                p.copy_((0.0 if name.endswith("bias") else 1.0) + 0.1 * noise)


def make_batches(generator):
    """Sequences that can be learnt: next = 3*id + 7 (mod 60) four times in five, else any of 0..59."""
    ids = torch.zeros(STEPS, B, T + 1, dtype=torch.int64)
    random_ids = torch.randint(0, VOCAB - 1, ids.shape, generator=generator)
    follow = torch.rand(ids.shape, generator=generator) < 0.8
    ids[..., 0] = random_ids[..., 0]
    for t in range(1, T + 1):
        rule = (3 * ids[..., t - 1] + 7) % (VOCAB - 1)
        ids[..., t] = torch.where(follow[..., t], rule, random_ids[..., t])
    tokens, targets = ids[..., :-1].clone(), ids[..., 1:].clone()
    targets[3, 0, 10:] = IGNORED  # a padded tail
    targets[7, 1, :5] = IGNORED   # a masked prompt, and a row cut short
    targets[7, 2, 3:] = IGNORED
    return tokens, targets


class Float64Rotary(torch.nn.Module):
    """LlamaRotaryEmbedding computes its angles in float32 whatever the model's type."""

    def __init__(self, rope):
        super().__init__()
        self.rope = rope

    def forward(self, x, position_ids):
        return rotary_cos_sin(position_ids, LLAMA["hidden_size"] // LLAMA["num_attention_heads"], self.rope)


class Seq2Seq(torch.nn.Module):
    def __init__(self, pre, activation, shared):
        super().__init__()
        c, nn = SEQ2SEQ, torch.nn
        options = dict(d_model=c["width"], nhead=c["heads"], dim_feedforward=c["inner"], dropout=0.0, activation=activation,
                       batch_first=True, norm_first=pre)
        self.embedding = nn.Embedding(VOCAB, c["width"])
        self.source_embedding = self.embedding if shared else nn.Embedding(VOCAB, c["width"])
        self.head = self.embedding if shared else nn.Embedding(VOCAB, c["width"])
        self.source_positions, self.positions = (nn.Embedding(c["max_length"], c["width"]) for _ in range(2))
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(**options) for _ in range(c["encoder_layers"]))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**options) for _ in range(c["decoder_layers"]))
        self.encoder_norm, self.norm = (nn.LayerNorm(c["width"]) if pre else None for _ in range(2))

    def forward(self, tokens, source, source_lengths):
        padding = torch.arange(S)[None] >= source_lengths[:, None]
        x = self.source_embedding(source) + self.source_positions(torch.arange(S))
        for layer in self.encoder:
            x = layer(x, src_key_padding_mask=padding)
        memory = self.encoder_norm(x) if self.encoder_norm else x
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        x = self.embedding(tokens) + self.positions(torch.arange(T))
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=future, memory_key_padding_mask=padding)
        return F.linear(self.norm(x) if self.norm else x, self.head.weight)


def as_millrace(name, tensor):
    """A parameter of Seq2Seq, or its gradient, as Millrace's parameters: [in, out], keys and values of a source in one."""
    D = SEQ2SEQ["width"]
    for theirs, ours in (("source_embedding.", "encoder.embedding."), ("source_positions.", "encoder.positions."),
                         ("encoder_norm.", "encoder.norm.")):
        if name.startswith(theirs):
            return {ours + name.removeprefix(theirs): tensor}
    stack, _, rest = name.partition(".")
    if stack not in ("encoder", "decoder"):
        return {name: tensor}
    number, part = rest.split(".", 1)
    prefix = f"{'encoder.' if stack == 'encoder' else ''}layers.{number}."
    linear = tensor.T if tensor.dim() == 2 else tensor
    for theirs, ours in (("self_attn.in_proj_", "attention.qkv."), ("self_attn.out_proj.", "attention.output."),
                         ("multihead_attn.out_proj.", "cross.output."), ("linear1.", "mlp.up."), ("linear2.", "mlp.down.")):
        if part.startswith(theirs):
            return {prefix + ours + part.removeprefix(theirs): linear}
    if part.startswith("multihead_attn.in_proj_"):
        kind = part.removeprefix("multihead_attn.in_proj_")
        return {f"{prefix}cross.q.{kind}": linear[..., :D], f"{prefix}cross.kv.{kind}": linear[..., D:]}
    norms = {"norm1": "norm1", "norm2": "norm2"} if stack == "encoder" else {"norm1": "norm1", "norm2": "norm_cross", "norm3": "norm2"}
    norm, kind = part.split(".")
    return {f"{prefix}{norms[norm]}.{kind}": tensor}


class Trajectory(torch.nn.Module):
    """The mean loss of states that are scored, and of the classes that parts have."""

    def __init__(self, gaussian, classes=False, packed=False):
        super().__init__()
        c, nn = TRAJECTORY, torch.nn
        self.input = nn.Linear(c["channels"], c["width"], bias=False)
        self.parts, self.positions = nn.Embedding(3, c["width"]), nn.Embedding(c["max_length"] - 2, c["width"])
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(c["width"], c["heads"], c["inner"], 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(c["layers"]))
        self.norm, self.mean = nn.LayerNorm(c["width"]), nn.Linear(c["width"], c["channels"])
        self.log_std = nn.Linear(c["width"], c["channels"]) if gaussian else None
        self.classes = nn.Linear(c["width"], CLASSES["classes"], bias=False) if classes else None
        self.packed = packed

    def forward(self, states, state_targets, weights, parts, class_targets=None, segments=None, positions=None):
        x = self.input(states) + self.parts(parts) + self.positions(torch.arange(T) if positions is None else positions)
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
        if segments is not None:  # a mask for each row and head
            others = segments[:, :, None] != segments[:, None, :]
            hidden = (hidden | others).repeat_interleave(TRAJECTORY["heads"], 0)
        for layer in self.layers:
            x = layer(x, src_mask=hidden)
        x = self.norm(x)
        mean = states + self.mean(x)
        if self.log_std is None:
            errors = (mean - state_targets).square()
        else:
            errors = F.gaussian_nll_loss(mean, state_targets, (2 * self.log_std(x)).exp(), full=True, eps=1e-12, reduction="none")
        loss = (errors.sum(-1) * weights).sum() / weights.sum()
        if self.classes is None:
            return loss
        # Where there is none, a gradient of 0: with no gradient at all, AdamW would leave the head as it is.
        named = F.cross_entropy(self.classes(x).flatten(0, 1), class_targets.flatten(), ignore_index=-1, reduction="sum")
        return loss + CLASSES["class_weight"] * named / (class_targets >= 0).sum().clamp(min=1)


def trajectory_as_millrace(name, tensor):
    linear = tensor.T if tensor.dim() == 2 else tensor
    for theirs, ours in (("self_attn.in_proj_", "attention.qkv."), ("self_attn.out_proj.", "attention.output."),
                         ("linear1.", "mlp.up."), ("linear2.", "mlp.down.")):
        if theirs in name:
            return {name.replace(theirs, ours): linear}
    return {name: linear if name.startswith(("input.", "mean.", "log_std.")) else tensor}


def make_paths(generator):
    """Changes that go on as they are, turn a little and tremble."""
    turn = 0.3 * torch.randn(STEPS, B, 1, generator=generator)
    heading = 6 * torch.rand(STEPS, B, 1, generator=generator) + turn * torch.arange(T + 1)
    changes = torch.stack([heading.cos(), heading.sin()], -1) + 0.3 * torch.randn(STEPS, B, T + 1, 2, generator=generator)
    weights = torch.zeros(STEPS, B, T)
    weights[..., 6:] = 1
    weights[3, 0, 10:] = 0  # a padded tail
    weights[7, 1] = 0
    parts = torch.zeros(STEPS, B, T, dtype=torch.int64)
    parts[..., 3:] = 1
    parts[..., 7:] = 2
    return {"states": changes[..., :-1, :].clone(), "state_targets": changes[..., 1:, :].clone(), "weights": weights, "parts": parts}


def add_classes(inputs, generator):
    """What the last place of a part says of the whole, or nothing."""
    parts, places = inputs["parts"], torch.arange(T)
    segments = inputs.get("segments", torch.zeros_like(parts))
    last = torch.ones_like(parts, dtype=torch.bool)
    last[..., :-1] = (parts[..., 1:] != parts[..., :-1]) | (segments[..., 1:] != segments[..., :-1])
    known = torch.rand(parts.shape, generator=generator) < 0.8
    kinds = torch.randint(0, CLASSES["classes"], parts.shape, generator=generator)
    inputs["class_targets"] = torch.where(last & known & (inputs.get("positions", places) > 0), kinds, -1)
    inputs["class_targets"][5] = -1


def pack(inputs):
    """Sequences of different lengths and parts in each row, and padding behind them."""
    shapes = [[(2, 3, 2), (1, 4, 2)], [(4, 2, 3), (0, 3, 4)], [(1, 2, 2), (0, 2, 3), (1, 3, 2)]]  # places of the parts
    segments, positions, parts, weights = (torch.zeros(B, T, dtype=torch.int64) for _ in range(4))
    for row, sequences in enumerate(shapes):
        at = 0
        for i, sequence in enumerate(sequences):
            n = sum(sequence)
            segments[row, at:at + n], positions[row, at:at + n] = i, torch.arange(n)
            parts[row, at:at + n] = torch.repeat_interleave(torch.arange(len(sequence)), torch.tensor(sequence))
            weights[row, at + n - sequence[2] - 1:at + n] = 1
            at += n
        segments[row, at:] = len(sequences)
    inputs |= {"parts": parts, "weights": weights.float(), "segments": segments, "positions": positions}
    for name in ("parts", "weights", "segments", "positions"):
        inputs[name] = inputs[name].expand(STEPS, B, T).clone()


class PointerGenerator(torch.nn.Module):
    def __init__(self):
        super().__init__()
        nn, E, H, A = torch.nn, POINTER["emb_dim"], POINTER["hidden_dim"], POINTER["attention_dim"]
        self.embedding = nn.Embedding(VOCAB, E)
        self.encoder = nn.LSTM(E, H, POINTER["num_layers"], bidirectional=True, batch_first=True)
        self.reduce_h, self.reduce_c = nn.Linear(2 * H, H), nn.Linear(2 * H, H)
        self.keys, self.query = nn.Linear(2 * H, A), nn.Linear(H, A, bias=False)
        self.score, self.coverage = nn.Parameter(torch.zeros(A)), nn.Parameter(torch.zeros(A))
        self.cell = nn.LSTMCell(E + 2 * H, H)
        self.gate_state, self.gate_context, self.gate_input = nn.Linear(H, 1, False), nn.Linear(2 * H, 1), nn.Linear(E, 1, False)
        self.output_state, self.output_context = nn.Linear(H, H, False), nn.Linear(2 * H, H)
        self.head = nn.Linear(H, VOCAB, bias=False)
        for name, p in self.named_parameters():  # one bias is enough
            if ".bias_hh" in name:
                p.requires_grad_(False).zero_()

    def forward(self, tokens, targets, source, source_lengths, source_open):
        packed = torch.nn.utils.rnn.pack_padded_sequence(self.embedding(source), source_lengths, batch_first=True,
                                                         enforce_sorted=False)
        memory, (h, c) = self.encoder(packed)
        memory = torch.nn.utils.rnn.pad_packed_sequence(memory, batch_first=True, total_length=S)[0]
        h = F.relu(self.reduce_h(torch.cat([h[-2], h[-1]], -1)))
        c = F.relu(self.reduce_c(torch.cat([c[-2], c[-1]], -1)))
        keys, padding = self.keys(memory), torch.arange(S)[None] >= source_lengths[:, None]
        context, covered, losses = torch.zeros_like(memory[:, 0]), torch.zeros_like(memory[..., 0]), []
        for t in range(T):
            x = self.embedding(tokens[:, t])
            h, c = self.cell(torch.cat([x, context], -1), (h, c))
            field = torch.tanh(keys + self.query(h)[:, None] + covered[..., None] * self.coverage)
            attention = (field @ self.score).masked_fill(padding, -math.inf).softmax(-1)
            context = (attention[:, None] @ memory)[:, 0]
            overlap = torch.minimum(attention, covered).sum(-1)
            covered = covered + attention
            gate = torch.sigmoid(self.gate_state(h) + self.gate_context(context) + self.gate_input(x))
            generated = self.head(self.output_state(h) + self.output_context(context)).softmax(-1)
            p = torch.cat([gate * generated, torch.zeros_like(generated[:, :RARE])], -1)
            p = p.scatter_add(1, source_open.clamp(min=0), (1 - gate) * attention)
            wanted = p.gather(1, targets[:, t, None].clamp(min=0))[:, 0]
            losses.append(POINTER["coverage_weight"] * overlap - wanted.log())
        return torch.stack(losses, 1)[targets != IGNORED].mean()


def pointer_as_millrace(tensors):
    """Parameters of PointerGenerator, or their gradients, as Millrace's: [in, out], both directions in one."""
    E, ours = POINTER["emb_dim"], {}
    for i in range(POINTER["num_layers"]):
        both = lambda kind: torch.cat([tensors[f"encoder.{kind}_l{i}"], tensors[f"encoder.{kind}_l{i}_reverse"]])
        ours[f"encoder.layers.{i}.input.weight"] = both("weight_ih").T
        ours[f"encoder.layers.{i}.input.bias"] = both("bias_ih")
        recurrent = both("weight_hh").unflatten(0, (2, -1))  # [2,4H,H]
        ours[f"encoder.layers.{i}.recurrent.weight"] = recurrent.mT.flatten(0, 1)
    inputs = tensors["cell.weight_ih"].T
    ours["decoder.input.weight"], ours["decoder.input.bias"] = inputs[:E], tensors["cell.bias_ih"]
    ours["decoder.recurrent.weight"] = torch.cat([tensors["cell.weight_hh"].T, inputs[E:]])
    ours["embedding.weight"], ours["decoder.head.weight"] = tensors["embedding.weight"], tensors["head.weight"]
    for name in ("score", "coverage"):
        ours[f"attention.{name}.weight"] = tensors[name]
    for theirs in ("reduce_h", "reduce_c", "keys", "query", "gate_state", "gate_context", "gate_input", "output_state",
                   "output_context"):
        room = {"reduce": "", "keys": "attention.", "query": "attention."}.get(theirs.split("_")[0], "decoder.")
        name = room + theirs.replace("_", ".")
        ours[f"{name}.weight"] = tensors[f"{theirs}.weight"].T
        if f"{theirs}.bias" in tensors:
            ours[f"{name}.bias"] = tensors[f"{theirs}.bias"]
    return ours


class Lora(torch.nn.Module):
    """A linear layer with a low-rank addition, as PEFT computes it."""

    def __init__(self, linear, a=None):
        super().__init__()
        self.base = linear
        self.lora_A = a or torch.nn.Linear(linear.in_features, LORA["r"], bias=False)
        self.lora_B = torch.nn.Linear(LORA["r"], linear.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + LORA["lora_alpha"] / LORA["r"] * self.lora_B(self.lora_A(x))


def add_lora(model):
    for parent in list(model.modules()):
        shared = None
        for name, child in list(parent.named_children()):
            if name not in LORA["targets"]:
                continue
            lora = Lora(child, shared if name in ("k_proj", "v_proj") else None)
            shared = lora.lora_A if name == "q_proj" else shared
            setattr(parent, name, lora)
    return model


def lora_names(name):
    """The names of a parameter in the file: of a shared lora_A three."""
    if ".lora_" not in name:
        return [name.replace(".base.", ".")]
    return ["base_model.model." + name.replace("q_proj", part)
            for part in (("q_proj", "k_proj", "v_proj") if "q_proj.lora_A" in name else ("q_proj",))]


def to_float64(model):
    """A copy that is float64 throughout: transformers' Llama casts to float32 in norms and rotary."""
    model = copy.deepcopy(model).double()
    if isinstance(model, (Seq2Seq, PointerGenerator, Trajectory)):
        return model
    model.set_attn_implementation("sdpa")  # eager attention casts its softmax to float32
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, modeling_llama.LlamaRMSNorm):
                norm = torch.nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(parent, name, norm)
            elif isinstance(child, modeling_llama.LlamaRotaryEmbedding):
                setattr(parent, name, Float64Rotary(model.config.rope_parameters))
    return model


def train(model, inputs, targets, smoothing):
    """Ten steps; the tensors of the module docstring, without init/."""
    model.train()
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters.values() if p.dim() >= 2], "weight_decay": TRAIN["weight_decay"]},
         {"params": [p for p in parameters.values() if p.dim() < 2], "weight_decay": 0.0}],
        lr=TRAIN["lr"], betas=TRAIN["betas"], eps=TRAIN["eps"], foreach=False, fused=False)
    result, losses, norms = {}, [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        out = model(**{key: value[step] if isinstance(value, torch.Tensor) else value for key, value in inputs.items()})
        if isinstance(model, (PointerGenerator, Trajectory)):
            loss = out
        else:
            logits = out if isinstance(out, torch.Tensor) else out.logits
            loss = F.cross_entropy(logits.reshape(-1, VOCAB), targets[step].reshape(-1), ignore_index=IGNORED,
                                   label_smoothing=smoothing)
        loss.backward()
        if step == 0:
            if loss is not out:
                result["logits"] = logits.detach().clone()
            result.update(renamed("grad", model, {name: p.grad for name, p in parameters.items()}))
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), TRAIN["clip"], foreach=False))
        losses.append(loss.detach())
        optimizer.step()
    result["losses"], result["grad_norm"] = torch.stack(losses), torch.stack(norms)
    result.update(renamed("final", model, parameters))
    return result


def renamed(kind, model, tensors):
    if isinstance(model, PointerGenerator):
        return {f"{kind}/{ours}": tensor.detach().clone() for ours, tensor in pointer_as_millrace(tensors).items()}
    rename = {Seq2Seq: as_millrace, Trajectory: trajectory_as_millrace}.get(type(model), lambda name, tensor: dict.fromkeys(lora_names(name), tensor))
    return {f"{kind}/{ours}": part.detach().clone() for name, tensor in tensors.items() for ours, part in rename(name, tensor).items()}


def distance(single, double):
    """max |float32 - float64| over max |float64|, per kind; the worst tensor stands for its kind."""
    worst = {}
    for name, value in double.items():
        gap = ((single[name].double() - value).abs().max() / value.abs().max()).item()
        assert math.isfinite(gap), name
        kind = name.split("/")[0]
        worst[kind] = max(worst.get(kind, 0.0), gap)
    return {kind: float(f"{gap:.3g}") for kind, gap in worst.items()}


def make_sources(tokens, generator):
    """Half of each source is what its target will be, so that there is something to look at."""
    source = torch.randint(0, VOCAB - 1, (STEPS, B, S), generator=generator)
    source[..., : S // 2] = tokens[..., 1 : 1 + S // 2]
    lengths = torch.randint(1, S + 1, (STEPS, B), generator=generator)
    lengths[0] = torch.tensor([S, 4, 1])
    return source, lengths


def make_open(source, lengths, targets, generator):
    """A third of a source's words become rare ones, and a third of the targets words of their source."""
    rare = torch.rand(source.shape, generator=generator) < 1 / 3
    words = torch.where(rare, VOCAB + source % RARE, source)
    source[rare] = 0
    places = (torch.rand(targets.shape, generator=generator) * lengths[..., None]).long()
    copied = (torch.rand(targets.shape, generator=generator) < 1 / 3) & (targets != IGNORED)
    targets[copied] = words.gather(-1, places)[copied]
    words[torch.arange(S) >= lengths[..., None]] = -1
    return words


def make_model(folder, name, model, config, seed, smoothing=0.0):
    generator = torch.Generator().manual_seed(seed)
    initialise(model, generator)
    if any(isinstance(module, Lora) for module in model.modules()):
        for key, p in model.named_parameters():
            p.requires_grad_("lora_" in key)
    tokens, targets = make_batches(generator)
    sources = {}
    if isinstance(model, Trajectory):
        inputs = make_paths(generator)
        if model.packed:
            pack(inputs)
        if model.classes is not None:
            add_classes(inputs, generator)
    elif isinstance(model, (Seq2Seq, PointerGenerator)):
        sources = dict(zip(("source", "source_lengths"), make_sources(tokens, generator)))
        inputs = {"tokens": tokens, **sources}
        if isinstance(model, PointerGenerator):
            sources["source_open"] = make_open(*sources.values(), targets, generator)
            inputs |= {"targets": targets, "source_open": sources["source_open"]}
    else:
        inputs = {"input_ids": tokens, "use_cache": False}
    init = renamed("init", model, dict(model.named_parameters()))
    double_model = to_float64(model)
    single = train(model, inputs, targets, smoothing)
    torch.set_default_dtype(torch.float64)  # AdamW keeps its step count in the default type
    wide = {key: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value for key, value in inputs.items()}
    with Float64Only():
        double = train(double_model, wide, targets, smoothing)
    torch.set_default_dtype(torch.float32)

    kept = {f"final/{key}" for key in FINAL[name]}
    compared = {key: value for key, value in double.items() if not key.startswith("final/") or key in kept}
    about = {
        "model": config, "train": TRAIN, "seed": seed,
        "float32_vs_float64": {
            "measure": "max |float32 - float64| / max |float64|, worst tensor of each kind",
            **distance(single, compared),
        },
        "losses_float64": double["losses"].tolist(),
    }
    main = {key: value for key, value in single.items() if not key.startswith(("grad/", "final/"))}
    main |= init | {key: single[key] for key in kept}
    batches = inputs if isinstance(model, Trajectory) else {"tokens": tokens, "targets": targets, **sources}
    main |= {key: value if value.is_floating_point() else value.to(torch.int32) for key, value in batches.items()}
    save(folder, name, main, about)
    grads = {key: value for key, value in single.items() if key.startswith("grad/")}
    save(folder, f"{name}_grad", grads, about)
    print(f"  losses    {' '.join(f'{x:.6f}' for x in single['losses'].tolist())}")
    print(f"  grad_norm {' '.join(f'{x:.4f}' for x in single['grad_norm'].tolist())}")
    print(f"  float32 against float64: {about['float32_vs_float64']}")


# --- files --------------------------------------------------------------------------------------


def versions():
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def save(folder, name, tensors, about):
    tensors = {key: tensors[key].detach().contiguous().clone() for key in sorted(tensors)}
    for key, value in tensors.items():
        assert value.isfinite().all(), f"{name}: {key} is not finite"
    path = os.path.join(folder, f"{name}.safetensors")
    save_file(tensors, path, metadata={"golden": json.dumps(about | {"versions": versions()}, sort_keys=True)})
    size = os.path.getsize(path)
    assert size < 200_000, f"{name}: {size} bytes"
    print(f"{name}.safetensors: {len(tensors)} tensors, {size} bytes")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    gpt2 = transformers.GPT2Config(**GPT2, attn_implementation="eager")
    llama = transformers.LlamaConfig(**LLAMA, attn_implementation="eager")
    llama_lora = transformers.LlamaConfig(**LLAMA_LORA, attn_implementation="eager")
    models = {
        "seq2seq_pre": lambda name: make_model(folder, name, Seq2Seq(True, "gelu", True), SEQ2SEQ, seed=4),
        "seq2seq_post": lambda name: make_model(folder, name, Seq2Seq(False, "relu", False), SEQ2SEQ, seed=5, smoothing=0.1),
        "gpt2_tiny": lambda name: make_model(folder, name, transformers.GPT2LMHeadModel(gpt2), GPT2, seed=1),
        "llama_tiny": lambda name: make_model(folder, name, transformers.LlamaForCausalLM(llama), LLAMA, seed=2),
        "llama_lora": lambda name: make_model(folder, name, add_lora(transformers.LlamaForCausalLM(llama_lora)), LLAMA_LORA | LORA, seed=7),
        "ops": lambda name: save(folder, name, *make_ops(seed=3)),
        "trajectory_mse": lambda name: make_model(folder, name, Trajectory(False), TRAJECTORY, seed=7),
        "trajectory_gaussian": lambda name: make_model(folder, name, Trajectory(True), TRAJECTORY, seed=8),
        "trajectory_classes": lambda name: make_model(folder, name, Trajectory(False, classes=True), TRAJECTORY | CLASSES, seed=9),
        "trajectory_packed": lambda name: make_model(folder, name, Trajectory(True, classes=True, packed=True), TRAJECTORY | CLASSES, seed=10),
        "pointer_tiny": lambda name: make_model(folder, name, PointerGenerator(), POINTER, seed=6),
    }
    for name in sys.argv[2:] or models:
        models[name](name)


if __name__ == "__main__":
    main()
