"""Communication of the Python package on several ranks: ranks.py [fail]. With `fail`, a callback raises an exception on rank 1."""
import os
import sys
import time

import numpy as np

import lockstep
from lockstep import nn

lockstep.seed(3)
world = lockstep.init()
rank, size = world.rank, world.size


def collectives_on_arrays():
    own = np.arange(6.0).reshape(2, 3) + rank
    total = sum(np.arange(6.0).reshape(2, 3) + each for each in range(size))
    assert (world.allreduce(own) == total).all() and (world.allreduce(own, "max") == own - rank + size - 1).all()
    assert (world.allreduce(own[:, ::2]) == total[:, ::2]).all()  # not contiguous
    reduced = world.reduce(own, "avg", root=size - 1)
    assert (reduced is None) == (rank != size - 1) and (reduced is None or np.allclose(reduced, total / size))
    gathered = world.allgather(own)
    assert gathered.shape == (size, 2, 3) and all((gathered[each] == own - rank + each).all() for each in range(size))
    assert (world.gather(own) is None) == (rank != 0)
    buffer = np.full(4, float(rank))
    assert (world.broadcast(buffer, root=size - 1) == size - 1).all() and buffer[0] == size - 1
    rows = np.arange(2.0 * size).reshape(size, 2)
    assert (world.scatter(rows if rank == 0 else None, like=np.empty(2)) == rows[rank]).all()
    assert (world.reduce_scatter(rows) == size * rows[rank]).all()
    assert (world.alltoall(np.full((size, 2), rank)) == np.repeat(np.arange(size)[:, None], 2, axis=1)).all()
    if size > 1:
        right, left = (rank + 1) % size, (rank - 1) % size
        world.send(np.array([rank]), right, tag=3)
        assert world.recv(np.empty(1, "i8"), left, tag=3)[0] == left
    assert world.broadcast_object({"seed": 5} if rank == 0 else None) == {"seed": 5}
    world.barrier()
    half = world.split(rank % 2, rank)
    assert half.size == (size + 1 - rank % 2) // 2 and half.allreduce(np.ones(1))[0] == half.size
    half.close()


def expect_type_error(call, part):
    try:
        call()
    except TypeError as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"no error: {part}")


def missing_arrays():
    """Before any rank communicates, each rank gets an error that names what is missing."""
    expect_type_error(lambda: world.allreduce(None), "the array is None: pass a NumPy array or a tensor")
    expect_type_error(lambda: world.scatter(None), "the array is None" if rank == 0 else "scatter: like is None: pass an array")
    world.barrier()


def collectives_with_gradients():
    x = lockstep.full(3, "f64", rank + 1).set_requires_grad()
    loss = (world.allreduce(x * x) * (rank + 1)).sum()
    loss.backward()
    weights = sum(range(1, size + 1))
    assert (x.grad.numpy() == 2 * (rank + 1) * weights).all()
    parts = world.allgather(lockstep.full((1, 2), "f32", rank))
    assert parts.shape == (size, 2) and parts[size - 1, 0].item() == size - 1
    world.allreduce(lockstep.from_numpy(np.ones(3)).set_requires_grad() * 2)  # the tape holds the array until Python ends


def await_end(process):
    """Returns after the process has ended and its parent has collected its status."""
    for _ in range(2000):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise TimeoutError(f"process {process} has not ended for 20 s")


def training():
    """Returns the same parameters on every rank as in a single process with the global batch."""
    generator = np.random.default_rng(1)
    x, y = generator.standard_normal((48, 3)).astype("f4"), generator.standard_normal((48, 1)).astype("f4")
    model = lockstep.data_parallel(nn.sequential(nn.linear(3, 5), nn.relu(), nn.linear(5, 1)), world)
    optimizer = lockstep.sgd(model, learning_rate=0.1)
    loader = lockstep.loader(lockstep.dataset(x, y), global_batch_size=12, comm=world, seed=2)

    @lockstep.on_step_training
    def fail(state):
        if rank == 1 and state.step == 3:
            raise ValueError("the callback of rank 1")

    processes = world.allgather(np.array([os.getpid()], "i8"))
    trial = lockstep.trial(model, optimizer, "mse", train=loader, callbacks=[fail] if "fail" in sys.argv else [], quiet=True)
    try:
        trial.run(2)
    except ValueError:
        await_end(int(processes[0, 0]))  # rank 0 ends before this rank
        raise
    hashes = world.allgather(np.array([model.hash() >> 1], "i8"))
    assert (hashes == hashes[0]).all()
    return trial.history()[1]["loss"]


collectives_on_arrays()
missing_arrays()
collectives_with_gradients()
loss = training()
world.barrier()
if rank == 0:
    print(f"right {size} {loss:.6f}")
lockstep.finalize()
