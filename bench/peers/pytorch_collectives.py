#!/usr/bin/env python3
"""torch.distributed on Gloo, measured as `lockstep bench` measures Lockstep (see measure.h): one JSON object per size.

    pytorch_collectives.py COLLECTIVE [--ranks N] [--sizes 4,1K,64K] [--iterations K] [--fresh] [--no-bind]
"""
import argparse
import json
import os
import socket
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"
import torch  # noqa: E402  (the environment above must come first)
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

GROUP_SECONDS, WARM_SECONDS, SIZE_SECONDS = 10e-6, 20e-3, 0.25

# Number of parts of the buffers: none, one, or one per rank.
ROWS = {
    "allreduce": (0, 1),
    "broadcast": (0, 1),
    "allgather": (1, "ranks"),
    "alltoall": ("ranks", "ranks"),
    "pingpong": (1, 1),
    "barrier": (0, 0),
}


def size(text):
    shift = {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
    return int(text[:-1] if shift else text) << shift


def values(rank, begin, count):
    return ((7 * (torch.arange(begin, begin + count) % 251) + 3 * rank + 1) % 11).float()


def within(number, least, most):
    return max(least, min(int(number), most))


class Bench:
    def __init__(self, arguments, rank, wanted):
        self.name, self.rank, self.ranks, self.fresh = arguments.collective, rank, arguments.ranks, arguments.fresh
        send, receive = (self.ranks if parts == "ranks" else parts for parts in ROWS[self.name])
        unit = 4 * max(send, receive)
        self.count = -(-wanted // unit) if unit else 0
        self.bytes = self.count * unit
        self.send = torch.empty(send * self.count) if send else None
        self.receive = torch.empty(receive * self.count)
        self.new = values(rank, 0, len(self.receive if self.send is None else self.send))
        self.parts = list(self.receive.chunk(self.ranks)) if receive == self.ranks and self.count else []
        self.fill()

    def fill(self):
        (self.receive if self.send is None else self.send).copy_(self.new)

    def run(self):
        if self.name == "allreduce":
            dist.all_reduce(self.receive)
        elif self.name == "broadcast":
            dist.broadcast(self.receive, 0)
        elif self.name == "allgather":
            dist.all_gather(self.parts, self.send)
        elif self.name == "alltoall":
            dist.all_to_all_single(self.receive, self.send)
        elif self.name == "barrier":
            dist.barrier()
        elif self.rank ^ 1 < self.ranks:
            if self.rank % 2 == 0:
                dist.send(self.send, self.rank ^ 1)
            dist.recv(self.receive, self.rank ^ 1)
            if self.rank % 2 == 1:
                dist.send(self.send, self.rank ^ 1)

    def expected(self):
        if self.name == "allreduce":
            return sum(values(rank, 0, self.count) for rank in range(self.ranks))
        if self.name == "broadcast":
            return values(0, 0, self.count)
        if self.name == "allgather":
            return torch.cat([values(rank, 0, self.count) for rank in range(self.ranks)])
        if self.name == "alltoall":
            return torch.cat([values(rank, self.rank * self.count, self.count) for rank in range(self.ranks)])
        return values(self.rank ^ 1, 0, self.count)

    def check(self):
        if self.name == "barrier":
            return True
        if self.send is not None:
            self.receive.fill_(-1)
        self.fill()
        self.run()
        alone = self.name == "pingpong" and self.rank ^ 1 >= self.ranks
        return self.most([float(not alone and not torch.equal(self.receive, self.expected()))])[0] == 0

    def most(self, numbers):
        numbers = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(numbers, dist.ReduceOp.MAX)
        return numbers.tolist()

    def time_calls(self, calls):
        if self.fresh:
            self.fill()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(calls):
            self.run()
        return (time.perf_counter() - began) / calls

    def measure(self, iterations):
        correct = self.check()
        if self.send is None and not self.fresh:
            self.receive.zero_()
        calls = 2
        for _ in range(2):
            seconds = self.most([self.time_calls(calls)])[0]
            calls = within(WARM_SECONDS / seconds, 1, 2000)
        group = 1 if self.fresh else within(GROUP_SECONDS / seconds + 1, 1, 64)
        iterations = iterations or within(SIZE_SECONDS / (seconds * group), 10, 1000)
        times = sorted(self.most([self.time_calls(group) for _ in range(iterations)]))
        return self.check() and correct, times

    def print(self, correct, times):
        half = 0.5 if self.name == "pingpong" else 1.0
        median, p10, p90 = (1e6 * half * times[int(part * (len(times) - 1) + 0.5)] for part in (0.5, 0.1, 0.9))
        others = (self.ranks - 1) / self.ranks
        factor = {"allreduce": 2 * others, "allgather": others, "alltoall": others}.get(self.name, 1.0)
        algorithm = self.bytes / median * 1e-3
        line = {
            "collective": self.name,
            "backend": f"torch.distributed {torch.__version__}, Gloo",
            "ranks": self.ranks,
            "bytes": self.bytes,
            "iterations": len(times),
            "median_us": round(median, 3),
            "p10_us": round(p10, 3),
            "p90_us": round(p90, 3),
            "algbw_gbps": round(algorithm, 6),
            "busbw_gbps": round(algorithm * factor, 6),
            "correct": correct,
        }
        print(json.dumps(line), flush=True)


def run_rank(rank, arguments, port):
    torch.set_num_threads(1)
    if not arguments.no_bind:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=arguments.ranks)
    wrong = False
    for wanted in arguments.sizes.split(",") if arguments.collective != "barrier" else ["4"]:
        bench = Bench(arguments, rank, size(wanted))
        correct, times = bench.measure(arguments.iterations)
        wrong = wrong or not correct
        if rank == 0:
            bench.print(correct, times)
    dist.barrier()
    dist.destroy_process_group()
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collective", choices=list(ROWS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="4,1K,64K,1M,16M,64M")
    parser.add_argument("--iterations", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="every rank writes its buffer before each call")
    parser.add_argument("--no-bind", action="store_true", help="leave processes and their threads free to move")
    given = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = probe.getsockname()[1]
    mp.spawn(run_rank, (given, free_port), nprocs=given.ranks)
