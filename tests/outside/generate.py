#!/usr/bin/env python3
"""Generation judged from outside: random models of both shapes, saved by transformers, must give the
same 64 greedy tokens in transformers (float32) and in `millrace generate`.

  tests/outside/generate.py BINARY        needs torch, transformers and safetensors; exit 1 on a difference

Weights are drawn wide, so that the best logit stands clear of the second: the table shows the least
gap of each text beside the largest logit, and how many different tokens it has;
a gap near float32 rounding, or one token again and again, would be no test.
"""
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, logging

TOKENS = 64


def gpt2(**changes):
    config = dict(vocab_size=311, n_positions=160, n_embd=48, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(GPT2Config(**{**config, **changes}))


def llama(**changes):
    config = dict(vocab_size=307, hidden_size=64, intermediate_size=120, num_hidden_layers=3, num_attention_heads=4,
                  max_position_embeddings=256, bos_token_id=0, eos_token_id=0)
    return LlamaForCausalLM(LlamaConfig(**{**config, **changes}))


# name, model, length of the prompt, dtype of the file, bytes of a shard (None: one file)
MODELS = [
    ("gpt2 tied", lambda: gpt2(), 5, torch.float32, None),
    ("gpt2 wide mlp, gelu, untied", lambda: gpt2(n_inner=100, activation_function="gelu", tie_word_embeddings=False), 1, torch.float32, None),
    ("gpt2 relu, long prompt, shards", lambda: gpt2(n_head=3, activation_function="relu"), 90, torch.float32, "60KB"),
    ("llama untied", lambda: llama(), 7, torch.float32, None),
    ("llama grouped queries, tied", lambda: llama(num_key_value_heads=2, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 5000.0}), 70, torch.float32, None),
    ("llama one kv head, bias, bf16", lambda: llama(num_key_value_heads=1, attention_bias=True, mlp_bias=True), 3, torch.bfloat16, "80KB"),
]


def spread(model, generator):
    """Wide weights, so that attention and logits are far from uniform."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 2:
                width = 0.5 if "wte" in name else 1.0 if "wpe" in name or "embed" in name or "lm_head" in name else 2.0 / p.shape[0] ** 0.5
                p.copy_(torch.randn(p.shape, generator=generator) * width)
            elif name.endswith("bias"):
                p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
            else:
                p.copy_(1 + torch.randn(p.shape, generator=generator) * 0.2)


def greedy(model, prompt):
    """64 tokens by argmax, and the least distance of the best logit from the second."""
    tokens, gap, largest = list(prompt), float("inf"), 0.0
    past = None
    with torch.no_grad():
        step = torch.tensor([tokens])
        for _ in range(TOKENS):
            out = model(step, past_key_values=past, use_cache=True)
            past = out.past_key_values
            best = out.logits[0, -1].topk(2).values
            gap, largest = min(gap, float(best[0] - best[1])), max(largest, float(best[0]))
            tokens.append(int(out.logits[0, -1].argmax()))
            step = torch.tensor([[tokens[-1]]])
    return tokens[len(prompt):], gap, largest


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    failures = 0
    print(f"{'model':34} {'prompt':>6} {'least gap':>9} {'largest':>8} {'distinct':>8}  result")
    for index, (name, make, length, dtype, shard) in enumerate(MODELS):
        generator = torch.Generator().manual_seed(100 + index)
        torch.manual_seed(index)
        model = make()
        spread(model, generator)
        prompt = torch.randint(1, model.config.vocab_size, (length,), generator=generator).tolist()
        with tempfile.TemporaryDirectory() as folder:
            model.to(dtype).save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
            files = sorted(f.name for f in pathlib.Path(folder).glob("*.safetensors*"))
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
            expected, gap, largest = greedy(model, prompt)
            run = subprocess.run([sys.argv[1], "generate", folder, "--prompt-ids", ",".join(map(str, prompt)), "--ids",
                                  "--temperature", "0", "--max-tokens", str(TOKENS)], capture_output=True, text=True)
        got = [int(t) for t in run.stdout.split()] if run.returncode == 0 else None
        if got == expected:
            result = f"the same {TOKENS} tokens"
        else:
            failures += 1
            at = next((i for i, (a, b) in enumerate(zip(got or [], expected)) if a != b), len(got or []))
            result = f"DIFFERENT from token {at}" if got else f"FAILED: {run.stderr.strip()}"
        print(f"{name:34} {length:6} {gap:9.5f} {largest:8.2f} {len(set(expected)):8}  {result} ({len(files)} files)")
        if shard and len(files) < 3:
            failures += 1
            print("  meant to be in shards, but it is not")
    print(f"{len(MODELS)} models, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
