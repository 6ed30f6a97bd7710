#!/usr/bin/env python3
"""bench/run SUITE: Millrace and its peers on the same workloads, interleaved in one go.

Every racer is a process of its own that trains without end. Only one is awake at a time: the others are
stopped (SIGSTOP), so that all see the same machine in turn. A step counts when it began after its racer
was woken and ended before it was stopped. Before a row is raced, each peer must give the losses (or the
greedy tokens) that Millrace gives from the same weights.
"""
import argparse
import datetime
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from suites import SUITES
from surroundings import MILLRACE, PYTHON, ROOT, commit, fail, install_peers, machine, say, slug

TRANSFORMER_PEERS = {"cpu": ("torch-eager", "torch-compile"), "cuda": ("torch-eager", "torch-compile", "torch-graphs")}
MEDIUM = ("torch-eager-medium", "torch-compile-medium")  # peers in bfloat16 on a CPU, beside autocast
PEERS = {  # by the model's type: their program, and how it runs
    "gpt": ("torch_gpt.py", TRANSFORMER_PEERS),
    "seq2seq": ("torch_seq2seq.py", TRANSFORMER_PEERS),
    "pointer_generator": ("torch_pointer.py", {"cpu": ("torch-eager", "torch-hoisted", "torch-compile"),
                                               "cuda": ("torch-eager", "torch-hoisted", "torch-compile", "torch-graphs", "torch-graphs-bf16")}),
    "trajectory": ("torch_trajectory.py", {device: (*hows, "torch-loop") for device, hows in TRANSFORMER_PEERS.items()}),
    "bilstm": ("torch_bilstm.py", {"cpu": ("torch-fp32",), "cuda": ("torch-fp32", "torch-bf16")}),
}
CHECKED_STEPS = 4
LOSS_TOLERANCE = {"fp32": 2e-5, "bf16": 2e-2}  # of the loss: float32 sums in another order; bfloat16
UNKNOWN, START, FIRST_WORD = 0, 1, 3  # ids of a word tokenizer
WINDOW = {"cpu": 1, "cuda": 10}  # steps between two looks at the loss: a device is not to wait for them
ROWS_AT_ONCE = {"cpu": 1, "cuda": 5}  # whose peers compile side by side before the first of them is raced: most of a row's time on a device


# --- racers -----------------------------------------------------------------------------------------------


class Racer:
    """A process that prints a line per step; `read(line)` gives {step, ms, …} or None."""

    def __init__(self, how, command, read, folder, caches={}):
        self.how, self.steps, self.counted, self.peak, self.threads = how, [], [], 0, None
        self.begin = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, text=True,
                                        env={**os.environ, **caches})
        self.other = []  # lines that are not steps: what went wrong is among them
        self.news = threading.Condition()
        threading.Thread(target=self.follow, args=(read,), daemon=True).start()

    def follow(self, read):
        for line in self.process.stdout:
            step = read(line)
            with self.news:
                if step:
                    self.steps.append({**step, "end": time.monotonic()})
                else:
                    self.other.append(line.rstrip())
                self.news.notify()
        self.process.wait()
        with self.news:
            self.news.notify()

    def wait_for(self, done):
        with self.news:
            while not done():
                if self.process.poll() is not None:
                    raise RuntimeError(f"{self.how} stopped: " + " | ".join(self.other[-4:]))
                self.news.wait(0.5)

    def warm_up(self, steps):
        self.wait_for(lambda: len(self.steps) >= steps)
        self.process.send_signal(signal.SIGSTOP)

    def run(self, seconds, steps):
        """Awake for so long and for so many whole steps."""
        woken, before = time.monotonic(), len(self.steps)
        self.process.send_signal(signal.SIGCONT)

        def whole():
            return [s["ms"] for s in self.steps[before:] if s["end"] - s.get("span_ms", s["ms"]) / 1e3 >= woken]

        self.wait_for(lambda: time.monotonic() - woken >= seconds and len(whole()) >= steps)
        self.process.send_signal(signal.SIGSTOP)
        self.counted += whole()

    def stop(self):
        if self.process.poll() is None:
            status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
            self.peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
            self.process.kill()
        self.process.wait()


