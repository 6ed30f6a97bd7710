"""The tokenizers of PyPI: `tokenizers` and `tiktoken` (byte-level BPE) and `sentencepiece`, for bench/run data.

  text_tokens.py learn tokenizers bpe TEXT... OUT        learns a tokenizer as GPT-2's, 32,000 pieces
  text_tokens.py learn sentencepiece KIND TEXT... OUT    a model, unigram or bpe, 8,000 pieces
  text_tokens.py ids PACKAGE MODEL TEXT                  a line of ids for every line
  text_tokens.py time PACKAGE MODEL TEXT THREADS         for every line on standard input a pass over the lines of the
                                                         text: a line of JSON

What is timed is what the package does by itself: `tokenizers` keeps its ids in its own memory, and no list of them
is made. tiktoken reads the same tokenizer.json: the number of a piece is its rank; its own threads make it slower on short
texts, so it gets processes, which hand nothing over but a count.
"""
import json
import multiprocessing
import os
import pathlib
import sys
import time

LINES_AT_ONCE = 8192


def learn_byte_level(texts, out):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train(texts, trainers.BpeTrainer(vocab_size=32000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                               show_progress=False, special_tokens=["<|endoftext|>"]))
    tokenizer.save(out)


def learn_pieces(kind, texts, out):
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(input=texts, model_prefix=out.removesuffix(".model"), vocab_size=8000,
                                             model_type=kind, input_sentence_size=200_000, minloglevel=2)


def open_tiktoken(path):
    import tiktoken
    from tokenizers import pre_tokenizers

    # GPT-2's alphabet: printable bytes stand for themselves, the others follow from 256 on.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    byte_of = {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)}
    assert set(byte_of) == set(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = json.loads(pathlib.Path(path).read_text())["model"]["vocab"]
    pieces = {bytes(map(byte_of.get, piece)): number for piece, number in vocabulary.items() if piece != "<|endoftext|>"}
    expression = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    return tiktoken.Encoding("race", pat_str=expression, mergeable_ranks=pieces, special_tokens={})


def open_model(package, path, threads):
    """From lines to a list or an Encoding for each."""
    if package == "tokenizers":
        os.environ["RAYON_NUM_THREADS"] = str(threads)
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
        from tokenizers import Tokenizer

        model = Tokenizer.from_file(path)
        return lambda lines: model.encode_batch_fast(lines, add_special_tokens=False)
    if package == "tiktoken":
        model = open_tiktoken(path)
        return lambda lines: list(map(model.encode_ordinary, lines))
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=path)
    return lambda lines: model.encode(lines, out_type=int, num_threads=threads)


encode, blocks = None, []  # of this process and of those it forks


def count(number):
    return sum(map(len, encode(blocks[number])))


def main():
    global encode, blocks
    how, package, *rest = sys.argv[1:]
    if how == "learn":
        kind, *texts, out = rest
        learn_byte_level(texts, out) if package == "tokenizers" else learn_pieces(kind, texts, out)
        return
    threads = int(rest[2]) if how == "time" else 2
    encode = open_model(package, rest[0], threads)
    text = pathlib.Path(rest[1]).read_bytes()
    lines = text.decode().removesuffix("\n").split("\n")
    if how == "ids":
        for encoded in encode(lines):
            print(*(encoded.ids if package == "tokenizers" else encoded))
        return
    blocks = [lines[i : i + LINES_AT_ONCE] for i in range(0, len(lines), LINES_AT_ONCE)]
    of_all = map
    if package == "tiktoken" and threads > 1:
        of_all = multiprocessing.get_context("fork").Pool(threads).map
    for _ in sys.stdin:
        begin = time.perf_counter()
        tokens = sum(of_all(count, range(len(blocks))))
        print(json.dumps({"ms": 1e3 * (time.perf_counter() - begin), "tokens": tokens, "bytes": len(text)}), flush=True)


if __name__ == "__main__":
    main()
