#!/usr/bin/env python3
"""bench/run beam DATASETS: the same model writes for 200 sources, by Millrace's beam search and by a loop in PyTorch.

  bench/run beam FOLDER [--device cuda]     FOLDER holds multi30k and mts-dialog

Millrace trains each model for some updates, so that texts end; both then write with its weights, four hypotheses wide: a translator
(2+2 layers x 256) and a summarizer (sources of up to 400 words). PyTorch's loop (bench/peers/torch_beam.py) takes source by source,
as such code does: the encoder once, the hypotheses of a source as one batch, states kept; on a CPU with one thread or all, whichever is
quicker on the first sources: such small work is often quicker on one, and on a busy machine many times so. Both in float32. Millrace's
time is that of `millrace generate` from the weights on, and as a whole process; PyTorch's is that of the loop alone. In turns, medians.
"""
import argparse
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

from curves import TASKS, Run, changed
from surroundings import MILLRACE, install_peers, machine, say

BEAM = 4
RACES = {
    "translator": ("multi30k", TASKS["translator"]),
    "summarizer": ("mts-dialog", {**TASKS["summarizer"], "source_length": 400, "length": 120}),
}


def seconds_of(text):
    """What Millrace says a duration is: 562 ms, 35.6 s, 1m 11s."""
    units = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "µs": 1e-6}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([0-9.]+) ?(ms|µs|h|m|s)", text))


def millrace_texts(run, count):
    """Ids of every text, and seconds: of the search, of the whole process."""
    sources = run.folder / "sources.txt"
    lines = (run.folder / "validation.source").read_text(encoding="utf-8").splitlines()[:count]
    sources.write_text("\n".join(lines) + "\n", encoding="utf-8")
    begin = time.monotonic()
    done = run.call(MILLRACE, "generate", run.checkpoint("whole"), "--input", sources, "--beam", BEAM, "--max-tokens", run.task["length"],
                    "--ids", "--device", run.device, "--precision", "fp32")
    whole = time.monotonic() - begin
    return [[int(i) for i in line.split()] for line in done.stdout.splitlines()], seconds_of(re.search(r"tokens in ([^:]*):", done.stderr)[1]), whole


def torch_texts(run, count, threads):
    """Ids of every text, and seconds of the loop."""
    beam = {"beam": BEAM, "length_penalty": 1.0, "max_length": run.task["length"], "split": "validation", "most": count}
    *texts, last = run.torch("beam", run.checkpoint("whole"), threads, beam=beam)
    return [text["ids"] for text in texts], last["seconds"]


def best_threads(run):
    trials = {1, len(os.sched_getaffinity(0))} if run.device == "cpu" else {1}
    return min(sorted(trials), key=lambda threads: torch_texts(run, 10, threads)[1]) if len(trials) > 1 else 1


def race(name, run, count, rounds):
    losses = run.millrace("whole")
    say(f"{name:12} trained for {run.steps} updates, loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    threads, searches, wholes, loops = best_threads(run), [], [], []
    for _ in range(rounds):
        ours, search, whole = millrace_texts(run, count)
        theirs, loop = torch_texts(run, count, threads)
        searches.append(search), wholes.append(whole), loops.append(loop)
    if len(ours) != len(theirs):
        sys.exit(f"{name}: {len(ours)} texts beside {len(theirs)}")
    same, tokens = sum(a == b for a, b in zip(ours, theirs)), sum(map(len, ours))
    search, whole, loop = map(statistics.median, (searches, wholes, loops))
    say(f"{name:12} {count} texts, {tokens / count:.1f} tokens each: millrace {search:.2f} s (whole process {whole:.2f} s), PyTorch {loop:.2f} s (threads: {threads}): "
        f"{loop / search:.1f}x ({loop / whole:.1f}x); {same} of {count} texts are equal")


def main():
    parser = argparse.ArgumentParser(prog="bench/run beam", description=__doc__.splitlines()[0], epilog="The head of bench/beam_race.py has more.")
    parser.add_argument("data", type=pathlib.Path, help="the folder with multi30k and mts-dialog")
    parser.add_argument("changes", nargs="*", help="batch=8, model.d_model=64 and the like")
    parser.add_argument("--only", choices=RACES)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--updates", type=int, default=300, help="of training before the race")
    parser.add_argument("--count", type=int, default=200, help="sources")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_intermixed_args()
    versions, missing = install_peers()
    if not versions:
        sys.exit(f"missing: {missing}")
    say(f"{machine(args.device)}; {versions}; beam {BEAM}, {args.count} sources, float32, medians over {args.rounds} turns; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="millrace-beam-") as temp:
        for name in [args.only] if args.only else RACES:
            folder, task = RACES[name]
            race(name, Run(changed(task, args.changes), args.data / folder, pathlib.Path(temp) / name, args.device, 1, args.updates),
                 args.count, args.rounds)


if __name__ == "__main__":
    sys.exit(main())
