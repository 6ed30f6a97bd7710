#!/usr/bin/env python3
"""Does speed cost learning? The same models trained by Millrace and by PyTorch, several seeds each.

  bench/curves.py characters tinyshakespeare.txt
  bench/curves.py shakespeare tinyshakespeare.txt  configs/shakespeare.yaml as it is, and its twin: the best validation loss and the time
  bench/curves.py translator multi30k              an encoder-decoder Transformer
  bench/curves.py summarizer mts-dialog            a pointer-generator; also ROUGE of what both write for the test set

A seed is a draw of weights and of batches, both Millrace's, with which both train: what differs is rounding alone; there is no
dropout. The first loss of both must be the same, or they do not see the same: on a CPU to 2e-5, which another order of batches does not
pass (7.7e-4 apart when tried); in bfloat16 on a GPU only to 2e-2, which it would, so try a changed order on a CPU. Prints the mean loss over stretches of the run. The
curves are alike when, over the last stretch, Millrace's mean lies between the lowest and the highest of PyTorch's seeds and no seed's
two curves are further apart than those. Texts are as good when Millrace's mean ROUGE (millrace eval) is not below the lowest of
PyTorch's seeds, which its own beam search wrote and `millrace score` scored.

Anything in TASKS may be changed for both: on a CPU try
  bench/curves.py summarizer mts-dialog --device cpu --steps 20 --stretch 10 --texts 20 batch=8 source_length=64 length=24 model.hidden_dim=32
"""
import argparse
import csv
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from race import LOSS_TOLERANCE, PEERS
from suites import ADAGRAD, ADAMW
from surroundings import MILLRACE, PYTHON, ROOT, install_peers, machine, say

TASKS = {
    "characters": {
        "config": "shakespeare-small.yaml",
        "model": {"type": "gpt", "d_model": 384, "num_layers": 6, "num_heads": 6},
        "training": ADAMW | {"learning_rate": 3e-4},
        "batch": 64,
        "length": 256,
    },
    "shakespeare": {  # as in the config
        "config": "shakespeare.yaml",
        "model": {"type": "gpt", "d_model": 384, "num_layers": 6, "num_heads": 6, "bias": False, "dropout": 0.2},
        "training": ADAMW | {"learning_rate": 1e-3, "beta2": 0.99, "warmup_steps": 100, "min_learning_rate_ratio": 0.1},
        "batch": 64,
        "length": 256,
        "eval_every": 250,
        "steps": 5000,
    },
    "translator": {
        "config": "translator.yaml",
        "model": {"type": "seq2seq", "d_model": 256, "num_layers": 2, "num_heads": 4, "d_ff": 1024, "dropout": 0,
                  "norm_position": "pre"},
        "training": ADAMW | {"learning_rate": 3e-4, "label_smoothing": 0, "ema_decay": 0},
        "batch": 64,
        "length": 64,
        "source_length": 64,
    },
    "summarizer": {
        "config": "summarizer.yaml",
        "model": {"type": "pointer_generator", "emb_dim": 128, "hidden_dim": 256, "num_layers": 2},
        "training": ADAGRAD | {"learning_rate": 0.15, "grad_accum": 1},
        "batch": 16,
        "length": 192,
        "source_length": 768,
    },
}


def fail(text):
    print(text, file=sys.stderr)
    sys.exit(2)


# --- data -------------------------------------------------------------------------------------------------


def read_pairs(folder, split):
    """Source and target of every pair of a split of Multi30k or MTS-Dialog, each on one line."""
    if (folder / f"{split}.csv").is_file():
        with open(folder / f"{split}.csv", newline="", encoding="utf-8") as file:
            return [[" ".join(row[field].split()) for field in ("dialogue", "section_text")] for row in csv.DictReader(file)]
    return list(zip(*((folder / f"{split}.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de")), strict=True))


