"""The peer in PyTorch: a pointer-generator (See et al. 2017) with nn.LSTM (cuDNN's on a GPU), nn.LSTMCell and additive attention.

  torch_pointer.py TASK HOW THREADS WORKLOAD.json

HOW: eager, with the output layer and the extended vocabulary inside the loop over the target, as such code is usually written;
hoisted, with all that can leave the loop after it, once for all places; compile, the hoisted one with the step of the loop and what is
behind the loop compiled (all 192 steps unrolled would be some 15,000 nodes for Inductor); graphs, the compiled one captured in one
CUDA graph, forward and backward. With -bf16 behind it: under autocast; else float32, TF32 on a GPU. `train` races on one batch of
pairs without padding; `curve` sees the batches Millrace sees (bench/curves.py); `beam` writes a text for every source of a split
(torch_beam.py).
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file

import millrace_data
import torch_beam
import torch_training as training


class PointerGenerator(nn.Module):
    copies = True

    def __init__(self, w):
        super().__init__()
        m = w["model"]
        E, H, A, L, self.vocab = m["emb_dim"], m["hidden_dim"], 2 * m["hidden_dim"], m["num_layers"], m["vocab_size"]
        self.coverage_weight, self.output_in_loop = m.get("coverage_weight", 1.0), False
        self.embedding = nn.Embedding(self.vocab, E)
        self.encoder = nn.LSTM(E, H, L, bidirectional=True)
        self.reduce_h, self.reduce_c = nn.Linear(2 * H, H), nn.Linear(2 * H, H)
        self.keys, self.query = nn.Linear(2 * H, A), nn.Linear(H, A, bias=False)
        self.score, self.coverage = nn.Parameter(torch.zeros(A)), nn.Parameter(torch.zeros(A))
        self.cell = nn.LSTMCell(E + 2 * H, H)
        self.gate_state, self.gate_context, self.gate_input = nn.Linear(H, 1, bias=False), nn.Linear(2 * H, 1), nn.Linear(E, 1, bias=False)
        self.output_state, self.output_context = nn.Linear(H, H, bias=False), nn.Linear(2 * H, H)
        self.head = nn.Linear(H, self.vocab, bias=False)
        self.load(load_file(w["weights"]), L, E, H)

    def load(self, given, layers, E, H):
        """Millrace's matrices are [in, out], both directions of a layer lie side by side, and a gate has one bias."""
        theirs = {"embedding.weight": given["embedding.weight"], "head.weight": given["decoder.head.weight"],
                  "score": given["attention.score.weight"], "coverage": given["attention.coverage.weight"]}
        for i in range(layers):
            name = f"encoder.layers.{i}."
            for direction, end in enumerate(("", "_reverse")):
                columns = slice(direction * 4 * H, (direction + 1) * 4 * H)
                theirs[f"encoder.weight_ih_l{i}{end}"] = given[name + "input.weight"][:, columns].t()
                theirs[f"encoder.weight_hh_l{i}{end}"] = given[name + "recurrent.weight"].view(2, H, 4 * H)[direction].t()
                theirs[f"encoder.bias_ih_l{i}{end}"] = given[name + "input.bias"][columns]
        recurrent = given["decoder.recurrent.weight"]
        theirs["cell.weight_ih"] = torch.cat([given["decoder.input.weight"], recurrent[H:]]).t()
        theirs["cell.weight_hh"], theirs["cell.bias_ih"] = recurrent[:H].t(), given["decoder.input.bias"]
        for module in ("reduce_h", "reduce_c", "keys", "query", "gate_state", "gate_context", "gate_input", "output_state", "output_context"):
            room = {"reduce": "", "keys": "attention.", "query": "attention."}.get(module.split("_")[0], "decoder.")
            name = room + module.replace("_", ".")
            theirs[f"{module}.weight"] = given[f"{name}.weight"].t()
            if f"{name}.bias" in given:
                theirs[f"{module}.bias"] = given[f"{name}.bias"]
        with torch.no_grad():
            for name, p in self.named_parameters():
                if ".bias_hh" in name:  # the second bias of a gate: not there, and not trained
                    p.zero_().requires_grad_(False)
                else:
                    p.copy_(theirs.pop(name))
        assert not theirs, theirs.keys()

    def encode(self, source, lengths):
        """memory [B,S,2H], keys [B,S,A], h, c"""
        x = self.embedding(source.t())
        if lengths is None:
            memory, (h, c) = self.encoder(x)
        else:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), enforce_sorted=False)
            memory, (h, c) = self.encoder(packed)
            memory = nn.utils.rnn.pad_packed_sequence(memory, total_length=len(x))[0]
        memory = memory.transpose(0, 1).contiguous()
        h, c = (F.relu(reduce(torch.cat([y[-2], y[-1]], -1))) for reduce, y in ((self.reduce_h, h), (self.reduce_c, c)))
        return memory, self.keys(memory), h, c

    def step(self, x, h, c, context, covered, memory, keys, padding):
        h, c = self.cell(torch.cat([x, context], -1), (h, c))
        field = torch.tanh(keys + self.query(h)[:, None] + covered[..., None] * self.coverage)
        scores = field @ self.score
        if padding is not None:
            scores = scores.masked_fill(padding, -torch.inf)
        attention = scores.softmax(-1)
        context = torch.bmm(attention[:, None], memory)[:, 0]
        overlap = torch.minimum(attention, covered).sum(-1)
        return h, c, context, covered + attention, attention, overlap

    def gate_of(self, h, context, x):
        return self.gate_state(h) + self.gate_context(context) + self.gate_input(x)

    def hidden_of(self, h, context):
        return self.output_state(h) + self.output_context(context)

    def mixture(self, h, context, x, attention, words, rare):
        """P of every word, those of the sources that the vocabulary lacks behind it."""
        gate = torch.sigmoid(self.gate_of(h, context, x))
        generated = self.head(self.hidden_of(h, context)).float().softmax(-1)
        p = torch.cat([gate * generated, generated.new_zeros(len(generated), rare)], -1)
        return p.scatter_add(1, words.clamp(min=0), ((1 - gate) * attention).float())

    def behind_loop(self, h, context, x, attention, overlap, words, targets):
        """The loss of all places at once, [T,B,…], without the extended vocabulary: what a target has of attention is all it takes."""
        gate = torch.sigmoid(self.gate_of(h, context, x)[..., 0].float())
        logits = self.head(self.hidden_of(h, context))
        known = (targets >= 0) & (targets < self.vocab)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), torch.where(known, targets, 0).flatten(), reduction="none")
        generated = torch.exp(-losses).view_as(targets) * known
        copied = (attention * (words == targets[..., None])).sum(-1)
        p = gate * generated + (1 - gate) * copied
        scored = targets >= 0
        return (torch.where(scored, self.coverage_weight * overlap - torch.where(scored, p, 1.0).log(), 0.0)).sum() / scored.sum()

    def forward(self, source, words, tokens, targets, lengths=None, rare=0):
        padding = None if lengths is None else torch.arange(source.shape[1], device=source.device) >= lengths[:, None]
        memory, keys, h, c = self.encode(source, lengths)
        context, covered = torch.zeros_like(memory[:, 0]), torch.zeros_like(memory[..., 0], dtype=torch.float32)
        x, targets = self.embedding(tokens.t()), targets.t()
        kept, losses = [], []
        for t in range(len(x)):
            h, c, context, covered, attention, overlap = self.step(x[t], h, c, context, covered, memory, keys, padding)
            if self.output_in_loop:
                p = self.mixture(h, context, x[t], attention, words, rare).gather(1, targets[t, :, None].clamp(min=0))[:, 0]
                losses.append(self.coverage_weight * overlap - p.log())
            else:
                kept.append((h, context, attention, overlap))
        if self.output_in_loop:
            return torch.stack(losses)[targets >= 0].mean()
        h, context, attention, overlap = (torch.stack(y) for y in zip(*kept))
        return self.behind_loop(h, context, x, attention, overlap, words, targets)

    # --- for torch_beam.py

    def begin(self, source, words):
        memory, keys, h, c = self.encode(source[None], None)
        return {"source": (memory, keys, words[None]), "rare": max(0, int(words.max()) + 1 - self.vocab),
                "row": (h, c, torch.zeros_like(memory[:, 0]), torch.zeros_like(memory[..., 0]))}

    def next(self, tokens, state):
        """The probabilities behind each row's token, and the state behind it."""
        x, (h, c, context, covered), (memory, keys, words) = self.embedding(tokens), state["row"], state["source"]
        memory, keys, words = (y.expand(len(x), *y.shape[1:]) for y in (memory, keys, words))
        h, c, context, covered, attention, _ = self.step(x, h, c, context, covered, memory, keys, None)
        p = self.mixture(h, context, x, attention, words, state["rare"])
        return p.log(), {**state, "row": (h, c, context, covered)}

    @staticmethod
    def select(state, rows):
        return {**state, "row": [y[rows] for y in state["row"]]}


