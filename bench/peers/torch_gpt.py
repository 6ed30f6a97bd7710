"""The peer in PyTorch: a GPT-2 shape as its experts write it (fused qkv, SDPA, tied head, fused AdamW).

  torch_gpt.py TASK HOW THREADS WORKLOAD.json

Starts from the weights Millrace started from and reads the same tokens (torch_training.py). Generation prints one line per
text. bench/race.py compares losses and tokens. A curve is a run over the windows that
Millrace draws (bench/curves.py); `whole` a training with weights, windows, dropout and validation of its own.
"""
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file

import millrace_data
import torch_training as training


class Block(nn.Module):
    def __init__(self, width, heads, bias, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.c_attn, self.attn_proj = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)

    def drop(self, x):
        return F.dropout(x, self.dropout, self.training) if self.dropout else x

    def forward(self, x, attend):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).split(d, 2))
        x = x + self.drop(self.attn_proj(attend(q, k, v).transpose(1, 2).reshape(b, t, d)))
        return x + self.drop(self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh")))


class GPT(nn.Module):
    def __init__(self, model, length):
        super().__init__()
        width, bias, self.dropout = model["d_model"], model.get("bias", True), model.get("dropout", 0)
        self.wte, self.wpe = nn.Embedding(model["vocab_size"], width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, model["num_heads"], bias, self.dropout) for _ in range(model["num_layers"]))
        self.ln_f = nn.LayerNorm(width, bias=bias)

    def causal(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight[: x.shape[1]]
        if self.dropout:
            h = F.dropout(h, self.dropout, self.training)
        for block in self.h:
            h = block(h, self.causal)
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
    trainer = training.Trainer(model, training.in_form(model, how), w, training.autocasts(how, w))
    training.train(trainer, inputs, w, compiled_with_graphs=how == "graphs")


def split_tokens(w):
    """For training, and for validation: the end."""
    tokens, _ = millrace_data.Prepared(w["cache"]).store("train")
    at = len(tokens) - int(0.1 * len(tokens))
    return tokens[:at], tokens[at:]


def curve(_, w):
    model, b, t = open_model(w), w["batch"], w["length"]
    tokens, _ = split_tokens(w)
    begins = millrace_data.window_begins(w["seed"], w["steps"] * b, len(tokens) - t)
    batches = ([torch.stack([tokens[i + shift : i + shift + t] for i in begins[at : at + b]]) for shift in (0, 1)]
               for at in range(0, len(begins), b))
    training.curve(training.Trainer(model, model, w, training.autocasts("eager", w)), batches)


def whole(_, w):
    """As nanoGPT trains, with its first weights and schedule; compiled, bfloat16. Validated on all windows of the end of the text."""
    torch.manual_seed(w["seed"])
    model, t, device = GPT(w["model"], w["length"]), w["length"], w["device"]
    for name, p in model.named_parameters():
        if p.ndim >= 2:
            nn.init.normal_(p, 0.0, 0.02 / math.sqrt(2 * w["model"]["num_layers"]) if "_proj" in name else 0.02)
    model.to(device)
    compiled = torch.compile(model)
    trainer = training.Trainer(model, compiled, w, bf16=device == "cuda")
    (tokens, held), rates, places = split_tokens(w), w["training"], torch.arange(t + 1)
    windows = held[: (len(held) - 1) // t * t].view(-1, t), held[1 : (len(held) - 1) // t * t + 1].view(-1, t)
    begin = time.perf_counter()
    for step in range(1, w["steps"] + 1):
        at = min(1.0, max(0.0, (step - rates["warmup_steps"]) / (w["steps"] - rates["warmup_steps"])))
        least = rates["min_learning_rate_ratio"]
        share = least + (1 - least) * 0.5 * (1 + math.cos(math.pi * at))
        for group in trainer.optimizer.param_groups:
            group["lr"] = rates["learning_rate"] * share * min(1.0, step / rates["warmup_steps"])
        drawn = tokens[torch.randint(len(tokens) - t, (w["batch"], 1)) + places]
        if device == "cuda":
            drawn = drawn.pin_memory()
        trainer.update([drawn[:, :-1], drawn[:, 1:]])
        if step % w["eval_every"] == 0:
            model.eval()
            with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                losses = [(model(x.to(device), y.to(device)).item(), x.numel()) for x, y in zip(*(half.split(w["batch"]) for half in windows))]
            model.train()
            mean = sum(loss * n for loss, n in losses) / sum(n for _, n in losses)
            training.say(step=step, validation=mean, seconds=time.perf_counter() - begin)


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
    training.main({"train": train, "generate": generate, "curve": curve, "whole": whole})