def write_data(task, data, folder):
    """Config words for data that lies in the folder; the test set is what is validated on."""
    if task["model"]["type"] == "gpt":
        return [f"data.train={data.resolve()}"]
    for split, name in (("train", "train"), ("test", "validation")):
        for side, texts in zip(("source", "target"), zip(*read_pairs(data, split))):
            (folder / f"{name}.{side}").write_text("\n".join(texts) + "\n", encoding="utf-8")
    words = [f"data.folder={folder}", "data.format=lines", "data.fields=[]", "data.test=[]", "data.test_target=[]",
             f"training.max_source_length={task['source_length']}"]
    words += [f"data.{split}{end}={split}.{side}" for split in ("train", "validation") for end, side in (("", "source"), ("_target", "target"))]
    if task["model"]["type"] == "pointer_generator":
        words += [f"model.chunk_len={task['source_length']}", "model.num_chunks=1"]
    return words


# --- runs -------------------------------------------------------------------------------------------------


class Run:
    """A task with a seed, in a folder of its own."""

    def __init__(self, task, data, folder, device, seed, steps):
        folder.mkdir()
        self.task, self.folder, self.device, self.seed, self.steps = task, folder, device, seed, steps
        self.data = write_data(task, data, folder)
        self.environment = {**os.environ, "MILLRACE_CACHE": str(folder / "cache")}

    def call(self, *words):
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True, env=self.environment)
        if done.returncode != 0:
            fail(f"{pathlib.Path(words[0]).name}: {done.stderr.strip()[-2000:]}")
        return done

    def millrace(self, name, *changes):
        """Trains: the loss of every update."""
        t = self.task
        done = self.call(MILLRACE, "train", ROOT / "configs" / t["config"], *self.data, f"device={self.device}", f"seed={self.seed}",
                         f"run_name={name}", f"training.max_steps={self.steps}", f"training.batch_size={t['batch']}",
                         f"training.max_length={t['length']}", "training.schedule=constant", "training.warmup=0 steps",
                         "training.log_interval=1", "training.eval_every=1000000 steps", "training.max_eval_batches=1",
                         "runtime.log_format=json", "sample.length=0", f"runs_folder={self.folder / 'runs'}",
                         *(f"model.{k}={v}" for k, v in t["model"].items()), *(f"training.{k}={v}" for k, v in t["training"].items()), *changes)
        lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
        return [line["loss"] for line in lines if line.get("type") == "train"]

    def checkpoint(self, name):
        """The folder that a run of that name left."""
        return sorted((self.folder / "runs" / name).glob("*/checkpoints/*/model.safetensors"))[-1].resolve().parent

    def prepared(self):
        """What Millrace's cache says of the data."""
        header, = (self.folder / "cache" / "data").glob("*/dataset.json")
        return json.loads(header.read_text()), header.parent

    def torch(self, task, checkpoint=None, threads=None, **more):
        """The peer's lines."""
        about, _ = self.prepared()
        workload = {**self.task, "device": self.device, "seed": self.seed, "steps": self.steps, "cache": self.environment["MILLRACE_CACHE"], **more}
        if checkpoint:
            workload["weights"] = str(checkpoint / "model.safetensors")
        workload["model"] = {**self.task["model"], "vocab_size": about["vocab_size"]}
        path = self.folder / "workload.json"
        path.write_text(json.dumps(workload))
        threads = threads or len(os.sched_getaffinity(0))
        done = self.call(PYTHON, ROOT / "bench" / "peers" / PEERS[self.task["model"]["type"]][0], task, "eager", threads, path)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def torch_curve(self, beam):
        """From Millrace's first weights: the loss of every update, and the texts it writes then."""
        self.millrace("first", "training.max_steps=1", "training.learning_rate=1e-30")
        lines = self.torch("curve", self.checkpoint("first"), **({"beam": beam} if beam else {}))
        return [line["loss"] for line in lines if "loss" in line], [line["words"] for line in lines if "words" in line]


    def whole(self):
        """Both train as the config says: validation losses and seconds of training, Millrace's and the peer's."""
        t = self.task
        begin = time.monotonic()
        done = self.call(MILLRACE, "train", ROOT / "configs" / t["config"], *self.data, f"device={self.device}", f"seed={self.seed}", "run_name=whole",
                         f"training.max_steps={self.steps}", f"training.eval_every={t['eval_every']}", "runtime.log_format=json", f"runs_folder={self.folder / 'runs'}")
        seconds = time.monotonic() - begin
        lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
        mine = [line["eval/loss"] for line in lines if "eval/loss" in line]
        begin = time.monotonic()
        theirs = [line["validation"] for line in self.torch("whole")]
        return (mine, seconds), (theirs, time.monotonic() - begin)


