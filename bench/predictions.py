#!/usr/bin/env python3
"""bench/run predictions: how near `millrace plan` comes to the time of an update; the table in docs/PERFORMANCE.md.

  bench/run predictions [--device cpu] [--rounds 2] [--out FILE]

Every workload below is profiled (forward, backward and optimizer of an update, the fastest of the rounds). Then `plan` predicts each of them
with a cache that has seen one config only, with one that has seen every other workload, and with the ceilings alone. Needs a machine that
nobody else uses, for about a quarter of an hour.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

from gpu_page import table
from surroundings import MILLRACE, ROOT, commit, machine, say

CONFIGS = ROOT / "configs"
PAIR = ["data.train=pair.source", "data.train_target=pair.target", "data.validation=[]", "data.validation_target=[]", "data.test=[]", "data.test_target=[]",
        "data.vocab_size=2000", "model.d_model=128", "model.num_layers=2", "training.max_length=96"]
POINTER = ["data.train=long.csv", "data.validation=[]", "data.test=[]", "model.hidden_dim=128"]
SHAKESPEARE = ["data.train=text.txt"]


@dataclasses.dataclass
class Workload:
    name: str
    config: str
    changes: list
    row: str = ""  # it also stands for a line of the table: a cache that has seen nothing else


WORKLOADS = [
    Workload("quickstart", "quickstart.yaml", [], "quickstart"),
    Workload("b4", "quickstart.yaml", ["training.batch_size=4"]),
    Workload("b64", "quickstart.yaml", ["training.batch_size=64"]),
    Workload("T 512", "quickstart.yaml", ["training.max_length=512", "training.batch_size=4"]),
    Workload("shakespeare-small", "shakespeare-small.yaml", SHAKESPEARE, "shakespeare-small"),
    Workload("b1", "shakespeare-small.yaml", [*SHAKESPEARE, "training.batch_size=1"]),
    Workload("lm-2x256", "lm-2x256.yaml", [], "lm-2x256"),
    Workload("b4", "lm-2x256.yaml", ["training.batch_size=4"]),
    Workload("b8, T 512", "lm-2x256.yaml", ["training.batch_size=8", "training.max_length=512"]),
    Workload("pair b32", "translator.yaml", [*PAIR, "training.batch_size=32"], "pair b32"),
    Workload("b4", "translator.yaml", [*PAIR, "training.batch_size=4"]),
    Workload("pointer b1, twice", "summarizer.yaml", [*POINTER, "training.batch_size=1", "training.grad_accum=2"]),
    Workload("b8", "summarizer.yaml", [*POINTER, "training.batch_size=8", "training.grad_accum=1"], "pointer b8"),
]


def make_data(folder):
    draw = random.Random(1)
    words = ["".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(draw.randint(2, 9))) for _ in range(3000)]

    def text(least, most):
        return " ".join(draw.choice(words) for _ in range(draw.randint(least, most)))
    for side in ("source", "target"):
        (folder / f"pair.{side}").write_text("\n".join(text(40, 60) for _ in range(600)) + "\n")
    (folder / "long.csv").write_text("dialogue,section_text\n" + "".join(f"{text(250, 380)},{text(40, 80)}\n" for _ in range(300)))
    (folder / "text.txt").write_text("\n".join(text(5, 12) for _ in range(20000)))


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder

    def millrace(self, cache, command, workload, *words):
        environment = {**os.environ, "MILLRACE_CACHE": str(self.folder / cache)}
        done = subprocess.run([MILLRACE, command, CONFIGS / workload.config, *workload.changes, f"device={self.options.device}", "--json", *words],
                              cwd=self.folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{command} of {workload.name}: {done.stderr}")
        return json.loads(done.stdout)

    def profile(self, cache, workload, steps):
        """Seconds of an update, as the nodes of this profile add up to."""
        budget = self.millrace(cache, "profile", workload, "--steps", str(steps))["budget_seconds"]
        return sum(budget[owner] for owner in ("forward", "backward", "optimizer"))

    def expected(self, cache, workload, key="expected_seconds"):
        return self.millrace(cache, "plan", workload)["time"][key]

    def run(self):
        measured = []
        for workload in WORKLOADS:
            times = []
            for turn in range(self.options.rounds):
                cache = f"cache-{workload.row}" if workload.row and turn == 0 else "cache-any"
                times.append(self.profile(cache, workload, 10))
            measured.append(min(times))
            say(f"{workload.config} {workload.name}: {1e3 * measured[-1]:.2f} ms")
        rows = {}
        for workload in WORKLOADS:
            if workload.row:
                rows[workload.row] = [self.expected(f"cache-{workload.row}", other) for other in WORKLOADS]
        rows["all others"] = []
        for at, workload in enumerate(WORKLOADS):
            cache = f"cache-without-{at}"
            for other in WORKLOADS:
                if other is not workload:
                    self.profile(cache, other, 4)
            rows["all others"].append(self.expected(cache, workload))
            shutil.rmtree(self.folder / cache)
            say(f"all others: {workload.config} {workload.name}")
        rows["at least (ceiling)"] = [self.expected("cache-any", workload, "least_seconds") for workload in WORKLOADS]
        off = {name: [100 * (seconds / truth - 1) for seconds, truth in zip(row, measured)] for name, row in rows.items()}
        if self.options.out:
            record = {"machine": machine(self.options.device), "commit": commit(), "measured_seconds": measured, "off_percent": off,
                      "workloads": [dataclasses.asdict(w) for w in WORKLOADS]}
            pathlib.Path(self.options.out).write_text(json.dumps(record, indent=1) + "\n")
        print(table(["profiled", *[w.name for w in WORKLOADS]], [[name, *[f"{value:+.0f}" if round(value) else "0" for value in row]] for name, row in off.items()]))
        for what, names in (("one other config", [w.row for w in WORKLOADS if w.row]), ("all others", ["all others"])):
            values = sorted(abs(v) for name in names for w, v in zip(WORKLOADS, off[name]) if w.row != name)
            print(f"after {what}: half within {statistics.median(values):.0f} %, nine of ten within {values[int(0.9 * len(values))]:.0f} %, the worst {values[-1]:.0f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temp:
        make_data(pathlib.Path(temp))
        Bench(options, pathlib.Path(temp)).run()


if __name__ == "__main__":
    main()