class OneTextEach:
    """Millrace generating: one text per process, as a user calls it."""

    how = "millrace"

    def __init__(self, command):
        self.command, self.counted, self.peak, self.ids, self.threads = command, [], 0, [], None

    def warm_up(self, _):
        self.run(0, 1)
        self.counted.clear()

    def run(self, _, steps):
        for _ in range(steps):
            process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            out, errors = process.stdout.read(), process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            if status != 0:
                raise RuntimeError(f"millrace stopped: {errors.strip()}")
            self.peak = max(self.peak, usage.ru_maxrss * 1024)
            self.ids = [int(i) for i in out.split()]
            self.counted.append(float(re.search(r"then ([0-9.]+) ms per token", errors)[1]))

    def stop(self):
        pass


def read_json(line):
    try:
        step = json.loads(line)
    except ValueError:
        return None
    return step if isinstance(step, dict) else None


def read_millrace(line):
    step = read_json(line)
    if not step or step.get("type") != "train":
        return None
    return {"step": step["step"], "ms": 1e3 * step["step_s"], "loss": step["loss"]}


def numbers():
    """The same on every machine."""
    state = 1
    while True:
        state = (state * 1103515245 + 12345) % 2**31
        yield state >> 16


# --- a row ------------------------------------------------------------------------------------------------


