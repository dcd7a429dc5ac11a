"""mpi4torch's linear regression: fits y = a + b x + c x^2 to points that are distributed over the ranks.

    python -m lockstep.run -n 2 linear_regression.py

The loss is the loss of all points. Two calls of allreduce carry values forward and gradients back. The program computes the same bits
as examples/linear_regression.c.
"""
import lockstep

comm = lockstep.init()
lockstep.seed(42)

num_points = 10000
share, rest = divmod(num_points, comm.size)
begin = share * comm.rank + min(comm.rank, rest)
end = begin + share + (comm.rank < rest)


def curve(x, params):
    return (x * params[2] + params[1]) * x + params[0]


xinput = (2.0 * lockstep.rand(num_points, dtype="f64"))[begin:end].clone()
youtput = curve(xinput, lockstep.tensor([0.1, 1.0, -2.0], dtype="f64"))


def lossfunction(params):
    params = comm.allreduce(params, "avg")  # the gradients of all ranks are combined here
    localloss = (youtput - curve(xinput, params)).square().sum()
    return comm.allreduce(localloss, "sum")


params = lockstep.arange(3, dtype="f64").set_requires_grad()
optimizer = lockstep.lbfgs([params], tolerance_gradient=1e-10, tolerance_change=1e-30)


def closure():
    optimizer.zero_grad()
    loss = lossfunction(params)
    loss.backward()
    if comm.rank == 0:
        print("Params:", params.tolist(), "Loss:", loss.item())
    return loss


optimizer.step(closure)
if comm.rank == 0:
    print("Final parameters:", params.tolist())
lockstep.finalize()