def open_model(w):
    model = PointerGenerator(w).to(w["device"])
    model.encoder.flatten_parameters()
    return model


def train(how, w):
    model = open_model(w)
    inputs = [torch.tensor(w["pairs"][name]) for name in ("source", "words", "tokens", "targets")]
    how, _, bf16 = how.partition("-")
    loss_of = model
    if how == "eager":
        model.output_in_loop, rare = True, w["pairs"]["rare"]
        loss_of = lambda *given: model(*given, rare=rare)
    elif how != "hoisted":
        model.step, model.behind_loop = torch.compile(model.step), torch.compile(model.behind_loop)
    trainer = training.Trainer(model, loss_of, w, bool(bf16))
    if how == "graphs":
        trainer.capture([x.to(w["device"]) for x in inputs])
    training.train(trainer, inputs, w)


def curve(_, w):
    model, data = open_model(w), millrace_data.Prepared(w["cache"])
    batches = ((source, words, tokens, targets, lengths)
               for source, lengths, words, tokens, targets in data.batches(w["seed"], w["batch"], w["source_length"], w["steps"]))
    training.curve(training.Trainer(model, model, w, bf16=False), batches)
    if "beam" in w:
        torch_beam.write(model, w)


def beam(_, w):
    torch_beam.write(open_model(w), w)


if __name__ == "__main__":
    training.main({"train": train, "curve": curve, "beam": beam})