class Row:
    """A model that trains on one batch, again and again; or writes."""

    one_core = True  # may be quicker for peers

    def __init__(self, name, workload, folder, threads, device):
        self.name, self.w, self.folder, self.threads, self.device = name, workload, folder, threads, device
        self.tokens = 1 if workload["task"] == "generate" else workload["batch"] * (workload["length"] + workload.get("source_length", 0))
        self.slow = workload.get("slow", False)
        self.precision = workload.get("precision", "bf16" if device == "cuda" else "fp32")
        self.checked = 2 if self.slow else CHECKED_STEPS
        self.window = WINDOW[device] if not self.slow else min(2, WINDOW[device])
        self.racers, self.faults, self.failed = [], [], False
        folder.mkdir()
        self.data = self.make_data()
        self.runs = folder / "runs"

    def make_data(self):
        """Exactly one batch of windows: every step sees the same tokens, in whatever order they are drawn. Config words."""
        count = self.w["batch"] * self.w["length"] + 1
        text = bytes(97 + number % 26 for number in itertools.islice(numbers(), count))
        (self.folder / "text.txt").write_bytes(text)
        letters = sorted(set(text))
        self.ids = [letters.index(c) for c in text]
        return ["data.train=text.txt", "data.validation=text.txt", "data.sampling=sequential"]

    def inputs(self, weights):
        """What the peers read of the data."""
        return {"ids": self.ids[: self.w.get("prompt", len(self.ids))]}

    def command(self, *changes):
        w = self.w
        return [str(MILLRACE), "train", str(ROOT / "configs" / w["config"]), *self.data, f"training.batch_size={w['batch']}",
                f"training.max_length={w['length']}", "training.schedule=constant", "training.warmup=0 steps",
                f"training.log_interval={self.window}", f"device={self.device}", f"training.precision={self.precision}",
                "training.max_eval_batches=1", "sample.length=0", "training.eval_every=1000000000 steps", "checkpoint.every=1000000 minutes", "runtime.log_format=json",
                f"runtime.threads={self.threads}", *(f"model.{k}={v}" for k, v in w["model"].items()),
                *(f"training.{k}={v}" for k, v in w["training"].items()), *changes]

    def millrace(self, *changes):
        """A whole run: its standard output, and its run.json."""
        done = subprocess.run(self.command(*changes), cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"millrace: {done.stderr.strip()}")
        return done.stdout, json.loads((self.runs / "latest" / "run.json").read_text())

    def first_weights(self):
        """The weights Millrace begins with: those after an update too small to change a float."""
        self.millrace("run_name=first", "training.max_steps=1", "training.learning_rate=1e-30")
        return next((self.runs / "latest" / "checkpoints").glob("*/model.safetensors")).resolve()

    def describe(self, weights, window):
        """What the peers read."""
        workload = {**self.w, **self.inputs(weights), "weights": str(weights), "device": self.device, "window": window}
        (self.folder / "workload.json").write_text(json.dumps(workload))

    def prepare(self):
        weights = self.first_weights()
        self.describe(weights, self.window)
        plan = subprocess.run([*self.command()[:1], "plan", *self.command()[2:], "training.max_steps=1", "--json"],
                              cwd=self.folder, capture_output=True, text=True)
        generating = self.w["task"] == "generate"
        cost = json.loads(plan.stdout)
        self.arena = cost["arena_bytes"]
        self.flops, self.bytes = (0, 0) if generating else (cost["flops_per_update"], cost["bytes_per_update"])
        if generating:
            return OneTextEach([str(MILLRACE), "generate", str(weights.parent), "--prompt-ids", ",".join(map(str, self.inputs(weights)["ids"])),
                                "--ids", "--max-tokens", str(self.w["tokens"]), "--temperature", "0", "--device", self.device])
        return Racer("millrace", self.command("run_name=race", "training.max_steps=100000000"), self.read_windows, self.folder)

    def read_windows(self, line):
        step = read_millrace(line)
        return step and {**step, "span_ms": step["ms"] * self.window}

    def peer(self, how, threads, caches={}):
        return Racer(how, [str(PYTHON), str(ROOT / "bench" / "peers" / PEERS[self.w["model"]["type"]][0]), self.w["task"],
                           how.removeprefix("torch-"), str(threads), "workload.json"], read_json, self.folder, caches)

    def check(self, peer):
        """Raises unless the peer computes what Millrace computes."""
        if self.w["task"] == "generate":
            same = sum(a == b for a, b in zip(self.ours.ids, peer.steps[0]["ids"]))
            if same != self.w["tokens"]:
                raise RuntimeError(f"{peer.how} gives other tokens than millrace: {same} of {self.w['tokens']} are equal")
            return
        for a, b in zip(self.ours.steps[: self.checked], peer.steps[: self.checked], strict=True):
            if not abs(a["loss"] - b["loss"]) <= LOSS_TOLERANCE[self.precision] * max(b["loss"], 1.0):  # below, a batch is known by heart
                raise RuntimeError(f"{peer.how} has loss {b['loss']:.6f} at step {b['step']}, millrace {a['loss']:.6f}")

    def enter_in_turn(self, hows, warm, seconds, steps):
        """On a CPU, where all threads are wanted. Small work may be quicker on one core: each peer keeps the better of all and
        one. What is far slower on one core in eager mode is not compiled for it."""
        heat = []
        hows, later = (hows[:1], hows[1:]) if self.slow else (hows, [])
        for how in hows:
            trials = []
            for threads in [self.threads] + [1] * (self.threads > 1 and self.one_core):
                racer = self.peer(how, threads)
                self.racers.append(racer)
                try:
                    racer.warm_up(warm)
                    self.check(racer)
                    racer.run(seconds, steps)
                    trials.append((statistics.median(racer.counted), threads, racer))
                    racer.counted.clear()
                except RuntimeError as fault:
                    self.leave_out(racer, fault)
            if len(trials) == 2:
                self.one_core = trials[1][0] < 1.3 * trials[0][0]
            trials.sort(key=lambda t: t[0])
            for _, _, racer in trials[1:]:
                racer.stop()
                self.racers.remove(racer)
            for _, threads, racer in trials[:1]:
                racer.threads = threads
                heat.append(racer)
        return heat, later

    def enter_together(self, hows, warm, seconds, steps):
        """On a device, where compiling is long: all at once. Those that find no memory beside the others are for the next heat."""
        heat, later = [], []
        entered = [self.peer(how, self.threads) for how in hows]
        self.racers += entered
        for racer in entered:
            try:
                racer.warm_up(warm)
                self.check(racer)
                heat.append(racer)
            except RuntimeError as fault:
                if "OutOfMemoryError" in str(fault) and len(entered) > 1:
                    later.append(racer.how)
                    racer.stop()
                    self.racers.remove(racer)
                else:
                    self.leave_out(racer, fault)
        if later and not heat:
            heat, _ = self.enter_together(later[:1], warm, seconds, steps)
            later = later[1:]
        return heat, later

    def unless_failed(self, step):
        """A row that fails is left out from there on; the others go on."""
        if self.failed:
            return None
        try:
            return step()
        except RuntimeError as fault:
            self.failed = True
            self.faults.append(str(fault))
            say(f"{self.name:20} failed: {fault}")
            return None

    def leave_out(self, racer, fault):
        self.faults.append(str(fault))
        say(f"{self.name:20} {racer.how} is left out: {fault}")
        racer.stop()
        self.racers.remove(racer)

    def enter_millrace(self):
        """It stays for all heats. Alone on the machine: it times its choices of algorithms."""
        self.racers.append(self.prepare())
        self.ours = self.racers[0]
        self.ours.warm_up(self.warm_steps())

    def warm_steps(self):
        return 1 if self.w["task"] == "generate" else self.checked

    def enter(self, hows, seconds, steps):
        """The next heat, warm and stopped."""
        way = self.enter_together if self.device == "cuda" else self.enter_in_turn
        self.heat, self.waiting = way(hows, self.warm_steps(), seconds, 1 if self.slow else steps)

    def race(self, rounds, seconds, steps):
        """Results by racer: {how, ms, peak_bytes, threads}. The first heat has entered."""
        while True:
            for _ in range(rounds):
                for racer in (self.ours, *self.heat):
                    racer.run(seconds, 1 if self.slow else steps)
            for racer in self.heat:
                racer.stop()
            if not self.waiting:
                break
            self.enter(self.waiting, seconds, steps)
        self.ours.stop()
        results = []
        for racer in self.racers:
            ms = statistics.median(racer.counted)
            if self.device == "cuda":
                racer.peak = racer.steps[-1]["device_peak"] if racer is not self.ours else racer.steps[-1].get("arena") or self.arena
            results.append({"workload": self.name, "how": racer.how, "ms": ms, "tokens_per_s": 1e3 * self.tokens / ms,
                            "peak_bytes": racer.peak, "threads": racer.threads or self.threads,
                            "steps": len(racer.counted), "flops": self.flops, "bytes": self.bytes})
        return results

    def stop(self):
        for racer in self.racers:
            racer.stop()
        shutil.rmtree(self.folder)

    def start(self, how, caches):
        """Seconds from the start of a process to the end of its first step."""
        if how == "millrace":
            racer = Racer(how, self.command("run_name=start", "training.max_steps=100", "training.log_interval=1"), read_millrace,
                          self.folder, caches)
        else:
            racer = self.peer(how, self.threads, caches)
        try:
            racer.wait_for(lambda: racer.steps)
            return racer.steps[0]["end"] - racer.begin
        finally:
            racer.stop()

    def account(self, ms):
        """A plain run of Millrace: its account of time as text, and what of it is kept."""
        steps = max(6, int((7e3 if self.device == "cuda" else 8e3) / ms))
        out, record = self.millrace("run_name=account", f"training.max_steps={steps}", "training.log_interval=1000000")
        kept = {}
        if found := re.search(r"([0-9.]+) GFLOP/s in products, ([0-9.]+) GB/s from memory", out):
            kept = {"ceiling_flops_per_s": float(found[1]) * 1e9, "ceiling_bytes_per_s": float(found[2]) * 1e9}
        elif found := re.search(r"ceiling ([0-9.]+)", out):
            kept = {"ceiling_flops_per_s": float(found[1]) * 1e9}
        if self.device == "cuda":
            kept["ops"] = self.time_by_op()
            kept |= {k: record[k] for k in ("device_bytes", "predicted_device_bytes") if k in record}
        else:
            kept["peak_bytes"] = record["peak_resident_bytes"]
        return out, kept

    def time_by_op(self):
        """From profile.tsv of the last run: op -> microseconds of an update, those at the limit, nodes."""
        lines = (self.runs / "latest" / "profile.tsv").read_text().splitlines()
        names = lines[0].split("\t")
        nodes = [dict(zip(names, line.split("\t"))) for line in lines[1:]]
        most = max(int(n["runs"]) for n in nodes)  # of the training step
        ops = {}
        for n in (n for n in nodes if int(n["runs"]) == most):
            op = ops.setdefault(n["op"], {"us": 0, "limit_us": 0, "nodes": 0})
            op["us"] += float(n["us_per_run"])
            op["limit_us"] += float(n["limit_us"])
            op["nodes"] += int(n["nodes"])
        return dict(sorted(ops.items(), key=lambda item: -item[1]["us"]))


