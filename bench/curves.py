#!/usr/bin/env python3
"""Does speed cost learning? The same character model trained by Millrace and by PyTorch, several seeds each.

  bench/curves.py TEXT [--device cuda] [--steps 300] [--seeds 3]

A seed is a draw of weights and of windows, both Millrace's, with which both train: what differs is rounding alone. Prints the
mean loss over stretches of the run. The curves are alike when, over the last stretch, Millrace's mean lies between the lowest
and the highest of PyTorch's seeds and no seed's two curves are further apart than those.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from race import MILLRACE, PYTHON, ROOT, install_peers, machine, say

MODEL = {"d_model": 384, "num_layers": 6, "num_heads": 6}
BATCH, LENGTH, RATE, STRETCH = 64, 256, 3e-4, 50


def millrace(folder, text, device, seed, steps, *changes):
    """A whole run: the loss of every update."""
    words = [MILLRACE, "train", ROOT / "configs" / "shakespeare.yaml", f"data.train={text}", f"device={device}", f"seed={seed}",
             f"training.max_steps={steps}", f"training.batch_size={BATCH}", f"training.max_length={LENGTH}", f"training.learning_rate={RATE}",
             "training.schedule=constant", "training.warmup=0 steps", "training.beta2=0.95", "training.log_interval=1",
             "training.eval_every=1000000 steps", "training.max_eval_batches=1", "runtime.log_format=json", "sample.length=0",
             f"runs_folder={folder}", *(f"model.{k}={v}" for k, v in MODEL.items()), *changes]
    done = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"millrace: {done.stdout.strip()}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line["loss"] for line in lines if line.get("type") == "train"]


def philox(key, c):
    """As in src/core/rng.h."""
    k, word = [key & 0xFFFFFFFF, key >> 32], 0xFFFFFFFF
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & word, (p >> 32) ^ c[3] ^ k[1], p & word]
        k = [(k[0] + 0x9E3779B9) & word, (k[1] + 0xBB67AE85) & word]
    return c


def window_begins(seed, samples, places):
    """Where Millrace's windows begin (src/data/batches.cc): sample i is the first number of stream i."""
    use = 2  # RandomUse::sampler
    blocks = (philox(seed, [0, i & 0xFFFFFFFF, i >> 32, use]) for i in range(samples))
    return [((high << 32 | low) * places) >> 64 for high, low, _, _ in blocks]


def torch(folder, text, device, seed, steps):
    millrace(folder, text, device, seed, 1, "training.learning_rate=1e-30", "run_name=first")
    weights = next((folder / "latest" / "checkpoints").glob("*/model.safetensors")).resolve()
    letters = sorted(set(text.read_text()))
    ids = [letters.index(c) for c in text.read_text()]
    ids = ids[: len(ids) - int(0.1 * len(ids))]
    workload = {"model": {**MODEL, "vocab_size": len(letters)}, "batch": BATCH, "length": LENGTH, "learning_rate": RATE, "device": device,
                "weights": str(weights), "ids": ids, "begins": window_begins(seed, steps * BATCH, len(ids) - LENGTH)}
    (folder / "workload.json").write_text(json.dumps(workload))
    done = subprocess.run([PYTHON, ROOT / "bench" / "peers" / "torch_gpt.py", "curve", "eager", "2", folder / "workload.json"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"torch: {done.stderr.strip()}")
    return [json.loads(line)["loss"] for line in done.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    versions, missing = install_peers()
    if not versions:
        sys.exit(f"missing: {missing}")
    say(f"{machine(args.device)}; {versions}; {args.steps} updates of {BATCH} x {LENGTH} characters, {args.seeds} seeds")
    curves = {}
    with tempfile.TemporaryDirectory(prefix="millrace-curves-") as temp:
        for who, run in (("millrace", millrace), ("torch", torch)):
            for seed in range(1, args.seeds + 1):
                folder = pathlib.Path(temp) / f"{who}-{seed}"
                folder.mkdir()
                curves.setdefault(who, []).append(run(folder, args.text.resolve(), args.device, seed, args.steps))
    last = {}
    say(f"{'updates':>12} {'who':10} {'mean':>8}  by seed")
    for begin in range(0, args.steps, STRETCH):
        for who, runs in curves.items():
            means = [sum(run[begin:begin + STRETCH]) / len(run[begin:begin + STRETCH]) for run in runs]
            last[who] = means
            say(f"{begin + 1:>5}-{min(begin + STRETCH, args.steps):<6} {who:10} {sum(means) / len(means):8.4f}  " + " ".join(f"{m:.4f}" for m in means))
    centre, low, high = sum(last["millrace"]) / args.seeds, min(last["torch"]), max(last["torch"])
    apart = max(abs(a - b) for a, b in zip(last["millrace"], last["torch"], strict=True))
    alike = low <= centre <= high and apart <= high - low
    say(f"the last stretch: Millrace {centre:.4f}, PyTorch's seeds {low:.4f} to {high:.4f}, the same seed at most {apart:.4f} apart: "
        f"{'alike' if alike else 'NOT ALIKE'}")
    return 0 if alike else 1


if __name__ == "__main__":
    sys.exit(main())
