#!/usr/bin/env python3
"""bench/run seeds FOLDER: the steps that five people guessed would make their trainings faster, each measured; docs/SEEDS.md.

  bench/run seeds FOLDER --device cpu     FOLDER holds mts-dialog, pedestrians and tinyshakespeare.txt
  bench/seeds.py --page                   the page, of the newest results for a CPU and for a GPU

Five notes about slow trainings (their configs: tests/seeds) each have a ladder of steps with guessed gains. SEEDS below has the ladders: a
way to train is a config of ours with some words changed; a step goes from one way to another, or says why there is nothing to measure. Every
way is `millrace profile --json` in a process of its own; all ways of a seed take turns, and medians of the turns are compared.
"""
import argparse
import csv
import datetime
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

from gpu_page import table
from race import human_bytes
from surroundings import MILLRACE, ROOT, commit, fail, machine, say, slug

RESULTS = ROOT / "bench" / "results"
UPDATES = {"cpu": 3, "cuda": 60}  # measured in a turn, unless the way says otherwise; `profile` warms up by itself
# What comes now and then would hide what a step is worth, so it comes never, unless it is the step.
ALWAYS = ("training.eval_every=1000000000", "training.max_eval_batches=1", "checkpoint.every=1000000 minutes", "checkpoint.keep_best=0",
          "sample.length=0", "runtime.log_format=none")
LEAST = 0.01  # as the doctor has it: less is no difference


# --- ladders ----------------------------------------------------------------------------------------------


@dataclass
class Way:
    """A config and some words behind it, a few on one kind of device only."""

    config: object  # a file of configs/, or one for each device
    words: str = ""
    cuda: str = ""
    cpu: str = ""
    data: str = ""  # of another kind than the seed's
    updates: dict = field(default_factory=dict)
    gpu_only: str = ""  # why there is nothing to measure on a CPU
    turns: dict = field(default_factory=dict)  # at most so many
    examples: dict = field(default_factory=dict)  # in an update, where they are counted


@dataclass
class Step:
    """What a note does, and what it says that this gives. `low` is the least that it says, as a number."""

    what: str
    guess: str
    low: float = 0
    before: str = ""
    after: str = ""
    maths: str = ""  # as the doctor names what a change does to the mathematics
    by: str = "tokens"  # what a second is counted in; or examples, where the step makes them shorter; or updates
    paces: tuple = ()  # the step is how often validation comes: updates between two, before and after
    since: str = ""  # also compared with this way: a ladder whose gains multiply
    why: str = ""  # nothing to measure
    peer: tuple = ()  # what it costs elsewhere, from the races: workload, slow one, quick one, words
    forward_again: str = ""  # what another forward pass would cost this way


@dataclass
class Seed:
    name: str
    title: str
    complaint: str
    setting: str
    data: str
    ways: dict
    steps: list
    lesson: str


A_GPU = "a GPU's"
SAME, REPORTING, ROUNDING, PROBLEM = "same bits", "same weights", "other rounding", "other problem"

