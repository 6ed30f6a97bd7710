#!/usr/bin/env python3
"""bench/run data: tokenizers and the loader beside their peers, memory beside the size of the data.

Everything is done in turns, in one go; figures are medians. The peers are given the same files and must give the same ids.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import corpus
from surroundings import MILLRACE, PYTHON, ROOT, commit, fail, install_peers, machine, say, slug

TOKENIZE, LOADER = MILLRACE.with_name("millrace_tokenize"), MILLRACE.with_name("millrace_loader")
TOKENS_PEER, LOADER_PEER = ROOT / "bench/peers/text_tokens.py", ROOT / "bench/peers/torch_loader.py"
PACKAGES = ("tokenizers", "tiktoken", "sentencepiece", "torch")
CONFIG = str(ROOT / "configs" / "quickstart.yaml")
PARTS = ("tokenizers", "loader", "memory", "waiting")
MB = 10**6


class Race:
    """What all parts share: a folder, the peers there are, the rows so far."""

    def __init__(self, folder, peers, rounds, lines):
        self.folder, self.peers, self.rounds, self.lines = folder, peers, rounds, lines
        self.rows, self.faults = [], []

    def add(self, workload, how, **figures):
        self.rows.append({"workload": workload, "how": how, **figures})

    def learn(self, package, kind, texts, out):
        if package in self.peers and not out.exists():
            call([PYTHON, TOKENS_PEER, "learn", package, kind, *texts, out])
        return out.exists()

    def byte_level(self):
        """A tokenizer.json learned from all texts; None without the package that learns it."""
        return self.learn("tokenizers", "bpe", self.sources(), self.folder / "bpe.json") and self.folder / "bpe.json"

    def sources(self):
        paths = []
        for name, lines in self.lines.items():
            paths.append(self.folder / f"{name}-source.txt")
            if not paths[-1].exists():
                paths[-1].write_bytes(b"".join(lines))
        return paths

    def prose(self):
        return self.lines.get("prose") or self.lines["code"]


def call(command, **environment):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode != 0:
        raise RuntimeError(f"{pathlib.Path(command[0]).name} {command[1]}: {done.stderr.strip()[-500:]}")
    return done.stdout


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


# --- tokenizers -------------------------------------------------------------------------------------------


def differing(model, package, text, folder):
    """How many of the lines of a text get other ids from the peer, and of how many."""
    strings = folder / "strings.jsonl"
    with open(text, encoding="utf-8", newline="\n") as lines, open(strings, "w") as out:
        out.writelines(json.dumps(line.rstrip("\n")) + "\n" for line in lines)
    ours = [line.removeprefix("not the same when decoded ").split() for line in call([TOKENIZE, model, "ids", strings]).splitlines()]
    theirs = [line.split() for line in call([PYTHON, TOKENS_PEER, "ids", package, model, text]).splitlines()]
    return sum(a != b for a, b in zip(ours, theirs, strict=True)), len(ours)


def race_tokenizers(race, size):
    texts = {name: corpus.write_shuffled(lines, race.folder / f"{name}.txt", size) for name, lines in race.lines.items()}
    sources = dict(zip(race.lines, race.sources()))
    plain = "prose" if "prose" in texts else "code"
    cases = [("byte-level BPE", race.folder / "bpe.json", name, ("tokenizers", "tiktoken")) for name in texts]
    cases += [(f"SentencePiece {kind}", race.folder / f"{kind}.model", plain, ("sentencepiece",)) for kind in ("unigram", "bpe")]
    say(f"{'tokenizer, text, threads':44} {'how':14} {'Mtoken/s':>9} {'MB/s':>7} {'ratio':>7}   ids")
    for what, model, name, peers in cases:
        if peers[0] == "tokenizers":
            learned = race.byte_level()
        else:
            learned = race.learn(peers[0], what.split()[1], [sources[name]], model)
        if not learned:
            race.faults.append(f"{what}: {peers[0]}, which learns the tokenizer, is missing")
            continue
        peers = [package for package in peers if package in race.peers]
        ids = {package: differing(model, package, sources[name], race.folder) for package in peers}
        for threads in (1, 2):
            racers = [Tokenizing("millrace", [TOKENIZE, model, "time", texts[name], threads])]
            racers += [Tokenizing(p, [PYTHON, TOKENS_PEER, "time", p, model, texts[name], threads]) for p in peers]
            take_turns(race, f"{what}, {name}, {threads}", racers, ids)


class Tokenizing:
    """A process that passes over its text when it is told to."""

    def __init__(self, how, command):
        self.how, self.counted, self.peak = how, [], 0
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def pass_once(self):
        with contextlib.suppress(BrokenPipeError):  # it has ended: no line comes
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.how} stopped with code {self.process.wait()}")
        self.step = json.loads(line)
        self.counted.append(self.step["ms"])

    def stop(self):
        self.peak, _ = memory_of(self.process)
        self.process.stdin.close()
        self.process.wait()


def take_turns(race, workload, racers, ids):
    try:
        for _ in range(1 + race.rounds):
            for racer in racers:
                racer.pass_once()
    except RuntimeError as fault:
        race.faults.append(f"{workload}: {fault}")
        return
    finally:
        for racer in racers:
            racer.stop()
    for racer in racers:
        del racer.counted[0]  # caches were empty, pages were new
    ours = statistics.median(racers[0].counted)
    for racer in racers:
        ms, step = statistics.median(racer.counted), racer.step
        wrong, lines = ids.get(racer.how, (0, 0))
        if racer.how == "millrace":
            note = ""
        else:
            note = "equal" if wrong == 0 else f"{wrong:,} of {lines:,} lines differ"
        say(f"{workload:44} {racer.how:14} {step['tokens'] / ms / 1e3:9.2f} {step['bytes'] / ms / 1e3:7.1f} "
            + (f"{'':7}" if racer.how == "millrace" else f"{ms / ours:6.2f}x") + f"   {note}")
        race.add(workload, racer.how, ms=ms, tokens=step["tokens"], bytes=step["bytes"], tokens_per_s=1e3 * step["tokens"] / ms,
                 turns_ms=racer.counted, peak_bytes=racer.peak,
                 **({} if racer.how == "millrace" else {"lines_compared": lines, "lines_differing": wrong}))


# --- the loader -------------------------------------------------------------------------------------------


def loader_command(epochs, tokenizer, text, short):
    return [LOADER, epochs, CONFIG, f"data.train={text}", f"data.validation={short}", "data.format=lines", f"data.tokenizer={tokenizer}",
            "data.batching=buckets", "training.batch_size=64", "training.max_length=256", "data.num_workers=2", "data.prefetch_factor=4"]


def race_loader(race, size):
    tokenizer = race.byte_level()
    if not tokenizer:
        race.faults.append("loader: tokenizers, which learns the tokenizer, is missing")
        return
    short = race.folder / "short.txt"
    short.write_bytes(b"".join(race.prose()[:100]))
    say(f"\n{'loader, two workers: epoch of 64 x 256':44} {'how':14} {'seconds':>9} {'Mtok/s':>7} {'ratio':>7}   useful")
    for name, sentences in (("sentences", lambda _: 1), ("documents", corpus.documents)):
        text = corpus.write_shuffled(race.prose(), race.folder / f"loader-{name}.txt", size, sentences)
        times, last = {}, {}
        for _ in range(race.rounds):
            loader_round(race, tokenizer, text, short, times, last)
        if len({(r["sequences"], r["useful"], r["sum"]) for r in last.values()}) != 1:
            race.faults.append(f"loader, {name}: not the same sequences: {last}")
        show_loader(race, name, times, last)


def loader_round(race, tokenizer, text, short, times, last):
    """Everybody once: tokens made and read for an epoch, then epochs of tokens that are there."""

    def take(when, how, seconds, epoch):
        times.setdefault((when, how), []).append(seconds)
        last[when, how] = epoch

    with tempfile.TemporaryDirectory(dir=race.folder) as cache:
        first = objects(call(loader_command(1, tokenizer, text, short), MILLRACE_CACHE=cache))[0]
        take("cold", "millrace", first["open_s"] + first["epoch_s"], first)
        if "torch" in race.peers:
            stream = objects(call([PYTHON, LOADER_PEER, "stream", tokenizer, text, 1]))[0]
            take("cold", "torch-stream", stream["epoch_s"], stream)
            made = objects(call([PYTHON, LOADER_PEER, "prepare", tokenizer, text, f"{cache}/arrays"]))[0]
        again = objects(call(loader_command(2, tokenizer, text, short), MILLRACE_CACHE=cache))
        take("warm", "millrace", again[0]["open_s"] + again[0]["epoch_s"], again[0])
        take("steady", "millrace", again[1]["epoch_s"], again[1])
        if "torch" in race.peers:
            mapped = objects(call([PYTHON, LOADER_PEER, "memmap", f"{cache}/arrays", 2]))
            take("cold", "torch-memmap", made["seconds"] + mapped[0]["epoch_s"], mapped[0])
            take("warm", "torch-memmap", mapped[0]["epoch_s"], mapped[0])
            take("steady", "torch-memmap", mapped[1]["epoch_s"], mapped[1])


def show_loader(race, name, times, last):
    for when in ("cold", "warm", "steady"):
        for (other, how), list_of in times.items():
            if other != when:
                continue
            seconds, r = statistics.median(list_of), last[when, how]
            ratio = seconds / statistics.median(times[when, "millrace"])
            say(f"{f'{name}, {when}':44} {how:14} {seconds:9.3f} {r['useful'] / seconds / 1e6:7.2f} "
                + (f"{'':7}" if how == "millrace" else f"{ratio:6.2f}x") + f"   {100 * r['useful'] / r['places']:.2f} %")
            race.add(f"loader, {name}, {when}", how, seconds=seconds, sequences=r["sequences"], useful_tokens=r["useful"],
                     places=r["places"], batches=r["batches"], useful_tokens_per_s=r["useful"] / seconds,
                     sequences_per_s=r["sequences"] / seconds, turns_seconds=list_of)


# --- memory -----------------------------------------------------------------------------------------------


def memory_of(process):
    """The largest resident size it has had, and what of it now is its own rather than pages of files; 0 when it has ended."""
    try:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0, 0
    return tuple(int(found[1]) * 1024 if (found := re.search(rf"{name}:\s+(\d+) kB", status)) else 0 for name in ("VmHWM", "RssAnon"))


def watched(command, **environment):
    """What a program prints, and its memory, by asking every 10 ms: ru_maxrss would begin with our own size."""
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, **environment})
    peak, own = 0, 0
    while process.poll() is None:
        now = memory_of(process)
        peak, own = max(peak, now[0]), max(own, now[1])
        time.sleep(0.01)
    if process.returncode != 0:
        raise RuntimeError(f"millrace data prepare: {process.stderr.read().strip()[-500:]}")
    return json.loads(process.stdout.read()), peak, own


def measure_memory(race, small, large):
    tokenizer = race.byte_level() or "byte"
    if (free := shutil.disk_usage(race.folder).free) < 4 * large:
        race.faults.append(f"memory: {4 * large / 1e9:.0f} GB of disk wanted in {race.folder}, {free / 1e9:.0f} GB are free")
        return
    say(f"\n{'data prepare':44} {'text':>9} {'seconds':>9} {'MB/s':>7} {'peak MiB':>9} {'own MiB':>8} {'second start':>13}")
    for name, form, sentences in (("one long text", "text", lambda _: 1), ("lines, sentences", "lines", lambda _: 1),
                                  ("lines, documents", "lines", corpus.documents)):
        peaks = []
        for size in (small, large):
            text = corpus.write_shuffled(race.prose(), race.folder / "large.txt", size, sentences)
            with tempfile.TemporaryDirectory(dir=race.folder) as cache:
                command = [MILLRACE, "data", "prepare", CONFIG, f"data.train={text}", f"data.format={form}",
                           f"data.tokenizer={tokenizer}", "training.max_length=256", "--json"]
                made, peak, own = watched(command, MILLRACE_CACHE=cache)
                again = [watched(command, MILLRACE_CACHE=cache) for _ in range(race.rounds)]
            text.unlink()
            second = statistics.median(found["seconds"] for found, _, _ in again)
            if not made["made"] or any(found["made"] for found, _, _ in again):
                race.faults.append(f"memory, {name}: the cache was not used as expected")
            peaks.append((peak, own))
            say(f"{name:44} {size / MB:6,.0f} MB {made['seconds']:9.2f} {made['bytes'] / made['seconds'] / MB:7.1f} {peak / 2**20:9.1f} "
                f"{own / 2**20:8.1f} {1e3 * second:10.1f} ms")
            race.add(f"data prepare, {name}", "millrace", bytes=made["bytes"], tokens=made["tokens"]["train"], seconds=made["seconds"],
                     peak_bytes=peak, own_peak_bytes=own, second_start_seconds=second, second_start_peak_bytes=max(p for _, p, _ in again))
        (peak_small, own_small), (peak_large, own_large) = peaks
        say(f"{'':44} {large / small:.0f} times the text: {peak_large / peak_small:.2f} times the peak, {own_large / own_small:.2f} times "
            "its own")


# --- waiting for data -------------------------------------------------------------------------------------


def measure_waiting(race, seconds, data):
    """Short trainings with default settings: the share of time that steps wait for their batches."""
    cases = {}
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        wants_folder = "data.folder=" in path.read_text()
        folder = pathlib.Path(data or ".") / path.stem
        if wants_folder and not (data and folder.is_dir()):
            say(f"missing: {path.stem} (no folder {path.stem} in --data)")
            continue
        cases[path.stem] = [str(path)] + [f"data.folder={folder.resolve()}"] * wants_folder
    source = race.sources()[0]
    for name in ("shakespeare", "shakespeare-small"):
        cases[name] = [str(ROOT / "configs" / f"{name}.yaml"), f"data.train={source}"]
    if tokenizer := race.byte_level():
        lines = [f"data.train={source}", "data.format=lines", f"data.tokenizer={tokenizer}"]
        cases["quickstart, packed lines"] = [CONFIG, *lines]
        cases["quickstart, buckets of lines"] = [CONFIG, *lines, "data.batching=buckets"]
    say(f"\n{'training, default settings':44} {'updates':>9} {'ms each':>9} {'waits for data':>16}")
    for name, words in cases.items():
        folder = race.folder / "training"
        folder.mkdir()
        command = [str(MILLRACE), "train", *words, "run_name=waiting", f"runtime.stop_after={seconds} seconds", "training.log_interval=1",
                   "training.eval_every=1000000 steps", "sample.length=0"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode not in (0, 75):
            race.faults.append(f"{name}: {done.stderr.strip()[-300:]}")
        else:
            metrics = next((folder / "runs").glob("waiting/2*/metrics.jsonl"))
            # The first update is always waited for.
            steps = [m for m in objects(metrics.read_text()) if m.get("type") == "train"][1:]
            all_seconds = sum(m["time/step"] for m in steps)
            share = sum(m["time/step"] * m["time/input_wait"] for m in steps) / max(1e-9, all_seconds)
            say(f"{name:44} {len(steps):9,} {1e3 * all_seconds / max(1, len(steps)):9.1f} {100 * share:14.4f} %")
            race.add(f"training, {name}", "millrace", updates=len(steps), seconds=all_seconds, input_wait_share=share)
        shutil.rmtree(folder)


# --- all of it --------------------------------------------------------------------------------------------


def find_peers():
    """Which packages there are, as {name: version}; the others are named."""
    found = {}
    for name in PACKAGES:
        version, missing = install_peers((name, "numpy"), f"import numpy, {name}; print('{name}', {name}.__version__)")
        if version:
            found[name] = version
        else:
            say(f"missing peer: {name} ({missing})")
    return found


def main():
    parser = argparse.ArgumentParser(prog="bench/run data", description="Tokenizers, loader and memory beside their peers.")
    parser.add_argument("--text", action="append", default=[], help="a file of prose; may be repeated")
    parser.add_argument("--data", help="a folder with " + ", ".join(corpus.KNOWN))
    parser.add_argument("--rounds", type=int, default=5, help="turns each racer gets; 5 unless said")
    parser.add_argument("--only", help="only these parts, with commas: " + ", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="small files and few turns: for a first look, not for figures")
    args = parser.parse_args()
    wanted = args.only.split(",") if args.only else list(PARTS)
    if unknown := [w for w in wanted if w not in PARTS]:
        fail(f"bench/run data: no part '{unknown[0]}'; known: {', '.join(PARTS)}")
    try:
        files = corpus.files_of(args.text, args.data)
    except FileNotFoundError as fault:
        fail(f"bench/run data: {fault}")
    size, small, large, seconds, rounds = 32 * MB, 100 * MB, 2000 * MB, 15, args.rounds
    if args.quick:
        size, small, large, seconds, rounds = 4 * MB, 10 * MB, 50 * MB, 5, 2

    peers = find_peers()
    lines = {"prose": corpus.lines_of(files)} if files else {}
    lines["code"] = corpus.python_library(size)
    texts = {name: {"lines": len(list_of), "bytes": sum(map(len, list_of))} for name, list_of in lines.items()}
    say(f"{machine()}; commit {commit()}; {', '.join(peers.values()) or 'no peers'}; medians of {rounds} turns; "
        f"load {os.getloadavg()[0]:.1f}")
    say("prose: " + (", ".join(f.name for f in files) or "none given (--data or --text)") + "; code: the Python library; "
        + "; ".join(f"{name} {t['bytes'] / MB:.1f} MB" for name, t in texts.items()) + f", shuffled and repeated to {size / MB:.0f} MB")
    words = ["FOLDER" if w == args.data else pathlib.Path(w).name if w in args.text else w for w in sys.argv[1:]]
    record = {"suite": "data", "machine": machine(), "command": "bench/run data " + " ".join(words), "commit": commit(),
              "date": datetime.date.today().isoformat(), "peers": ", ".join(peers.values()), "rounds": rounds,
              "files": [f.name for f in files], "texts": texts}
    path = ROOT / "bench" / "results" / f"data-{slug(machine())}.json"
    if args.only or args.quick or len(peers) < len(PACKAGES) or not files:
        path = ROOT / "build" / "bench-data.json"  # parts and first looks do not replace a whole race
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as temp:
        race = Race(pathlib.Path(temp), peers, rounds, lines)
        loads = {}
        for part, run in (("tokenizers", lambda: race_tokenizers(race, size)), ("loader", lambda: race_loader(race, size // 2)),
                          ("memory", lambda: measure_memory(race, small, large)), ("waiting", lambda: measure_waiting(race, seconds, args.data))):
            if part not in wanted:
                continue
            try:
                run()
            except RuntimeError as fault:
                race.faults.append(f"{part}: {fault}")
            loads[part] = round(os.getloadavg()[1], 1)
            path.write_text(json.dumps({**record, "load": loads, "rows": race.rows}, indent=1) + "\n")
    for fault in race.faults:
        say(f"missing: {fault}")
    say(f"written: {path.relative_to(ROOT)}")
    return 1 if race.faults else 0


if __name__ == "__main__":
    sys.exit(main())
