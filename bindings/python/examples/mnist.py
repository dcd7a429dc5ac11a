"""torchbearer's MNIST over processes, on Fashion-MNIST: each rank trains on its share, and callbacks synchronize the model.

    python -m lockstep.run -n 2 mnist.py

With --data-parallel, lockstep.data_parallel replaces the callbacks `sync` and `grad`. The program then ends with the parameters of
examples/fashion_mnist.c, bit for bit. (The callbacks average the means of the ranks, which rounds in a different order.)
"""
import argparse

import lockstep
from lockstep import nn

parser = argparse.ArgumentParser(description="Trains a perceptron with two hidden layers on Fashion-MNIST.")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--data", help="folder with the four IDX files (Debian's dataset-fashion-mnist)")
parser.add_argument("--limit", type=int, help="number of samples of each set to use")
parser.add_argument("--data-parallel", action="store_true")
parser.add_argument("--quiet", action="store_true")
args = parser.parse_args()


def setup():
    lockstep.seed(1)
    return lockstep.init()


def cleanup():
    lockstep.finalize()


def toy_model():
    return nn.sequential(nn.linear(784, 512), nn.relu(), nn.linear(512, 512), nn.relu(), nn.linear(512, 10))


@lockstep.on_init
def sync(state):
    state.model.sync_parameters(comm, 0)


@lockstep.on_backward
def grad(state):
    state.model.sync_gradients(comm)


@lockstep.on_sample
def flatten(state):
    state.input = state.input.reshape((state.count, -1))


@lockstep.on_sample_validation
def flatten_validation(state):
    state.input = state.input.reshape((state.count, -1))


def load(train):
    images = lockstep.mnist_dataset(args.data, train)
    if args.limit:
        images = images.subset(0, min(args.limit, len(images)))
    images = images.normalize(0.2860, 0.3530).preload()
    return lockstep.loader(images, batch_size=args.batch_size if train else 500, comm=comm, seed=1, shuffle=train)


def worker():
    train_loader, test_loader = load(True), load(False)
    model = lockstep.data_parallel(toy_model(), comm) if args.data_parallel else toy_model()
    optimizer = lockstep.adam(model, learning_rate=0.001)
    callbacks = ([] if args.data_parallel else [sync, grad]) + [flatten, flatten_validation]
    trial = lockstep.trial(model, optimizer, "cross_entropy", metrics=["loss", "acc"], train=train_loader, validate=test_loader,
                           comm=comm, callbacks=callbacks, quiet=args.quiet)
    trial.run(args.epochs)
    trial.evaluate(test_loader, "test")
    print(f"rank {comm.rank} parameters {model.hash():016x}", flush=True)
    comm.barrier()
    if comm.rank == 0:
        print(f"test accuracy: {trial.metric('test_acc'):.4f}")


comm = setup()
worker()
cleanup()
