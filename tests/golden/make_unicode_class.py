#!/usr/bin/env python3
"""Writes src/data/unicode_class.inc: the ranges of letters (general category L) and numbers (N).

  pip install unicodedata2==16.0.0 && tests/golden/make_unicode_class.py > src/data/unicode_class.inc
"""
import unicodedata2

assert unicodedata2.unidata_version == "16.0.0", unicodedata2.unidata_version
print("// Unicode 16.0.0; written by tests/golden/make_unicode_class.py.")
for name, category in (("MR_LETTERS", "L"), ("MR_NUMBERS", "N")):
    first, line = None, ""
    for c in range(0x110001):
        inside = c < 0x110000 and unicodedata2.category(chr(c))[0] == category
        if inside and first is None:
            first = c
        if not inside and first is not None:
            entry = f"{name}(0x{first:X}, 0x{c - 1:X})"
            if len(line) + len(entry) >= 100:
                print(line)
                line = ""
            line += (" " if line else "") + entry
            first = None
    print(line)
