#!/usr/bin/env python3
"""Several trainings share a device: none may fail, and each must give the losses that it gives alone, to the bit.

  tests/crash/shared_device.py [--binary build/millrace] [--device cuda] [--runs 6] [--steps 600] [--without WHAT] [KEY=VALUE ...]

A device that several processes use at once stops one in the middle of a kernel to let the other go on. First a training is alone, which
also chooses algorithms; then so many of it run side by side. The model is a translator of sentences made at random, in batches of
many shapes, so that every kind of kernel of an update is met; words behind the options are changes of its config. Exit 1 where a run
failed or its losses differ. --without leaves out nvjet, clusters, workspace or cudnn, or several of them with commas, to find whose kernels are at fault (without.c; needs
a C compiler and the CUDA toolkit's headers in $CUDA_PATH or /usr/local/cuda). For a machine with a GPU; on a CPU, where nothing of this kind happens, it is quick with small sizes:

  tests/crash/shared_device.py --device cpu --runs 2 --steps 20 model.d_model=32 training.batch_size=8
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

CONFIG = """model: {type: seq2seq, d_model: 256, num_layers: 4, num_heads: 4, d_ff: 512, norm_position: post}
data: {train: source.txt, train_target: target.txt, format: lines, tokenizer: word, min_frequency: 1}
training: {batch_size: 256, max_length: 64, max_source_length: 64, log_interval: 10, max_eval_batches: 1, label_smoothing: 0.1, ema_decay: 0.999}
sample: {length: 0}
"""


def make_data(folder, pairs=20000):
    draw = random.Random(3)
    words = ["".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(draw.randint(2, 8))) for _ in range(6000)]
    source = [[draw.choice(words) for _ in range(draw.randint(4, 60))] for _ in range(pairs)]
    (folder / "source.txt").write_text("\n".join(" ".join(line) for line in source) + "\n")
    (folder / "target.txt").write_text("\n".join(" ".join(line[max(0, draw.randint(-2, 2)):][::-1]) for line in source) + "\n")
    (folder / "config.yaml").write_text(CONFIG)


class Training:
    def __init__(self, options, folder, name):
        self.name, self.folder = name, folder
        self.log = open(folder / f"{name}.log", "w+")
        environment = {**os.environ, "MILLRACE_CACHE": str(folder / "cache")}
        if options.without:
            environment |= {"LD_PRELOAD": str(folder / "without.so"), "WITHOUT": options.without}
        self.process = subprocess.Popen([options.binary, "train", "config.yaml", f"device={options.device}", f"training.max_steps={options.steps}",
                                         *options.changes, "--run-name", name, "runtime.log_format=none"],
                                        cwd=folder, env=environment, stdout=self.log, stderr=self.log)

    def losses(self):
        lines = [json.loads(line) for path in self.folder.glob(f"runs/{self.name}/2*/metrics.jsonl") for line in path.read_text().splitlines()]
        return [(line["step"], line["train/loss"]) for line in lines if line.get("type") == "train"]

    def verdict(self, wanted):
        """What is wrong with the run; "" when nothing is."""
        code = self.process.wait()
        if code != 0:
            self.log.seek(0)
            said = [line.strip() for line in self.log if "error:" in line or "where:" in line]
            return f"exit {code}: {' '.join(said) or 'nothing said'}"
        for (step, alone), (_, here) in zip(wanted, self.losses(), strict=True):
            if alone != here:
                return f"loss {here} at update {step}, alone {alone}"
        return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=os.path.abspath, default="build/millrace")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--without", metavar="WHAT")
    parser.add_argument("changes", nargs="*", help="KEY=VALUE")
    options = parser.parse_intermixed_args()
    if unknown := set(filter(None, (options.without or "").split(","))) - {"nvjet", "clusters", "workspace", "cudnn"}:
        parser.error(f"--without {unknown.pop()}: nvjet, clusters, workspace and cudnn can be left out")
    with tempfile.TemporaryDirectory(prefix="millrace-shared-") as temp:
        folder = pathlib.Path(temp)
        make_data(folder)
        if options.without:
            headers = pathlib.Path(os.environ.get("CUDA_PATH", "/usr/local/cuda")) / "include"
            subprocess.run(["cc", "-O1", "-shared", "-fPIC", f"-I{headers}", "-o", folder / "without.so", pathlib.Path(__file__).parent / "without.c", "-ldl"], check=True)
        begin = time.monotonic()
        alone = Training(options, folder, "alone")
        if alone.process.wait() != 0:
            alone.log.seek(0)
            sys.exit(f"alone it fails, too:\n{alone.log.read()}")
        wanted = alone.losses()
        print(f"alone: {len(wanted)} losses, the last {wanted[-1][1]:.4f}, {time.monotonic() - begin:.0f} s", flush=True)
        begin = time.monotonic()
        runs = [Training(options, folder, f"run-{i}") for i in range(options.runs)]
        failed = 0
        for run in runs:
            if fault := run.verdict(wanted):
                failed += 1
                print(f"{run.name}: {fault}", flush=True)
        print(f"{options.runs} side by side, {time.monotonic() - begin:.0f} s")
        print(f"{options.runs - failed} passed, {failed} failed")
        return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
