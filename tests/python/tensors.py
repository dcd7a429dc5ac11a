"""Tensors of the Python package: NumPy and DLPack round trips, operators, indexing, scopes, mistakes."""
import gc
import sys
import weakref

import numpy as np

import lockstep
from lockstep import nn


def raises(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), (words, str(error))
        return error
    raise AssertionError(f"no {kind.__name__}: {words}")


DTYPES = ["f4", "f8", "f2", "i8", "i4", "u1", "?"]


def test_numpy_round_trips():
    for dtype in DTYPES:
        array = np.arange(24).reshape(2, 3, 4).astype(dtype)
        for part in (array, array[:, ::2], array[1], array.T, array[..., 1:3], array[:, :, ::3].swapaxes(0, 1), array[:0], array[0, 0, 0:1]):
            tensor = lockstep.from_numpy(part)
            view = tensor.numpy()
            assert tensor.shape == part.shape and view.dtype == part.dtype and (view == part).all()
            if part.size:
                assert np.shares_memory(view, array) and view.strides == part.strides, (part.shape, part.strides, view.strides)
                part[(0,) * part.ndim] = 1
                assert view[(0,) * part.ndim] == 1
    number = lockstep.from_numpy(np.array(3.5))
    assert number.shape == () and number.numpy().shape == () and number.item() == 3.5


def test_arrays_that_are_copied():
    base = np.arange(12.0)
    locked = base.copy()
    locked.flags.writeable = False
    unaligned = np.frombuffer(bytearray(8 * 4 + 1), np.uint8)[1:].view("f8")
    for array in (base[::-1], np.broadcast_to(base, (3, 12)), locked, base.astype(">f8"), np.lib.stride_tricks.sliding_window_view(base, 3),
                  unaligned, np.arange(5, dtype="i1"), np.arange(5, dtype="u4")):
        tensor = lockstep.from_numpy(array)
        assert (tensor.numpy() == array).all() and not np.shares_memory(tensor.numpy(), array), array.dtype
    assert lockstep.from_numpy(np.array([1, 2], "u2")).dtype == "i32"
    raises(ValueError, "does not fit into i64", lambda: lockstep.tensor(np.array([2**63], "u8")))
    raises(TypeError, "no dtype for elements of complex128", lambda: lockstep.from_numpy(np.array([1j])))
    raises(TypeError, "expected a NumPy array, not list", lambda: lockstep.from_numpy([1, 2]))
    raises(TypeError, "no dtype bf16", lambda: lockstep.zeros(2, "bf16").numpy())


def test_views_of_the_librarys_memory():
    tensor = lockstep.arange((3, 4), "f64")
    view = tensor.T[1:, ::2].numpy()
    view[0, 1] = -5
    tensor.mark_changed()
    assert tensor[2, 1].item() == -5 and view.shape == (3, 2)
    with lockstep.scope():
        inner = lockstep.arange(1000, "f64")
        kept = inner.numpy()
        part = inner[10:20]
        kept_part = np.asarray(part)
    with lockstep.scope():
        [lockstep.full(1000, "f64", 7) for _ in range(50)]
    assert (kept == np.arange(1000)).all() and (kept_part == np.arange(10, 20)).all()
    weight = nn.linear(3, 2).parameters()[0].numpy()  # the module is gone
    gc.collect()
    [lockstep.full((2, 3), "f32", 7) for _ in range(50)]
    assert weight.shape == (2, 3) and (abs(weight) < 1).all()


def test_dlpack_with_numpy():
    array = np.arange(24, dtype="f4").reshape(4, 6)
    for part in (array, array[::2, 1:], array.T, array[:, 3]):
        tensor = lockstep.from_dlpack(part)
        assert np.shares_memory(tensor.numpy(), array) and (tensor.numpy() == part).all()
        back = np.from_dlpack(tensor)
        assert np.shares_memory(back, array) and back.strides == part.strides
    tensor = lockstep.arange((5, 6), "i64")[1:, ::2]
    back = np.from_dlpack(tensor)
    del tensor
    gc.collect()
    [lockstep.full((5, 6), "i64", 9) for _ in range(50)]
    assert (back == np.arange(30).reshape(5, 6)[1:, ::2]).all()
    assert lockstep.zeros(3).__dlpack_device__() == (1, 0)
    other = lockstep.from_dlpack(lockstep.full(3, "bf16", 1.5))
    assert other.dtype == "bf16" and other[1].item() == 1.5
    reversed_copy = lockstep.from_dlpack(array[::-1])
    assert (reversed_copy.numpy() == array[::-1]).all()
    capsule = lockstep.ones(3).__dlpack__()
    lockstep.from_dlpack(capsule)
    raises(TypeError, "not consumed before", lambda: lockstep.from_dlpack(capsule))
    raises(TypeError, "expected an object with __dlpack__", lambda: lockstep.from_dlpack(3))
    locked = array.copy()
    locked.flags.writeable = False
    tensor = lockstep.from_dlpack(locked)
    assert (tensor.numpy() == locked).all() and not np.shares_memory(tensor.numpy(), locked)
    raises(TypeError, "no dtype for elements of int16; available: float32", lambda: lockstep.from_dlpack(np.ones(2, "i2")))
    raises(TypeError, "no dtype for elements of uint64; available: float32", lambda: lockstep.from_dlpack(np.ones(2, "u8")))


