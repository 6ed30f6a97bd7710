#!/usr/bin/env python3
"""Text metrics judged from outside: `millrace score` against sacrebleu and rouge-score on random texts.

  tests/outside/text_metrics.py BINARY        needs, from PyPI, sacrebleu and rouge-score; exit 1 on a difference

1,000 pairs line by line (`--per-line`), with and without stems, and 1,000 corpora as a whole. Texts are of every kind that the metrics treat
differently (tests/golden/text_pairs.py), some of them long, some with bytes that are not UTF-8, which Python reads as
errors="surrogateescape". Prints how far each figure is from the package's at most.
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden"))
from text_pairs import corpus, pair

COUNT = 1000
# From 0 to 100; ROUGE is held to 1e-6 of 1.
TOLERANCE = {"bleu": 0.01, "chrf": 0.01, "rouge1": 1e-4, "rouge2": 1e-4, "rougeL": 1e-4}
ROUGE = ["rouge1", "rouge2", "rougeL"]
NO_UTF8 = [b"\xff", b"\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\xaf", b"\xed\xa0\x80"]

farthest = {}


def as_read(text):
    """What Python reads when the text was written: bytes that have come together may be a character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def broken(rng, text):
    at = rng.randint(0, len(text))
    return as_read(text[:at] + rng.choice(NO_UTF8).decode("utf-8", "surrogateescape") + text[at:])


def spoilt(rng, hypotheses, references):
    if rng.random() < 0.05:
        return [broken(rng, h) for h in hypotheses], [broken(rng, r) for r in references]
    return hypotheses, references


def score(folder, hypotheses, references, *options):
    files = []
    for name, lines in (("hypotheses", hypotheses), ("references", references)):
        files.append(folder / name)
        files[-1].write_bytes(b"".join(line.encode("utf-8", "surrogateescape") + b"\n" for line in lines))
    run = subprocess.run([sys.argv[1], "score", *files, *options], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"text_metrics.py: millrace score ended with {run.returncode}: {run.stderr}")
    return run.stdout


def compare(what, name, got, wanted):
    apart = abs(got - wanted)
    key = (what, name)
    farthest[key] = max(farthest.get(key, 0.0), apart)
    if not apart <= TOLERANCE[name.split("_")[0]]:
        print(f"DIFFERENT: {what}, {name}: millrace {got}, the package {wanted}")


def compare_rouge(what, got, scores):
    for kind in ROUGE:
        for name, at in ((kind + "_precision", 0), (kind + "_recall", 1), (kind, 2)):
            compare(what, name, got[name], 100 * sum(s[kind][at] for s in scores) / len(scores))


def check_pairs(folder, rng):
    pairs = [pair(rng, longest=rng.choice([3, 10, 25, 60, 300])) for _ in range(COUNT)]
    hypotheses, references = zip(*(tuple(x[0] for x in spoilt(rng, [h], [r])) for h, r in pairs))
    sentence_bleu, chrf = BLEU(effective_order=True), CHRF()
    for what, options, stem in (("pairs", [], False), ("pairs, stems", ["--stem"], True)):
        lines = [json.loads(line) for line in score(folder, hypotheses, references, "--per-line", *options).splitlines()]
        if [line["line"] for line in lines] != list(range(1, COUNT + 1)):
            sys.exit("text_metrics.py: not a line for each pair")
        scorer = RougeScorer(ROUGE, use_stemmer=stem)
        for got, h, r in zip(lines, hypotheses, references):
            compare(what, "bleu", got["bleu"], sentence_bleu.sentence_score(h, [r]).score)
            compare(what, "chrf", got["chrf"], chrf.sentence_score(h, [r]).score)
            compare_rouge(what, got, [scorer.score(r, h)])


def check_corpora(folder, rng):
    bleu, chrf, scorer = BLEU(), CHRF(), RougeScorer(ROUGE)
    zero = 0
    for _ in range(COUNT):
        hypotheses, references = spoilt(rng, *corpus(rng, most_lines=rng.choice([2, 5, 20])))
        got = json.loads(score(folder, hypotheses, references, "--json"))
        wanted = bleu.corpus_score(hypotheses, [references]).score
        zero += wanted == 0
        compare("corpora", "bleu", got["bleu"], wanted)
        compare("corpora", "chrf", got["chrf"], chrf.corpus_score(hypotheses, [references]).score)
        compare_rouge("corpora", got, [scorer.score(r, h) for h, r in zip(hypotheses, references)])
    print(f"{COUNT} corpora, {COUNT - zero} with a BLEU over 0")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as name:
        check_pairs(pathlib.Path(name), rng)
        check_corpora(pathlib.Path(name), rng)
    failures = 0
    for (what, name), apart in farthest.items():
        good = apart <= TOLERANCE[name.split("_")[0]]
        failures += not good
        print(f"{what:13} {name:17} at most {apart:8.1e} apart  {'same' if good else 'DIFFERENT'}")
    print(f"{len(farthest)} figures, {failures} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