# Without capture, as in eager PyTorch, unless a step says otherwise.
EAGER = "training.use_compile=false"
SIXTEEN = {"cpu": 4, "cuda": 16}  # dialogues an update; fewer on a CPU, whose turns would take minutes
SUMMARIZER = Seed(
    "000", "A summarizer of clinical notes",
    "A pointer-generator takes 1.25 seconds for one dialogue of 768 words on a laptop's GPU, 16 of them for an update. Nothing is broken: one "
    "dialogue at a time leaves the GPU idle, and LSTM and decoder go word by word.",
    "`configs/summarizer.yaml` on MTS-Dialog, whose vocabulary makes it 6 million parameters (the note's has 22). Its dialogues are joined until each fills the 768 words and its "
    "summary the 192, so that nothing is padding; an update is 16 of them, on the CPU 4, and dialogues a second count. *As they are*: the dialogues themselves, 106 words on average, 16 an update, by tokens.",
    "long dialogues",
    {
        "base": Way("summarizer.yaml", "", EAGER, "training.grad_accum=4", examples=SIXTEEN),
        "batch 4": Way("summarizer.yaml", "training.batch_size=4 training.grad_accum=4", EAGER, "training.grad_accum=1", examples=SIXTEEN),
        "batch 4, 224 wide": Way("summarizer.yaml", "training.batch_size=4 training.grad_accum=4 model.hidden_dim=224 model.emb_dim=112", EAGER,
                                 "training.grad_accum=1", examples=SIXTEEN),
        "batch 8": Way("summarizer.yaml", "training.batch_size=8 training.grad_accum=2", EAGER, "training.grad_accum=1", examples={"cpu": 8, "cuda": 16}, turns={"cpu": 1}),
        "shorter": Way("summarizer.yaml", "model.num_chunks=4 training.max_length=150", EAGER, "training.grad_accum=4", examples=SIXTEEN),
        "narrower": Way("summarizer.yaml", "model.emb_dim=96 model.hidden_dim=192", EAGER, "training.grad_accum=4", examples=SIXTEEN),
        "captured": Way("summarizer.yaml", gpu_only=A_GPU, examples=SIXTEEN),
        "fp16": Way("summarizer.yaml", "training.precision=fp16", EAGER, gpu_only=A_GPU, examples=SIXTEEN),
        "conservative": Way("summarizer-conservative.yaml", "", EAGER, "training.grad_accum=1", examples=SIXTEEN),
        "aggressive": Way("summarizer-aggressive.yaml", examples={"cpu": 16, "cuda": 16}),
        "base, as they are": Way("summarizer.yaml", "", EAGER, data="dialogues", updates={"cpu": 12}),
        "shorter, as they are": Way("summarizer.yaml", "model.num_chunks=4 training.max_length=150", EAGER, data="dialogues", updates={"cpu": 12}),
        "no workers": Way("summarizer.yaml", "data.num_workers=0", EAGER, data="dialogues", updates={"cpu": 12}),
        "two workers": Way("summarizer.yaml", "data.num_workers=2 data.prefetch_factor=2", EAGER, data="dialogues", updates={"cpu": 12}),
        "aggressive, as they are": Way("summarizer-aggressive.yaml", data="dialogues", updates={"cpu": 12}),
        "100 texts": Way("summarizer.yaml", "training.eval_texts=100 training.max_eval_batches=100", EAGER, data="dialogues"),
        "50 texts": Way("summarizer.yaml", "training.eval_texts=50 training.max_eval_batches=50", EAGER, data="dialogues"),
    },
    [
        Step("1: four dialogues at a time, accumulated 4 times instead of 16", "“2.5-3.0x faster”; in its table “1.8x”", 1.8, "base", "batch 4", ROUNDING, "examples"),
        Step("1, as it fits the note's card: with a smaller model (224, 112)", "“2.5-3.0x faster”", 2.5, "base", "batch 4, 224 wide", PROBLEM, "examples"),
        Step("eight at a time", "“2.5x (OOM)”", 2.5, "base", "batch 8", ROUNDING, "examples"),
        Step("2: sources of 512 words, summaries of 150", "“1.3-1.4x faster”", 1.3, "base", "shorter", PROBLEM, "examples"),
        Step("2, dialogues as they are", "“1.3-1.4x faster”", 1.3, "base, as they are", "shorter, as they are", PROBLEM),
        Step("3: a smaller model (192, 96)", "“1.15-1.2x faster”; in its table “1.3x”", 1.15, "base", "narrower", PROBLEM, "examples"),
        Step("4: two workers instead of none, two updates ahead (dialogues as they are)", "“1.05-1.1x faster”", 1.05, "no workers", "two workers", SAME),
        Step("5: validation with 100 summaries by beam search every 1,000 updates, not 500", "“1.02x overall”", 1.02, "100 texts", "100 texts", REPORTING, "updates", (500, 1000)),
        Step("5, or: with 50 of them", "“1.02x overall”", 1.02, "100 texts", "50 texts", REPORTING, "updates", (500, 500)),
        Step("6: `torch.compile`; here: the step captured once and replayed", "“1.2-1.3x faster”", 1.2, "base", "captured", SAME, "examples"),
        Step("7: Flash Attention", "“1.3-1.4x faster attention”; “Overall: 1250ms → 1150ms”",
             why="attention and decoder are one op, `attention_decoder`; there is no slower way to choose. In PyTorch: all that can leave the loop over the words taken out of it",
             peer=("pointer-b1", "torch-eager", "torch-hoisted")),
        Step("bfloat16 instead of float16", "", 0, "fp16", "base", ROUNDING, "examples"),
        Step("**conservative plan**: 1 to 4", "“2.8-3.2x faster”", 2.8, "base", "conservative", PROBLEM, "examples"),
        Step("**aggressive plan**: compiled, too, and here all 16 dialogues at a time", "“4.0-4.5x faster”", 4.0, "base", "aggressive", PROBLEM, "examples"),
        Step("aggressive plan, dialogues as they are", "“4.0-4.5x faster”", 4.0, "base, as they are", "aggressive, as they are", PROBLEM),
    ],
    "Two cores are busy with one dialogue: a larger batch is a GPU's remedy. A smaller model and shorter texts are worth what they save in arithmetic; of MTS-Dialog's 1,201 dialogues only 17 have more than 512 words. "
    "Workers cannot win what is not lost: batches are read from tokens on disk, made ahead of the step.")

