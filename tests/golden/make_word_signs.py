#!/usr/bin/env python3
"""Writes src/data/word_signs.inc: the ranges of marks (general category M), and what lower case makes of a
character, as runs of (first, last, step, lower case of the first).

  pip install unicodedata2==16.0.0 && tests/golden/make_word_signs.py > src/data/word_signs.inc

Pairs of upper and lower case are those of the Python that runs this (3.11: Unicode 14); a character whose lower
case is of another category or longer than one character (U+0130) is left alone.
"""
import unicodedata

import unicodedata2

assert unicodedata2.unidata_version == "16.0.0", unicodedata2.unidata_version


def is_mark(c):
    return unicodedata2.category(chr(c))[0] == "M"


def lower(c):
    text = chr(c).lower()
    return ord(text) if len(text) == 1 and unicodedata2.category(text)[0] == unicodedata2.category(chr(c))[0] else c


def show(entries):
    line = ""
    for entry in entries:
        if len(line) + len(entry) >= 100:
            print(line)
            line = ""
        line += (" " if line else "") + entry
    print(line)


def marks():
    first = None
    for c in range(0x110001):
        inside = c < 0x110000 and is_mark(c)
        if inside and first is None:
            first = c
        if not inside and first is not None:
            yield f"MR_MARKS(0x{first:X}, 0x{c - 1:X})"
            first = None


def pairs():
    upper = [c for c in range(0x110000) if lower(c) != c]
    while upper:
        run = [upper.pop(0)]
        step = upper[0] - run[0] if upper and upper[0] - run[0] <= 2 else 1
        while upper and upper[0] - run[-1] == step and lower(upper[0]) - upper[0] == lower(run[0]) - run[0]:
            run.append(upper.pop(0))
        yield f"MR_LOWER(0x{run[0]:X}, 0x{run[-1]:X}, {step}, 0x{lower(run[0]):X})"


print(f"// Unicode 16.0.0, pairs of case of Unicode {unicodedata.unidata_version}; written by tests/golden/make_word_signs.py.")
show(marks())
show(pairs())
