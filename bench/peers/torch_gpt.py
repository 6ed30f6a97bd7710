"""The peer in PyTorch: a GPT-2 shape as its experts write it (fused qkv, SDPA, tied head, fused AdamW).

  torch_gpt.py TASK HOW THREADS WORKLOAD.json

Starts from the weights Millrace started from and reads the same tokens. Training prints a JSON line per
step until it is stopped; generation prints one line per text. bench/race.py compares losses and tokens. A curve is a
run over windows that begin at given places (bench/curves.py).
"""
import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, attend):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).split(d, 2))
        x = x + self.attn_proj(attend(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class GPT(nn.Module):
    def __init__(self, model, length):
        super().__init__()
        width = model["d_model"]
        self.wte, self.wpe = nn.Embedding(model["vocab_size"], width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, model["num_heads"]) for _ in range(model["num_layers"]))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for block in self.h:
            h = block(h, causal)
        logits = F.linear(self.ln_f(h), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))

    def decode(self, x, at, caches, mask):
        """Logits after tokens x [1, t] at positions `at`; caches hold keys and values [1, heads, length, K]."""
        h = self.wte(x) + self.wpe(at)
        for block, (keys, values) in zip(self.h, caches):

            def attend(q, k, v):
                keys.index_copy_(2, at, k)
                values.index_copy_(2, at, v)
                seen = mask.shape[-1]
                return F.scaled_dot_product_attention(q, keys[:, :, :seen], values[:, :, :seen], attn_mask=mask)

            h = block(h, attend)
        return F.linear(self.ln_f(h[:, -1]), self.wte.weight)

    def load(self, path):
        """Weights under the names of transformers, whose linear layers are stored [in, out]."""
        renamed = {}
        for name, w in load_file(path).items():
            name = name.removeprefix("transformer.")
            name = name.replace("attn.c_attn", "c_attn").replace("attn.c_proj", "attn_proj")
            name = name.replace("mlp.c_fc", "c_fc").replace("mlp.c_proj", "mlp_proj")
            linear = any(part in name for part in ("c_attn.w", "attn_proj.w", "c_fc.w", "mlp_proj.w"))
            if name != "lm_head.weight":
                renamed[name] = w.t().contiguous() if linear else w
        self.load_state_dict(renamed)


def say(**line):
    print(json.dumps(line), flush=True)


def adamw(model, w):
    decay = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                             lr=w["learning_rate"], betas=(0.9, 0.95), eps=1e-8, fused=True)


def update(model, loss_of, optimizer, device, x, y):
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        loss = loss_of(x.to(device, non_blocking=True), y.to(device, non_blocking=True))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def curve(model, _, w):
    tokens, b, t = torch.tensor(w["ids"]), w["batch"], w["length"]
    optimizer = adamw(model, w)
    for step in range(1, len(w["begins"]) // b + 1):
        begins = w["begins"][(step - 1) * b : step * b]
        x, y = (torch.stack([tokens[i + shift : i + shift + t] for i in begins]) for shift in (0, 1))
        say(step=step, loss=update(model, model, optimizer, w["device"], x, y).item())


def train(model, how, w):
    device = w.get("device", "cpu")
    tokens = torch.tensor(w["ids"])
    b, t = w["batch"], w["length"]
    x, y = tokens[: b * t].view(b, t), tokens[1 : b * t + 1].view(b, t)
    optimizer = adamw(model, w)
    loss_of = model
    if how == "compile":
        loss_of = torch.compile(model)
    if how == "graphs":
        loss_of = torch.compile(model, mode="reduce-overhead")
    x, y = (v.pin_memory() if device == "cuda" else v for v in (x, y))
    step, window = 0, w.get("window", 1)
    while True:
        start, losses = time.perf_counter(), []
        for _ in range(window):
            if how == "graphs":
                torch.compiler.cudagraph_mark_step_begin()
            losses.append(update(model, loss_of, optimizer, device, x, y).clone())
        mean = torch.stack(losses).mean().item()  # waits for the device
        span = 1e3 * (time.perf_counter() - start)
        step += window
        peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        say(step=step, time=time.time(), ms=span / window, span_ms=span, loss=mean, device_peak=peak)


@torch.inference_mode()
def generate(model, how, w):
    m = w["model"]
    total = len(w["ids"]) + w["tokens"]
    shape = (1, m["num_heads"], total, m["d_model"] // m["num_heads"])
    caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(m["num_layers"])]
    # Compiled code wants one shape: all keys, masked. Eager reads only the keys there are.
    fixed = how == "compile"
    decode = torch.compile(model.decode) if fixed else model.decode
    places = torch.arange(total)
    while True:
        x, at, out = torch.tensor([w["ids"]]), places[: len(w["ids"])], []
        start = None
        for n in range(w["tokens"]):
            seen = total if fixed else int(at[-1]) + 1
            mask = places[:seen] <= at[:, None]
            token = (model.decode if n == 0 else decode)(x, at, caches, mask).argmax(-1)
            out.append(int(token))
            x, at = token.view(1, 1), places[len(w["ids"]) + n : len(w["ids"]) + n + 1]
            if n == 0:
                start = time.perf_counter()  # the prompt is not part of the time per token
        say(step=1, time=time.time(), ms=1e3 * (time.perf_counter() - start) / (w["tokens"] - 1), ids=out)


def main():
    task, how, threads, workload = sys.argv[1:]
    torch.set_num_threads(int(threads))
    with open(workload) as f:
        w = json.load(f)
    if w.get("device") == "cuda":
        torch.set_float32_matmul_precision("high")
    model = GPT(w["model"], w["length"])
    model.load(w["weights"])
    model.to(w.get("device", "cpu"))
    {"train": train, "generate": generate, "curve": curve}[task](model, how, w)


if __name__ == "__main__":
    main()
