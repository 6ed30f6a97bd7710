#!/usr/bin/env python3
"""Fine-tuning judged from outside: models that transformers makes at random, of both shapes, go through Millrace and back.

  tests/outside/finetune.py BINARY     needs torch, transformers, tokenizers, safetensors and peft; exit 1 on a difference

For each model, with a byte-level BPE tokenizer that `tokenizers` has trained:
  - `millrace import` writes a folder that transformers loads, with the same logits;
  - ten updates on one pair of prompt and answer (the loss counts on the answer alone) give the losses of a loop in
    PyTorch with the same AdamW, and the exported model the logits of the loop's model;
  - ten updates of low-rank additions to all linear layers train nothing else, and the exported model, in which they
    are merged, has in transformers the loss that `millrace eval` says, and the logits that PEFT gets from the checkpoint
    as it is.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from peft import PeftModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, logging

TOLERANCE = 1e-4  # of logits
STEPS = 10
PROMPT, ANSWER = "How does a mill race run down to the sea?", " It runs by the mill, then down, then to the sea."
TRAIN = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-6)  # with less Adam makes whole steps of rounding
END = "<|endoftext|>"


def gpt2(**changes):
    config = dict(vocab_size=311, n_positions=160, n_embd=48, n_layer=3, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                  bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(GPT2Config(**{**config, **changes}))


def llama(**changes):
    config = dict(vocab_size=311, hidden_size=64, intermediate_size=120, num_hidden_layers=3, num_attention_heads=4,
                  max_position_embeddings=256, bos_token_id=0, eos_token_id=0)
    return LlamaForCausalLM(LlamaConfig(**{**config, **changes}))


def scaled(**rope):
    return {"rope_parameters": {"rope_theta": 500.0, **rope}}


# name, model, dtype of the file, bytes of a shard (None: one file)
MODELS = [
    ("gpt2 tied", lambda: gpt2(), torch.float32, None),
    ("gpt2 wide mlp, gelu, untied", lambda: gpt2(n_inner=100, activation_function="gelu", tie_word_embeddings=False), torch.float32, None),
    ("gpt2 relu, shards, bf16", lambda: gpt2(n_head=3, activation_function="relu"), torch.bfloat16, "60KB"),
    ("gpt2 swish", lambda: gpt2(activation_function="swish"), torch.float32, None),
    ("llama untied", lambda: llama(), torch.float32, None),
    ("llama grouped queries, tied", lambda: llama(num_key_value_heads=2, tie_word_embeddings=True), torch.float32, None),
    ("llama one kv head, bias, shards", lambda: llama(num_key_value_heads=1, attention_bias=True, mlp_bias=True), torch.float32, "80KB"),
    ("llama bias in attention, wide heads", lambda: llama(attention_bias=True, head_dim=24), torch.float32, None),
    ("llama bias in mlp, narrow heads", lambda: llama(
        mlp_bias=True, hidden_size=72, num_key_value_heads=2, head_dim=16), torch.float32, "80KB"),
    ("llama rope linear", lambda: llama(num_key_value_heads=2, **scaled(rope_type="linear", factor=2.5)), torch.float32, None),
    ("llama rope llama3, fp16", lambda: llama(num_key_value_heads=2, **scaled(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)), torch.float16, None),
]


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([PROMPT, ANSWER] * 4, trainers.BpeTrainer(
        vocab_size=300, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def millrace(*arguments):
    run = subprocess.run([sys.argv[1], *map(str, arguments)], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"millrace {' '.join(map(str, arguments))} ended with {run.returncode}:\n{run.stderr}")
    return run.stdout


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def pair(tokenizer):
    """Ids and targets as Millrace lays a pair out: it begins with the end token and ends with it."""
    end = tokenizer.token_to_id(END)
    source, target = tokenizer.encode(PROMPT).ids, tokenizer.encode(ANSWER).ids
    ids = [end, *source, *target, end]
    targets = [-100] * len(source) + [*target, end]
    return torch.tensor([ids[:-1]]), torch.tensor([targets])


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits[0]


def loop(model, ids, targets):
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], **TRAIN)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(ids).logits[0], targets[0])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def train(folder, work, name, *overrides):
    millrace("train", work / "config.yaml", f"model.init_from={folder}", f"run_name={name}", *overrides)
    run = (work / "runs" / name).resolve()
    run = max(p for p in run.iterdir() if p.is_dir())
    last = run / "checkpoints" / f"checkpoint-{STEPS}"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return last, [m["train/loss"] for m in lines if "train/loss" in m]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.argv[1] = str(pathlib.Path(sys.argv[1]).resolve())
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    tokenizer = make_tokenizer()
    ids, targets = pair(tokenizer)
    failures = 0
    print(f"{'model':34} {'files':>5}  largest difference: {'import':>8} {'losses':>8} {'logits':>8} {'lora':>8} {'peft':>8}  loss of the answer")
    for index, (name, make, dtype, shard) in enumerate(MODELS):
        torch.manual_seed(index)
        model = make()
        with torch.no_grad():
            for key, p in model.named_parameters():  # wide, so that attention is far from uniform
                p.add_(torch.randn(p.shape) * (0.15 if p.ndim == 2 else 0.1))
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            theirs = work / "theirs"
            model.to(dtype).save_pretrained(theirs, **({"max_shard_size": shard} if shard else {}))
            tokenizer.save(str(theirs / "tokenizer.json"))
            files = len(list(theirs.glob("*.safetensors")))
            (work / "data.jsonl").write_text(json.dumps({"prompt": PROMPT, "answer": ANSWER}) + "\n")
            (work / "config.yaml").write_text(f"""