class Producer:
    """Exports a tensor with chosen fields of DLPack 1.0."""

    def __init__(self, tensor, **fields):
        self.tensor, self.fields = tensor, fields

    def __dlpack__(self, **options):
        capsule = self.tensor.__dlpack__(**options)
        assert options == {"max_version": (1, 0)} and '"dltensor_versioned"' in repr(capsule)
        managed = lockstep._dlpack._Versioned.from_address(lockstep._dlpack._pointer_of(capsule, b"dltensor_versioned"))
        for name, value in self.fields.items():
            setattr(managed, name, value)
        return capsule


def test_dlpack_versions():
    tensor = lockstep.ones(3)
    for version, name in ((None, "dltensor"), ((0, 8), "dltensor"), ((1, 0), "dltensor_versioned"), ((1, 1), "dltensor_versioned"), ((2, 0), "dltensor_versioned")):
        assert f'"{name}"' in repr(tensor.__dlpack__(max_version=version)), version
    lockstep.from_dlpack(Producer(tensor))[0] = 5
    lockstep.from_dlpack(Producer(tensor, flags=lockstep._dlpack.READ_ONLY))[1] = 7
    lockstep.from_dlpack(Producer(tensor, minor=9))[2] = 8
    assert tensor.tolist() == [5, 1, 8]
    raises(BufferError, "has DLPack version 2.3; expected version 1", lambda: lockstep.from_dlpack(Producer(tensor, major=2, minor=3)))
    copied = lockstep.from_dlpack(tensor.__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=True))
    copied[0] = 1
    assert tensor[0].item() == 5 and copied.tolist() == [1, 1, 8]
    raises(BufferError, "cannot export to device (2, 0)", lambda: tensor.__dlpack__(dl_device=(2, 0)))
    if tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1):
        np.from_dlpack(tensor)[0] = 6
        np.from_dlpack(tensor, copy=True)[1] = 9
        np.from_dlpack(tensor, copy=False, device="cpu")[2] = 4
        assert tensor.tolist() == [6, 1, 4]
    del copied
    gc.collect()
    assert not lockstep._dlpack._exported


def test_dlpack_keeps_exceptions():
    """A consumer drops the capsule, or an operator an array, while an exception is pending. The memory does not stay."""
    ignored = []
    sys.unraisablehook = ignored.append
    try:
        for _ in range(50):
            raises((RuntimeError, BufferError), "Unsupported dtype", lambda: np.from_dlpack(lockstep.ones(2, "bf16")))
            raises(ValueError, "mismatch", lambda: np.from_dlpack(lockstep.ones(3)) @ np.ones(2))
            assert len(lockstep._dlpack._exported) < 4
    finally:
        sys.unraisablehook = sys.__unraisablehook__
    assert not ignored, ignored
    gc.collect()
    assert not lockstep._dlpack._exported


def test_dlpack_with_many_exports():
    """The time of exports is linear in their number, and constructors of layers and minor collections do not scan the exports."""
    exports = lockstep._dlpack._Export
    scanned, is_used = [], exports.is_used
    exports.is_used = lambda self: scanned.append(1) or is_used(self)
    gc.disable()
    try:
        tensor = lockstep.ones(4)
        arrays = [np.from_dlpack(tensor) for _ in range(1000)]
        assert 1000 <= len(lockstep._dlpack._exported) and len(scanned) < 3000, len(scanned)
        scanned.clear()
        nn.linear(3, 2)
        gc.collect(0), gc.collect(1)
        assert not scanned
        arrays.clear()
        array = np.from_dlpack(tensor)
        for _ in range(1100):
            array = np.from_dlpack(tensor)
        assert len(lockstep._dlpack._exported) < 1100
    finally:
        exports.is_used = is_used
        gc.enable()
    del array
    gc.collect()
    assert not lockstep._dlpack._exported