# --- texts ------------------------------------------------------------------------------------------------

METRICS = ("rouge1", "rouge2", "rougeL")


def millrace_rouge(run, texts):
    found = json.loads(run.call(MILLRACE, "eval", run.checkpoint("whole"), "--json", "--texts", texts, f"device={run.device}").stdout)
    return [found[f"eval/{metric}"] for metric in METRICS]


def torch_rouge(run, texts):
    _, folder = run.prepared()
    words = ["<unk>", "<s>", "</s>", *json.loads((folder / "tokenizer.json").read_text())["words"]]
    (run.folder / "torch.txt").write_text("".join(" ".join(words[i] for i in text) + "\n" for text in texts), encoding="utf-8")
    wanted = (run.folder / "validation.target").read_text(encoding="utf-8").splitlines()[: len(texts)]
    (run.folder / "wanted.txt").write_text("\n".join(wanted) + "\n", encoding="utf-8")
    found = json.loads(run.call(MILLRACE, "score", run.folder / "torch.txt", run.folder / "wanted.txt", "--json").stdout)
    return [found[metric] for metric in METRICS]


def compare_texts(millrace, torch):
    say(f"{'ROUGE':>12} {'who':10} {'mean':>8}  by seed")
    good = True
    for i, metric in enumerate(METRICS):
        for who, scores in (("millrace", millrace), ("torch", torch)):
            by_seed = [s[i] for s in scores]
            say(f"{metric:>12} {who:10} {statistics.mean(by_seed):8.2f}  " + " ".join(f"{s:.2f}" for s in by_seed))
        good = good and statistics.mean(s[i] for s in millrace) >= min(s[i] for s in torch)
    say("the texts: " + ("as good" if good else "NOT AS GOOD"))
    return good


def compare_curves(curves, steps, stretch, tolerance):
    first = max(abs(a[0] - b[0]) / max(b[0], 1.0) for a, b in zip(curves["millrace"], curves["torch"], strict=True))
    say(f"first losses at most {first:.1e} apart")
    if not first <= tolerance:
        fail(f"the two do not train the same: their first losses may be {tolerance:.0e} apart")
    last = {}
    say(f"{'updates':>12} {'who':10} {'mean':>8}  by seed")
    for begin in range(0, steps, stretch):
        for who, runs in curves.items():
            last[who] = [statistics.mean(run[begin : begin + stretch]) for run in runs]
            say(f"{begin + 1:>5}-{min(begin + stretch, steps):<6} {who:10} {statistics.mean(last[who]):8.4f}  " + " ".join(f"{m:.4f}" for m in last[who]))
    centre, low, high = statistics.mean(last["millrace"]), min(last["torch"]), max(last["torch"])
    apart = max(abs(a - b) for a, b in zip(last["millrace"], last["torch"], strict=True))
    alike = low <= centre <= high and apart <= high - low
    say(f"the last stretch: Millrace {centre:.4f}, PyTorch's seeds {low:.4f} to {high:.4f}, the same seed at most {apart:.4f} apart: "
        f"{'alike' if alike else 'NOT ALIKE'}")
    return alike


