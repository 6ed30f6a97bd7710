#!/usr/bin/env python3
"""Checkpoints and metrics judged from outside: what Millrace trains must be, to other programs, the
same model with the same loss.

  tests/outside/checkpoint.py BINARY     needs torch, transformers, safetensors, tensorboard; exit 1 on a difference

Tiny models of both shapes, with and without an average of the weights, are trained for a few updates
on bytes. Then, for each:
  - transformers loads every checkpoint of the run and computes the mean validation loss over the same
    windows; it must be what `millrace eval` says, within 2e-5, and what training noted in metrics.jsonl;
  - the safetensors package reads every weight file: names and shapes of the model as transformers has them,
    all values finite, those of the optimizer too;
  - tensorboard reads tb/: train/loss and eval/loss at the same steps as in metrics.jsonl, equal as float32.
At last a model that transformers saved goes through `millrace generate` (generate.py compares tokens).
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors import safe_open
from tensorboard.backend.event_processing import event_accumulator
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, logging

TOLERANCE = 2e-5
LENGTH = 24  # training.max_length; the validation text is no multiple of it
GPT2 = "{type: gpt, d_model: 48, num_layers: 3, num_heads: 4}"
LLAMA = ("{type: gpt, d_model: 64, num_layers: 2, num_heads: 4, num_kv_heads: 2, positions: rotary, norm: rms_norm, "
         "activation: swiglu, tied_embeddings: false, bias: false, rope_theta: 5000}")
# name, model, overrides
RUNS = [
    ("gpt2", GPT2, []),
    ("gpt2 average", GPT2, ["training.ema_decay=0.8"]),
    ("gpt2 untied, relu, dropout", GPT2, ["model.tied_embeddings=false", "model.activation=relu", "model.dropout=0.1"]),
    ("llama", LLAMA, []),
    ("llama average", LLAMA, ["training.ema_decay=0.8"]),
    ("llama tied, bias, sgd", LLAMA, ["model.tied_embeddings=true", "model.bias=true", "training.optimizer=sgd"]),
]
problems = []


def expect(condition, what):
    if not condition:
        problems.append(what)
    return condition


def text(seed, size):
    """Words of unequal frequency: something to learn, and every byte value somewhere."""
    random = np.random.default_rng(seed)
    words = [b"the", b"mill", b"race", b"runs", b"down", b"to", b"sea", bytes(range(0, 256))]
    share = np.array([8, 4, 4, 3, 3, 6, 2, 0.05])
    out = b" ".join(words[i] for i in random.choice(len(words), size, p=share / share.sum()))
    return out[:size]


def millrace(*arguments):
    run = subprocess.run([sys.argv[1], *map(str, arguments)], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"millrace {' '.join(map(str, arguments))} ended with {run.returncode}:\n{run.stderr}")
    return run.stdout


def loss_outside(model, tokens):
    """Mean of -log p(next) over whole windows that follow each other; tokens left at the end are not scored."""
    total, count = 0.0, 0
    with torch.no_grad():
        for at in range(0, len(tokens) - LENGTH, LENGTH):
            window = torch.tensor(tokens[at:at + LENGTH + 1])
            logits = model(window[None, :-1]).logits[0].double()
            total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
            count += len(window) - 1
    return total / count


def check_files(checkpoint, model):
    """The weight files, by the safetensors package alone."""
    expected = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del expected["lm_head.weight"]
    shapes, tensors = {}, 0
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                value = file.get_tensor(name)
                tensors += 1
                expect(bool(torch.isfinite(value.double()).all()), f"{path}: {name} is not finite")
                if path.name == "model.safetensors":
                    shapes[name] = tuple(value.shape)
                    expect(value.dtype == torch.float32, f"{path}: {name} is {value.dtype}")
    # Buffers such as attention masks are no weights.
    missing, more = expected.keys() - shapes.keys(), shapes.keys() - expected.keys()
    missing = {n for n in missing if not n.endswith((".attn.bias", ".attn.masked_bias", "inv_freq"))}
    expect(not missing and not more, f"{checkpoint}: missing {sorted(missing)}, unexpected {sorted(more)}")
    for name, shape in shapes.items():
        expect(expected.get(name, shape) == shape, f"{checkpoint}: {name} is {shape}, not {expected.get(name)}")
    return tensors


def check_events(run, lines):
    """tb/ against metrics.jsonl; returns how many values were compared."""
    accumulator = event_accumulator.EventAccumulator(str(run / "tb"), size_guidance={"scalars": 0})
    accumulator.Reload()
    count = 0
    for tag, kind in (("train/loss", "train"), ("eval/loss", "eval")):
        want = [(line["step"], float(np.float32(line[tag]))) for line in lines if line["type"] == kind]
        got = [(e.step, e.value) for e in accumulator.Scalars(tag)]
        expect(want and got == want, f"{run}: {tag}: {got} in tb/, {want} in metrics.jsonl")
        count += len(want)
    return count


def check_run(folder, name, model_text, overrides, validation):
    config = folder / "config.yaml"
    config.write_text(f"""