def test_lifetimes():
    array = np.arange(100.0)
    watch = weakref.ref(array)
    tensor = lockstep.from_numpy(array)
    row = tensor[3:50]
    del array, tensor
    gc.collect()
    assert watch() is not None  # a view still uses the memory
    assert (row.numpy() == np.arange(3.0, 50)).all()
    view = row.numpy()
    del row
    gc.collect()
    assert watch() is not None and (view == np.arange(3.0, 50)).all()
    del view
    gc.collect()
    assert watch() is None and not lockstep._tensor._held
    exported = np.from_dlpack(lockstep.ones(4))
    lockstep.ones(4).__dlpack__()  # a capsule that nobody takes
    offered = lockstep.ones(4).__dlpack__()
    gc.collect()
    assert len(lockstep._dlpack._exported) == 2
    assert lockstep.from_dlpack(offered).tolist() == [1] * 4
    gc.collect()
    assert len(lockstep._dlpack._exported) == 1
    del exported
    gc.collect()
    assert not lockstep._dlpack._exported


def test_a_tensor_keeps_what_its_gradient_needs():
    array = np.arange(4.0)
    x = lockstep.from_numpy(array).set_requires_grad()
    loss = (x * x * 3).sum()
    gc.collect()
    loss.backward()
    assert (x.grad.numpy() == 6 * array).all()
    for _ in range(200):  # results that nobody uses do not stay
        (x * 2).exp()
    bytes_used = lockstep.memory_stats().total
    for _ in range(200):
        (x * 2).exp()
    assert lockstep.memory_stats().total == bytes_used


def test_operators():
    x, y = lockstep.tensor([[1.0, 2], [3, 4]]), lockstep.tensor([[5.0, 6], [7, 8]])
    a, b = x.numpy(), y.numpy()
    for got, wanted in ((x + y, a + b), (x - 1, a - 1), (2 - x, 2 - a), (x * y, a * b), (3 * x, 3 * a), (x / y, a / b), (1 / x, 1 / a), (x**2, a**2),
                        (2**x, 2**a), (x @ y, a @ b), (-x, -a), (abs(-x), a), (x + b, a + b), (b - x, b - a), (x > 2, a > 2), (x == y, a == b),
                        (x.sum(0), a.sum(0)), (x.mean((0, 1)), a.mean()), (x.max(1, keepdim=True), a.max(1, keepdims=True)),
                        (x.var(0, correction=0), a.var(0)), (x.norm(1), np.linalg.norm(a, axis=1)), (x.var(), a.var(ddof=1)),
                        (lockstep.maximum(x, 2.5), np.maximum(a, 2.5)), (lockstep.sub(1, x), 1 - a), (lockstep.concat([x, y], 1), np.concatenate([a, b], 1)),
                        (x.reshape((4, 1)), a.reshape(4, 1)), (x.softmax(-1).sum(-1), np.ones(2)), (lockstep.where(x > 2, x, y), np.where(a > 2, a, b)),
                        (lockstep.einsum("ij,jk->ik", [x, y]), a @ b)):
        assert got.shape == wanted.shape and np.allclose(got.numpy(), wanted, rtol=1e-6), (got, wanted)
    values, indices = lockstep.tensor([3, 1, 2]).sort(0)
    assert values.tolist() == [1, 2, 3] and indices.tolist() == [1, 2, 0] and values.dtype == "i64"
    assert [part.tolist() for part in lockstep.arange(5, "i64").split(2)] == [[0, 1], [2, 3], [4]]
    assert (lockstep.tensor([1, 2]) + 2**40).tolist() == [1 + 2**40, 2 + 2**40] and float(lockstep.tensor(2.5)) == 2.5
    raises(TypeError, "unsupported operand", lambda: x + "text")


