#!/usr/bin/env python3
"""docs/COST_GROWTH.md and its picture, from the newest results of `bench/run cpu-growth`.

  bench/growth_page.py bench/results/cpu-growth-MACHINE.json GB/S

GB/S is what the machine moves, as the accounts of the same race tell for AdamW.
"""
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLOURS = {"millrace": "#d1495b", "torch-eager": "#00798c", "torch-compile": "#edae49"}
AXES = {"T": "length of a sequence (2,048 tokens a step, 4 layers x 256, V 1,000)",
        "V": "vocabulary (1,024 tokens a step, 2 layers x 256, T 128)",
        "L": "layers (1,024 tokens a step, width 256, V 1,000, T 128)"}


def chart(rows, axis, left):
    """One log-log panel, 300 wide."""
    points = {}
    for r in rows:
        kind, value = r["workload"].split("-")
        if kind == axis:
            points.setdefault(r["how"], []).append((int(value), r["ms"]))
    xs = sorted({x for p in points.values() for x, _ in p})
    ys = [y for p in points.values() for _, y in p]
    low, high = math.log10(min(ys)) - 0.1, math.log10(max(ys)) + 0.1

    def px(x):
        return left + 50 + 220 * (math.log10(x) - math.log10(xs[0])) / (math.log10(xs[-1]) - math.log10(xs[0]))

    def py(y):
        return 230 - 190 * (math.log10(y) - low) / (high - low)

    out = [f'<rect x="{left + 50}" y="40" width="220" height="190" fill="none" stroke="#bbb"/>',
           f'<text x="{left + 160}" y="262" text-anchor="middle">{AXES[axis].split(" (")[0]}</text>']
    for x in xs:
        out.append(f'<text x="{px(x):.1f}" y="245" text-anchor="middle" font-size="9">{x:,}</text>')
    for exponent in range(math.floor(low), math.ceil(high)):
        for factor in (1, 2, 5) if high - low > 1 else range(1, 10):
            y = factor * 10**exponent
            if low <= math.log10(y) <= high:
                out.append(f'<line x1="{left + 50}" x2="{left + 270}" y1="{py(y):.1f}" y2="{py(y):.1f}" stroke="#eee"/>')
                out.append(f'<text x="{left + 46}" y="{py(y) + 3:.1f}" text-anchor="end" font-size="9">{y:g}</text>')
    for how, line in points.items():
        line.sort()
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in line)
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[how]}" stroke-width="2"/>')
        out += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="2.5" fill="{COLOURS[how]}"/>' for x, y in line]
    return "\n".join(out)


def picture(rows):
    panels = "\n".join(chart(rows, axis, 290 * i) for i, axis in enumerate(AXES))
    legend = "".join(f'<rect x="{60 + 130 * i}" y="10" width="12" height="12" fill="{c}"/>'
                     f'<text x="{76 + 130 * i}" y="20">{how}</text>' for i, (how, c) in enumerate(COLOURS.items()))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="880" height="275" font-family="sans-serif" font-size="12">'
            f'<rect width="100%" height="100%" fill="white"/>\n{legend}<text x="870" y="20" text-anchor="end">ms per step</text>\n'
            f"{panels}\n</svg>\n")


def table(rows, axis):
    names = list(dict.fromkeys(r["workload"] for r in rows if r["workload"].startswith(axis + "-")))
    out = [f"### {axis}: {AXES[axis]}", "",
           f"| {axis} | GFLOP | least GB | millrace ms | GFLOP/s | of the ceiling | torch-eager ms | torch-compile ms | ahead of the better |",
           "|---|---|---|---|---|---|---|---|---|"]
    for name in names:
        by = {r["how"]: r for r in rows if r["workload"] == name}
        ours = by["millrace"]
        rate = ours["flops"] / ours["ms"] * 1e3
        peers = [by[h]["ms"] for h in ("torch-eager", "torch-compile") if h in by]
        cells = [f"{int(name.split('-')[1]):,}", f"{ours['flops'] / 1e9:.1f}", f"{ours['bytes'] / 1e9:.2f}", f"{ours['ms']:.1f}",
                 f"{rate / 1e9:.0f}", f"{100 * rate / ours['ceiling_flops_per_s']:.0f} %" if ours["ceiling_flops_per_s"] else "-"]
        cells += [f"{by[h]['ms']:.1f}" if h in by else "missing" for h in ("torch-eager", "torch-compile")]
        cells.append(f"{min(peers) / ours['ms']:.2f}x" if peers else "-")
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


WHY = {
    "T": """A pair of tokens costs attention the same whatever T is, and a token sees T/2 others on average: the FLOPs of attention grow with T, all
others stay. The bytes stay too, since scores never leave the cache. So the step grows by attention alone; over long sequences it runs at nearly the
rate of the products, over short ones it is slower (exponentials, tiles of which causality leaves a part) but a small share of the step.""",
    "V": """Only the loss head and the embedding's update grow: 6 x 256 FLOPs for each word and token, and 48 bytes for each of the 256 weights of a
word (weight, gradient and moments, read and written). Millrace makes logits in pieces that are used while they are in cache; PyTorch writes all of them
and their gradient: 1,024 x 100,000 of them are 410 MB each, which `torch.compile` reads fewer times than eager.""",
    "L": """Every layer adds the same FLOPs and bytes, so the lines are straight; what a step costs without layers is the loss head and the embedding.""",
}


def growth(rows, axis, rate):
    """What the last row costs more than the first, as a rate: that of what was added."""
    def of(how):
        found = [r for r in rows if r["how"] == how and r["workload"].startswith(axis + "-")]
        return (found[0], found[-1]) if len(found) > 1 else None

    first, last = of("millrace")
    flops, moved = last["flops"] - first["flops"], last["bytes"] - first["bytes"]
    rates = []
    for how in COLOURS:
        if pair := of(how):
            ms = pair[1]["ms"] - pair[0]["ms"]
            rates.append(f"{how} {ms:,.0f} ms more ({flops / ms / 1e6:.0f} GFLOP/s)")
    return (f"From the first row to the last: {flops / 1e9:.1f} GFLOP and {moved / 1e9:.2f} GB more; {', '.join(rates)}. At {rate:g} GB/s, about what "
            f"AdamW reaches here, all {last['bytes'] / 1e9:.2f} GB of the last row would take {last['bytes'] / rate / 1e6:.0f} of its {last['ms']:,.0f} ms: "
            "FLOPs decide, not bytes.")


def section(rows, axis, rate):
    return "\n\n".join([table(rows, axis), WHY[axis], growth(rows, axis, rate)])


def main():
    record = json.loads(pathlib.Path(sys.argv[1]).read_text())
    rows = record["rows"]
    (ROOT / "docs" / "cost_growth.svg").write_text(picture(rows))
    page = f"""# What a step costs, as one thing grows

Written by `bench/growth_page.py` from `{pathlib.Path(sys.argv[1]).name}`: {record["machine"]}, `{record["command"]}`, commit {record["commit"]},
{record["date"]}, {record["peers"]}. Training steps in float32 (forward, backward, clipping, AdamW). "Least GB" counts what every node reads and writes
once; "ceiling" is the sgemm rate measured in the same row, and varies because the machine is shared.

![ms per step](cost_growth.svg)

""" + "\n\n".join(section(rows, axis, float(sys.argv[2])) for axis in AXES) + "\n"
    (ROOT / "docs" / "COST_GROWTH.md").write_text(page)


if __name__ == "__main__":
    main()
