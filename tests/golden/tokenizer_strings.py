"""Strings of every kind, for comparing tokenizers: every code point, pieces of texts, mixtures of signs, long runs."""


def strings(texts, marks, count, rng):
    points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    for i in range(0, len(points), 16):  # every code point there is, among others and with spaces
        block = [chr(c) for c in points[i : i + 16]]
        yield "".join(block) if i % 32 else " ".join(block) + "a1"
    for _ in range(count):
        kind = rng.random()
        if kind < 0.4:
            text = rng.choice(texts)
            at = rng.randrange(len(text))
            yield text[at : at + rng.randrange(1, 400)]
        elif kind < 0.9:
            yield "".join(rng.choice(marks) for _ in range(rng.randrange(1, 40)))
        else:
            yield "".join(chr(rng.choice(points)) for _ in range(rng.randrange(1, 60)))
    for n in (1000, 20000, 100000):
        yield "a" * n
        yield "".join(rng.choice("abcdefgh") for _ in range(n))
        yield "".join(rng.choice(texts)[i % 1000] for i in range(n)).replace("\n", "").replace(" ", "")
        yield " " * n
        yield "\n" * n + "x"
        yield "é" * n
        yield "\U0001f9ff" * (n // 10)