class PairRow(Row):
    """Pairs that are all as long as they may be."""

    def make_data(self):
        w = self.w
        known, draw = [f"a{i}" for i in range(w["model"]["vocab_size"] - FIRST_WORD)], numbers()
        # Rare words, and targets that are words of their source, are what a pointer-generator copies.
        self.sources, self.targets = [], []
        for row in range(w["batch"]):
            source = [f"z{row}x{i}" if i % 16 == 7 else known[next(draw) % len(known)] for i in range(w["source_length"])]
            self.sources.append(source)
            self.targets.append([source[next(draw) % len(source)] if i % 4 == 3 else known[next(draw) % len(known)] for i in range(w["length"])])
        # What is behind source_length is cut off: there the words that are not rare become more frequent than the others.
        for name, texts in (("source", self.sources), ("target", self.targets)):
            lines = [" ".join(words + known * (8 if name == "source" and i == 0 else 0)) for i, words in enumerate(texts)]
            (self.folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
        return ["data.format=lines", "data.tokenizer=word", f"data.vocab_size={w['model']['vocab_size']}", "data.min_frequency=1",
                f"training.max_source_length={w['source_length']}", "data.test=[]", "data.test_target=[]", "data.fields=[]",
                *(f"data.{split}{end}={name}.txt" for split in ("train", "validation") for end, name in (("", "source"), ("_target", "target")))]

    def inputs(self, weights):
        vocab = self.w["model"]["vocab_size"]
        words = json.loads((weights.parent / "tokenizer.json").read_text())["words"]
        ids = {word: FIRST_WORD + i for i, word in enumerate(words[: vocab - FIRST_WORD])}
        pairs = {"source": [], "words": [], "tokens": [], "targets": [], "rare": 0}
        for source, target in zip(self.sources, self.targets):
            rare = {}  # by numbers behind the vocabulary
            pairs["words"].append([ids[word] if word in ids else rare.setdefault(word, vocab + len(rare)) for word in source])
            pairs["targets"].append([ids[word] if word in ids else rare[word] for word in target])
            pairs["source"].append([ids.get(word, UNKNOWN) for word in source])
            pairs["tokens"].append([START] + [ids.get(word, UNKNOWN) for word in target[:-1]])
            pairs["rare"] = max(pairs["rare"], len(rare))
        if self.w["model"]["type"] == "seq2seq":
            pairs["targets"] = [[i if i < vocab else UNKNOWN for i in row] for row in pairs["targets"]]
        return {"pairs": pairs}


class PathRow(Row):
    """Paths of many lengths, packed into rows: all of them in every step."""

    def make_data(self):
        w, draw = self.w, itertools.islice(numbers(), 10**9)
        self.paths = []
        for _ in range(w["batch"]):
            x, y, dx, dy = (next(draw) % 1000 / 100 - 5 for _ in range(4))
            path = []
            for _ in range(w["length"] - 60 + next(draw) % 61):
                path.append((round(x, 3), round(y, 3)))
                dx, dy = dx + (next(draw) % 100 - 49.5) / 500, dy + (next(draw) % 100 - 49.5) / 500
                x, y = x + dx / 10, y + dy / 10
            self.paths.append(path)
        (self.folder / "paths.txt").write_text("".join(f"{t} {agent} {x} {y}\n" for agent, path in enumerate(self.paths)
                                                       for t, (x, y) in enumerate(path)))
        self.tokens = sum(len(path) for path in self.paths)
        data = ["data.train=paths.txt", "data.validation=paths.txt", "data.window_stride=1000", "data.batching=packing", "data.rotate=false"]
        stats = subprocess.run([str(MILLRACE), "data", "stats", str(ROOT / "configs" / w["config"]), *data, "--json",
                                f"training.max_length={w['length']}"], cwd=self.folder, capture_output=True, text=True)
        if stats.returncode != 0:
            raise RuntimeError(f"millrace: {stats.stderr.strip()}")
        self.rows = json.loads(stats.stdout)["rows_per_epoch"]
        return data

    def command(self, *changes):
        return super().command(f"training.batch_size={self.rows}", *changes)

    def inputs(self, weights):
        return {"paths": self.paths, "channels": 2, **json.loads((weights.parent / "normalisation.json").read_text())}


class BiLstmRow(Row):
    """A stack of LSTM layers alone, forward and backward."""

    def __init__(self, name, workload, folder, threads, device):
        self.name, self.w, self.folder, self.threads, self.device = name, workload, folder, threads, device
        self.slow, self.checked, self.precision = False, CHECKED_STEPS, "bf16" if device == "cuda" else "fp32"
        self.racers, self.faults, self.failed = [], [], False
        m, places = workload["model"], workload["batch"] * workload["length"]
        widths = [m["input"]] + [2 * m["hidden"]] * (m["layers"] - 1)
        self.tokens = places
        self.flops = sum(3 * 2 * places * 8 * m["hidden"] * (width + m["hidden"]) for width in widths)
        self.bytes = 0
        folder.mkdir()

    def prepare(self):
        (self.folder / "workload.json").write_text(json.dumps({**self.w, "device": self.device, "window": WINDOW[self.device]}))
        m = self.w["model"]
        words = [self.device, self.precision, self.w["length"], self.w["batch"], m["input"], m["hidden"],
                 m["layers"], WINDOW[self.device], "weights.safetensors"]
        return Racer("millrace", [str(MILLRACE.parent / "millrace_bilstm"), *map(str, words)], read_json, self.folder)

    def peer(self, how, threads):
        return Racer(how, [str(PYTHON), str(ROOT / "bench" / "peers" / "torch_bilstm.py"), how.removeprefix("torch-"), str(threads),
                           "workload.json", "weights.safetensors"], read_json, self.folder)

    def check(self, peer):
        for what in ("loss", "grad_norm"):
            a, b = self.ours.steps[0][what], peer.steps[0][what]
            if not abs(a - b) <= LOSS_TOLERANCE[self.precision] * abs(b):
                raise RuntimeError(f"{peer.how} has {what} {b:.6f}, millrace {a:.6f}")


KINDS = {"gpt": Row, "seq2seq": PairRow, "pointer_generator": PairRow, "trajectory": PathRow, "bilstm": BiLstmRow}


# --- the table --------------------------------------------------------------------------------------------


def human_bytes(n):
    return f"{n / 2**20:,.0f} MiB"


def show(results, ceiling):
    ours = next(r for r in results if r["how"] == "millrace")
    for r in results:
        share = f"{100 * r['flops'] / (r['ms'] / 1e3) / ceiling:4.0f} %" if ceiling and r["flops"] else "     -"
        ratio = "      " if r is ours else f"{r['ms'] / ours['ms']:5.2f}x"
        say(f"{r['workload']:20} {r['how']:14} {r['ms']:10.2f} {r['tokens_per_s']:11,.0f} {ratio} {share} "
            f"{human_bytes(r['peak_bytes']):>10}")


def show_starts(row, peers):
    """From nothing, then with what the first start has left in the caches."""
    row.describe(row.first_weights(), 1)
    seconds = {}
    for how in ("millrace", *peers):
        with tempfile.TemporaryDirectory(prefix="millrace-caches-") as temp:
            caches = {"MILLRACE_CACHE": f"{temp}/millrace", "TORCHINDUCTOR_CACHE_DIR": f"{temp}/inductor", "TRITON_CACHE_DIR": f"{temp}/triton"}
            cold, warm = row.start(how, caches), statistics.median(row.start(how, caches) for _ in range(3))
            say(f"{row.name:20} {how:14} first step done after {cold:6.1f} s cold, {warm:6.1f} s warm (median of 3)")
            seconds[how] = {"cold_s": cold, "warm_s": warm}
    return seconds


def peers_of(workload, device, only):
    """Those that enter; `only`: of these, with commas."""
    entrants = PEERS[workload["model"]["type"]][1][device]
    if device == "cpu" and workload.get("precision") == "bf16":
        entrants = (*entrants, *MEDIUM)
    return [how for how in entrants if how not in workload.get("without", ()) and (not only or how in only.split(","))]


def groups(names, suite, device):
    """Rows whose peers enter side by side; by itself what takes most of a device's memory."""
    alone = [[name] for name in names if suite[name].get("alone")]
    others = [name for name in names if not suite[name].get("alone")]
    return alone + [others[i : i + ROWS_AT_ONCE[device]] for i in range(0, len(others), ROWS_AT_ONCE[device])]


def race_and_account(row, rounds, seconds, steps, account):
    """Results of a row that has entered, printed, too."""
    results = row.race(rounds, seconds, steps)
    out, kept = row.account(results[0]["ms"]) if row.w["task"] == "train" else ("", {})
    results[0] |= kept
    for r in results:
        r["ceiling_flops_per_s"] = kept.get("ceiling_flops_per_s")
    show(results, kept.get("ceiling_flops_per_s"))
    if account:
        say(out)
    return results


def main():
    parser = argparse.ArgumentParser(prog="bench/run", description="Millrace and its peers on the same workloads, interleaved.",
                                     epilog="suites: " + ", ".join(SUITES) + ", data and beam (with options of their own)")
    parser.add_argument("suite", help="which workloads")
    parser.add_argument("--only", help="only these workloads, with commas")
    parser.add_argument("--quick", action="store_true", help="few steps: for a first look, not for figures")
    parser.add_argument("--account", action="store_true", help="also print where Millrace's time goes, per workload")
    parser.add_argument("--rounds", type=int, help="turns each racer gets; 7 unless said")
    parser.add_argument("--start", action="store_true", help="only the time from start to first step, cold and warm")
    parser.add_argument("--continue", dest="go_on", action="store_true", help="only what the results of this commit and machine lack yet")
    parser.add_argument("--no-peers", action="store_true", help="only Millrace")
    parser.add_argument("--peers", help="only these peers, with commas: torch-compile, …; for a first look, and with --start")
    args = parser.parse_args()
    if args.suite not in SUITES:
        fail(f"bench/run: unknown suite '{args.suite}'; known: {', '.join(SUITES)}, data, beam")
    suite, device = SUITES[args.suite], "cuda" if args.suite == "cuda" else "cpu"
    wanted = args.only.split(",") if args.only else list(suite)
    if unknown := [w for w in wanted if w not in suite]:
        fail(f"bench/run: suite {args.suite} has no workload '{unknown[0]}'; known: {', '.join(suite)}")

    versions = None
    if not args.no_peers:
        versions, missing = install_peers()
        if not versions:
            say(f"missing peers: PyTorch ({missing})")
    threads = len(os.sched_getaffinity(0))
    rounds, seconds, steps = (2, 0.5, 2) if args.quick else (7, 1.5, 3) if device == "cpu" else (7, 1.0, 2)
    rounds = args.rounds or rounds
    say(f"{machine(device)}; commit {commit()}; {versions or 'no peers'}; medians over {rounds} turns each of {seconds} s and {steps} steps "
        "or more")
    say(f"{'workload':20} {'how':14} {'ms':>10} {'tokens/s':>11} {'ratio':>6} {'ceiling':>6} {'memory':>10}")
    rows, starts, faults = [], {}, []
    path = ROOT / "bench" / "results" / f"{args.suite}-{slug(machine(device))}.json"
    args.go_on = args.go_on or args.start  # beside the race that is there
    if (args.only and not args.go_on) or args.quick or args.no_peers or (args.peers and not args.start):
        path = ROOT / "build" / f"bench-{args.suite}.json"  # parts and first looks do not replace a whole race
    record = {"suite": args.suite, "machine": machine(device), "command": "bench/run " + " ".join(sys.argv[1:]), "commit": commit(),
              "date": datetime.date.today().isoformat(), "peers": versions, "rows": rows, "starts": starts}

    def keep():
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n")

    if args.go_on and path.exists():
        before = json.loads(path.read_text())
        if all(before[k] == record[k] for k in ("machine", "commit", "peers")):
            rows += before["rows"]
            starts |= before.get("starts", {})
        done = set(starts) if args.start else {r["workload"] for r in rows}
        wanted = [w for w in wanted if w not in done]
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / ".cache" / "inductor"))
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as temp:
        def row_of(name):
            return KINDS[suite[name]["model"]["type"]](name, suite[name], pathlib.Path(temp) / name, threads, device)

        if args.start:
            for name in wanted:
                starts[name] = show_starts(row_of(name), peers_of(suite[name], device, args.peers) if versions else ())
                keep()
            wanted = []
        for names in groups(wanted, suite, device):
            entered = [row_of(name) for name in names]
            try:
                for row in entered:
                    row.unless_failed(row.enter_millrace)
                with ThreadPoolExecutor(len(entered)) as pool:
                    list(pool.map(lambda row: row.unless_failed(lambda: row.enter(peers_of(row.w, device, args.peers) if versions else (), seconds, steps)), entered))
                for row in entered:
                    rows += row.unless_failed(lambda: race_and_account(row, rounds, seconds, steps, args.account)) or ()
                    keep()
            finally:
                for row in entered:
                    row.stop()
                    faults += [f"{row.name}: {fault}" for fault in row.faults]
    for fault in faults:
        say(f"missing: {fault}")
    say(f"written: {path.relative_to(ROOT)}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
