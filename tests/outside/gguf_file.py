#!/usr/bin/env python3
"""GGUF judged from outside: what `millrace export --format gguf` writes is read by PyPI's `gguf`, and is tensor by tensor
what llama.cpp's converter makes of the same model.

  tests/outside/gguf_file.py BINARY     needs torch, transformers, tokenizers and gguf; exit 1 on a difference

Names must be those that `gguf` has for the architecture, shapes and values those of the model that transformers made:
linear layers [out, in], queries and keys of Llama permuted as convert_hf_to_gguf.py does, scaled rotary positions as its
rope_freqs. Then the keys llama.cpp reads, and the tokenizer: tokens, their kinds, merges, and whether a start token is put
before a text.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import finetune  # noqa: E402
import gguf  # noqa: E402

MODELS = [
    ("gpt2 tied", lambda: finetune.gpt2(), "f32"),
    ("gpt2 untied, bf16", lambda: finetune.gpt2(tie_word_embeddings=False, n_inner=100), "bf16"),
    ("llama untied", lambda: finetune.llama(), "f32"),
    ("llama grouped queries, tied, f16", lambda: finetune.llama(num_key_value_heads=2, tie_word_embeddings=True), "f16"),
    ("llama bias, rope linear", lambda: finetune.llama(num_key_value_heads=1, attention_bias=True, mlp_bias=True, **finetune.scaled(
        rope_type="linear", factor=2.5)), "f32"),
    ("llama wide heads, bias in attention", lambda: finetune.llama(num_key_value_heads=2, head_dim=24, attention_bias=True), "f32"),
    ("llama rope llama3", lambda: finetune.llama(num_key_value_heads=2, **finetune.scaled(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)), "f32"),
]


def permute(weights, heads):
    """convert_hf_to_gguf.py, LlamaModel.permute."""
    return weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def expected_tensors(model, arch):
    config = model.config
    layers = config.num_hidden_layers
    names = gguf.get_tensor_name_map(arch, layers)
    tensors = {}
    for name, p in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value = p.float().numpy()
        if arch == gguf.MODEL_ARCH.GPT2 and value.ndim == 2 and ".h." in name:
            value = value.T  # Conv1D
        if "q_proj" in name:
            value = permute(value, config.num_attention_heads)
        if "k_proj" in name:
            value = permute(value, config.num_key_value_heads)
        tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))] = value
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":  # convert_hf_to_gguf.py, generate_extra_tensors
        dim = config.head_dim
        freqs = 1.0 / (rope["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
        old, factors = rope["original_max_position_embeddings"], []
        for freq in freqs:
            wavelen = 2 * np.pi / freq
            if wavelen < old / rope["high_freq_factor"]:
                factors.append(1)
            elif wavelen > old / rope["low_freq_factor"]:
                factors.append(rope["factor"])
            else:
                smooth = (old / wavelen - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
                factors.append(float(1 / ((1 - smooth) / rope["factor"] + smooth)))
        tensors["rope_freqs.weight"] = np.array(factors, dtype=np.float32)
    return tensors


def expected_keys(model, arch):
    c = model.config
    name = gguf.MODEL_ARCH_NAMES[arch]
    keys = {"general.architecture": name, f"{name}.block_count": c.num_hidden_layers, f"{name}.embedding_length": c.hidden_size,
            f"{name}.attention.head_count": c.num_attention_heads, f"{name}.context_length": c.max_position_embeddings}
    if arch == gguf.MODEL_ARCH.GPT2:
        keys |= {"gpt2.feed_forward_length": c.n_inner or 4 * c.n_embd, "gpt2.attention.layer_norm_epsilon": c.layer_norm_epsilon}
    else:
        rope = c.rope_parameters
        keys |= {"llama.feed_forward_length": c.intermediate_size, "llama.attention.head_count_kv": c.num_key_value_heads,
                 "llama.attention.layer_norm_rms_epsilon": c.rms_norm_eps, "llama.rope.freq_base": rope["rope_theta"],
                 "llama.rope.dimension_count": c.head_dim, "llama.attention.key_length": c.head_dim,
                 "llama.attention.value_length": c.head_dim, "llama.vocab_size": c.vocab_size}
        if rope["rope_type"] == "linear":
            keys |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": rope["factor"]}
    return keys


def check_tokenizer(reader, tokenizer, vocab_size, adds_start):
    problems = []
    get = lambda key: reader.get_field(key).contents()
    vocab = {id: text for text, id in tokenizer.get_vocab().items()}
    tokens, types = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.token_type")
    if tokens != [vocab.get(i, f"[PAD{i}]") for i in range(vocab_size)]:
        problems.append("tokens")
    special = tokenizer.token_to_id(finetune.END)
    if list(types) != [3 if i == special else 1 if i in vocab else 5 for i in range(vocab_size)]:
        problems.append("token types")
    merges = [m if isinstance(m, str) else " ".join(m) for m in json.loads(tokenizer.to_str())["model"]["merges"]]
    if get("tokenizer.ggml.merges") != merges:
        problems.append("merges")
    if (get("tokenizer.ggml.model"), get("tokenizer.ggml.pre")) != ("gpt2", "gpt-2"):
        problems.append("kind of tokenizer")
    if get("tokenizer.ggml.eos_token_id") != special:
        problems.append("eos")
    if (get("tokenizer.ggml.add_bos_token"), get("tokenizer.ggml.add_eos_token")) != (adds_start, False):
        problems.append("add_bos_token or add_eos_token")
    if adds_start and get("tokenizer.ggml.bos_token_id") != special:
        problems.append("bos")
    return problems


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    finetune.logging.disable_progress_bar()
    tokenizer = finetune.make_tokenizer()
    failures = 0
    for index, (name, make, dtype) in enumerate(MODELS):
        torch.manual_seed(index)
        model = make()
        with torch.no_grad():  # norms and biases too
            for p in model.parameters():
                p.add_(torch.randn(p.shape) * 0.1)
        arch = gguf.MODEL_ARCH.GPT2 if name.startswith("gpt2") else gguf.MODEL_ARCH.LLAMA
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            model.save_pretrained(work / "theirs")
            tokenizer.save(str(work / "theirs" / "tokenizer.json"))
            adds_start = index % 2 == 1
            if adds_start:
                (work / "theirs" / "tokenizer_config.json").write_text('{"add_bos_token": true}')
            run = subprocess.run([sys.argv[1], "export", work / "theirs", work / "model.gguf", "--format", "gguf", "--dtype", dtype],
                                 capture_output=True, text=True)
            if run.returncode != 0:
                sys.exit(run.stderr)
            reader = gguf.GGUFReader(work / "model.gguf")
            problems = check_tokenizer(reader, tokenizer, model.config.vocab_size, adds_start)
            for key, value in expected_keys(model, arch).items():
                field = reader.get_field(key)
                got = field.contents() if field else None
                if got != value and not (isinstance(value, float) and got == np.float32(value)):
                    problems.append(f"{key}: {got}, expected {value}")
            wanted = expected_tensors(model, arch)
            got = {t.name: t for t in reader.tensors}
            if set(got) != set(wanted):
                problems.append(f"names: {sorted(set(got) ^ set(wanted))}")
            for key in set(got) & set(wanted):
                tensor, value = got[key], wanted[key]
                kind = dtype.upper() if value.ndim == 2 else "F32"
                data = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(value.shape) if kind == "BF16" else tensor.data
                rounded = torch.tensor(np.ascontiguousarray(value)).to({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]).float().numpy()
                if tensor.tensor_type.name != kind or list(tensor.shape) != list(value.shape)[::-1]:
                    problems.append(f"{key}: {tensor.tensor_type.name} {list(tensor.shape)}")
                elif key == "rope_freqs.weight":
                    if not np.allclose(data, rounded, rtol=1e-6):
                        problems.append(key)
                elif not np.array_equal(np.asarray(data, dtype=np.float32).reshape(value.shape), rounded):
                    problems.append(f"{key}: other values")
            failures += bool(problems)
            print(f"{name:34} {dtype:5} {len(got):3} tensors  {'equal' if not problems else 'DIFFERENT: ' + '; '.join(problems[:5])}")
    print(f"{len(MODELS)} models, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
