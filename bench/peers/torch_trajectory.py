"""The peer in PyTorch: a causal Transformer over states (fused qkv, SDPA, norms before, fused AdamW).

  torch_trajectory.py train HOW THREADS WORKLOAD.json

Modules have the names of Millrace's parameters. A batch is padded to its longest sequence; padding stands behind what attention
may see, so that no mask is needed. `loop` is how seed 003 began: a tensor of the part's number for every state of every sequence.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file

import torch_training as training
from torch_seq2seq import Attention, Mlp


class Layer(nn.Module):
    def __init__(self, m):
        super().__init__()
        width = m["d_model"]
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, m["num_heads"]), Mlp(width, 4 * width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x), is_causal=True)
        return x + self.mlp(self.norm2(x))


class Trajectory(nn.Module):
    def __init__(self, w, loop):
        super().__init__()
        m, channels = w["model"], w["channels"]
        width = m["d_model"]
        self.loop = loop
        self.input = nn.Linear(channels, width, bias=False)
        self.parts, self.positions = nn.Embedding(3, width), nn.Embedding(w["length"] - 2, width)
        self.layers = nn.ModuleList(Layer(m) for _ in range(m["num_layers"]))
        self.norm, self.mean = nn.LayerNorm(width), nn.Linear(width, channels)
        # Linear layers are stored [in, out] there.
        self.load_state_dict({name: p.t().contiguous() if p.ndim == 2 and not name.startswith(("parts.", "positions.")) else p
                              for name, p in load_file(w["weights"]).items()})

    def with_parts(self, x, parts, lengths):
        if not self.loop:
            return x + self.parts(parts)
        rows = []
        for b, length in enumerate(lengths.tolist()):
            row = [x[b, t] + self.parts(torch.tensor([int(parts[b, t])], device=x.device))[0] for t in range(length)]
            rows.append(F.pad(torch.stack(row), (0, 0, 0, x.shape[1] - length)))
        return torch.stack(rows)

    def forward(self, states, targets, weights, parts, lengths):
        """The mean loss of a state that is scored."""
        x = self.with_parts(self.input(states), parts, lengths) + self.positions.weight[: states.shape[1]]
        for layer in self.layers:
            x = layer(x)
        predicted = states + self.mean(self.norm(x))
        errors = (predicted.float() - targets).square().sum(-1)
        return (errors * weights).sum() / weights.sum()


def batch_of(w):
    """Paths as Millrace reads them: changes, normalised; the changes behind them; which of these are scored; parts; lengths."""
    mean, deviation = torch.tensor(w["mean"]), torch.tensor(w["deviation"])
    previous, current = w["model"]["previous"], w["model"]["current"]
    columns = []
    for path in w["paths"]:
        points = torch.tensor(path, dtype=torch.float64)
        changes = ((points[1:].float() - points[:-1].float()).double() - mean.double()) / deviation.double()
        changes, count = changes.float(), len(path)
        places = torch.arange(count - 2)
        parts = (places + 1 >= count - current - previous).long() + (places + 1 >= count - current).long()
        columns.append((changes[:-1], changes[1:], (places + 2 >= count - current).float(), parts))
    padded = [nn.utils.rnn.pad_sequence(column, batch_first=True) for column in zip(*columns)]
    return [*padded, torch.tensor([len(c[0]) for c in columns])]


def train(how, w):
    model = Trajectory(w, loop=how == "loop").to(w["device"])
    form = model if how == "loop" else training.in_form(model, how)
    trainer = training.Trainer(model, form, w, training.autocasts(how, w))
    training.train(trainer, batch_of(w), w, compiled_with_graphs=how == "graphs")


if __name__ == "__main__":
    training.main({"train": train})