def test_indexing():
    array = np.arange(60).reshape(3, 4, 5)
    x = lockstep.from_numpy(array)
    for key in (1, -1, (slice(None), 2), (..., 0), (0, slice(1, None, 2)), (slice(0, 2), None, 3), (slice(None, None, 3), ..., slice(-2, None)),
                slice(5, 1), [2, 0], (slice(None), np.array([3, 3, 1]))):
        assert x[key].shape == array[key].shape and (x[key].numpy() == array[key]).all(), key
    x[1, ::2] = -1
    assert (array[1, ::2] == -1).all() and len(x) == 3 and len(list(x)) == 3
    x[0] = lockstep.zeros((4, 5), "i64")
    assert not array[0].any()
    raises(IndexError, "too many indices for a tensor with 3 axes", lambda: x[0, 0, 0, 0])
    raises(IndexError, "index 3 is out of range", lambda: x[3])
    raises(lockstep.Error, "ls_select", lambda: x[0, 9])
    raises(lockstep.Error, "ls_slice", lambda: x[::-1])
    raises(IndexError, "assign to slices", lambda: x.__setitem__(([0, 1], 2), 5))


def test_custom_operations():
    def cube_sum(x, y):
        return lockstep.from_numpy(x.numpy() ** 3 + y.numpy())

    def gradients(inputs, outputs, arrived):
        x, _ = inputs
        return 3 * x * x * arrived[0], arrived[0]

    x, y = lockstep.tensor(np.array([1.0, 2, 3])).set_requires_grad(), lockstep.tensor(np.array([4.0, 5, 6]))
    result = lockstep.custom([x, y], cube_sum, gradients)
    assert result.tolist() == [5, 13, 33]
    (result * 2).sum().backward()
    assert x.grad.tolist() == [6, 24, 54]
    lockstep.gradcheck(lambda x, y: lockstep.custom([x, y], cube_sum, gradients).sin(), [x, y])
    raises(lockstep.Error, "gradcheck", lambda: lockstep.gradcheck(lambda x: lockstep.custom([x, y], cube_sum, lambda given, *_: (given[0], None)), [x]))
    parts = lockstep.custom([y], lambda y: (y * 2, y + 1), None, outputs=2)
    assert [part.tolist() for part in parts] == [[8, 10, 12], [5, 6, 7]]
    raises(ZeroDivisionError, "division", lambda: lockstep.custom([x], lambda x: 1 / 0))
    raises(ValueError, "forward returned 2 tensors, but 1 are needed", lambda: lockstep.custom([x], lambda x: (x, x)))
    with lockstep.scope():
        loss = lockstep.custom([x, y], cube_sum, lambda *_: [].pop()).sum()
        raises(IndexError, "pop from empty list", loss.backward)
    del result, parts, loss
    gc.collect()
    assert not lockstep._convert._live, lockstep._convert._live


def test_scopes():
    with lockstep.scope():
        x = lockstep.ones(3)
        y = (x + 1).keep()
        with lockstep.scope():
            z = (x + 2).keep()
        assert z.tolist() == [3, 3, 3]
    assert y.tolist() == [2, 2, 2]
    for use in (lambda: x + 1, lambda: x.numpy(), lambda: z.item(), lambda: x.shape, lambda: y + x, lambda: x.keep(), lambda: x.softmax(0)):
        error = raises(lockstep.Error, "belongs to a scope or a callback that has ended", use)
        assert error.status == lockstep.LS_ERR_STATE and error.name == "LS_ERR_STATE"
    try:
        with lockstep.scope():
            raise KeyError("mine")
    except KeyError:
        pass
    with lockstep.scope():
        raises(lockstep.Error, "ls_reshape", lambda: lockstep.ones(4).reshape(3))  # handled, so the scope ends well
    w = lockstep.ones(2).set_requires_grad()
    with lockstep.no_grad():
        assert not (w * 2).requires_grad
    assert (w * 2).requires_grad
    for key in (0, slice(0, 1), ...):
        raises(lockstep.Error, "[2] requires a gradient; change it in a block `with lockstep.no_grad():`", lambda: w.__setitem__(key, 3))
    raises(lockstep.Error, "is the result of a recorded operation", lambda: (w * 2).__setitem__(0, 3))
    with lockstep.no_grad():
        w[0] = 3
    assert w.tolist() == [3, 1]
    with lockstep.autocast("bf16"):
        assert lockstep.lib.ls_autocast(lockstep.LS_BF16) == lockstep.LS_BF16
    released = lockstep.ones(2)
    released.release()
    raises(lockstep.Error, "has ended", lambda: released + 1)