LARGE = "training.batch_size=1"
TRANSFORMER = Seed(
    "001", "A Transformer trainer in C++",
    "A language model of 6 layers x 512 with 50,000 words trains at 48 tokens a second, one of 2 x 256 with 10,000 words at 330 to 360, one "
    "sequence at a time; the note counts on 60 times the cost for the large one.",
    "`configs/lm-6x512.yaml` (*large*) and `configs/lm-2x256.yaml` (*small*), sequences of 128 words, one at a time unless said, on the talk of MTS-Dialog, packed; presets as they are in `configs/`.",
    "talk",
    {
        "large": Way("lm-6x512.yaml", LARGE, updates={"cpu": 8}),
        "small": Way("lm-2x256.yaml", LARGE, updates={"cpu": 40}),
        "small, 659 long": Way("lm-2x256.yaml", f"{LARGE} training.max_length=659", updates={"cpu": 20}),
        "large, 16,000 words": Way("lm-6x512.yaml", f"{LARGE} model.vocab_size=16000", updates={"cpu": 8}),
        "large, 10,000 words": Way("lm-6x512.yaml", f"{LARGE} model.vocab_size=10000", updates={"cpu": 8}),
        "4 x 384": Way("lm-6x512.yaml", f"{LARGE} model.num_layers=4 model.d_model=384", updates={"cpu": 8}),
        "3 x 256": Way("lm-6x512.yaml", f"{LARGE} model.num_layers=3 model.d_model=256", updates={"cpu": 8}),
        "large, 64 long": Way("lm-6x512.yaml", f"{LARGE} training.max_length=64", updates={"cpu": 8}),
        "small, batch 32": Way("lm-2x256.yaml"),
        "small, accumulated": Way("lm-2x256.yaml", "training.batch_size=1 training.grad_accum=32"),
        "large, batch 32": Way("lm-6x512.yaml", "training.batch_size=32", gpu_only="left out: takes minutes"),
        "large, fp32": Way("lm-6x512.yaml", "training.batch_size=32 training.precision=fp32", gpu_only=A_GPU),
        "large, fp16": Way("lm-6x512.yaml", "training.batch_size=32 training.precision=fp16", gpu_only=A_GPU),
        "prototype": Way("prototype.json"),
        "quality": Way("quality.json"),
        "production": Way("production.json", turns={"cpu": 1}),
    },
    [
        Step("the forward pass once, not twice", "“15-16x speedup”, which it measured", 15, forward_again="small",
             why="the step is one graph, and its loss is read from it"),
        Step("chunks: a sequence of 128 tokens instead of one of 659 (small)", "“26x slower”", 26, "small, 659 long", "small", PROBLEM, "updates"),
        Step("the small model instead of the large", "“~48 tokens/sec” → “~330-360 tokens/sec”, which it measured; expected: “~60x slower”", 7, "large", "small", PROBLEM),
        Step("1: 16,000 words instead of 50,000 (large)", "“5x speedup”", 5, "large", "large, 16,000 words", PROBLEM),
        Step("1: 10,000 words", "“3-5x faster embedding lookups”", 3, "large", "large, 10,000 words", PROBLEM),
        Step("2: 4 layers x 384 instead of 6 x 512", "“10-20x faster training”", 10, "large", "4 x 384", PROBLEM),
        Step("2: 3 layers x 256", "“10-20x faster training”", 10, "large", "3 x 256", PROBLEM),
        Step("3: sequences of 64 instead of 128 (large)", "“4x faster (attention is O(n²))”", 4, "large", "large, 64 long", PROBLEM),
        Step("4: 32 sequences at a time instead of one (small)", "“10-30x faster (GPU utilization)”", 10, "small", "small, batch 32", PROBLEM),
        Step("4: the same (large)", "“10-30x faster (GPU utilization)”", 10, "large", "large, batch 32", PROBLEM),
        Step("5: accumulation: 32 times one sequence instead of 32 at a time (small)", "“Effective larger batch size without memory cost”", 0, "small, batch 32", "small, accumulated", ROUNDING),
        Step("6: FP16 (large, 32 at a time)", "“2x faster compute, 2x less memory”", 2, "large, fp32", "large, fp16", ROUNDING),
        Step("7: Flash Attention", "“2-4x faster attention computation”", why="no other attention is here: never a matrix of scores"),
        Step("8: gradient checkpointing", "“Trade compute for memory”", why="done by itself where `runtime.memory_limit` asks for it, and no more than needed"),
        Step("9: several GPUs", "“Linear speedup with GPUs/nodes”", why="not in Millrace"),
        Step("preset `prototype.json`", "“~400+ tokens/sec”", after="prototype"),
        Step("preset `quality.json`", "“~100-150 tokens/sec”", after="quality"),
        Step("preset `production.json`", "“With batching: ~1000+ tokens/sec”", after="production"),
    ],
    "A second forward pass costs a forward pass, so the factor of 15 had another cause. Cost goes with the arithmetic of the whole model, not with the "
    "product of its sizes; attention is a small part of it at these lengths, so that it grows with the length and not with its square. "
    "Where one sequence is an update, a shorter one leaves more of it to the optimizer.")

