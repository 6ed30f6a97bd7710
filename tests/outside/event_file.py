"""Reads event files written by Millrace with TensorBoard's own readers and compares everything.

Not part of ./check: it needs `pip install tensorboard`.
    python tests/outside/event_file.py build/millrace_unit_tests
"""
import math
import os
import subprocess
import sys
import tempfile

import numpy as np
from tensorboard.backend.event_processing import event_accumulator, event_file_loader, plugin_event_accumulator
from tensorboard.compat.proto import event_pb2
from tensorboard.plugins.text import text_plugin
from tensorboard.util import tensor_util

checks = 0


def expect(condition, what):
    global checks
    checks += 1
    if not condition:
        sys.exit(f"event_file.py: FAILED: {what}")


def same(a, b):
    return (math.isnan(a) and math.isnan(b)) or a == b


def scalars(accumulator, tag):
    return [(e.wall_time, e.step, e.value) for e in accumulator.Scalars(tag)]


def texts(accumulator, tag):
    return [(e.step, tensor_util.make_ndarray(e.tensor_proto).item().decode()) for e in accumulator.Tensors(tag)]


def accumulate(folder):
    everything = {"scalars": 0, "tensors": 0}
    accumulator = event_accumulator.EventAccumulator(folder, size_guidance=everything)
    accumulator.Reload()
    return accumulator


def expect_scalars(got, want, what):
    expect(len(got) == len(want), f"{what}: {len(got)} values, not {len(want)}")
    for g, w in zip(got, want):
        expect(g[:2] == w[:2] and same(g[2], float(np.float32(w[2]))), f"{what}: {g}, not {w}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run(
            [sys.argv[1], "--gtest_filter=EventFileTest.WritesFilesForTensorboard"],
            env={**os.environ, "MILLRACE_OUTSIDE_DIR": folder}, capture_output=True, text=True)
        expect(out.returncode == 0 and "SKIPPED" not in out.stdout, out.stdout + out.stderr)

        run = accumulate(os.path.join(folder, "run"))
        tags = run.Tags()
        expect(sorted(tags["scalars"]) == ["größe 寸法", "odd/values", "train/grad_norm", "train/loss"], tags)
        expect(tags["tensors"] == ["sample"], tags)
        expect(run.FirstEventTimestamp() == 1000, "the first event's time")
        steps = range(1, 2001)
        expect_scalars(scalars(run, "train/loss"), [(1000 + s, s, 5.0 / s) for s in steps], "train/loss")
        expect_scalars(scalars(run, "train/grad_norm"), [(1000 + s, s, s * 0.25) for s in steps], "train/grad_norm")
        with np.errstate(over="ignore"):
            expect_scalars(scalars(run, "odd/values"),
                           [(1001, 1, math.nan), (1002, 2, math.inf), (1003, 3, -math.inf), (1004, 4, 1e300),
                            (1005, 1 << 40, -0.0)], "odd/values")
        expect(math.copysign(1, scalars(run, "odd/values")[-1][2]) == -1, "the sign of zero")
        expect_scalars(scalars(run, "größe 寸法"), [(1001, 1, 7)], "a tag that is not ASCII")
        expect(texts(run, "sample") == [(1000, 'Once upon a time,\n"é" \ufffd <b>end</b>'), (2000, "")],
               texts(run, "sample"))
        plugin = run.SummaryMetadata("sample").plugin_data.plugin_name
        expect(plugin == "text", f"plugin {plugin}")
        html = text_plugin.text_array_to_html(np.array(texts(run, "sample")[0][1].encode()), True)
        expect("Once upon a time" in html, html)

        # The loader that TensorBoard's server uses, event by event.
        name = os.listdir(os.path.join(folder, "run"))[0]
        expect(name.startswith("events.out.tfevents.0000001000."), name)
        loader = event_file_loader.EventFileLoader(os.path.join(folder, "run", name))
        events = list(loader.Load())
        expect(events[0].file_version == "brain.Event:2", "the first event")
        expect(len(events) == 2 + 2000 + 6 + 2, f"{len(events)} events")
        kinds = {v.metadata.plugin_data.plugin_name for e in events for v in e.summary.value}
        expect(kinds == {"scalars", "text"}, kinds)

        killed = accumulate(os.path.join(folder, "killed"))
        want = [(1000 + s, s, s) for s in range(1, 21)] + [(2000 + s, s, -s) for s in range(21, 41)]
        expect_scalars(scalars(killed, "train/loss"), want, "the continued run")
        # The accumulator for scripts keeps texts when it purges; the one behind TensorBoard's pages does not.
        pages = plugin_event_accumulator.EventAccumulator(os.path.join(folder, "killed"), size_guidance={"tensors": 0})
        pages.Reload()
        expect(texts(pages, "sample") == [(15, "before")], texts(pages, "sample"))
        got = [(e.wall_time, e.step, tensor_util.make_ndarray(e.tensor_proto).item())
               for e in pages.Tensors("train/loss")]
        expect_scalars(got, want, "the continued run on the pages")
        second = sorted(os.listdir(os.path.join(folder, "killed")))[1]
        first_two = [e for e, _ in zip(
            event_file_loader.EventFileLoader(os.path.join(folder, "killed", second)).Load(), range(2))]
        expect(first_two[1].session_log.status == event_pb2.SessionLog.START and first_two[1].step == 21,
               "the start of the session")
    print(f"event_file.py: {checks} comparisons with tensorboard agree")


main()
