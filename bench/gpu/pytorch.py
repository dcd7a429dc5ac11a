#!/usr/bin/env python3
"""PyTorch's side of bench/gpu/run: the training steps of bench/gpu/train.c, on random data on the device, in
one of four modes:

    eager          as written, with the fused optimizer
    graphs         the whole step, captured once as a CUDA graph and replayed
    compile        the model and its loss by torch.compile
    compile-graphs the same with mode="reduce-overhead", which makes CUDA graphs of the compiled code

    bench/gpu/pytorch.py --work gpt --layers 12 --heads 12 --width 768 --context 1024 --vocabulary 50304 --tied \\
        --batch-size 8 --bf16 --mode compile --steps 20

Prints the median of the windows: `throughput: N samples/s`; a sample of gpt is a token.
"""
import argparse
import statistics
import time

import torch
from torch.nn import functional

BATCHES = 8
MODES = ["eager", "graphs", "compile", "compile-graphs"]


def add_work_options(parser):
    """The options of bench/gpu/train.c."""
    parser.add_argument("--work", choices=["mlp", "cnn", "gpt"], default="mlp")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200, help="of a window")
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=20, help="steps before each window")
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--bf16", action="store_true")


# ---- the networks ----------------------------------------------------------------------------------------------


def build_mlp():
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    return torch.nn.Sequential(linear(784, 512), relu(), linear(512, 512), relu(), linear(512, 10))


def build_cnn(channels):
    def block(before, after):
        convolution = torch.nn.Conv2d(before, after, 3, padding="same", bias=False)
        return convolution, torch.nn.BatchNorm2d(after), torch.nn.ReLU(), torch.nn.MaxPool2d(2)

    head = torch.nn.Flatten(), torch.nn.Linear(2 * channels * 49, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    return torch.nn.Sequential(*block(1, channels), *block(channels, 2 * channels), *head)


class Block(torch.nn.Module):
    """A Transformer block, normalised before each part, with causal attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.linear1, self.linear2 = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (part.view(n, length, self.heads, width // self.heads).transpose(1, 2) for part in (q, k, v))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, length, width))
        return x + self.linear2(functional.gelu(self.linear1(self.norm2(x))))


class Gpt(torch.nn.Module):
    def __init__(self, options):
        super().__init__()
        width, vocabulary = options.width, options.vocabulary
        self.embedding, self.positions = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(options.context, width)
        self.blocks = torch.nn.Sequential(*(Block(width, options.heads) for _ in range(options.layers)))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, vocabulary, bias=not options.tied)
        torch.nn.init.normal_(self.embedding.weight, std=0.02)
        torch.nn.init.normal_(self.positions.weight, std=0.02)
        if options.tied:
            self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.embedding(x) + self.positions.weight))).flatten(0, 1)


# ---- training --------------------------------------------------------------------------------------------------


class Training:
    """window() times several steps, and returns the seconds per step and the last loss."""

    def __init__(self, options, mode):
        self.options, self.mode, self.step_number = options, mode, 0
        torch.manual_seed(1)
        with torch.device(options.device):
            self.make_data()
            self.make_model()
        self.compute = self.loss
        if mode.startswith("compile"):
            self.compute = torch.compile(self.loss, mode="reduce-overhead" if mode == "compile-graphs" else None)
        if mode == "graphs":
            self.capture()

    def make_data(self):
        o = self.options
        if o.work == "gpt":
            shape = (BATCHES, o.batch_size, o.context)
            self.inputs = torch.randint(0, o.vocabulary, shape)
            self.targets = torch.randint(0, o.vocabulary, shape).flatten(1)
            self.samples, self.unit = o.batch_size * o.context, "tokens"
            return
        shape = (784,) if o.work == "mlp" else (1, 28, 28)
        self.inputs = torch.rand(BATCHES, o.batch_size, *shape)
        self.targets = torch.randint(0, 10, (BATCHES, o.batch_size))
        self.samples, self.unit = o.batch_size, "samples"

    def make_model(self):
        o, on_gpu = self.options, self.options.device.startswith("cuda")
        self.model = build_mlp() if o.work == "mlp" else build_cnn(o.channels) if o.work == "cnn" else Gpt(o)
        if o.work == "cnn" and on_gpu and o.bf16:
            self.model = self.model.to(memory_format=torch.channels_last)  # its best layout on tensor cores
        kind, rate, more = (torch.optim.AdamW, 3e-4, {"weight_decay": 0.1}) if o.work == "gpt" else (torch.optim.Adam, 1e-3, {})
        more |= {"fused": True, "capturable": self.mode == "graphs"} if on_gpu else {}
        self.optimizer = kind(self.model.parameters(), lr=2e-3 if o.work == "cnn" else rate, **more)

    def loss(self, x, target):
        with torch.autocast(self.options.device.split(":")[0], torch.bfloat16, enabled=self.options.bf16):
            return functional.cross_entropy(self.model(x), target)

    def capture(self):
        self.input, self.target = self.inputs[0].clone(), self.targets[0].clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.train(self.input, self.target)
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.captured_loss = self.train(self.input, self.target)

    def train(self, x, target):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.compute(x, target)
        loss.backward()
        self.optimizer.step()
        return loss

    def step(self):
        at = self.step_number % BATCHES
        self.step_number += 1
        if self.mode == "graphs":
            self.input.copy_(self.inputs[at])
            self.target.copy_(self.targets[at])
            self.graph.replay()
            return self.captured_loss
        if self.mode == "compile-graphs":
            torch.compiler.cudagraph_mark_step_begin()
        return self.train(self.inputs[at], self.targets[at])

    def wait(self):
        if self.options.device.startswith("cuda"):
            torch.cuda.synchronize()

    def window(self):
        for _ in range(self.options.warm_up):
            self.step()
        self.wait()
        began = time.perf_counter()
        for _ in range(self.options.steps):
            loss = self.step()
        self.wait()
        seconds = (time.perf_counter() - began) / self.options.steps
        return seconds, loss.item()


def forget():
    """Resets the compiler: dynamo compiles a limited number of variants of a function."""
    torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def use_tf32(on):
    """Without it, products of f32 are computed in f32, including convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on
    torch.backends.cudnn.benchmark = True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_work_options(parser)
    parser.add_argument("--mode", choices=MODES, default="eager")
    parser.add_argument("--tf32", action="store_true")
    options = parser.parse_args()
    use_tf32(options.tf32)
    training = Training(options, options.mode)
    windows = [training.window() for _ in range(options.windows)]
    rates = sorted(training.samples / seconds for seconds, _ in windows)
    print("parameters:", sum(p.numel() for p in training.model.parameters()))
    print(f"loss: {windows[-1][1]:.4f}")
    print(f"windows: {len(rates)}, from {rates[0]:.0f} to {rates[-1]:.0f}")
    print(f"throughput: {statistics.median(rates):.0f} {training.unit}/s")


if __name__ == "__main__":
    main()
