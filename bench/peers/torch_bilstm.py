"""The peer in PyTorch of a stack of bidirectional LSTM layers: nn.LSTM, which is cuDNN's on a GPU.

  torch_bilstm.py HOW THREADS WORKLOAD.json FILE.safetensors

Begins with the input and weights in the file, which Millrace has written; forward and backward without
end, a JSON line for every window. HOW: fp32 (TF32 allowed on a GPU) or bf16.
"""
import json
import sys
import time

import torch
from safetensors.torch import load_file


def say(**line):
    print(json.dumps(line), flush=True)


def main():
    how, threads, workload, path = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    with open(workload) as f:
        w = json.load(f)
    m, device = w["model"], w["device"]
    given = load_file(path)
    lstm = torch.nn.LSTM(m["input"], m["hidden"], m["layers"], bidirectional=True)
    with torch.no_grad():
        for name, p in lstm.named_parameters():
            # weight_ih_l0_reverse, bias_hh_l1, …; here both directions lie side by side and there is one bias.
            kind, part, layer = name.removesuffix("_reverse").split("_")
            direction, n = int(name.endswith("_reverse")), 4 * m["hidden"]
            columns = slice(direction * n, (direction + 1) * n)
            layer = layer.removeprefix("l")
            if kind == "bias":
                p.copy_(given[f"{layer}.bias"][columns]) if part == "ih" else p.zero_()
            elif part == "ih":
                p.copy_(given[f"{layer}.input"][:, columns].t())
            else:
                p.copy_(given[f"{layer}.recurrent"][direction].t())
    dtype = torch.bfloat16 if how == "bf16" else torch.float32
    lstm = lstm.to(device, dtype)
    lstm.flatten_parameters()
    x = given["x"].to(device, dtype).requires_grad_()
    wanted = [x, *lstm.parameters()]
    step, window = 0, w["window"]
    while True:
        start = time.perf_counter()
        for _ in range(window):
            for p in wanted:
                p.grad = None
            loss = lstm(x)[0].float().square().mean()
            loss.backward()
        value = loss.item()  # waits for the device
        span = 1e3 * (time.perf_counter() - start)
        step += window
        norm = 0.0
        if step == window:
            # Millrace has one bias for each gate: its gradient is that of either here.
            counted = [x] + [p for n, p in lstm.named_parameters() if "bias_hh" not in n]
            norm = torch.stack([p.grad.float().norm() for p in counted]).norm().item()
        peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        say(step=step, ms=span / window, span_ms=span, loss=value, grad_norm=norm, device_peak=peak)


if __name__ == "__main__":
    main()
