#!/usr/bin/env python3
"""Does looking at a training slow it down? One runs; in turns it is left alone, watched by `millrace watch`, and asked for by
`millrace doctor`, which must refuse a device that is busy. Times of its updates are compared, turn by turn.

  tests/doctor/disturbance.py [--binary build/millrace] [--device cpu] [--turns 10] [--seconds 5]

Exit 1 where the median of a turn's updates changes by more than the turns alone differ among themselves. Needs python3 and
an otherwise idle machine.
"""
import argparse
import json
import os
import pathlib
import pty
import statistics
import subprocess
import sys
import tempfile
import threading
import time

MODEL = ["model.type=gpt", "model.d_model=128", "model.num_layers=2", "model.num_heads=2", "training.batch_size=16", "training.max_length=128",
         "training.max_steps=1000000", "training.eval_every=1000000", "training.log_interval=5", "sample.length=0", "runtime.log_format=none",
         "checkpoint.every=10 hours"]


class Training:
    def __init__(self, options, folder):
        environment = {**os.environ, "MILLRACE_CACHE": f"{folder}/cache"}
        self.options, self.folder, self.environment = options, folder, environment
        self.process = subprocess.Popen([options.binary, "train", *MODEL, f"device={options.device}", "--run-name", "trained"], cwd=folder,
                                        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not list(folder.glob("runs/trained/2*/metrics.jsonl")):
            time.sleep(0.2)
        self.run = next(folder.glob("runs/trained/2*"))

    def seconds_of_updates(self, begin, end):
        """Of the reports between two moments, by when they were written."""
        return [step for moment, step in self.seen if begin < moment <= end]

    def follow(self):
        """Reads what the run itself reports, as it comes: one more reader, the same in every turn."""
        self.seen, self.stop = [], False

        def read():
            with open(self.run / "metrics.jsonl") as lines:
                while not self.stop:
                    line = lines.readline()
                    if not line:
                        time.sleep(0.05)
                    elif "time/step" in line:
                        self.seen.append((time.time(), json.loads(line)["time/step"]))

        self.reader = threading.Thread(target=read)
        self.reader.start()

    def end(self):
        self.stop = True
        self.reader.join()
        self.process.terminate()
        self.process.wait()


def alone(training, seconds):
    time.sleep(seconds)


def watched(training, seconds):
    """In a terminal of its own, as a person would."""
    master, slave = pty.openpty()
    viewer = subprocess.Popen([training.options.binary, "watch", str(training.run)], cwd=training.folder, env={**training.environment, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
                              stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    drain = threading.Thread(target=lambda: [None for _ in iter(lambda: read_or_nothing(master), b"")])
    drain.start()
    time.sleep(seconds)
    if viewer.poll() is not None:
        raise RuntimeError(f"watch ended by itself, exit {viewer.returncode}")
    viewer.terminate()
    viewer.wait()
    drain.join()
    os.close(master)


def read_or_nothing(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def asked_for(training, seconds):
    end = time.time() + seconds
    while time.time() < end:
        done = subprocess.run([training.options.binary, "doctor", *MODEL, f"device={training.options.device}"], cwd=training.folder, env=training.environment,
                              capture_output=True, text=True)
        if done.returncode != 1 or "others are at work here" not in done.stderr:
            raise RuntimeError(f"doctor did not refuse a busy device: exit {done.returncode}\n{done.stderr}")
        time.sleep(max(0, min(1.0, end - time.time())))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=os.path.abspath, default="build/millrace")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    ways = {"alone": alone, "watch": watched, "doctor": asked_for}
    times = {name: [] for name in ways}
    with tempfile.TemporaryDirectory(prefix="millrace-disturbance-") as temp:
        training = Training(options, pathlib.Path(temp))
        training.follow()
        try:
            time.sleep(3)
            for turn in range(options.turns):
                for name, way in ways.items():
                    begin = time.time()
                    way(training, options.seconds)
                    time.sleep(0.2)
                    times[name].append(statistics.median(training.seconds_of_updates(begin, time.time())))
        finally:
            training.end()
    base = statistics.median(times["alone"])
    quartiles = statistics.quantiles(times["alone"], n=4)
    # A median of as many turns may be off by so much, twice over: of both that are compared.
    noise = 2 * 1.25 * (quartiles[2] - quartiles[0]) / 1.35 / len(times["alone"]) ** 0.5 * 2**0.5 / base
    print(f"an update alone {1e3 * base:.2f} ms; medians of {options.turns} turns of {options.seconds:g} s; noise {100 * noise:.1f} %")
    failed = 0
    for name in ("watch", "doctor"):
        # Turn by turn, beside the neighbour alone: the machine itself changes its pace.
        change = statistics.median(t / a for t, a in zip(times[name], times["alone"])) - 1
        failed += not change <= noise
        print(f"{name}: {100 * change:+.2f} % time an update{'' if change <= noise else ', MORE THAN THE NOISE'}")
    print(f"{2 - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