runs_folder: {work}/runs
device: cpu
data: {{train: {work}/data.jsonl, validation: {work}/data.jsonl, fields: [prompt, answer], separator: none}}
training: {{batch_size: 1, max_length: 128, max_steps: {STEPS}, learning_rate: 0.001, eps: 0.000001, schedule: constant, weight_decay: 0.1,
           log_interval: 1, precision: fp32}}
sample: {{length: 0}}
""")
            twin = load(theirs)
            before = logits(twin, ids)
            millrace("import", theirs, work / "imported")
            import_gap = (logits(load(work / "imported"), ids) - before).abs().max().item()

            run, losses = train(theirs, work, "full")
            expected = loop(twin.train(), ids, targets)
            loss_gap = max(abs(a - b) for a, b in zip(losses, expected)) if len(losses) == STEPS else float("inf")
            millrace("export", run, work / "exported")
            logit_gap = (logits(load(work / "exported"), ids) - logits(twin.eval(), ids)).abs().max().item()

            run, lora = train(theirs, work, "lora", "model.lora.rank=4", "model.lora.targets=['*']", "training.learning_rate=0.01")
            millrace("export", run, work / "merged")
            says = json.loads(millrace("eval", run, "--json"))["eval/loss"]
            merged = torch.nn.functional.cross_entropy(logits(load(work / "merged"), ids), targets[0]).item()
            lora_gap = abs(says - merged)
            peft_gap = (logits(PeftModel.from_pretrained(load(theirs), run).eval(), ids) - logits(load(work / "merged"), ids)).abs().max().item()
            good = (max(import_gap, logit_gap, peft_gap) <= TOLERANCE and loss_gap <= 1e-4 and lora_gap <= 2e-5 and lora[-1] < lora[0]
                    and abs(lora[0] - losses[0]) < 1e-4)
            failures += not good
            print(f"{name:34} {files:5}                      {import_gap:8.1e} {loss_gap:8.1e} {logit_gap:8.1e} {lora_gap:8.1e} {peft_gap:8.1e}  "
                  f"{losses[0]:.3f} -> {losses[-1]:.3f}, lora {lora[-1]:.3f}{'' if good else '  DIFFERENT'}")
            if shard and files < 2:
                failures += 1
                print("  meant to be in shards, but it is not")
    print(f"{len(MODELS)} models, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
