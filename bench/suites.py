"""The suites of bench/run: which workloads, in the words of Millrace's own config."""


def gpt(layers, width, vocab, length, batch, heads=None):
    """A GPT-2 shape in training: float32, AdamW, clipping to norm 1, no dropout."""
    return {
        "task": "train",
        "model": {"d_model": width, "num_layers": layers, "num_heads": heads or width // 64, "vocab_size": vocab},
        "batch": batch,
        "length": length,
    }


def bilstm(batch):
    """The encoder of a summarizer alone: 768 places, two layers of 256 units in both directions."""
    return {"task": "bilstm", "model": {"input": 128, "hidden": 256, "layers": 2}, "batch": batch, "length": 768}


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
    "bilstm-2x256-b1": bilstm(1),
    "bilstm-2x256-b16": bilstm(16),
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
    "gpt2-124m-b64": gpt(12, 768, 50304, 1024, 64),
    "gpt2-124m-b16": gpt(12, 768, 50304, 1024, 16),
    "char-6x384-b128": gpt(6, 384, 65, 256, 128),
    "char-6x384-b1": gpt(6, 384, 65, 256, 1),
    "lm-2x256-b32": gpt(2, 256, 10000, 128, 32),
    "lm-6x512-b64": gpt(6, 512, 50000, 128, 64),
    "finetune-124m-b1": gpt(12, 768, 50257, 512, 1),
    "finetune-124m-b8": gpt(12, 768, 50257, 512, 8),
    "bilstm-2x256-b1": bilstm(1),
    "bilstm-2x256-b16": bilstm(16),
}

SUITES = {"cpu": CPU, "cpu-growth": growth(), "cuda": CUDA}