def compare_whole(seeds, every):
    say(f"{'seed':>4} {'who':10} {'best':>8} {'after':>8} {'last':>8} {'whole process':>14}")
    for seed, both in enumerate(seeds, 1):
        for who, (losses, seconds) in zip(("millrace", "torch"), both):
            best = min(losses)
            say(f"{seed:>4} {who:10} {best:8.4f} {(losses.index(best) + 1) * every:8,} {losses[-1]:8.4f} {seconds:12.1f} s")
    mine, theirs = ([min(both[i][0]) for both in seeds] for i in (0, 1))
    say(f"the best validation loss: Millrace {statistics.mean(mine):.4f}, PyTorch {statistics.mean(theirs):.4f}, its seeds {min(theirs):.4f} to {max(theirs):.4f}")
    return statistics.mean(mine) <= max(theirs)


# --- the command ------------------------------------------------------------------------------------------


def changed(task, changes):
    """With batch=8, model.d_model=64 and the like."""
    task = {key: dict(value) if isinstance(value, dict) else value for key, value in task.items()}
    for change in changes:
        found = re.fullmatch(r"(?:(model|training)\.)?(\w+)=(.+)", change)
        if not found or (not found[1] and found[2] not in ("batch", "length", "source_length")):
            fail(f"'{change}' is not model.KEY=VALUE, training.KEY=VALUE, batch=, length= or source_length=")
        section = task[found[1]] if found[1] else task
        section[found[2]] = json.loads(found[3]) if re.fullmatch(r"[-+0-9.e]+", found[3]) else found[3]
    return task


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="The head of this file has more.")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("data", type=pathlib.Path, help="a text, or the folder of a data set")
    parser.add_argument("changes", nargs="*", help="batch=8, model.d_model=64 and the like, for both")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, help="updates; 300 unless said, a whole training as many as its config has")
    parser.add_argument("--stretch", type=int, default=50, help="updates whose mean loss is shown")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=0, help="summarizer: texts that ROUGE is of; 0: the whole test set")
    args = parser.parse_intermixed_args()
    task = changed(TASKS[args.task], args.changes)
    args.steps = args.steps or task.get("steps", 300)
    versions, missing = install_peers()
    if not versions:
        sys.exit(f"missing: {missing}")
    writes = args.task == "summarizer"
    beam = {"beam": 4, "length_penalty": 1.0, "max_length": task["length"], "split": "validation", "most": args.texts or None} if writes else None
    say(f"{machine(args.device)}; {versions}; {args.task}, {args.steps} updates of {task['batch']} x {task['length']}, {args.seeds} seeds")

    if args.task == "shakespeare":  # one by one: the time is shown
        with tempfile.TemporaryDirectory(prefix="millrace-curves-") as temp:
            runs = [Run(task, args.data, pathlib.Path(temp) / str(seed), args.device, seed, args.steps) for seed in range(1, args.seeds + 1)]
            return 0 if compare_whole([run.whole() for run in runs], task["eval_every"]) else 1

    def of_seed(seed):
        run = Run(task, args.data, pathlib.Path(temp) / str(seed), args.device, seed, args.steps)
        millrace = run.millrace("whole")
        torch, texts = run.torch_curve(beam)
        return millrace, torch, writes and millrace_rouge(run, args.texts), writes and torch_rouge(run, texts)

    # Nobody's time is taken: on a GPU, which the loops in PyTorch leave idle, seeds run side by side.
    with tempfile.TemporaryDirectory(prefix="millrace-curves-") as temp, ThreadPoolExecutor(1 if args.device == "cpu" else args.seeds) as pool:
        millrace, torch, millrace_scores, torch_scores = zip(*pool.map(of_seed, range(1, args.seeds + 1)))
    good = compare_curves({"millrace": millrace, "torch": torch}, args.steps, args.stretch, LOSS_TOLERANCE["fp32" if args.device == "cpu" else "bf16"])
    if writes:
        good = compare_texts(millrace_scores, torch_scores) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
