"""flashlight's distributed perceptron, as in examples/perceptron.c: learns a sum of cubes, one sample per rank and step.

    python -m lockstep.run -n 2 perceptron.py --samples 1000 --epochs 2

The program computes the same bits as the C program, and prints its time per step.
"""
import argparse
import math
import time

import lockstep
from lockstep import nn

parser = argparse.ArgumentParser(description="Learns a sum of cubes, one sample at a time.")
parser.add_argument("--epochs", type=int, default=100)
parser.add_argument("--samples", type=int, default=10000)
args = parser.parse_args()

world = lockstep.init()
lockstep.seed(1)
with lockstep.scope():
    x = lockstep.rand((args.samples, 10)) + 1
    noise = (lockstep.rand((args.samples, 1)) * (2 * math.pi)).sin()
    data = lockstep.dataset(x, (x ** 3).sum(1, keepdim=True) + noise)
loader = lockstep.loader(data, batch_size=1, comm=world, seed=1)
model = lockstep.data_parallel(nn.sequential(nn.linear(10, 100), nn.relu(), nn.linear(100, 1)), world)
optimizer = lockstep.sgd(model, learning_rate=1e-4, momentum=0.9)


def step(batch):
    """Takes a step, and returns the loss times the number of samples."""
    optimizer.zero_grad()
    total = 0
    if batch.count:
        with lockstep.scope():
            loss = lockstep.mse_loss(model(batch.input), batch.target)
            loss.backward()
            total = loss.item() * batch.count
    else:  # this rank has no sample of the last batch
        model.data_parallel_skip()
    optimizer.step()
    return total


seconds = steps = 0
for epoch in range(args.epochs):
    began = time.perf_counter()
    loss = sum(step(batch) for batch in loader)
    seconds += time.perf_counter() - began
    steps += len(loader)
    if world.rank == 0:
        print(f"Epoch: {epoch + 1} Mean Squared Error on rank 0: {loss / len(loader):g}")
print(f"rank {world.rank} parameters {model.hash():016x}")
if world.rank == 0:
    print(f"time per step: {1e6 * seconds / steps:.2f} us")
lockstep.finalize()
