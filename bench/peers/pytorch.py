#!/usr/bin/env python3
"""The training examples in PyTorch at its best, for comparison: data preloaded as tensors, cores bound, static graph,
gradients as bucket views. Prints what the examples print: `throughput: N samples/s`, or fits/s for regression, of which
a step is one.

    pytorch.py --work perceptron|mlp|cnn|gpt|regression --processes 1|2 --threads N --batch B --steps S [--bf16]

A sample of gpt is a byte.
"""
import argparse
import os
import socket
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--work", choices=["perceptron", "mlp", "cnn", "gpt", "regression"], required=True)
parser.add_argument("--processes", type=int, default=1)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--warm-up", type=int, default=50)
arguments = parser.parse_args()

# PyTorch's fastest kernels here; if the processor lacks them, PyTorch's own choice.
with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
    if " avx512f " in cpuinfo.read():
        os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx512")
os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
import torch  # noqa: E402  (the environment above must come first)
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def make_perceptron():
    x = torch.rand(10000, 10) + 1
    y = (x**3).sum(1, keepdim=True) + torch.sin(2 * torch.pi * torch.rand(10000, 1))
    model = torch.nn.Sequential(torch.nn.Linear(10, 100), torch.nn.ReLU(), torch.nn.Linear(100, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    return x, y, model, optimizer, torch.nn.MSELoss()


def make_mlp():
    x = torch.rand(8192, 784)
    y = torch.randint(0, 10, (8192,))
    model = torch.nn.Sequential(
        torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return x, y, model, optimizer, torch.nn.CrossEntropyLoss()


def fused(optimizer, parameters, **options):
    """The fused optimizer, if this version has it for the CPU."""
    parameters = list(parameters)
    try:
        return optimizer(parameters, fused=True, **options)
    except (RuntimeError, TypeError):
        return optimizer(parameters, **options)


def make_cnn():
    """The network of examples/cnn.c with 32 channels; channels_last is its best layout."""
    x = torch.rand(8192, 1, 28, 28)
    y = torch.randint(0, 10, (8192,))

    def block(before, after):
        convolution = torch.nn.Conv2d(before, after, 3, padding="same", bias=False)
        return convolution, torch.nn.BatchNorm2d(after), torch.nn.ReLU(), torch.nn.MaxPool2d(2)

    head = torch.nn.Flatten(), torch.nn.Linear(64 * 7 * 7, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    model = torch.nn.Sequential(*block(1, 32), *block(32, 64), *head).to(memory_format=torch.channels_last)
    return x, y, model, fused(torch.optim.Adam, model.parameters(), lr=2e-3), torch.nn.CrossEntropyLoss()


class Block(torch.nn.Module):
    """A Transformer block, normalised before each part, with causal attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if hasattr(torch.nn.functional, "scaled_dot_product_attention"):
            seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
            mask = torch.ones(length, length, dtype=torch.bool).triu(1)
            seen = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        x = x + self.out(seen.transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.norm2(x))


class Gpt(torch.nn.Module):
    def __init__(self, layers, heads, width, context):
        super().__init__()
        self.bytes, self.positions = torch.nn.Embedding(256, width), torch.nn.Embedding(context, width)
        self.blocks = torch.nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, 256)

    def forward(self, x):
        x = self.bytes(x) + self.positions.weight
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


def make_gpt():
    """The network of examples/gpt.c: 4 layers, 4 heads, width 128, context 128, without dropout."""
    x = torch.randint(0, 256, (4096, 128))
    model = Gpt(4, 4, 128, 128)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = fused(torch.optim.AdamW, model.parameters(), lr=1e-3, weight_decay=0.1)
    return x, x.roll(-1, 1), model, optimizer, lambda output, target: criterion(output, target.flatten())


MAKE = {"perceptron": make_perceptron, "mlp": make_mlp, "cnn": make_cnn, "gpt": make_gpt}


class AllReduce(torch.autograd.Function):
    """The sum over processes; its gradient is the sum of their gradients."""

    @staticmethod
    def forward(context, tensor):
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def make_fit(rank):
    """One fit of examples/linear_regression.c."""
    share = 10000 // arguments.processes
    x = (2 * torch.rand(10000, dtype=torch.double))[rank * share : (rank + 1) * share].clone()
    together = AllReduce.apply if arguments.processes > 1 else lambda tensor: tensor

    def curve(p):
        return (p[2] * x + p[1]) * x + p[0]

    y = curve(torch.tensor([0.1, 1.0, -2.0], dtype=torch.double))

    def fit():
        parameters = torch.arange(3, dtype=torch.double).requires_grad_()
        optimizer = torch.optim.LBFGS([parameters], 1, tolerance_grad=1e-10, tolerance_change=1e-30)

        def closure():
            p = together(parameters) / arguments.processes
            loss = together((y - curve(p)).square().sum())
            optimizer.zero_grad()
            loss.backward()
            return loss

        optimizer.step(closure)
        return parameters

    return fit


def repeat_fits(rank):
    fit = make_fit(rank)
    for step in range(arguments.warm_up + arguments.steps):
        if step == arguments.warm_up:
            began = time.perf_counter()
        parameters = fit()
    elapsed = time.perf_counter() - began
    assert (parameters - torch.tensor([0.1, 1.0, -2.0])).abs().max() < 1e-7
    if rank == 0:
        print(f"throughput: {arguments.steps / elapsed:.1f} fits/s", flush=True)


def run(rank, port):
    several = arguments.processes > 1
    if several:
        os.sched_setaffinity(0, {rank})
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=arguments.processes)
    elif arguments.threads == 1:
        os.sched_setaffinity(0, {0})
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    (repeat_fits if arguments.work == "regression" else train)(rank)
    if several:
        dist.destroy_process_group()


def train(rank):
    ddp = arguments.processes > 1
    x, y, model, optimizer, criterion = MAKE[arguments.work]()
    if ddp:
        model = DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)
    batches = len(x) // arguments.batch
    x = x[: batches * arguments.batch].view(batches, arguments.batch, *x.shape[1:])
    y = y[: batches * arguments.batch].view(batches, arguments.batch, *y.shape[1:])
    began = 0.0
    for step in range(arguments.warm_up + arguments.steps):
        if step == arguments.warm_up:
            began = time.perf_counter()
        at = step % batches
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
            loss = criterion(model(x[at]), y[at])
        optimizer.zero_grad(set_to_none=not ddp)
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - began
    if rank == 0:
        samples = arguments.steps * arguments.batch * arguments.processes * (128 if arguments.work == "gpt" else 1)
        print(f"throughput: {samples / elapsed:.0f} samples/s", flush=True)


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = probe.getsockname()[1]
    if arguments.processes == 1:
        run(0, free_port)
    else:
        mp.spawn(run, (free_port,), nprocs=arguments.processes)
