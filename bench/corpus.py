"""Text to race on: lines of files that are given, or of the Python library on this machine, to any size."""
import pathlib
import random
import sysconfig

# What is looked for in a folder of data sets.
KNOWN = ("tinyshakespeare.txt", "multi30k/train.en", "multi30k/train.de")


def files_of(texts, folder):
    files = [pathlib.Path(t) for t in texts]
    if folder:
        files += [pathlib.Path(folder) / name for name in KNOWN]
    if missing := [str(f) for f in files if not f.is_file()]:
        raise FileNotFoundError(f"no file {missing[0]}")
    return files


def lines_of(files):
    """Lines with their ends; none is empty, so that all programs count the same records."""
    found = []
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        found += [line.encode() + b"\n" for line in text.split("\n") if line.strip()]
    return found


def python_library(size):
    """Source code in files sorted by name: so many bytes, or what there is."""
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    found, total = [], 0
    for file in sorted(library.rglob("*.py")):
        if "site-packages" in file.parts or total >= size:
            continue
        lines = lines_of([file])
        found += lines
        total += sum(map(len, lines))
    return found


def write_shuffled(lines, path, size, sentences=lambda _: 1):
    """About `size` bytes: all lines in random order, again and again; `sentences(random)` of them in a line.

    A pass at a time is in memory, however much is written.
    """
    chance, written = random.Random(1), 0
    lines = list(lines)
    with open(path, "wb", buffering=1 << 20) as out:
        while written < size:
            chance.shuffle(lines)
            at = 0
            while at < len(lines) and written < size:
                count = sentences(chance)
                line = lines[at] if count == 1 else b" ".join(part.rstrip(b"\n") for part in lines[at : at + count]) + b"\n"
                written += out.write(line)
                at += count
    return path


def documents(chance):
    """How many sentences: 1 to 120, half of them below 10 or so."""
    return min(120, 1 + int(chance.lognormvariate(2.2, 1)))
