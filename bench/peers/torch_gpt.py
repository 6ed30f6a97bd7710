"""The peer in PyTorch: a GPT-2 shape as its experts write it (fused qkv, SDPA, tied head, fused AdamW).

  torch_gpt.py TASK HOW THREADS WORKLOAD.json

Starts from the weights Millrace started from and reads the same tokens (torch_training.py). Generation prints one line per
text. bench/race.py compares losses and tokens. A curve is a run over the windows that
Millrace draws (bench/curves.py).
"""
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file

import millrace_data
import torch_training as training


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


def open_model(w):
    model = GPT(w["model"], w["length"])
    model.load(w["weights"])
    return model.to(w["device"])


def train(how, w):
    model = open_model(w)
    tokens, b, t = torch.tensor(w["ids"]), w["batch"], w["length"]
    inputs = [tokens[: b * t].view(b, t), tokens[1 : b * t + 1].view(b, t)]
    trainer = training.Trainer(model, training.in_form(model, how), w, bf16=w["device"] == "cuda")
    training.train(trainer, inputs, w, compiled_with_graphs=how == "graphs")


def curve(_, w):
    model, b, t = open_model(w), w["batch"], w["length"]
    tokens, _ = millrace_data.Prepared(w["cache"]).store("train")
    tokens = tokens[: len(tokens) - int(0.1 * len(tokens))]  # the end is for validation
    begins = millrace_data.window_begins(w["seed"], w["steps"] * b, len(tokens) - t)
    batches = ([torch.stack([tokens[i + shift : i + shift + t] for i in begins[at : at + b]]) for shift in (0, 1)]
               for at in range(0, len(begins), b))
    training.curve(training.Trainer(model, model, w, bf16=w["device"] == "cuda"), batches)


@torch.inference_mode()
def generate(how, w):
    model, m = open_model(w), w["model"]
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
        training.say(step=1, time=time.time(), ms=1e3 * (time.perf_counter() - start) / (w["tokens"] - 1), ids=out)


if __name__ == "__main__":
    training.main({"train": train, "generate": generate, "curve": curve})
