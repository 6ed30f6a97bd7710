#!/usr/bin/env python3
"""The trace of `millrace profile` judged from outside: read by PyTorch's HolisticTraceAnalysis. (By Perfetto: perfetto_page.py.)

  tests/outside/trace.py BINARY     needs HolisticTraceAnalysis; exit 1 on a difference

It must find every span of the file on its lane, none dropped for overlapping another, and as much time in products as the
file has.
"""
import collections
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

MODEL = ["model.type=gpt", "model.d_model=64", "model.num_layers=2", "model.num_heads=2", "training.batch_size=8", "training.max_length=64",
         "training.eval_context=16", "training.max_eval_batches=4", "device=cpu", "run_name=traced"]


def spans_of_file(path):
    """(lane, name) -> how many, microseconds."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = collections.defaultdict(lambda: [0, 0.0])
    for e in events:
        if e["ph"] == "X":
            row = found[lanes[e["tid"]], e["name"]]
            row[0] += 1
            row[1] += e["dur"]
    return lanes, dict(found)


def spans_of_hta(path, lanes):
    from hta.common.trace import parse_trace_file
    _, table, symbols = parse_trace_file(str(path))
    names = symbols.get_sym_table()
    found = collections.defaultdict(lambda: [0, 0.0])
    for tid, name, duration in zip(table["tid"], table["name"], table["dur"]):
        row = found[lanes[int(tid)], names[name]]
        row[0] += 1
        row[1] += float(duration)
    return dict(found)


def differences(wanted, found):
    unit = 2.0  # microseconds: the reader rounds times to whole ones
    for key in wanted.keys() | found.keys():
        count, time = wanted.get(key, (0, 0))
        got_count, got_time = found.get(key, (0, 0))
        if count != got_count or abs(time - got_time) > unit * max(1, count):
            yield f"{key}: {count} spans of {time:.1f} us, found {got_count} of {got_time:.1f}"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    with tempfile.TemporaryDirectory(prefix="millrace-trace-") as temp:
        done = subprocess.run([sys.argv[1], "profile", "--json", "--steps", "20", f"runs_folder={temp}", *MODEL], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        path = pathlib.Path(json.loads(done.stdout)["folder"]) / "trace.json.gz"
        lanes, wanted = spans_of_file(path)
        print(f"{sum(n for n, _ in wanted.values())} spans on {len(lanes)} lanes")
        faults = list(differences(wanted, spans_of_hta(path, lanes)))
        print(f"HolisticTraceAnalysis: {'; '.join(faults[:3]) or 'the same'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