def test_mistakes():
    raises(lockstep.Error, "ls_matmul: ", lambda: lockstep.ones((2, 3)) @ lockstep.ones((2, 3)))
    raises(lockstep.Error, 'f64 and f32 differ; convert one with .to("f32")', lambda: nn.linear(2, 1)(np.ones((3, 2))))
    error = raises(lockstep.Error, "ls_nn_linear: ", lambda: nn.linear(-1, 3))
    assert error.status == lockstep.LS_ERR_ARGUMENT
    raises(TypeError, "unknown option 'rate'; available: learning_rate", lambda: lockstep.adam(nn.linear(1, 1), rate=1))
    raises(ValueError, "unknown name 'f33'; available: f32, f64", lambda: lockstep.zeros(3, "f33"))
    raises(ValueError, "unknown name 'median'; available: mean, sum, none", lambda: lockstep.mse_loss(lockstep.ones(1), lockstep.ones(1), "median"))
    raises(AttributeError, "neither ls_nothing", lambda: lockstep.nothing)
    raises(AttributeError, "lockstep.Tensor has no attribute 'nothing'", lambda: lockstep.ones(1).nothing)
    raises(AttributeError, "no layer 'nothing'", lambda: nn.nothing)
    model = nn.linear(1, 1)
    for call, name in ((lambda: nn.ReLU, "relu"), (lambda: lockstep.conv2d, "nn.conv_2d"), (lambda: lockstep.DataLoader, "loader"),
                       (lambda: lockstep.adam(model, lr=1), "learning_rate"), (lambda: lockstep.adam(model, learningrate=1), "learning_rate"),
                       (lambda: lockstep.zeros(3, "flot32"), "f32"), (lambda: model.zerograd, "zero_grad"), (lambda: lockstep.ones(1).soft_max, "softmax"),
                       (lambda: lockstep.trial(model, None, "crossentropy"), "cross_entropy")):
        error = raises((AttributeError, TypeError, ValueError), "; did you mean ", call)
        assert str(error).endswith(f"; did you mean {name!r}?"), error
    assert "did you mean" not in str(raises(AttributeError, "no layer", lambda: nn.something_else))
    raises(TypeError, "expected a lockstep.Tensor, not Module", lambda: lockstep.relu(nn.relu()))
    raises(TypeError, "expected a lockstep.Module, not Tensor", lambda: lockstep.data_parallel(lockstep.ones(1), None))
    raises(TypeError, "lockstep.Module: make it with a function such as lockstep.nn.linear", lambda: lockstep.Module())
    raises(lockstep.Error, "at most 8", lambda: lockstep.from_numpy(np.zeros((1,) * 9)))


def test_zero_and_negated_options():
    model = nn.linear(3, 2, bias=False)
    assert [name for name, _ in model.named_parameters()] == ["weight"]
    assert len(nn.linear(3, 2, no_bias=True).parameters()) == 1
    assert nn.layer_norm(3, epsilon=0)(lockstep.tensor([[0.0, 0.0, 0.0]])).is_nan().tolist() == [[True] * 3]  # 0 is 0, not the default
    assert lockstep.adam(model, beta1=0).momentum() == 0 and lockstep.adam(model).momentum() == 0.9


def test_every_function_is_reachable():
    for name in lockstep._declarations.FUNCTIONS:
        assert callable(getattr(lockstep.lib, name)), name
    assert len(lockstep._declarations.FUNCTIONS) > 600 and lockstep.lib.ls_error_set and "adam" in dir(lockstep) and "softmax" in dir(lockstep.ones(1))
    assert "learning_rate" in lockstep.adam.__doc__ and "linear" in dir(nn)


def test_dlpack_with_torch():
    try:
        import torch
    except ImportError:
        print("SKIPPED DLPack with PyTorch: python3 has no torch")
        return
    source = torch.arange(12.0).reshape(3, 4)
    for part in (source, source.T, source[:, ::2], source.bfloat16()):
        tensor = lockstep.from_dlpack(part)
        back = torch.from_dlpack(tensor)
        raises(RuntimeError, "size", lambda: torch.from_dlpack(tensor) @ torch.ones(77))
        assert back.data_ptr() == part.data_ptr() and back.stride() == part.stride() and torch.equal(back, part)
    shared = torch.from_dlpack(lockstep.arange((3, 4))[:, ::2])
    gc.collect()
    assert torch.equal(shared, source[:, ::2])


for name, test in list(globals().items()):
    if name.startswith("test_") and (len(sys.argv) == 1 or name in sys.argv):
        test()
        print("ok", name)
print("right")
