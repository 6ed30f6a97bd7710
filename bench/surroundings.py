"""Where a benchmark runs: this machine, this commit, the program, and the peers with their environment."""
import os
import pathlib
import platform
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MILLRACE = pathlib.Path(os.environ.get("MILLRACE", ROOT / "build" / "millrace"))
PYTHON = pathlib.Path(os.environ.get("PEER_PYTHON", ROOT / ".venv" / "bin" / "python"))
PACKAGES = ("torch", "numpy", "safetensors")


def say(text=""):
    print(text, flush=True)


def fail(text):
    print(text, file=sys.stderr)
    sys.exit(2)


def machine(device="cpu"):
    if device == "cuda":
        asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
        if asked.returncode != 0:
            fail(f"bench/run cuda: no NVIDIA GPU here ({asked.stderr.strip() or 'nvidia-smi failed'})")
        return asked.stdout.splitlines()[0].replace(",", ", driver")
    name = platform.processor() or "cpu"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def slug(text):
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def commit():
    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--", "src", "bench", ":!bench/results") else "")


def install_peers(packages=PACKAGES, versions="import torch, safetensors; print('PyTorch', torch.__version__)"):
    """The peers' versions, or why they are missing."""

    def ask():
        return subprocess.run([PYTHON, "-c", versions], capture_output=True, text=True)

    if PYTHON.exists() and (found := ask()).returncode == 0:
        return found.stdout.strip(), None
    say(f"installing the peers into {PYTHON.parent.parent.relative_to(ROOT)}/: {' '.join(packages)} (from PyPI, once)")
    made = subprocess.run([sys.executable, "-m", "venv", PYTHON.parent.parent], capture_output=True, text=True)
    if made.returncode == 0:
        made = subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *packages], capture_output=True, text=True)
    if made.returncode == 0 and (found := ask()).returncode == 0:
        return found.stdout.strip(), None
    reason = (made.stderr or made.stdout or found.stderr).strip().splitlines()
    return None, reason[-1] if reason else "could not be installed"
