"""What Millrace trains on, read from its cache, in its own order: so that a peer sees the same batches.

The order is that of src/data/batches.cc, bucketing.cc and permutation.cc. Were it another one, losses would differ from the first
update on, which bench/curves.py looks at.
"""
import bisect
import json
import pathlib

import numpy as np
import torch

SAMPLER = 2  # RandomUse::sampler in src/core/rng.h
BATCH_STREAM = (1 << 64) - 1  # of src/data/bucketing.cc
WORD = 0xFFFFFFFF


def philox(key, c):
    """As in src/core/rng.h."""
    k = [key & WORD, key >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & WORD, (p >> 32) ^ c[3] ^ k[1], p & WORD]
        k = [(k[0] + 0x9E3779B9) & WORD, (k[1] + 0xBB67AE85) & WORD]
    return c


def window_begins(seed, samples, places):
    """Where the windows of a long text begin: sample i is the first number of stream i."""
    blocks = (philox(seed, [0, i & WORD, i >> 32, SAMPLER]) for i in range(samples))
    return [((high << 32 | low) * places) >> 64 for high, low, _, _ in blocks]


class Permutation:
    def __init__(self, size, seed, stream):
        self.size, self.key, self.half_bits = size, seed, 0
        if stream:
            words = philox(seed, [stream & WORD, stream >> 32, 0, SAMPLER ^ 0xFF << 8])
            self.key = words[1] << 32 | words[0]
        while 1 << (2 * self.half_bits) < size:
            self.half_bits += 1

    def at(self, index, epoch):
        if self.size == 1:
            return 0
        mask, value = (1 << self.half_bits) - 1, index
        while True:
            left, right = value >> self.half_bits, value & mask
            for turn in range(8):
                left, right = right, left ^ (philox(self.key, [right, epoch & WORD, epoch >> 32, SAMPLER ^ turn << 8])[0] & mask)
            value = left << self.half_bits | right
            if value < self.size:
                return value


class PairOrder:
    """Which pairs, by their rank in the index, each batch of an epoch holds."""

    def __init__(self, cells, rows, seed):
        self.rows, self.pools, self.shapes = rows, [], []  # pools: first batch, [(from, count)], first rank, order
        carried, first_rank, batches = [[] for _ in cells], 0, 0
        for c, (source, target, count) in enumerate(cells):
            pool = count + sum(more for _, more in carried[c])
            up = next((u for u in range(c + 1, len(cells)) if source <= cells[u][0] and target <= cells[u][1]), None)
            made = -(-pool // rows) if up is None else pool // rows
            self.pools.append((batches, carried[c], first_rank, Permutation(pool, seed, c + 1)))
            self.shapes.append((source, target))
            if pool > made * rows and up is not None:
                carried[up].append((c, pool - made * rows))
            batches += made
            first_rank += count
        self.batches, self.order = batches, Permutation(batches, seed, BATCH_STREAM)

    def rank_at(self, pool, place, epoch):
        while True:
            _, carried, first_rank, order = self.pools[pool]
            value = order.at(place, epoch)
            for source, count in carried:
                if value < count:
                    pool, place = source, self.pools[source][3].size - count + value
                    break
                value -= count
            else:
                return first_rank + value

    def batch(self, number):
        """The shape of a batch and its ranks."""
        epoch, index = divmod(number, self.batches)
        batch = self.order.at(index, epoch)
        pool = bisect.bisect_right([p[0] for p in self.pools], batch) - 1
        first = (batch - self.pools[pool][0]) * self.rows
        last = min(first + self.rows, self.pools[pool][3].size)
        return self.shapes[pool], [self.rank_at(pool, place, epoch) for place in range(first, last)]


class Prepared:
    """A data set in Millrace's cache; the only one there."""

    def __init__(self, cache):
        header, = pathlib.Path(cache).glob("data/*/dataset.json")
        self.folder, self.about = header.parent, json.loads(header.read_text())
        self.vocab, self.unknown, self.end = self.about["vocab_size"], self.about["unknown_id"], self.about["end_id"]
        self.start = self.about["start_id"] if self.about["start_id"] >= 0 else self.end
        self.rare = self.about["stored_size"] - self.vocab

    def store(self, split):
        """All ids of a split, rare words behind the vocabulary, and where each record begins."""
        width = json.loads((self.folder / split / "meta.json").read_text())["vocab_size"]
        ids = np.fromfile(self.folder / split / "tokens.bin", np.uint16 if width <= 1 << 16 else np.uint32)
        return torch.from_numpy(ids.astype(np.int64)), np.fromfile(self.folder / split / "records.bin", np.uint64).astype(np.int64)

    def closed(self, ids):
        return torch.where(ids < self.vocab, ids, self.unknown)

    def words(self):
        """Of a word tokenizer: the text of every id."""
        return ["<unk>", "<s>", "</s>", *json.loads((self.folder / "tokenizer.json").read_text())["words"]]

    def pairs(self, split):
        """Source and target of every pair, in the order of the files."""
        ids, begins = self.store(split)
        fields = [ids[a:b] for a, b in zip(begins[:-1], begins[1:])]
        return list(zip(fields[::2], fields[1::2]))

    def batches(self, seed, rows, max_source, count):
        """The first batches of training: source, its lengths, the same open, what each target follows, targets (-1: none)."""
        index, = self.folder.glob("train-pairs-*/meta.json")
        order = PairOrder(json.loads(index.read_text())["cells"], rows, seed)
        entries = np.fromfile(index.parent / "pairs.bin", np.uint32).reshape(-1, 4).astype(np.int64)
        ids, _ = self.store("train")
        for number in range(count):
            (S, T), ranks = order.batch(number)
            source, tokens = torch.zeros(rows, S, dtype=torch.long), torch.zeros(rows, T, dtype=torch.long)
            lengths, words, targets = torch.ones(rows, dtype=torch.long), torch.full((rows, S), -1), torch.full((rows, T), -1)
            for row, rank in enumerate(ranks):
                low, high, s, t = entries[rank]
                begin = low | high << 32
                n, target = min(s, max_source), ids[begin + s : begin + s + t]
                lengths[row], words[row, :n] = n, ids[begin : begin + n]
                source[row, :n] = self.closed(words[row, :n])
                copied = (target >= self.vocab) & torch.isin(target, words[row, :n])
                targets[row, :t] = torch.where(copied, target, self.closed(target))
                tokens[row, 0], tokens[row, 1:t] = self.start, self.closed(target)[: t - 1]
            yield source, lengths, words, tokens, targets