SHAKESPEARE = {"cpu": "shakespeare-small.yaml", "cuda": "shakespeare.yaml"}
CHARACTERS = Seed(
    "002", "A character model",
    "An epoch went from minutes to much longer: 4 hours became 20, which the note puts down to batches of 256 on a card of 16 GB. Its table multiplies seven remedies to 5.3x.",
    "`configs/shakespeare.yaml` on the GPU (6 layers x 384, 256 characters), `configs/shakespeare-small.yaml` on the CPU (4 x 128, 64 characters), on tiny Shakespeare. Each step "
    "stands on those before it.",
    "characters",
    {
        "base": Way(SHAKESPEARE, "training.batch_size=256 data.num_workers=0", "training.precision=fp32 training.use_compile=false", updates={"cpu": 6}),
        "batch 128": Way(SHAKESPEARE, "training.batch_size=128 data.num_workers=0", "training.precision=fp32 training.use_compile=false", updates={"cpu": 12}),
        "tf32": Way(SHAKESPEARE, "training.batch_size=128 data.num_workers=0 training.precision=tf32", "training.use_compile=false", gpu_only=A_GPU),
        "captured": Way(SHAKESPEARE, "training.batch_size=128 data.num_workers=0 training.precision=tf32", gpu_only=A_GPU),
        "fp16": Way(SHAKESPEARE, "training.batch_size=128 data.num_workers=0 training.precision=fp16", gpu_only=A_GPU),
        "four workers": Way(SHAKESPEARE, "training.batch_size=128 data.num_workers=4 data.prefetch_factor=2", "training.precision=fp16", updates={"cpu": 12}),
    },
    [
        Step("batch 128 instead of 256", "“1.3x”", 1.3, "base", "batch 128", PROBLEM),
        Step("TF32", "“1.5x”, “2.0x” in all", 1.5, "batch 128", "tf32", ROUNDING, since="base"),
        Step("`torch.compile`; here: the step captured and replayed", "“1.4x”, “2.8x” in all", 1.4, "tf32", "captured", SAME, since="base"),
        Step("fused AdamW", "“1.1x”, “3.1x” in all", why="the optimizer is one kernel for each parameter; there is no other"),
        Step("mixed precision (float16)", "“1.3x”, “4.0x” in all", 1.3, "captured", "fp16", ROUNDING, since="base"),
        Step("data loading: four workers; here: instead of none", "“1.1x”, “4.4x” in all", 1.1, {"cpu": "batch 128", "cuda": "fp16"}, "four workers", SAME, since="base"),
        Step("Flash Attention", "“1.2x”, “5.3x” in all", why="no other attention is here"),
    ],
    "The first remedy is for a card that is too small: where the memory is there, half the batch is no faster. Whatever is left after precision and capture is not data.")

TRAJECTORIES = Seed(
    "003", "A Transformer over trajectories",
    "Seven seconds an iteration with 512 sequences on four GPUs: a loop in Python makes a tensor for every state of every sequence, and batches are collated from lists.",
    "`configs/trajectory.yaml` (2 layers x 64, 20 states a sequence) on the pedestrians of ETH and UCY, one device.",
    "paths",
    {
        "no workers": Way("trajectory.yaml", "training.batch_size=512 data.num_workers=0", updates={"cpu": 20}),
        "before": Way("trajectory.yaml", "training.batch_size=512 data.num_workers=12", updates={"cpu": 20}),
        "16 workers": Way("trajectory.yaml", "training.batch_size=512 data.num_workers=16", updates={"cpu": 20}),
        "after": Way("trajectory.yaml", "training.batch_size=1024 data.num_workers=16", updates={"cpu": 10}),
    },
    [
        Step("1: 16 workers instead of 12", "“Better parallelism for data preprocessing”", 0, "before", "16 workers", SAME),
        Step("2: arrays made once, not lists of items (collate)", "“1.5-2x”", why="batches are filled in place, in memory that is there from the start"),
        Step("3: pinned memory, prefetching; here: 12 workers instead of none", "“2-3x speedup in data loading”", 2, "no workers", "before", SAME),
        Step("4: embeddings of whole sequences, not state by state", "“5-10x speedup in forward pass”", 5, why="a model is a graph of whole batches. In PyTorch, without the loop instead of with it",
             peer=("trajectory-b64", "torch-loop", "torch-eager")),
        Step("5: 1,024 sequences instead of 512", "“1.5x”", 1.5, "16 workers", "after", PROBLEM),
        Step("**all of it**", "“25-70x”; realistic: “~15-35x overall speedup”", 15, "no workers", "after", PROBLEM),
    ],
    "What made that training slow is the loop over single states, which the note says itself; without it there is nothing left that data loading or a larger batch could win by such factors.")

