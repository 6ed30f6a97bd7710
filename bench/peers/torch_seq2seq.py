"""The peer in PyTorch: an encoder-decoder Transformer as its experts write it (fused qkv, SDPA, norms before, tied head, fused AdamW).

  torch_seq2seq.py TASK HOW THREADS WORKLOAD.json

Modules have the names of Millrace's parameters. `train` races on one batch of pairs without padding; `curve` sees the batches
Millrace sees (bench/curves.py); `beam` writes a text for every source of a split (torch_beam.py).
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file

import millrace_data
import torch_beam
import torch_training as training


def heads_of(x, heads):
    """[B,T,D] -> [B,heads,T,K]"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, width, heads, cross=False):
        super().__init__()
        self.heads = heads
        if cross:
            self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        else:
            self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def keys_values(self, memory):
        return [heads_of(y, self.heads) for y in self.kv(memory).chunk(2, -1)]

    def attend(self, q, k, v, **mask):
        return self.output(F.scaled_dot_product_attention(q, k, v, **mask).transpose(1, 2).flatten(2))

    def forward(self, x, **mask):
        return self.attend(*(heads_of(y, self.heads) for y in self.qkv(x).chunk(3, -1)), **mask)

    def over(self, x, keys_values, mask):
        return self.attend(heads_of(self.q(x), self.heads), *keys_values, attn_mask=mask)


class Mlp(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class EncoderLayer(nn.Module):
    def __init__(self, m):
        super().__init__()
        width = m["d_model"]
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, m["num_heads"]), Mlp(width, m["d_ff"])

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), attn_mask=mask)
        return x + self.mlp(self.norm2(x))


class DecoderLayer(EncoderLayer):
    def __init__(self, m):
        super().__init__(m)
        self.norm_cross, self.cross = nn.LayerNorm(m["d_model"]), Attention(m["d_model"], m["num_heads"], cross=True)

    def forward(self, x, memory, mask):
        x = x + self.attention(self.norm1(x), is_causal=True)
        x = x + self.cross.over(self.norm_cross(x), self.cross.keys_values(memory), mask)
        return x + self.mlp(self.norm2(x))

    def step(self, x, cache, keys_values):
        """One more place [rows,1,D] behind those whose keys and values are in the cache."""
        a = self.attention
        q, k, v = (heads_of(y, a.heads) for y in a.qkv(self.norm1(x)).chunk(3, -1))
        if cache:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        x = x + a.attend(q, k, v)
        x = x + self.cross.over(self.norm_cross(x), keys_values, None)
        return x + self.mlp(self.norm2(x)), (k, v)


class Encoder(nn.Module):
    def __init__(self, m, length):
        super().__init__()
        width = m["d_model"]
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(EncoderLayer(m) for _ in range(m["num_layers"]))
        self.norm = nn.LayerNorm(width)

    def forward(self, x, mask):
        x = x + self.positions.weight[: x.shape[1]]
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class Seq2Seq(nn.Module):
    copies = False

    def __init__(self, w):
        super().__init__()
        m = w["model"]
        width = m["d_model"]
        self.embedding, self.positions = nn.Embedding(m["vocab_size"], width), nn.Embedding(w["length"], width)
        self.encoder = Encoder(m, w["source_length"])
        self.layers = nn.ModuleList(DecoderLayer(m) for _ in range(m["num_layers"]))
        self.norm = nn.LayerNorm(width)
        # Linear layers are stored [in, out] there.
        self.load_state_dict({name: p.t().contiguous() if p.ndim == 2 and not name.endswith(("embedding.weight", "positions.weight")) else p
                              for name, p in load_file(w["weights"]).items()})

    def forward(self, source, tokens, targets, lengths=None):
        """The mean loss; lengths of sources that are padded."""
        mask = None if lengths is None else (torch.arange(source.shape[1], device=source.device) < lengths[:, None])[:, None, None]
        memory = self.encoder(self.embedding(source), mask)
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, memory, mask)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    # --- for torch_beam.py

    def begin(self, source, _):
        memory = self.encoder(self.embedding(source[None]), None)
        return {"length": 0, "source": [layer.cross.keys_values(memory) for layer in self.layers], "caches": [None] * len(self.layers)}

    def next(self, tokens, state):
        """The probabilities behind each row's token, and the state behind it."""
        rows = len(tokens)
        x = (self.embedding(tokens) + self.positions.weight[state["length"]])[:, None]
        caches = []
        for layer, keys_values, cache in zip(self.layers, state["source"], state["caches"]):
            x, cache = layer.step(x, cache, [y.expand(rows, -1, -1, -1) for y in keys_values])
            caches.append(cache)
        logits = F.linear(self.norm(x[:, 0]), self.embedding.weight)
        return logits.float().log_softmax(-1), {**state, "length": state["length"] + 1, "caches": caches}

    @staticmethod
    def select(state, rows):
        return {**state, "caches": [[y[rows] for y in cache] for cache in state["caches"]]}


def open_model(w):
    return Seq2Seq(w).to(w["device"])


def train(how, w):
    model = open_model(w)
    inputs = [torch.tensor(w["pairs"][name]) for name in ("source", "tokens", "targets")]
    trainer = training.Trainer(model, training.in_form(model, how), w, training.autocasts(how, w))
    training.train(trainer, inputs, w, compiled_with_graphs=how == "graphs")


def curve(_, w):
    model, data = open_model(w), millrace_data.Prepared(w["cache"])
    batches = ((source, tokens, targets, lengths)
               for source, lengths, _, tokens, targets in data.batches(w["seed"], w["batch"], w["source_length"], w["steps"]))
    training.curve(training.Trainer(model, model, w, training.autocasts("eager", w)), batches)


def beam(_, w):
    torch_beam.write(open_model(w), w)


if __name__ == "__main__":
    training.main({"train": train, "curve": curve, "beam": beam})
