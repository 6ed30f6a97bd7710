#!/usr/bin/env python3
"""docs/GPU.md, from the results of `bench/run cuda` (and `bench/run cuda --start --only WORKLOAD`).

  bench/gpu_page.py bench/results/cuda-MACHINE.json
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMES = {"torch-eager": "eager", "torch-compile": "compile", "torch-graphs": "compile, graphs", "torch-fp32": "cuDNN fp32", "torch-bf16": "cuDNN bf16",
         "torch-hoisted": "hoisted", "torch-graphs-bf16": "compile, graphs, bf16"}


def number(ms):
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def mib(count):
    return f"{count / 2**20:,.0f}"


def table(head, lines):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(line) + " |" for line in lines])


def race(rows, peers):
    lines = []
    for name, by in rows.items():
        ours = by["millrace"]
        theirs = {how: by[how] for how in peers if how in by}
        if not theirs:
            continue
        best = min(theirs, key=lambda how: theirs[how]["ms"])
        ceiling = ours.get("ceiling_flops_per_s")
        lines.append([name, number(ours["ms"]), f"{ours['tokens_per_s'] / 1e3:,.0f} k"] +
                     [number(theirs[how]["ms"]) if how in theirs else "–" for how in peers] +
                     [f"{theirs[best]['ms'] / ours['ms']:.2f}x",
                      f"{100 * ours['flops'] / (ours['ms'] / 1e3) / ceiling:.0f} %" if ceiling else "–",
                      ", ".join(mib(r["peak_bytes"]) for r in (ours, *theirs.values()))])
    head = ["workload", "Millrace ms", "tokens/s"] + [NAMES[how] + " ms" for how in peers] + ["ahead", "of the ceiling", "memory, MiB (Millrace, then in this order)"]
    return table(head, lines)


def memory(rows):
    lines = []
    for name, by in rows.items():
        ours = by["millrace"]
        if "device_bytes" in ours:
            told = ours.get("predicted_device_bytes")
            lines.append([name, mib(ours["peak_bytes"]), mib(ours["device_bytes"]), mib(told) if told else "–",
                          f"{100 * (told / ours['device_bytes'] - 1):+.1f} %" if told else "–"])
    return table(["workload", "arena, planned = allocated", "on the device, measured", "predicted", "off by"], lines)


def accounts(rows):
    parts = []
    for name, by in rows.items():
        ours = by["millrace"]
        if "ops" not in ours:
            continue
        lines, lost = [], []
        for op, t in ours["ops"].items():
            lost.append((t["us"] - t["limit_us"], op))
            if t["us"] >= 0.005 * 1e3 * ours["ms"]:
                lines.append([f"`{op}`", str(t["nodes"]), f"{t['us']:,.0f}", f"{t['limit_us']:,.0f}", f"{100 * t['limit_us'] / t['us']:.0f} %"])
        total = sum(t["us"] for t in ours["ops"].values())
        limit = sum(t["limit_us"] for t in ours["ops"].values())
        lines.append(["all", "", f"{total:,.0f}", f"{limit:,.0f}", f"{100 * limit / total:.0f} %"])
        lost = ", ".join(f"`{op}` {us:,.0f} µs" for us, op in sorted(lost, reverse=True)[:3])
        parts.append(f"### {name}: {number(ours['ms'])} ms\n\n" + table(["op", "nodes", "µs", "µs at the limit", "share"], lines) +
                     f"\n\nFurthest from their limits: {lost}.")
    return "\n\n".join(parts)


def summarizer(rows):
    if not rows:
        return ""
    return f"""The summarizer: a pointer-generator with coverage, sources of 768 words, targets of 192, a vocabulary of 50,000, clipping to norm 2 and Adagrad. PyTorch in float32 with TF32 unless said,
`nn.LSTM` of cuDNN; eager with the output layer inside the loop over the target, hoisted out of it, the hoisted one with its step compiled, and that captured in one CUDA graph:

{race(rows, ("torch-eager", "torch-hoisted", "torch-compile", "torch-graphs", "torch-graphs-bf16"))}

"""


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    record = json.loads(pathlib.Path(sys.argv[1]).read_text())
    rows = {}
    for r in record["rows"]:
        rows.setdefault(r["workload"], {})[r["how"]] = r
    models = {name: by for name, by in rows.items() if not name.startswith("bilstm")}
    pointers = {name: models.pop(name) for name in list(models) if name.startswith("pointer")}
    ceilings = [by["millrace"] for by in models.values() if by["millrace"].get("ceiling_bytes_per_s")]
    products, copies = (sorted(c[k] for c in ceilings) for k in ("ceiling_flops_per_s", "ceiling_bytes_per_s"))
    starts = "\n\n".join(table([name, "first step done, cold", "with warm caches"],
                               [[NAMES.get(how, "Millrace"), f"{t['cold_s']:.1f} s", f"{t['warm_s']:.1f} s"] for how, t in by.items()])
                         for name, by in record["starts"].items())
    page = f"""# On a GPU

Written by `bench/gpu_page.py` from `{pathlib.Path(sys.argv[1]).name}`: {record['machine']}, `{record['command']}`, commit {record['commit']}, {record['date']},
{record['peers']}. Everybody in turns on one device, medians. A step is forward, backward, clipping to norm 1 and AdamW; bf16 with 32-bit weights (PyTorch: autocast, SDPA, fused AdamW);
no dropout. Millrace is deterministic. Before a row is raced the peer must give Millrace's losses from the same weights and tokens. "Ahead" is against the best peer. The ceiling is the best
rate of large square products, measured in the same run: {products[0] / 1e12:.0f} to {products[-1] / 1e12:.0f} TFLOP/s (the device slows down when it gets hot); copies
{copies[0] / 1e12:.1f} to {copies[-1] / 1e12:.1f} TB/s, read and written. Memory: Millrace's arena, PyTorch's `max_memory_allocated`.

{race(models, ("torch-eager", "torch-compile", "torch-graphs"))}

{summarizer(pointers)}The encoder of a summarizer alone, two layers of 256 units in both directions over 768 places, forward and backward, Millrace in bf16:

{race({name: by for name, by in rows.items() if name.startswith("bilstm")}, ("torch-fp32", "torch-bf16"))}

## From start to first step

{starts}

## Memory

{memory(models | pointers)}

What context and libraries take is measured by a run and remembered for the next ones.

## Where the time goes

By op, of an update; "at the limit" is each node at the ceiling of its arithmetic or of its bytes, whichever takes longer. Small nodes are far from it: a launch takes 2 to 3 µs.
Nodes that run beside others are timed alone, and all are scaled to the time of the step. {record.get('note', '')}

{accounts(models | pointers)}
"""
    (ROOT / "docs" / "GPU.md").write_text(page)


if __name__ == "__main__":
    main()
