#!/usr/bin/env python3
"""Ids of byte-level BPE against the PyPI package `tokenizers`, on strings of every kind.

  tests/golden/compare_tokenizers.py TEXT_FILE... [--strings N]

Trains a GPT-2-like and a Llama-3-like tokenizer on the texts, makes N strings (100,000 unless said: pieces
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

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tokenizer_strings import strings

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
OTHER = r"\p{Lu}?[a-z]+|[0-9]{2}|\s"  # neither of the two; leaves gaps
MARKS = ["'s", "'S", "'ſ", "'ll", "'LL", "'re", "'", " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "a", "Zé", "12", "1234", "٣", "Ⅷ", "!",
         "...", "\u200d", "ü", "中文", "😀", "<|endoftext|>", "<|end|>", "<|end|>of", "<|pad|>", "<|mask|>", "<|", "\x00", "\u2028"]


def split_then_bytes(expression):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), "isolated", invert=False),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def make(style, files, folder):
    tokenizer = Tokenizer(models.BPE(ignore_merges=style == "llama3"))
    tokenizer.pre_tokenizer = {"gpt2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
                               "spaced": lambda: pre_tokenizers.ByteLevel(add_prefix_space=True),
                               "llama3": lambda: split_then_bytes(LLAMA3),
                               "other": lambda: split_then_bytes(OTHER)}[style]()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=8000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                  special_tokens=["<|endoftext|>", "<|end|>"])
    tokenizer.train(files, trainer)
    tokenizer.add_special_tokens([AddedToken("<|pad|>", lstrip=True), AddedToken("<|mask|>", rstrip=True), "<|end|>of"])
    path = folder / f"{style}.json"
    tokenizer.save(str(path))
    return tokenizer, path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--strings", type=int, default=100_000)
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as temp:
        folder = pathlib.Path(temp)
        rng = random.Random(1)
        texts = [pathlib.Path(f).read_text(errors="replace") for f in args.texts]
        batch = list(strings(texts, MARKS, args.strings, rng))
        (folder / "strings.jsonl").write_text("".join(json.dumps(s) + "\n" for s in batch))
        for style in ("gpt2", "spaced", "llama3", "other"):
            tokenizer, path = make(style, args.texts, folder)
            got = subprocess.run([ROOT / "build" / "millrace_tokenize", path, "ids", folder / "strings.jsonl"], capture_output=True, text=True, check=True)
            lines = got.stdout.split("\n")[:-1]
            assert len(lines) == len(batch), (len(lines), len(batch))
            bad = 0
            for text, line, want in zip(batch, lines, tokenizer.encode_batch(batch, add_special_tokens=False)):
                line = line.replace("not the same when decoded ", "") if style == "spaced" or "<|pad|>" in text or "<|mask|>" in text else line
                if line.split() != [str(i) for i in want.ids]:
                    bad += 1
                    if bad <= 5:
                        print(f"{style}: {text[:80]!r}\n  millrace   {line[:160]}\n  tokenizers {' '.join(map(str, want.ids))[:160]}")
            print(f"{style}: {len(batch)} strings, {bad} differ")
            wrong += bad
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