run_name: {name.replace(' ', '-').replace(',', '')}
runs_folder: {folder / 'runs'}
model: {model_text}
data: {{train: {folder / 'train.bin'}, validation: {folder / 'validation.bin'}, tokenizer: byte}}
training: {{batch_size: 4, max_length: {LENGTH}, max_steps: 30, learning_rate: 3e-3, eval_every: 10, log_interval: 3}}
checkpoint: {{every: 10, keep_last: 3}}
sample: {{length: 0}}
""")
    # In two sittings: the event files and the average are those of one run all the same.
    stopped = subprocess.run([sys.argv[1], "train", config, *overrides, "runtime.stop_after=15"], capture_output=True, text=True)
    expect(stopped.returncode == 75, f"{name}: stopping ended with {stopped.returncode}: {stopped.stderr}")
    run = (folder / "runs" / "latest").resolve()
    millrace("train", "--resume", run, "runtime.stop_after=0")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    noted = {line["step"]: line["eval/loss"] for line in lines if line["type"] == "eval"}
    checkpoints = sorted(run.glob("checkpoints/checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
    expect(len(checkpoints) >= 2, f"{name}: {len(checkpoints)} checkpoints")
    values = check_events(run, lines)
    best = json.loads(millrace("eval", run, "--json"))
    for checkpoint in checkpoints:
        model, info = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            expect(not info[kind], f"{checkpoint}: {kind} {info[kind]}")
        outside = loss_outside(model.eval(), validation)
        inside = json.loads(millrace("eval", checkpoint, "--json"))["eval/loss"]
        step = int(checkpoint.name.split("-")[1])
        good = expect(abs(outside - inside) <= TOLERANCE, f"{name}, {checkpoint.name}: transformers {outside}, millrace {inside}")
        if step in noted:
            good &= expect(abs(noted[step] - inside) <= 1e-9, f"{name}: training noted {noted[step]}, eval says {inside}")
        if best["model"] == str(checkpoint):
            good &= expect(best["eval/loss"] == inside, f"{name}: eval RUN says {best['eval/loss']}, eval CHECKPOINT {inside}")
            best["model"] = None
        tensors = check_files(checkpoint, model)
        print(f"{name:28} {step:5} {model.config.model_type:6} {inside:11.7f} {outside:11.7f} {abs(outside - inside):9.1e} "
              f"{tensors:7} {values:6}  {'same' if good else 'DIFFERENT'}", flush=True)
    expect(best["model"] is None, f"{name}: eval RUN read {best['model']}, which is none of its checkpoints")


def check_reading(folder):
    """A model that transformers wrote is read."""
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                         num_attention_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=0))
    model.save_pretrained(folder / "saved")
    out = millrace("generate", folder / "saved", "--prompt-ids", "1,2,3", "--ids", "--temperature", "0", "--max-tokens", "8")
    expect(len(out.split()) == 8, f"generate wrote {out}")
    print(f"generate reads what transformers saved: {' '.join(out.split())}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    print(f"{'run':28} {'step':>5} {'type':6} {'millrace':>11} {'transformers':>11} {'apart':>8} {'tensors':>7} {'events':>6}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "train.bin").write_bytes(text(1, 6000))
        validation = text(2, 1500 + 7)
        (folder / "validation.bin").write_bytes(validation)
        for run in RUNS:
            check_run(folder, *run, list(validation))
        check_reading(folder)
    for problem in problems:
        print(f"DIFFERENT: {problem}")
    print(f"{len(RUNS)} runs, {len(problems)} differences")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
