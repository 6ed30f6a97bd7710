"""What the peers in PyTorch share: the update, and the loops whose lines bench/race.py and bench/curves.py read.

A peer is called as `PEER.py TASK HOW THREADS WORKLOAD.json`. Training prints a JSON line per step, or per window of steps on a
device, until it is stopped; a curve one per batch that the workload names.
"""
import json
import sys
import time

import torch


def say(**line):
    print(json.dumps(line), flush=True)


def optimizer_of(model, w):
    """As the workload's training section says, in the words of Millrace's config."""
    t, device = w["training"], w["device"]
    weights = [p for p in model.parameters() if p.requires_grad]
    if t["optimizer"] == "adagrad":
        how = {"fused": True} if device == "cpu" else {"foreach": True}  # fused is there for the CPU alone
        return torch.optim.Adagrad(weights, lr=t["learning_rate"], initial_accumulator_value=t["initial_accumulator"], eps=t["eps"], **how)
    groups = [{"params": [p for p in weights if p.ndim >= 2], "weight_decay": t["weight_decay"]},
              {"params": [p for p in weights if p.ndim < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=t["learning_rate"], betas=(0.9, t["beta2"]), eps=t["eps"], fused=True)


def autocasts(how, w):
    """Whether in bfloat16 by autocast. `-medium`: values stay float32, and products may round their operands."""
    return (w["device"] == "cuda" or w.get("precision") == "bf16") and not how.endswith("-medium")


def in_form(model, how):
    """As it is, compiled, or compiled with CUDA graphs."""
    if how.endswith("-medium"):
        torch.set_float32_matmul_precision("medium")
    return {"eager": lambda: model, "compile": lambda: torch.compile(model),
            "graphs": lambda: torch.compile(model, mode="reduce-overhead")}[how.removesuffix("-medium")]()


class Trainer:
    """`loss_of` gives the model's loss, in whatever form it is raced in."""

    def __init__(self, model, loss_of, w, bf16):
        self.loss_of, self.device, self.bf16, self.clip = loss_of, w["device"], bf16, w["training"]["gradient_clip"]
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = optimizer_of(model, w)
        self.graph = None

    def gradients(self, inputs):
        with torch.autocast(self.device, torch.bfloat16, enabled=self.bf16):
            loss = self.loss_of(*inputs)
        loss.backward()
        return loss.detach()

    def capture(self, inputs):
        """Forward and backward as one CUDA graph, which reads these inputs where they lie and writes the same gradients anew at each replay."""
        self.inputs = inputs
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.gradients(inputs)
                self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.gradients(inputs)

    def update(self, inputs):
        if self.graph:
            for read, given in zip(self.inputs, inputs, strict=True):
                read.copy_(given, non_blocking=True)
            self.graph.replay()
            loss = self.loss
        else:
            loss = self.gradients([x.to(self.device, non_blocking=True) for x in inputs])
        torch.nn.utils.clip_grad_norm_(self.weights, self.clip, foreach=True)
        self.optimizer.step()
        if not self.graph:
            self.optimizer.zero_grad(set_to_none=True)
        return loss


def train(trainer, inputs, w, compiled_with_graphs=False):
    """Without end on the same batch."""
    device, step, window = w["device"], 0, w["window"]
    if device == "cuda":
        inputs = [x.pin_memory() for x in inputs]
    while True:
        start, losses = time.perf_counter(), []
        for _ in range(window):
            if compiled_with_graphs:
                torch.compiler.cudagraph_mark_step_begin()
            losses.append(trainer.update(inputs).clone())
        mean = torch.stack(losses).mean().item()  # waits for the device
        span = 1e3 * (time.perf_counter() - start)
        step += window
        peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        say(step=step, time=time.time(), ms=span / window, span_ms=span, loss=mean, device_peak=peak)


def curve(trainer, batches):
    for step, inputs in enumerate(batches, 1):
        say(step=step, loss=trainer.update(inputs).item())


def main(tasks):
    """tasks: name -> function of HOW and the workload."""
    task, how, threads, path = sys.argv[1:]
    torch.set_num_threads(int(threads))
    with open(path) as f:
        w = json.load(f)
    if w["device"] == "cuda":
        tf32 = task != "beam"  # whose texts are compared
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
    tasks[task](how, w)
