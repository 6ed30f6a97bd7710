#!/usr/bin/env python3
"""Ids of SentencePiece models against the PyPI package `sentencepiece`, on strings of every kind.

  tests/golden/compare_sentence_piece.py TEXT_FILE... [--models MODEL...] [--strings N] [--program PATH]

Compares with the given models (those that Millrace has learned) and with models that the package learns from
the texts: unigram and BPE with its defaults (nmt_nfkc, no bytes), and with the options that change how text is
cut. Makes N strings (100,000 unless said: pieces of the texts, every code point, long runs without spaces,
mixtures of signs that the options treat differently) and compares what build/millrace_tokenize gives, string by
string. A string of several lines is encoded line by line, with the id of the piece "\\n" or <0x0A> between
them. Needs `ninja -C build millrace_tokenize` and, from PyPI, sentencepiece 0.1.99 to 0.2.1. Version 0.2.2 rounds
the sums of scores of unigram models otherwise, begins them anew in long lines, and scores the user's symbols in
another way: up to 6 of 10,000 strings then differ.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import sentencepiece

from tokenizer_strings import strings

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OPTIONS = {
    "unigram": dict(model_type="unigram"),
    "bpe": dict(model_type="bpe"),
    "unigram symbols": dict(model_type="unigram", user_defined_symbols=["<sep>", "<sep>a", "the", "\n", "é"], split_by_whitespace=False),
    "bpe symbols": dict(model_type="bpe", user_defined_symbols=["<sep>", "<sep>a", "the", "\n", "é"], byte_fallback=True, split_digits=True),
    "unigram suffix": dict(model_type="unigram", treat_whitespace_as_suffix=True, normalization_rule_name="nfkc_cf", byte_fallback=True),
    "bpe bare": dict(model_type="bpe", add_dummy_prefix=False, remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
                     normalization_rule_name="identity"),
}
MARKS = ["the", "he", " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2581", "\u2585", "a", "Zé", "e\u0301", "12", "1234", "Ⅷ", "ﬁ", "!",
         "...", "\u200d", "ü", "中文", "😀", "<s>", "</s>", "<unk>", "<0x41>", "<sep>", "<sep>a", "\x00", "\u2028", "\ufffd", "ﷺ"]


def encode(model, newline, text):
    ids = []
    for number, line in enumerate(text.split("\n")):
        if number and newline is not None:
            ids.append(newline)
        ids += model.encode(line)
    return ids


def newline_id(model):
    for piece in ("\n", "<0x0A>"):
        at = model.piece_to_id(piece)
        if at != model.unk_id():
            return at
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--program", default=ROOT / "build" / "millrace_tokenize")
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as temp:
        folder = pathlib.Path(temp)
        texts = [pathlib.Path(f).read_text(errors="replace") for f in args.texts]
        batch = list(strings(texts, MARKS, args.strings, random.Random(1)))
        (folder / "strings.jsonl").write_text("".join(json.dumps(s) + "\n" for s in batch))
        models = [(path, pathlib.Path(path)) for path in args.models]
        for name, options in OPTIONS.items():
            prefix = folder / name.replace(" ", "_")
            sentencepiece.SentencePieceTrainer.train(input=args.texts, model_prefix=str(prefix), vocab_size=6000, minloglevel=2, **options)
            models.append((f"{name}, learned by the package", prefix.with_suffix(".model")))
        for name, path in models:
            model = sentencepiece.SentencePieceProcessor(model_file=str(path))
            newline = newline_id(model)
            got = subprocess.run([args.program, path, "ids", folder / "strings.jsonl"], capture_output=True, text=True, check=True)
            lines = got.stdout.split("\n")[:-1]
            assert len(lines) == len(batch), (len(lines), len(batch))
            bad = 0
            for text, line in zip(batch, lines):
                want = encode(model, newline, text)
                line = line.replace("not the same when decoded ", "")  # normalisation does not come back
                if line.split() != [str(i) for i in want]:
                    bad += 1
                    if bad <= 5:
                        print(f"{name}: {text[:80]!r}\n  millrace      {line[:160]}\n  sentencepiece {' '.join(map(str, want))[:160]}")
            print(f"{name}: {len(batch)} strings, {bad} differ", flush=True)
            wrong += bad
    print(f"sentencepiece {sentencepiece.__version__}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
