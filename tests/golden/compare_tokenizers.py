#!/usr/bin/env python3
"""Ids of BPE, byte-level and with byte_fallback, against the PyPI package `tokenizers`, on strings of every kind.

  tests/golden/compare_tokenizers.py TEXT_FILE... [--strings N]

Trains tokenizers of every kind that is read (tokenizer_styles.py) on the texts, makes N strings (100,000 unless said: pieces
of the texts, every Unicode block, long runs without spaces, mixtures of signs that the expressions treat
differently, added tokens) and compares what build/millrace_tokenize gives, string by string. Needs
`ninja -C build millrace_tokenize` and, from PyPI, tokenizers.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizer_strings import strings
from tokenizer_styles import STYLES, make

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MARKS = ["'s", "'S", "'ſ", "'ll", "'LL", "'re", "'", " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "a", "Zé", "12", "1234", "٣", "Ⅷ", "!",
         "...", "\u200d", "ü", "中文", "😀", "<|endoftext|>", "<|end|>", "<|end|>of", "<|pad|>", "<|mask|>", "<|", "\x00", "\u2028", "\u2581", "<0x41>", "<s>", "</s>", " 7", "½"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--styles", nargs="*")
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as temp:
        folder = pathlib.Path(temp)
        rng = random.Random(1)
        texts = [pathlib.Path(f).read_text(errors="replace") for f in args.texts]
        batch = list(strings(texts, MARKS, args.strings, rng))
        (folder / "strings.jsonl").write_text("".join(json.dumps(s) + "\n" for s in batch))
        for style in args.styles or STYLES:
            tokenizer, path = make(style, args.texts, 8000), folder / f"{style}.json"
            tokenizer.save(str(path))
            got = subprocess.run([ROOT / "build" / "millrace_tokenize", path, "ids", folder / "strings.jsonl"], capture_output=True, text=True, check=True)
            lines = got.stdout.split("\n")[:-1]
            assert len(lines) == len(batch), (len(lines), len(batch))
            bad = 0
            for text, line, want in zip(batch, lines, tokenizer.encode_batch(batch, add_special_tokens=False)):
                marked = "not the same when decoded " in line
                line = line.replace("not the same when decoded ", "")
                same = tokenizer.decode(want.ids, skip_special_tokens=False) == text
                if line.split() != [str(i) for i in want.ids] or marked == same:
                    bad += 1
                    if bad <= 5:
                        print(f"{style}: {text[:80]!r}\n  millrace   {line[:160]}\n  tokenizers {' '.join(map(str, want.ids))[:160]}")
            print(f"{style}: {len(batch)} strings, {bad} differ")
            wrong += bad
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
