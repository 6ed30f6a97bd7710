#!/usr/bin/env python3
"""Makes text_metrics.json: small corpora with their BLEU, chrF and ROUGE by the packages that papers use. Run by hand; the
test (text_metrics_test.cc) needs no Python.

    python3 make_text_metrics.py        needs, from PyPI, sacrebleu and rouge-score

Per corpus: `hypotheses` and `references`, line by line; `bleu` and `chrf` of sacrebleu's defaults; the mean over lines of
`rouge1`, `rouge2`, `rougeL` as [precision, recall, F1] from 0 to 1, and the same by stems (`rouge1_stem`, ...); `sentence_bleu`,
one for each line.
"""
import importlib.metadata
import json
import pathlib
import random

from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

from text_pairs import corpus

KINDS = ["rouge1", "rouge2", "rougeL"]
CORPORA = 40
# What is seldom drawn: a line without a reference, signs that are ASCII in lower case, words too short to be stemmed.
CHOSEN = [(["nothing like it", "a cat sat there"], ["", "a cat sat here"]), (["5 \u212ag"], ["5 kg"]), (["was his"], ["wa hi"])]


def rouge(hypotheses, references, stem):
    scorer = RougeScorer(KINDS, use_stemmer=stem)
    scores = [scorer.score(r, h) for h, r in zip(hypotheses, references)]
    return {kind + ("_stem" if stem else ""): [sum(s[kind][i] for s in scores) / len(scores) for i in range(3)] for kind in KINDS}


def main():
    rng = random.Random(20)
    corpora = []
    for hypotheses, references in CHOSEN + [corpus(rng, most_lines=5, longest=16) for _ in range(CORPORA)]:
        corpora.append({
            "hypotheses": hypotheses, "references": references,
            "bleu": BLEU().corpus_score(hypotheses, [references]).score,
            "chrf": CHRF().corpus_score(hypotheses, [references]).score,
            "sentence_bleu": [BLEU(effective_order=True).sentence_score(h, [r]).score for h, r in zip(hypotheses, references)],
            **rouge(hypotheses, references, False), **rouge(hypotheses, references, True)})
    versions = {name: importlib.metadata.version(name) for name in ("sacrebleu", "rouge-score", "nltk")}
    lines = ",\n".join(json.dumps(c) for c in corpora)
    path = pathlib.Path(__file__).resolve().with_name("text_metrics.json")
    path.write_text(f'{{"made_with": {json.dumps(versions)},\n"corpora": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
