"""Texts and their references of every kind that the metrics treat differently, from a seed: for make_text_metrics.py
and tests/outside/text_metrics.py."""

WORDS = ("the a cat sat on mat and dogs running ran quickly happily nationality relational skies dying Paris UN "
         "don't it's well-known state-of-the-art rock'n'roll e.g. i.e. Mr. U.S. co-operate").split()
NUMBERS = "7 42 3.14 1,000.5 1,000,000 -5 5-3 1990-2000 10% $9.99 .5 5. ,5 5, 12:30 0x1F 2nd".split()
SIGNS = list(".,;:!?-'\"()[]{}<>/\\|@#$%^&*_+=`~") + ["...", ",,", "--", ".,", "?!", "&quot;", "&amp;", "&lt;", "&gt;", "&amp;lt;", "&nbsp;",
                                                     "<skipped>", "“", "”", "—", "…", "¿", "。", "،"]
FOREIGN = ["über", "Straße", "naïve", "cafe\u0301", "İstanbul", "\u212ag", "Ångström", "привет", "мир", "γειά", "中文句子", "日本語", "한국어", "العربية",
           "हिन्दी", "😀", "👩‍👩‍👧", "🇩🇪", "٣", "Ⅷ", "½", "x²", "\u0301", "\u200b"]
SPACES = [" "] * 12 + ["  ", "\t", "\u00a0", "\u3000", "\u2009", "\u2028", "\x85", "\x1c", "\x0b", "\u200b"]


def word(rng):
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(WORDS)
    if kind < 0.72:
        return rng.choice(NUMBERS)
    if kind < 0.84:
        return rng.choice(FOREIGN)
    if kind < 0.94:
        return rng.choice(WORDS + NUMBERS) + rng.choice(SIGNS)
    if kind < 0.97:
        return rng.choice(SIGNS)
    return "".join(rng.choice(SIGNS + ["1", "a", "é"]) for _ in range(rng.randint(2, 8)))


def joined(rng, words):
    return "".join(w + rng.choice(SPACES) for w in words)[: None if rng.random() < 0.3 else -1]


def text(rng, longest):
    kind = rng.random()
    if kind < 0.04:
        return []
    if kind < 0.10:
        return [word(rng)]
    if kind < 0.16:
        return [word(rng)] * rng.randint(2, longest)  # again and again
    return [word(rng) for _ in range(rng.randint(2, longest))]


def changed(rng, words):
    """A hypothesis: the reference with some of its words left out, replaced, doubled, moved or in other case."""
    rate, result = rng.choice([0.0, 0.1, 0.3, 0.7]), []
    for w in words:
        kind = rng.random() / rate if rate else 1
        if kind < 0.25:
            continue
        result.append(word(rng) if kind < 0.55 else w.upper() if kind < 0.7 else w)
        if 0.7 <= kind < 0.85:
            result.append(w)
        if 0.85 <= kind < 1 and len(result) > 1:
            result.insert(rng.randrange(len(result)), result.pop())
    return result


def pair(rng, longest=25):
    reference = text(rng, longest)
    kind = rng.random()
    if kind < 0.05:
        same = joined(rng, reference)
        return same, same
    hypothesis = text(rng, longest) if kind < 0.15 else changed(rng, reference)
    return joined(rng, hypothesis), joined(rng, reference)


def corpus(rng, most_lines=6, longest=25):
    pairs = [pair(rng, longest) for _ in range(rng.randint(1, most_lines))]
    return [h for h, _ in pairs], [r for _, r in pairs]
