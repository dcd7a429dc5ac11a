#!/usr/bin/env python3
"""The training examples in JAX, for comparison: whole epochs compiled into one scan over the batches,
parameters and optimizer state donated, one thread. Prints what the examples print: `throughput: N samples/s`.

    jax_scan.py --work perceptron|mlp --batch B --steps S
"""
import argparse
import functools
import os
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--work", choices=["perceptron", "mlp"], required=True)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--steps", type=int, default=200000)
arguments = parser.parse_args()

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax  # noqa: E402  (the environment above must come first)
import jax.numpy as jnp  # noqa: E402


def make_perceptron(key):
    keys = jax.random.split(key, 2)
    x = jax.random.uniform(keys[0], (10000, 10)) + 1
    y = (x**3).sum(1, keepdims=True) + jnp.sin(2 * jnp.pi * jax.random.uniform(keys[1], (10000, 1)))
    return x, y, (10, 100, 1), lambda output, target: jnp.mean((output - target) ** 2), momentum_sgd


def cross_entropy(output, target):
    logarithms = jax.nn.log_softmax(output)
    return -jnp.mean(jnp.take_along_axis(logarithms, target[:, None], 1))


def make_mlp(key):
    keys = jax.random.split(key, 2)
    x = jax.random.uniform(keys[0], (8192, 784))
    return x, jax.random.randint(keys[1], (8192,), 0, 10), (784, 512, 512, 10), cross_entropy, adam


def momentum_sgd(parameters, gradients, state):
    momentum, _, step = state
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return jax.tree.map(lambda p, m: p - 1e-4 * m, parameters, momentum), (momentum, None, step)


def adam(parameters, gradients, state):
    first, second, step = state
    step = step + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
    rate, root = 1e-3 / (1 - 0.9**step), 1 / jnp.sqrt(1 - 0.999**step)
    parameters = jax.tree.map(
        lambda p, m, v: p - rate * m / (jnp.sqrt(v) * root + 1e-8), parameters, first, second
    )
    return parameters, (first, second, step)


def main():
    make = {"perceptron": make_perceptron, "mlp": make_mlp}[arguments.work]
    key = jax.random.key(1)
    x, y, widths, criterion, optimizer = make(key)
    batches = x.shape[0] // arguments.batch
    x = x[: batches * arguments.batch].reshape(batches, arguments.batch, -1)
    y = y[: batches * arguments.batch].reshape(batches, arguments.batch, *y.shape[1:])
    parameters = [
        (jax.random.uniform(key, (rows, columns), minval=-1, maxval=1) / rows**0.5, jnp.zeros(columns))
        for rows, columns in zip(widths, widths[1:])
    ]
    zeros = functools.partial(jax.tree.map, jnp.zeros_like)
    state = (zeros(parameters), zeros(parameters) if optimizer is adam else None, jnp.zeros(()))

    def loss_of(parameters, x, y):
        for weight, bias in parameters[:-1]:
            x = jnp.maximum(x @ weight + bias, 0)
        return criterion(x @ parameters[-1][0] + parameters[-1][1], y)

    def step(carried, batch):
        parameters, state = carried
        loss, gradients = jax.value_and_grad(loss_of)(parameters, *batch)
        return optimizer(parameters, gradients, state), loss

    @functools.partial(jax.jit, donate_argnums=0)
    def epoch(carried, x, y):
        return jax.lax.scan(step, carried, (x, y))

    carried, _ = jax.block_until_ready(epoch((parameters, state), x, y))
    epochs = max(1, arguments.steps // batches)
    began = time.perf_counter()
    for _ in range(epochs):
        carried, losses = jax.block_until_ready(epoch(carried, x, y))
    seconds = time.perf_counter() - began
    print(f"Loss: {float(losses.mean()):g}")
    print(f"throughput: {epochs * batches * arguments.batch / seconds:.0f} samples/s")


main()
