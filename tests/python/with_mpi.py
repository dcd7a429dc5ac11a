"""A communicator from mpi4py, with the rank and the sums of MPI."""
import numpy as np
from mpi4py import MPI

import lockstep

comm = lockstep.from_mpi4py(MPI.COMM_WORLD)
assert (comm.rank, comm.size) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
assert comm.allreduce(np.array([comm.rank + 1.0]))[0] == MPI.COMM_WORLD.allreduce(comm.rank + 1.0)
if comm.rank == 0:
    print("right", comm.size)
comm.close()
