#!/usr/bin/env python3
"""Makes tokenizers.json: small tokenizers and the ids and texts that the PyPI package `tokenizers` gives with them. Run by hand; the
test (tokenizers_test.cc) needs no Python. For more strings than the repository should hold: compare_tokenizers.py.

    python3 make_tokenizers.py        needs, from PyPI, tokenizers

Per style of tokenizer_styles.py, where the others have tests of their own: `file`, its tokenizer.json; `cases`, each [text, ids, the text
of the ids].
"""
import json
import pathlib
import random
import tempfile

import tokenizers
from tokenizer_styles import CHARACTERS, make

HERE = pathlib.Path(__file__).resolve().parent
TEXT = """the cat sat on the mat and the dog sat on the cat, then the hen and the cat ran at 12 and at 1234
a man and a pan and a can can span the land, and he had 7 hens and 70 cats in the den
the tall hat that the man had on that day was the hat that the hen sat on at 10 to 12
"""
MARKS = ["the", " the", "cat", "s", " ", "  ", "\n", "\t", "12", " 7", "½", "é", "中文", "😀", "\u2581", "<0x41>", "<s>", "</s>", "<|pad|>", "<|mask|>",
         "<|end|>of", "\u00a0", "'s", "!", "\x00", "Ⅷ3"]


def cases(tokenizer, rng):
    texts = ["", " ", "the", " the cat", "the cat  sat ", "<s>the cat</s> the", "é", "\u2581the", "the\ncat", "1234 a5b  6"]
    texts += ["".join(rng.choice(MARKS) for _ in range(rng.randrange(1, 16))) for _ in range(60)]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        yield [text, ids, tokenizer.decode(ids, skip_special_tokens=False)]


def main():
    out = {"made_with": {"tokenizers": tokenizers.__version__}, "styles": {}}
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(TEXT)
        file.flush()
        for style in ("digits", "digit_runs") + CHARACTERS:
            tokenizer = make(style, [file.name], 330)
            out["styles"][style] = {"file": json.loads(tokenizer.to_str()), "cases": list(cases(tokenizer, random.Random(style)))}
    lines = [f'{json.dumps(name)}: {{"file": {json.dumps(v["file"], ensure_ascii=False, separators=(",", ":"))},\n "cases": [\n'
             + ",\n".join("  " + json.dumps(c, ensure_ascii=False) for c in v["cases"]) + "]}" for name, v in out["styles"].items()]
    text = '{"made_with": ' + json.dumps(out["made_with"]) + ',\n"styles": {\n' + ",\n".join(lines) + "}}\n"
    assert json.loads(text) == json.loads(json.dumps(out))
    (HERE / "tokenizers.json").write_text(text)


if __name__ == "__main__":
    main()
