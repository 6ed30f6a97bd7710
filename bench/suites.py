"""The suites of bench/run: which workloads, in the words of Millrace's own config."""


ADAMW = {"optimizer": "adamw", "learning_rate": 1e-4, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "gradient_clip": 1}
# As in configs/summarizer.yaml, but for the learning rate.
ADAGRAD = {"optimizer": "adagrad", "learning_rate": 1e-2, "initial_accumulator": 0.1, "eps": 1e-8, "weight_decay": 0, "gradient_clip": 2}


def gpt(layers, width, vocab, length, batch, heads=None):
    """A GPT-2 shape in training: float32, AdamW, clipping to norm 1, no dropout."""
    return {
        "task": "train",
        "config": "lm-2x256.yaml",
        "model": {"type": "gpt", "d_model": width, "num_layers": layers, "num_heads": heads or width // 64, "vocab_size": vocab},
        "training": ADAMW,
        "batch": batch,
        "length": length,
    }


def seq2seq(layers, width, vocab, length, batch):
    """An encoder and a decoder of so many layers each, source and target of one length; trained as gpt is."""
    return {
        "task": "train",
        "config": "translator.yaml",
        "model": {"type": "seq2seq", "d_model": width, "num_layers": layers, "num_heads": width // 64, "vocab_size": vocab,
                  "d_ff": 4 * width, "dropout": 0, "norm_position": "pre"},
        "training": ADAMW | {"label_smoothing": 0, "ema_decay": 0},
        "batch": batch,
        "length": length,
        "source_length": length,
    }


def pointer(batch):
    """Seed 000's summarizer with coverage and a vocabulary of 50,000 words. Steps of some peers take many seconds on a CPU: one a
    turn, and one peer at a time, as several do not fit into the memory (the eager one was seen at 18.6 GiB with 16 pairs, by what autograd
    keeps); on a GPU two to a window."""
    return {
        "task": "train",
        "config": "summarizer.yaml",
        "model": {"type": "pointer_generator", "emb_dim": 128, "hidden_dim": 256, "num_layers": 2, "chunk_len": 128, "num_chunks": 6,
                  "vocab_size": 50000, "coverage": "true"},
        "training": ADAGRAD | {"grad_accum": 1},
        "batch": batch,
        "length": 192,
        "source_length": 768,
        "slow": True,
    }


def trajectory(sequences, without=()):
    """Paths of 20 to 80 states of context, 8 before the present and 12 to predict, so many of them in every step. `without`: peers
    that would take minutes for a step."""
    return {
        "task": "train",
        "config": "trajectory.yaml",
        "model": {"type": "trajectory", "d_model": 256, "num_layers": 4, "num_heads": 4, "dropout": 0, "previous": 8, "current": 12},
        "training": ADAMW | {"ema_decay": 0},
        "batch": sequences,
        "length": 100,
        "without": without,
        "slow": sequences > 256,
    }


def bilstm(batch):
    """The encoder of a summarizer alone: 768 places, two layers of 256 units in both directions."""
    return {"task": "bilstm", "model": {"type": "bilstm", "input": 128, "hidden": 256, "layers": 2}, "batch": batch, "length": 768}


CPU = {
    "lm-2x256-b32": gpt(2, 256, 10000, 128, 32),
    "lm-2x256-b1": gpt(2, 256, 10000, 128, 1),
    "lm-6x512-b8": gpt(6, 512, 50000, 128, 8),
    "lm-6x512-b1": gpt(6, 512, 50000, 128, 1),
    "char-6x384-b8": gpt(6, 384, 65, 256, 8),
    "char-6x384-b1": gpt(6, 384, 65, 256, 1),
    "char-4x128-b12": gpt(4, 128, 65, 64, 12, heads=4),
    "gpt2-124m-b2": gpt(12, 768, 50257, 256, 2),
    "gpt2-124m-generate": {**gpt(12, 768, 50257, 512, 1), "task": "generate", "prompt": 16, "tokens": 256},
    "pair-2x256-b32": seq2seq(2, 256, 10000, 128, 32),
    "pair-2x256-b1": seq2seq(2, 256, 10000, 128, 1),
    "pair-6x512-b8": seq2seq(6, 512, 50000, 128, 8),
    "pair-6x512-b1": seq2seq(6, 512, 50000, 128, 1),
    "bilstm-2x256-b1": bilstm(1),
    "bilstm-2x256-b16": bilstm(16),
    "pointer-b1": pointer(1),
    "pointer-b16": pointer(16),
    "trajectory-b64": trajectory(64),
    "trajectory-b1024": trajectory(1024, without=("torch-loop",)),
}


def growth():
    """One thing grows, the others stay: 4 layers x 256, V 1,000, T 128, 2,048 tokens a step where T allows."""
    rows = {}
    for length in (64, 128, 256, 512, 1024, 2048):
        rows[f"T-{length}"] = gpt(4, 256, 1000, length, max(1, 2048 // length))
    for vocab in (1000, 3000, 10000, 30000, 100000):
        rows[f"V-{vocab}"] = gpt(2, 256, vocab, 128, 8)
    for layers in (1, 2, 4, 8, 16):
        rows[f"L-{layers}"] = gpt(layers, 256, 1000, 128, 8)
    return rows


# On one GPU, in bfloat16 with 32-bit master weights.
CUDA = {
    "gpt2-124m-b64": {**gpt(12, 768, 50304, 1024, 64), "alone": True, "slow": True},
    "gpt2-124m-b16": gpt(12, 768, 50304, 1024, 16),
    "char-6x384-b128": gpt(6, 384, 65, 256, 128),
    "char-6x384-b1": gpt(6, 384, 65, 256, 1),
    "lm-2x256-b32": gpt(2, 256, 10000, 128, 32),
    "lm-6x512-b64": gpt(6, 512, 50000, 128, 64),
    "finetune-124m-b1": gpt(12, 768, 50257, 512, 1),
    "finetune-124m-b8": gpt(12, 768, 50257, 512, 8),
    "pair-2x256-b32": seq2seq(2, 256, 10000, 128, 32),
    "pair-6x512-b64": seq2seq(6, 512, 50000, 128, 64),
    "bilstm-2x256-b1": bilstm(1),
    "bilstm-2x256-b16": bilstm(16),
    "pointer-b1": pointer(1),
    "pointer-b16": pointer(16),
    "trajectory-b64": trajectory(64),
    "trajectory-b1024": {**trajectory(1024, without=("torch-loop",)), "slow": False},
}

# On CPUs that have products in bfloat16: Transformers in training.
CPU_BF16 = {name: {**row, "precision": "bf16"} for name, row in CPU.items()
            if row["task"] == "train" and row["model"]["type"] != "pointer_generator"}

SUITES = {"cpu": CPU, "cpu-bf16": CPU_BF16, "cpu-growth": growth(), "cuda": CUDA}