TUNED = "data.num_workers=4 data.prefetch_factor=2"
FINE_TUNING = Seed(
    "004", "Fine-tuning on 25 examples",
    "200 epochs over 25 examples, one at a time, take 23 minutes: 280 ms an update, of which the GPU works for 50 and waits while the main thread tokenizes the next example.",
    "`configs/finetune.yaml` on a GPT-2 of 124 million parameters, made at random, and 25 pairs of MTS-Dialog of about 110 tokens.",
    "examples",
    {
        "base": Way("finetune.yaml", "data.num_workers=0", "training.precision=fp32 training.use_compile=false"),
        "workers": Way("finetune.yaml", TUNED, "training.precision=fp32 training.use_compile=false"),
        "accumulated": Way("finetune.yaml", f"{TUNED} training.grad_accum=4", "training.precision=fp32 training.use_compile=false"),
        "batch 4": Way("finetune.yaml", f"{TUNED} training.batch_size=4", "training.precision=fp32 training.use_compile=false", updates={"cpu": 7}),
        "batch 8": Way("finetune.yaml", f"{TUNED} training.batch_size=8", "training.precision=fp32 training.use_compile=false", updates={"cpu": 4}, turns={"cpu": 1}),
        "bf16": Way("finetune.yaml", f"{TUNED} training.precision=bf16", "training.use_compile=false", gpu_only=A_GPU),
        "captured": Way("finetune.yaml", f"{TUNED} training.precision=fp32", gpu_only=A_GPU),
        "all": Way("finetune.yaml", f"{TUNED} training.precision=bf16", gpu_only=A_GPU),
    },
    [
        Step("four workers, pinned memory, two batches ahead; here: instead of none", "“3.6 it/s → 15-20 it/s (4-5x faster)”", 4, "base", "workers", SAME),
        Step("1: accumulation: four times one example instead of four at a time", "“Simulate batch_size=4 with batch_size=1 memory footprint”", 0, "batch 4", "accumulated", ROUNDING),
        Step("2: BF16", "“2x faster, 2x less memory”", 2, "workers", "bf16", ROUNDING),
        Step("3: `torch.compile`; here: the step captured and replayed", "“1.5-2x speedup from kernel fusion”", 1.5, "workers", "captured", SAME),
        Step("4: four at a time", "“Better GPU utilization, more stable gradients”", 0, "workers", "batch 4", PROBLEM),
        Step("4: eight at a time", "“Better GPU utilization, more stable gradients”", 0, "workers", "batch 8", PROBLEM),
        Step("**all of it** with bf16 and compile", "“30-40 it/s”, from “3.6 it/s”", 8, "base", "all", ROUNDING),
    ],
    "Text is tokenized once, before the first update, and batches are made from that: the wait that the note is about does not come up. Accumulated gradients need "
    "a place of their own, which with short examples is more than the batch takes; and 25 do not divide by eight: rows stay empty, which useful tokens do not count.")

SEEDS = [SUMMARIZER, TRANSFORMER, CHARACTERS, TRAJECTORIES, FINE_TUNING]


# --- data -------------------------------------------------------------------------------------------------


def pairs(folder):
    with open(folder / "mts-dialog" / "train.csv", newline="", encoding="utf-8") as file:
        return [[" ".join(row[name].split()) for name in ("dialogue", "section_text")] for row in csv.DictReader(file)]


