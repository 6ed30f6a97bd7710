"""Small tokenizers of every kind that Millrace reads from a tokenizer.json, for make_tokenizers.py and compare_tokenizers.py."""
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
OTHER = r"\p{Lu}?[a-z]+|[0-9]{2}|\s"  # neither of the two; leaves gaps
MARK = "\u2581"
CHARACTERS = ("prepended", "metaspace_first", "metaspace_always", "metaspace_never", "metaspace_split", "joined")
STYLES = ("gpt2", "spaced", "llama3", "other", "digits", "digit_runs") + CHARACTERS


def split_then_bytes(expression):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), "isolated", invert=False),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def digits_then_bytes(each):
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=each), pre_tokenizers.ByteLevel(add_prefix_space=False)])


def bytes_style(style, files, size):
    tokenizer = Tokenizer(models.BPE(ignore_merges=style == "llama3"))
    tokenizer.pre_tokenizer = {"gpt2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
                               "spaced": lambda: pre_tokenizers.ByteLevel(add_prefix_space=True),
                               "llama3": lambda: split_then_bytes(LLAMA3),
                               "other": lambda: split_then_bytes(OTHER),
                               "digits": lambda: digits_then_bytes(True),
                               "digit_runs": lambda: digits_then_bytes(False)}[style]()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                  special_tokens=["<|endoftext|>", "<|end|>"])
    tokenizer.train(files, trainer)
    return tokenizer


def characters_style(style, files, size):
    """As Llama 2's, by a normalizer (transformers 4) or by Metaspace (transformers 5). In `joined` merges reach over spaces."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if style in ("prepended", "joined"):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    else:
        scheme = style.split("_")[1].replace("split", "always")
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme=scheme, split=style == "metaspace_split")
    words = tokenizer.pre_tokenizer
    if style != "joined":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="never", split=True)
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    tokenizer.train(files, trainers.BpeTrainer(vocab_size=size, limit_alphabet=70, special_tokens=special, show_progress=False))
    tokenizer.pre_tokenizer = words
    chain = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if style != "metaspace_never":
        chain.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(chain)
    # The trainer makes added tokens of the bytes, which text would become: as a published file has it, only three are.
    return Tokenizer.from_str(without_added_bytes(tokenizer.to_str()))


def without_added_bytes(text):
    import json

    whole = json.loads(text)
    whole["added_tokens"] = [t for t in whole["added_tokens"] if not t["content"].startswith("<0x")]
    return json.dumps(whole, ensure_ascii=False)


def make(style, files, size):
    tokenizer = (characters_style if style in CHARACTERS else bytes_style)(style, files, size)
    tokenizer.add_special_tokens([AddedToken("<|pad|>", lstrip=True), AddedToken("<|mask|>", rstrip=True), "<|end|>of"])
    return tokenizer
