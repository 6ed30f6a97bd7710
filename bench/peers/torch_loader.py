"""A PyTorch DataLoader with two workers doing what Millrace's loader does, for bench/run data.

  torch_loader.py stream TOKENIZER.json TEXT EPOCHS     tokenizes in its workers, each its half of the file
  torch_loader.py prepare TOKENIZER.json TEXT FOLDER    tokenizes once, by two threads, into arrays on disk
  torch_loader.py memmap FOLDER EPOCHS                  maps those arrays

A line of the text is a record; records are cut to 256 tokens, drawn at random in pools, sorted by length within a pool, and padded
in batches of 64 to their longest: inputs and targets, int64. All of it by NumPy on whole batches. A line of JSON for
every epoch; what is imported before is not timed.
"""
import itertools
import json
import os
import pathlib
import sys
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false" if sys.argv[1] == "stream" else "true")

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

BATCH, LENGTH, WORKERS, PREFETCH = 64, 256, 2, 4
POOL = 64 * BATCH  # sequences that are sorted together
END = "<|endoftext|>"


def open_tokenizer(path):
    tokenizer = Tokenizer.from_file(path)
    # The package itself ends every record, so that no list is touched for it.
    tokenizer.post_processor = TemplateProcessing(single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))])
    return tokenizer


def encode(tokenizer, lines):
    """All tokens of the lines in a row, and how many each has."""
    ids = [e.ids for e in tokenizer.encode_batch_fast(lines)]
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(itertools.chain.from_iterable(ids), np.uint16, int(lengths.sum())), lengths


def cut(lengths, first):
    """Where the sequences of records that follow each other begin, and how long they are."""
    pieces = -(-lengths // LENGTH)
    begins = first + np.cumsum(lengths) - lengths
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return np.repeat(begins, pieces) + number * LENGTH, np.minimum(LENGTH, np.repeat(lengths, pieces) - number * LENGTH)


def collate(tokens, begins, lengths):
    """The token before each is its input; before a record stands the end of the one before it."""
    places = np.arange(lengths.max())
    window = tokens[np.minimum(begins[:, None] + np.arange(-1, len(places)), len(tokens) - 1)].astype(np.int64)
    used = places < lengths[:, None]
    inputs, targets = np.where(used, window[:, :-1], 0), np.where(used, window[:, 1:], -1)
    return torch.from_numpy(inputs), torch.from_numpy(targets), int(lengths.sum())


def batches_of(order, lengths, random):
    """Pools of an order, sorted by length, as batches in random order."""
    for first in range(0, len(order), POOL):
        pool = order[first : first + POOL]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        starts = np.arange(0, len(pool), BATCH)
        random.shuffle(starts)
        for start in starts:
            yield pool[start : start + BATCH]


class Stream(IterableDataset):
    def __init__(self, tokenizer, text):
        self.tokenizer, self.text = tokenizer, text

    def lines(self, worker):
        """Blocks of the lines that begin in this worker's share of the file."""
        size = os.path.getsize(self.text)
        begin, end = size * worker // WORKERS, size * (worker + 1) // WORKERS
        with open(self.text, "rb") as file:
            if begin > 0:
                file.seek(begin - 1)
                file.readline()
            block = []
            while file.tell() < end and (line := file.readline()):
                block.append(line.rstrip(b"\n").decode())
                if len(block) == POOL:
                    yield block
                    block = []
            if block:
                yield block

    def __iter__(self):
        worker = get_worker_info().id
        tokenizer = open_tokenizer(self.tokenizer)
        end = np.array([tokenizer.token_to_id(END)], np.uint16)
        random = np.random.default_rng(worker)
        for lines in self.lines(worker):
            tokens, lengths = encode(tokenizer, lines)
            tokens = np.concatenate([end, tokens])
            begins, lengths = cut(lengths, 1)
            for chosen in batches_of(random.permutation(len(begins)), lengths, random):
                yield collate(tokens, begins[chosen], lengths[chosen])


class Mapped(Dataset):
    """Given the numbers of a batch's sequences, gives the batch."""

    def __init__(self, folder):
        self.folder, self.tokens = folder, None
        self.begins, self.lengths = np.load(folder / "begins.npy"), np.load(folder / "lengths.npy")

    def __getitem__(self, chosen):
        if self.tokens is None:
            self.tokens = np.memmap(self.folder / "tokens.bin", np.uint16, "r")
        return collate(self.tokens, self.begins[chosen], self.lengths[chosen])


class Pools:
    """A sampler: another order every epoch."""

    def __init__(self, lengths):
        self.lengths, self.random = lengths, np.random.default_rng(1)

    def __iter__(self):
        return batches_of(self.random.permutation(len(self.lengths)), self.lengths, self.random)


def prepare(tokenizer_path, text, folder):
    begin = time.perf_counter()
    tokenizer = open_tokenizer(tokenizer_path)
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    all_lengths = []
    with open(text, encoding="utf-8", newline="\n") as file, open(folder / "tokens.bin", "wb") as out:
        out.write(np.array([tokenizer.token_to_id(END)], np.uint16).tobytes())
        while lines := list(itertools.islice(file, POOL)):
            tokens, lengths = encode(tokenizer, [line.rstrip("\n") for line in lines])
            out.write(tokens.tobytes())
            all_lengths.append(lengths)
    begins, lengths = cut(np.concatenate(all_lengths), 1)
    np.save(folder / "begins.npy", begins)
    np.save(folder / "lengths.npy", lengths)
    print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)


def run(dataset, sampler, epochs):
    options = dict(batch_size=None, num_workers=WORKERS, prefetch_factor=PREFETCH, persistent_workers=True, pin_memory=False)
    loader = DataLoader(dataset, sampler=sampler, **options)
    for _ in range(epochs):
        begin = time.perf_counter()
        sequences = useful = places = count = total = 0
        for inputs, _targets, tokens in loader:
            sequences += inputs.shape[0]
            places += inputs.numel()
            useful += tokens
            total += int(inputs.sum())
            count += 1
        print(json.dumps({"epoch_s": time.perf_counter() - begin, "sequences": sequences, "useful": useful, "places": places,
                          "batches": count, "sum": total}), flush=True)


def main():
    how, *rest = sys.argv[1:]
    if how == "prepare":
        prepare(*rest)
    elif how == "stream":
        run(Stream(rest[0], rest[1]), None, int(rest[2]))
    else:
        dataset = Mapped(pathlib.Path(rest[0]))
        run(dataset, Pools(dataset.lengths), int(rest[1]))


if __name__ == "__main__":
    main()