def long_dialogues(folder, temp):
    """Dialogues joined, and what they come to, until both are as long as the summarizer reads."""
    rows, source, target = [], [], []
    for dialogue, note in pairs(folder):
        source += dialogue.split()
        target += note.split()
        if len(source) >= 768 and len(target) >= 192:
            rows.append([" ".join(source), " ".join(target)])
            source, target = [], []
    with open(temp / "long.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["dialogue", "section_text"], *rows])
    return [f"data.folder={temp}", "data.train=long.csv", "data.validation=long.csv", "data.test=[]"]


def examples(folder, temp):
    """25 pairs of about the same length, and a GPT-2 of 124 million parameters to tune, made at random: one update too small to matter."""
    chosen = sorted(pairs(folder), key=lambda pair: abs(sum(len(text.split()) for text in pair) - 80))[:25]
    lines = [json.dumps({"prompt": f"{dialogue}\nNote:", "answer": f" {note}"}) for dialogue, note in chosen]
    (temp / "examples.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["model.num_layers=12", "model.d_model=768", "model.num_heads=12", "model.vocab_size=50257", "data.tokenizer=bpe", "data.vocab_size=4000",
             "training.batch_size=1", "training.max_length=512", "training.max_steps=1", "training.optimizer=sgd", "training.momentum=0",
             "training.learning_rate=1e-30", "device=cpu", "run_name=gpt2", f"runs_folder={temp}/made"]
    done = subprocess.run([MILLRACE, "train", ROOT / "configs" / "lm-2x256.yaml", *talk(folder, temp), *ALWAYS, *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"no model to tune: {done.stderr.strip()[-500:]}")
    made = next((temp / "made" / "gpt2").glob("2*/checkpoints/checkpoint-*"))
    return [f"model.init_from={made}", f"data.train={temp}/examples.jsonl", f"data.validation={temp}/examples.jsonl", "training.early_stop_patience=0"]


def talk(folder, _):
    return [f"data.folder={folder}/mts-dialog", "data.train=train.csv", "data.validation=val.csv", "data.fields=dialogue", "data.tokenizer=word"]


DATA = {
    "long dialogues": long_dialogues,
    "dialogues": lambda folder, _: [f"data.folder={folder}/mts-dialog"],
    "talk": talk,
    "characters": lambda folder, _: [f"data.train={folder}/tinyshakespeare.txt"],
    "paths": lambda folder, _: [f"data.folder={folder}/pedestrians"],
    "examples": examples,
}


# --- measuring --------------------------------------------------------------------------------------------


def profile(way, words, device, updates, draw, temp):
    """One turn: what `millrace profile` says, and the peak of its memory."""
    config = way.config if isinstance(way.config, str) else way.config[device]
    command = [str(MILLRACE), "profile", str(ROOT / "configs" / config), *words, f"device={device}", *ALWAYS, *changes(way, device), f"seed={draw}",
               f"runs_folder={temp}/runs", "--steps", str(updates), "--json"]
    with open(temp / "errors", "w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=temp)
        try:
            out = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            shutil.rmtree(temp / "runs", ignore_errors=True)
        if status != 0:
            errors.seek(0)
            said = errors.read().strip()
            at = said.rfind("error: ")
            raise RuntimeError(said[at + 7:].split("\n")[0] if at >= 0 else said[-200:] or f"status {status}")
    told = json.loads(out)
    return {"tokens_per_s": told["useful_tokens_per_second"], "update_s": told["update_seconds"]["mean"], "paced_s": told["seconds_with_occasions"],
            "within": told["update_seconds"]["noise_share"] or 0, "peak_bytes": told.get("device_bytes", usage.ru_maxrss * 1024),
            "useful_share": told["useful_share"], "forward_s": told["budget_seconds"]["forward"], "input_wait_s": told["budget_seconds"]["input_wait"],
            "validation_s": told["validation"]["seconds"]}


def changes(way, device):
    return [*way.words.split(), *getattr(way, device).split()]


def measure(seed, folder, temp, device, rounds, quick, faults):
    """Every way of a seed in turn, again and again: a row each, with its turns."""
    ways = {name: way for name, way in seed.ways.items() if device == "cuda" or not way.gpu_only}
    words = {kind: DATA[kind](folder, temp) for kind in {seed.data, *(way.data for way in ways.values() if way.data)}}
    turns, failed = {name: [] for name in ways}, set()
    for number in range(rounds):
        for name, way in ways.items():
            if name in failed or number >= way.turns.get(device, rounds):
                continue
            updates = UPDATES["cpu"] if quick else way.updates.get(device, UPDATES[device])
            begin = time.monotonic()
            try:
                turn = profile(way, words[way.data or seed.data], device, updates, 1 + number, temp)
            except RuntimeError as fault:
                failed.add(name)
                faults.append(f"{seed.name} {name}: {fault}")
                say(f"{seed.name} {name:28} failed: {fault}")
                continue
            turns[name].append(turn)
            say(f"{seed.name} {name:28} turn {number + 1}: {1e3 * turn['update_s']:10.2f} ms an update, {turn['tokens_per_s']:11,.0f} tokens/s, "
                f"{human_bytes(turn['peak_bytes']):>10}   ({time.monotonic() - begin:.0f} s)")
    rows = []
    for name, way in ways.items():
        if not turns[name] or name in failed:
            continue
        config = way.config if isinstance(way.config, str) else way.config[device]
        middle = {key: statistics.median(turn[key] for turn in turns[name]) for key in turns[name][0]}
        rows.append({"seed": seed.name, "workload": name, "how": "millrace", "config": config, "changes": changes(way, device), "data": way.data or seed.data,
                     "updates": way.updates.get(device, UPDATES[device]), "examples": way.examples.get(device), "ms": 1e3 * middle.pop("update_s"), **middle, "turns": turns[name]})
    return rows


# --- the page ---------------------------------------------------------------------------------------------


def seconds(value):
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def gain(before, after, by, paces=()):
    """How many times as fast, and by how much the turns disagree."""
    def speed(row, turn, pace):
        if pace:  # only what validation takes is new
            return 1 / (before["ms"] / 1e3 + turn["validation_s"] / pace)
        return turn["tokens_per_s"] if by == "tokens" else (row["examples"] if by == "examples" else 1) / turn["paced_s"]

    def middle(row, pace):
        values = [speed(row, turn, pace) for turn in row["turns"]]
        most = statistics.median(values)
        same = not pace and row["data"] != "dialogues"  # where updates are of one length, what they differ by is noise, too
        within = max(turn["within"] for turn in row["turns"]) / math.sqrt(len(values)) if same else 0
        return most, max(0.5 * (max(values) - min(values)) / most, within)

    (slow, noise), (quick, other) = (middle(row, pace) for row, pace in zip((before, after), paces or (0, 0)))
    return quick / slow, math.hypot(noise, other)


def of_device(value, device):
    return value if isinstance(value, str) else value[device]


def measured(seed, step, rows, device):
    """What a step gives on a device: ratio, noise, both rows; None where it was not measured."""
    before, after = (rows.get((seed.name, of_device(way, device))) for way in (step.before, step.after))
    return (*gain(before, after, step.by, step.paces), before, after) if before and after else None


def factor(ratio):
    return f"{ratio:.0f}x" if ratio >= 20 else f"{ratio:.1f}x" if ratio >= 3 else f"{ratio:.2f}x"


def cell(seed, step, rows, races, device):
    if step.forward_again or step.peer:
        return elsewhere(seed, step, rows, races) or "not measured yet"
    if step.why:
        return "–"
    ways = [seed.ways[of_device(way, device)] for way in (step.before, step.after) if way]
    if device == "cpu" and (reason := next((way.gpu_only for way in ways if way.gpu_only), "")):
        return reason
    if not step.before:
        row = rows.get((seed.name, step.after))
        return f"**{row['tokens_per_s']:,.0f}** tokens/s; {seconds(row['ms'] / 1e3)} an update; {human_bytes(row['peak_bytes'])}" if row else "not measured yet"
    found = measured(seed, step, rows, device)
    if not found:
        return "not measured yet"
    ratio, noise, before, after = found
    text = f"**{factor(ratio)}** ± {f'{100 * noise:.0f}' if noise >= 0.005 else '<1'} %; "
    if step.paces:
        return text + f"a validation takes {seconds(after['validation_s'])}, an update {seconds(before['ms'] / 1e3)}"
    text += f"{seconds(before['ms'] / 1e3)} → {seconds(after['ms'] / 1e3)}"
    if before["examples"] != after["examples"]:
        text += f" ({before['examples']} → {after['examples']} an update)"
    text += "; " + " → ".join(dict.fromkeys(human_bytes(row["peak_bytes"]) for row in (before, after)))
    if step.since and step.since != of_device(step.before, device):
        start = rows.get((seed.name, step.since))
        text += f"; {factor(gain(start, after, step.by)[0])} in all" if start else ""
    return text


def elsewhere(seed, step, rows, races):
    """What a fault that cannot be made here would cost: one more forward pass, or what PyTorch takes with it and without."""
    if step.forward_again:
        row = rows.get((seed.name, step.forward_again))
        return f"again would cost {factor(1 + 1e3 * row['forward_s'] / row['ms'])} at most: it is {100 * 1e3 * row['forward_s'] / row['ms']:.0f} % of an update, with the loss and the head's gradient" if row else ""
    workload, slow, quick = step.peer
    by = {row["how"]: row["ms"] for row in races if row["workload"] == workload}
    return f"PyTorch: {factor(by[slow] / by[quick])}; {seconds(by[slow] / 1e3)} → {seconds(by[quick] / 1e3)}" if slow in by and quick in by else ""


def verdict(seed, rows, device, name):
    """One sentence: how many of the guesses came true."""
    counts = {"reached": 0, "less": 0, "nothing": 0}
    for step in seed.steps:
        if not step.low or not step.before or not (found := measured(seed, step, rows, device)):
            continue
        ratio, noise, *_ = found
        if ratio - 1 <= noise + LEAST:
            counts["nothing"] += 1
        else:
            counts["reached" if ratio * (1 + noise) >= step.low else "less"] += 1
    total = sum(counts.values())
    if not total:
        return ""
    return f"{name}: of {total} measured {'step' if total == 1 else 'steps'} with a guessed figure {counts['reached']} gave that or more, {counts['less']} less, {counts['nothing']} nothing beyond the noise. "


def section(seed, rows, races, names):
    lines = []
    for step in seed.steps:
        what = step.what + (f" *({step.maths})*" if step.maths else "") + (f" – {step.why}" if step.why else "")
        lines.append([what, step.guess or "–"] + [cell(seed, step, rows[d], races[d], d) for d in names])
    says = "".join(verdict(seed, rows[d], d, name) for d, name in names.items())
    return f"""## Seed {seed.name}: {seed.title[0].lower() + seed.title[1:]}

{seed.complaint}

Measured: {seed.setting}

{table(["step", "guessed", *(f"{name} measured" for name in names.values())], lines)}

{says}{seed.lesson}
"""


def newest(pattern):
    """By device, of the results that there are."""
    found = {}
    for path in sorted(RESULTS.glob(pattern)):
        record = json.loads(path.read_text())
        device = record.get("device") or ("cuda" if path.name.startswith("cuda") else "cpu")
        if device not in found or record["date"] > found[device][1]["date"]:
            found[device] = path.name, record
    return found


def page():
    found = newest("seeds-*.json")
    if not found:
        fail("bench/seeds.py: no results yet; bench/run seeds FOLDER makes them")
    records = {device: record for device, (_, record) in found.items()}
    rows = {device: {(row["seed"], row["workload"]): row for row in records.get(device, {}).get("rows", ())} for device in ("cpu", "cuda")}
    races = {"cpu": [], "cuda": []}
    for device in races:
        for path in sorted(RESULTS.glob(f"{device}-*.json")):
            if (race := json.loads(path.read_text()))["machine"] == records.get(device, {}).get("machine") or device == "cuda":
                races[device] += race["rows"]
    made = "; ".join(f"`{name}`: {record['machine']}, `{record['command']}`, commit {record['commit']}, {record['date']}, load {record['load']} before it"
                     for name, record in found.values())
    names = {"cpu": "CPU", "cuda": "H200"}
    text = f"""# What the first users guessed, measured

Five people wrote down why their trainings were slow, what they would do about it and what they thought it would give. Here are their steps, each tried with Millrace: guesses are quoted as the
notes have them, everything else is measured. Their machines were others, so compare ratios.

- A step and what it is compared to take turns, each turn a process of its own (`millrace profile`), with medians of the turns.
- A cell: **how many times as fast** ± noise, in useful tokens a second unless said; the time of an update; the memory, of the process on a CPU, of the device on a GPU. Before → after.
- In brackets: what a step does to the mathematics, in the words of `millrace doctor`. *Same bits*; *same weights*, with fewer numbers about them; *other rounding*; *other problem*, another
  model or optimisation, whose loss is not the same.
- –: nothing to measure, and the row says why. "A GPU's": means nothing on a CPU.

Written by `bench/seeds.py --page` from {made}; what PyTorch takes is from the races of `bench/run`.

"""
    text += "\n".join(section(seed, rows, races, names) for seed in SEEDS)
    (ROOT / "docs" / "SEEDS.md").write_text(text)
    say("written: docs/SEEDS.md")


# --- all of it --------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(prog="bench/run seeds", description=__doc__.splitlines()[0], epilog="The head of bench/seeds.py has more.")
    parser.add_argument("folder", nargs="?", type=pathlib.Path, help="holds mts-dialog, pedestrians and tinyshakespeare.txt")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", help="only these seeds, with commas: " + ", ".join(seed.name for seed in SEEDS))
    parser.add_argument("--rounds", type=int, help="turns of each way; 2 on a CPU and 3 on a GPU unless said")
    parser.add_argument("--quick", action="store_true", help="one turn of few updates: for a first look, not for figures")
    parser.add_argument("--continue", dest="go_on", action="store_true", help="only what the results of this commit and machine lack yet")
    parser.add_argument("--page", action="store_true", help="docs/SEEDS.md from the results that there are")
    args = parser.parse_args()
    if args.page:
        return page()
    if not args.folder:
        parser.error("which folder has the data?")
    if missing := [name for name in ("mts-dialog", "pedestrians", "tinyshakespeare.txt") if not (args.folder / name).exists()]:
        fail(f"bench/run seeds: {args.folder} has no {missing[0]}")
    wanted = args.only.split(",") if args.only else [seed.name for seed in SEEDS]
    rounds = args.rounds or (1 if args.quick else 2 if args.device == "cpu" else 3)
    path = RESULTS / f"seeds-{slug(machine(args.device))}.json"
    if args.quick or args.only and not args.go_on:
        path = ROOT / "build" / "bench-seeds.json"  # parts and first looks do not replace a whole run
    words = ["FOLDER" if word == str(args.folder) else word for word in sys.argv[1:]]
    record = {"suite": "seeds", "device": args.device, "machine": machine(args.device), "command": "bench/run seeds " + " ".join(words), "commit": commit(),
              "date": datetime.date.today().isoformat(), "rounds": rounds, "load": round(os.getloadavg()[0], 1), "rows": []}
    if args.go_on and path.exists():
        before = json.loads(path.read_text())
        if all(before[key] == record[key] for key in ("machine", "commit")):
            record["rows"] = before["rows"]
            done = {row["seed"] for row in before["rows"]}
            wanted = [name for name in wanted if name not in done]
    say(f"{record['machine']}; commit {record['commit']}; {rounds} turns each; load {record['load']}")
    faults, begin = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="millrace-seeds-") as temp:
        for seed in SEEDS:
            if seed.name not in wanted:
                continue
            try:
                record["rows"] += measure(seed, args.folder.resolve(), pathlib.Path(temp), args.device, rounds, args.quick, faults)
            except RuntimeError as fault:
                faults.append(f"{seed.name}: {fault}")
            path.write_text(json.dumps(record, indent=1) + "\n")
    for fault in faults:
        say(f"missing: {fault}")
    say(f"written: {path.relative_to(ROOT)} after {time.monotonic() - begin:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
