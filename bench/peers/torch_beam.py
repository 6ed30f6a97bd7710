"""Beam search as such code has it: source by source, the hypotheses of one source a batch, encoder once, states kept.

What is finished, and which is the best, is as in Millrace (src/train/beam_search.h). A model gives begin(source, open words),
next(tokens, state) -> log-probabilities and state, select(state, rows); one that has `copies` set never writes the unknown word.
"""
import time

import torch

import millrace_data
import torch_training as training


@torch.inference_mode()
def search(model, source, words, options, data, device):
    """The tokens of the best hypothesis."""
    width = options["beam"]
    live, finished = [([], 0.0)], []
    state = model.begin(source.to(device), words.to(device))
    last, before = torch.tensor([data.start], device=device), torch.zeros(1, device=device)
    for step in range(options["max_length"]):
        scores, state = model.next(last, state)
        if model.copies:
            scores[:, data.unknown] = -torch.inf
        scores = scores + before[:, None]
        best, places = scores.flatten().topk(2 * width)
        parents, tokens, best = (places // scores.shape[1]).tolist(), (places % scores.shape[1]).tolist(), best.tolist()
        grown, rows = [], []
        for i, (parent, token, score) in enumerate(zip(parents, tokens, best)):
            if len(grown) == width:
                break
            if token == data.end:
                if i < width:
                    finished.append((live[parent][0], score / (step + 1) ** options["length_penalty"]))
                continue
            grown.append((live[parent][0] + [token], score))
            rows.append(parent)
        live = grown
        if len(finished) >= width:
            break
        last = torch.tensor([h[-1] if h[-1] < data.vocab else data.unknown for h, _ in live], device=device)
        before = torch.tensor([score for _, score in live], device=device)
        state = model.select(state, torch.tensor(rows, device=device))
    else:
        finished += [(h, score / len(h) ** options["length_penalty"]) for h, score in live]
    return max(finished, key=lambda f: f[1])[0]


def numbered(words, vocab):
    """Rare words by numbers behind the vocabulary, in the order they come: as generate --ids has them."""
    places = {}
    return torch.tensor([w if w < vocab else vocab + places.setdefault(w, len(places)) for w in words.tolist()]), list(places)


def write(model, w):
    """A line for each source of the split, {ids, words}, and one with the seconds all took; words: ids as they are stored."""
    data, options, device = millrace_data.Prepared(w["cache"]), w["beam"], w["device"]
    model.eval()
    sources = [source[: w["source_length"]] for source, _ in data.pairs(options["split"])][: options["most"]]

    def one(source):
        words, rare = numbered(source, data.vocab)
        ids = search(model, data.closed(source), words, options, data, device)
        return {"ids": ids, "words": [i if i < data.vocab else rare[i - data.vocab] for i in ids]}

    for source in sources[:3]:  # what is done once is not counted
        one(source)
    start = time.perf_counter()
    found = [one(source) for source in sources]
    seconds = time.perf_counter() - start
    for line in found:
        training.say(**line)
    training.say(seconds=seconds)
