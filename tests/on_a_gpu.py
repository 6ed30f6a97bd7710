#!/usr/bin/env python3
"""Everything that only a machine with a GPU can show, one thing after the other, in as many sittings as it takes.

  tests/on_a_gpu.py DATA [--binaries build/portable] [--minutes 9] [--only NAME,...] [--again] [--list]

DATA holds multi30k, mts-dialog, pedestrians and tinyshakespeare.txt. `ninja -C build portable_tests` makes the folder of binaries, which
needs nothing installed; PEER_PYTHON names a Python that has PyTorch. What passed with this commit is left out the next time (--again: it is not), and what would
not end within --minutes is not begun. Logs, verdicts and results of races are kept in build/on-a-gpu/, which may be carried from machine to
machine. Exit 1 where something failed, 3 where something is still to be done.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEPT = ROOT / "build" / "on-a-gpu"
RESULTS = ROOT / "bench" / "results"
sys.path.insert(0, str(ROOT / "bench"))
from race import groups  # noqa: E402
from seeds import SEEDS  # noqa: E402
from suites import CUDA  # noqa: E402
from surroundings import commit  # noqa: E402

# What must be reached, as times of the best of these peers; 1 unless said. A pointer-generator that somebody captured by hand is raced and not asked for.
ORDINARY = ("torch-eager", "torch-hoisted", "torch-compile", "torch-graphs", "torch-loop", "torch-fp32", "torch-bf16")
AHEAD = {"pointer-b1": 8, "pointer-b16": 8, "bilstm-2x256-b1": 3, "bilstm-2x256-b16": 3}
BY_HAND = {"pointer-b1": ("torch-graphs",), "pointer-b16": ("torch-graphs",)}
MEMORY_TOLERANCE = 0.02  # of what a row takes of the device
BLEU, VALIDATION_LOSS = 39, 1.48
PARITY = "*Cuda*:*Golden*:*FamilyCrash*"
# Racecheck knows neither what cuBLASLt's nor what cuDNN's kernels wait for.
SANITIZED = {"memcheck": "*CudaOp*_0_bf16:*CudaOp*_1_fp32", "racecheck": "*CudaOp*_0_bf16:*CudaOp*_1_bf16-*/matmul*:*/linear_cross_entropy*:*/attention_?_*:*/attention_grad*"}
FAULT_PARTS = 4  # sittings that the planted faults may be spread over


@dataclasses.dataclass
class Item:
    name: str
    seconds: int  # that it takes
    commands: list  # all at once; the item passes when each exits 0
    verdict: object = None  # of what they printed: what is wrong, or ""


def last_json(text):
    return json.loads(text[text.index("{"):])


def translator_verdict(printed):
    bleu = last_json(printed.splitlines()[-1])["bleu"]
    return "" if bleu >= BLEU else f"{bleu:.2f} BLEU, asked are {BLEU}"


def shakespeare_verdict(printed):
    loss = float(re.search(r"best validation loss: Millrace ([0-9.]+)", printed)[1])
    return "" if loss <= VALIDATION_LOSS else f"validation loss {loss}, asked is {VALIDATION_LOSS}"


def beam_verdict(printed):
    ratios = [float(ratio) for ratio in re.findall(r"s \(threads: \d+\): ([0-9.]+)x", printed)]
    return "" if len(ratios) == 2 and min(ratios) >= 20 else f"{ratios} times as fast, asked are 20"


def race_verdict(names):
    def verdict(_):
        path, = RESULTS.glob("cuda-*.json")
        rows, wrong = json.loads(path.read_text())["rows"], []
        for name in names:
            by = {row["how"]: row for row in rows if row["workload"] == name}
            peers = [row["ms"] for how, row in by.items() if how in ORDINARY and how not in BY_HAND.get(name, ())]
            if not peers:
                wrong.append(f"{name}: no peer")
                continue
            ours, asked = by["millrace"], AHEAD.get(name, 1)
            if not min(peers) > asked * ours["ms"]:
                wrong.append(f"{name}: {min(peers) / ours['ms']:.2f}x, asked is {asked}x")
            told, took = ours.get("predicted_device_bytes"), ours.get("device_bytes")
            if told and abs(told / took - 1) > MEMORY_TOLERANCE:
                wrong.append(f"{name}: predicted {told} bytes, took {took}")
        return "; ".join(wrong)

    return verdict


def items(options):
    binaries, data = options.binaries, options.data
    millrace, suites = binaries / "millrace", binaries / "millrace_suite_tests"
    python, bench, tests = sys.executable, ROOT / "bench", ROOT / "tests"
    shards = 8

    def sanitizer(tool):
        return Item(tool, 150, [f"compute-sanitizer --tool {tool} --error-exitcode 9 {suites} --gtest_brief=1 --gtest_filter='{SANITIZED[tool]}'"])

    def races(names, seconds):
        for group in groups(names, CUDA, "cuda"):
            words = ",".join(group)
            yield Item("race " + words, 40 + seconds * len(group), [f"{python} {bench}/race.py cuda --continue --rounds {options.rounds} --only {words}"], race_verdict(group))

    runs = KEPT / "runs"
    translator = (f"{millrace} train {ROOT}/configs/translator.yaml data.folder={data}/multi30k device=cuda runs_folder={runs} --run-name translator && "
                  f"{millrace} generate $(ls -d {runs}/translator/2* | tail -1) --input {data}/multi30k/test.en --beam 5 > {KEPT}/test.de && "
                  f"{millrace} score {KEPT}/test.de {data}/multi30k/test.de --json | tr -d '\\n'")
    decoders = [name for name in CUDA if CUDA[name]["model"]["type"] in ("gpt", "bilstm")]
    return [
        # The backend.
        Item("parity", 90, [f"GTEST_TOTAL_SHARDS={shards} GTEST_SHARD_INDEX={i} {suites} --gtest_brief=1 --gtest_filter='{PARITY}'" for i in range(shards)]),
        *races(decoders, 35),
        Item("start", 140, [f"{python} {bench}/race.py cuda --start --peers torch-compile --only gpt2-124m-b64"]),
        Item("curves of characters", 70, [f"{python} {bench}/curves.py characters {data}/tinyshakespeare.txt"]),
        sanitizer("memcheck"),
        sanitizer("racecheck"),
        # Summarizer and translator.
        *races([name for name in CUDA if CUDA[name]["model"]["type"] in ("seq2seq", "pointer_generator")], 60),
        Item("beam search", 60, [f"{python} {bench}/beam_race.py {data} --device cuda --rounds 3"], beam_verdict),
        Item("BLEU of the translator", 60, [translator], translator_verdict),
        Item("curves of pairs", 150, [f"{python} {bench}/curves.py {task} {data}/{folder}" for task, folder in (("translator", "multi30k"), ("summarizer", "mts-dialog"))]),
        # Characters, paths.
        *races([name for name in CUDA if CUDA[name]["model"]["type"] == "trajectory"], 40),
        Item("loss of shakespeare", 150, [f"{python} {bench}/curves.py shakespeare {data}/tinyshakespeare.txt --seeds 1"], shakespeare_verdict),
        # The doctor.
        Item("a training that is watched", 170, [f"{python} {tests}/doctor/disturbance.py --binary {millrace} --device cuda"]),
        *(Item(f"planted faults {i + 1}", 240, [f"{python} {tests}/doctor/planted_faults.py --binary {millrace} --device cuda --budget 20 --honest {3 * (i + 1)} "
                                                f"--part {i + 1}/{FAULT_PARTS} --continue --out {KEPT}/planted.json"]) for i in range(FAULT_PARTS)),
        *(Item(f"seed {seed.name}", 100, [f"{python} {bench}/seeds.py {data} --device cuda --continue --only {seed.name}"]) for seed in SEEDS),
        Item("several trainings", 120, [f"{python} {tests}/crash/shared_device.py --binary {millrace}"]),
    ]


def run(item, environment):
    """(what is wrong or "", seconds)"""
    begin, log = time.monotonic(), KEPT / (re.sub(r"\W+", "-", item.name) + ".log")

    def one(command):
        return subprocess.run(["bash", "-c", "set -o pipefail; " + command], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    with concurrent.futures.ThreadPoolExecutor(len(item.commands)) as pool:
        done = list(pool.map(one, item.commands))
    printed = "".join(process.stdout for process in done)
    log.write_text("\n".join(f"$ {command}\n{process.stdout}" for command, process in zip(item.commands, done)))
    wrong = [f"exit {process.returncode}: " + " | ".join(process.stdout.strip().splitlines()[-2:]) for process in done if process.returncode != 0]
    if not wrong and item.verdict:
        wrong = list(filter(None, [item.verdict(printed)]))
    return "; ".join(wrong), time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--binaries", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "build" / "portable")
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--rounds", type=int, default=4, help="turns of each racer")
    parser.add_argument("--only", default="", help="those whose name begins so, with commas")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    state_path, now = KEPT / "state.json", commit()
    state = json.loads(state_path.read_text()) if state_path.exists() else {}
    if state.get("commit") != now:
        state = {"commit": now, "items": {}}
    for path in (KEPT / "results").glob("*.json"):  # of an earlier sitting, maybe elsewhere
        shutil.copy(path, RESULTS)
    environment = {**os.environ, "MILLRACE": str(options.binaries / "millrace"), "MILLRACE_BINARY": str(options.binaries / "millrace"), "PYTHONUNBUFFERED": "1"}
    begin, failed, left = time.monotonic(), 0, 0
    for item in items(options):
        before = state["items"].get(item.name)
        wanted = not options.only or any(item.name.startswith(word) for word in options.only.split(","))
        if options.list or not wanted or (before and not before["wrong"] and not options.again):
            if options.list or wanted:
                say = "to do" if not before else before["wrong"] or "passed"
                print(f"{item.name:<60} {item.seconds:4} s  {say}")
            continue
        if time.monotonic() - begin + item.seconds > 60 * options.minutes:
            print(f"{item.name:<60} is left for the next time ({item.seconds} s)", flush=True)
            left += 1
            continue
        wrong, seconds = run(item, environment)
        failed += bool(wrong)
        state["items"][item.name] = {"wrong": wrong, "seconds": round(seconds)}
        state_path.write_text(json.dumps(state, indent=1) + "\n")
        (KEPT / "results").mkdir(exist_ok=True)
        for path in (*RESULTS.glob("cuda-*.json"), *RESULTS.glob("seeds-nvidia-*.json")):
            shutil.copy(path, KEPT / "results")
        print(f"{item.name:<60} {seconds:4.0f} s  {wrong or 'passed'}", flush=True)
    return 1 if failed else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
