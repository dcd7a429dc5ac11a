"""Modules, optimizers, data sets, trials and callbacks of the Python package, also while objects are garbage-collected all the time."""
import gc
import os
import sys
import tempfile
import threading
import traceback
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
    raise AssertionError(f"no {kind}: {words}")


def data(samples=64):
    generator = np.random.default_rng(3)
    x = generator.standard_normal((samples, 4)).astype("f4")
    return x, (x.sum(1, keepdims=True) * 0.5 + 1).astype("f4")


def small_model():
    return nn.sequential(nn.linear(4, 8), nn.tanh(), nn.linear(8, 1))


def make_loader(**options):
    return lockstep.loader(lockstep.dataset(*data()), batch_size=16, **{"seed": 1, **options})


def test_modules():
    lockstep.seed(5)
    model = small_model()
    names = [name for name, _ in model.named_parameters()]
    assert names == ["0.weight", "0.bias", "2.weight", "2.bias"] and model.size() == 49 and "Linear" in repr(model)
    assert list(model.children()) == ["0", "1", "2"] and model.find_child("2").find("bias").shape == (1,)
    x = lockstep.from_numpy(data()[0])
    wanted = np.tanh(x.numpy() @ model.state_dict()["0.weight"].numpy().T + model.state_dict()["0.bias"].numpy())
    assert np.allclose(model.find_child("1")(model.find_child("0")(x)).numpy(), wanted, atol=1e-6)
    assert nn.sequential()(x) is x  # the same tensor, which has one owner
    named = nn.sequential({"first": nn.linear(4, 2), "act": nn.relu()})
    assert [name for name, _ in named.named_parameters()] == ["first.weight", "first.bias"]
    outputs = nn.lstm(4, 5, layers=2)(lockstep.ones((2, 3, 4)), None, None, None, outputs=3)
    assert [each.shape for each in outputs] == [(2, 3, 5), (2, 2, 5), (2, 2, 5)]
    conv = nn.conv_2d(1, 2, 3, padding=1, bias=False)
    assert conv(lockstep.ones((1, 1, 4, 5))).shape == (1, 2, 4, 5) and len(conv.parameters()) == 1
    assert model.train(False) is model and not model.is_training() and model.train().is_training()
    shared = nn.linear(4, 4)
    assert nn.sequential(shared, shared).size() == 20
    model.set_requires_grad(False)
    assert not any(each.requires_grad for each in model.parameters())
    error = raises(ValueError, "mine", lambda: nn.function("f", fails)(x))
    assert traceback.extract_tb(error.__traceback__)[-1].name == "fails"
    constant = lockstep.ones(3)
    for given in (lambda x: x, lambda x: x * 2, lambda x: constant):
        layer = nn.function("layer", given)
        layer(x), layer(x)
        assert constant.tolist() == [1, 1, 1]


def fails(*arguments):
    raise ValueError("mine 100 %s")


def test_state_dict_and_files():
    first, second = small_model(), small_model()
    assert first.hash() != second.hash()
    second.load_state_dict(first.state_dict())
    assert first.hash() == second.hash()
    arrays = {name: each.numpy() * 2 for name, each in first.state_dict().items()}
    second.load_state_dict(arrays)
    assert (second.state_dict()["2.bias"].numpy() == arrays["2.bias"]).all()
    raises(lockstep.Error, "2.bias", lambda: second.load_state_dict({name: each for name, each in arrays.items() if name != "2.bias"}))
    for tensors, words in (({**arrays, "9.bias": np.ones(1)}, "has a tensor 9.bias"), ({}, "load_state_dict: the dictionary has no tensor 0.weight"),
                           ({**arrays, "2.bias": np.ones(3)}, "load_state_dict: 2.bias is [3] in the dictionary and [1] in the model")):
        raises(lockstep.Error, words, lambda: second.load_state_dict(tensors))
    wanted = second.hash()
    second.load_state_dict({name: each.astype("f8") for name, each in arrays.items()})  # dtypes are converted
    assert second.hash() == wanted
    missing = []
    second.load_state_dict({"0.weight": arrays["0.weight"]}, allow_missing=True, on_missing=missing.append)
    assert missing == ["0.bias", "2.weight", "2.bias"], missing
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "weights.safetensors")
        first.save(path, metadata={"kind": "test"})
        loaded = lockstep.load_tensors(path)
        assert sorted(loaded) == sorted(arrays) and loaded["0.weight"].shape == (8, 4)
        assert lockstep.safetensors_load(path).metadata("kind") == "test"
        second.load(path)
        assert first.hash() == second.hash()
        raises(lockstep.Error, "absent", lambda: second.load(os.path.join(folder, "absent")))


def test_optimizers():
    x, y = (lockstep.from_numpy(each) for each in data())
    for make, options in (("sgd", {"learning_rate": 0.1, "momentum": 0.9}), ("adam", {"learning_rate": 0.05}), ("adamw", {}), ("lion", {}), ("muon", {})):
        model = small_model()
        optimizer = getattr(lockstep, make)(model, **options)
        schedule = lockstep.schedule_warm_up(lockstep.schedule_cosine(optimizer, 100, 0), 5, 0.1)
        first = None
        for _ in range(30):
            with lockstep.scope():
                loss = lockstep.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                norm = lockstep.clip_grad_norm(model, 10.0)
                optimizer.step()
                schedule.advance()
                first = first or loss.item()
        assert lockstep.mse_loss(model(x), y).item() < first and norm > 0, make
    state = optimizer.state()
    assert state and all(isinstance(each, lockstep.Tensor) for each in state.values())
    weight = lockstep.tensor([3.0, -2.0]).set_requires_grad()
    fit = lockstep.lbfgs([weight], strong_wolfe=True)

    def closure():
        loss = ((weight - 1) ** 2).sum()
        loss.backward()
        return loss

    assert fit.step(closure) == 13 and np.allclose(weight.numpy(), 1) and fit.last_step().evaluations > 1
    error = raises(ZeroDivisionError, "division by zero", lambda: fit.step(lambda: 1 / 0))
    assert error.__traceback__ is not None
    hooked = []
    weight.add_grad_hook(lambda leaf: hooked.append(leaf.grad.tolist()))
    (weight * 2).sum().backward()
    assert len(hooked) == 1
    group = lockstep.adam([weight], learning_rate=0.1)
    assert group.learning_rate(0) == 0.1
    rates = lockstep.schedule_function(group, lambda step: 1 / (step + 1))
    rates.advance()
    assert group.learning_rate(0) == 0.05
    del model
    gc.collect()
    optimizer.zero_grad()  # it keeps the model


def test_data():
    x, y = data(10)
    set_of_arrays = lockstep.dataset(x, y)
    assert len(set_of_arrays) == 10
    doubled = set_of_arrays.transform_input(lambda batch, samples: batch * 2)
    loader = lockstep.loader(doubled, batch_size=4, shuffle=False, threads=2)
    for _ in range(2):
        batches = [(batch.input.numpy().copy(), batch.target.numpy().copy(), batch.first, batch.count) for batch in loader]
        assert [each[3] for each in batches] == [4, 4, 2] and np.allclose(np.concatenate([each[0] for each in batches]), 2 * x)
        assert (np.concatenate([each[1] for each in batches]) == y).all()
    assert (lockstep.loader(set_of_arrays, batch_size=10, shuffle=False).dataset().count()) == 10
    kept = next(iter(lockstep.loader(set_of_arrays, batch_size=2)))
    assert kept.input.shape == (2, 4)
    parts = set_of_arrays.split([0.7, 0.3], seed=1)
    assert [len(part) for part in parts] == [7, 3] and len(set_of_arrays.subset(2, 5)) == 5
    raises(ValueError, "mine 100 %s", lambda: set_of_arrays.transform_input(fails))
    armed = []
    broken = lockstep.loader(set_of_arrays.transform_input(lambda batch, samples: fails() if armed else batch), batch_size=4, threads=1)
    armed.append(True)
    error = raises(ValueError, "mine 100 %s", lambda: list(broken))
    assert any(each.name == "fails" for each in traceback.extract_tb(error.__traceback__))
    order = []

    def sampler(epoch, indices, count):
        order.append(epoch)
        for i in range(count):
            indices[i] = count - 1 - i

    backwards = lockstep.loader(set_of_arrays, batch_size=10, sampler=sampler)
    assert (next(iter(backwards)).input.numpy() == x[::-1]).all() and order == [0]


def test_arrays_that_are_not_contiguous():
    x, y = data(20)
    for inputs, targets in ((x[:, :3], y), (x.T[:4].T[:, ::-1], y[:, 0]), (np.asfortranarray(x), y[::-1])):
        before = inputs.copy()
        samples = lockstep.dataset(inputs, targets)
        inputs[0, 0] += 1  # an array of its own
        batch = next(iter(lockstep.loader(samples, batch_size=20, shuffle=False)))
        assert (batch.input.numpy() == before).all() and (batch.target.numpy() == targets).all()
    shared = lockstep.dataset(x, y)
    x[0, 0] = 7
    assert next(iter(lockstep.loader(shared, batch_size=1, shuffle=False))).input.numpy()[0, 0] == 7
    with lockstep.scope():
        turned = lockstep.dataset(lockstep.from_numpy(x).T)
    assert next(iter(lockstep.loader(turned, batch_size=4, shuffle=False))).input.shape == (4, 20)


def test_reprs():
    loader = lockstep.loader(lockstep.dataset(*data()), batch_size=10)
    assert repr(loader) == "<Loader of 64 samples, 7 batches per epoch>" and repr(loader.dataset()) == "<Dataset of 64 samples>"
    _, trial = run_trial(metrics=["mae"])
    assert repr(trial) == "<Trial, 0 epochs, metrics: loss, mae>"
    trial.run(2)
    assert repr(trial) == "<Trial, 2 epochs, metrics: loss, mae>"
    closed = [trial, loader]
    [each.close() for each in closed]
    assert list(map(repr, closed)) == ["<closed Trial>", "<closed Loader>"]


def test_help():
    for made, options in ((lockstep.trial, "step, train, validate, comm,"), (lockstep.loader, "batch_size, "), (lockstep.init, "init, backend, ")):
        assert f"\n\nOptions: {options}" in made.__doc__ and made.__doc__.endswith("_options)."), made.__doc__


def test_hdf5():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "wave.h5")
        wave = np.arange(60, dtype="f4").reshape(20, 3)
        try:
            lockstep.hdf5_save(path, {"u": lockstep.from_numpy(wave)})
        except lockstep.Error as error:
            assert "lockstep-hdf5" in str(error), error
            print("SKIPPED hdf5_dataset:", error)
            return
        samples = lockstep.hdf5_dataset(path, input={"variables": ["u"], "steps": 2}, target={"variables": ["u"], "first": 2})
        seen = [batch for batch in lockstep.loader(samples, batch_size=18, shuffle_window=1)]
        (batch,) = seen
        first = [int(each) // 3 for each in batch.input.numpy()[:, 0, 0]]
        assert sorted(first) == list(range(18)) and batch.input.shape == (18, 2, 3)
        assert all((batch.target.numpy()[i] == wave[step + 2]).all() for i, step in enumerate(first))
        raises(lockstep.Error, "available: u", lambda: lockstep.hdf5_dataset(path, input={"variables": ["v"]}, target={"variables": ["u"]}))


def run_trial(**options):
    lockstep.seed(1)
    model = small_model()
    optimizer = lockstep.adam(model, learning_rate=0.05)
    trial = lockstep.trial(model, optimizer, options.pop("criterion", "mse"), train=make_loader(), quiet=True, **options)
    return model, trial


def test_arrays_of_parameters():
    """An array of a parameter keeps an optimizer from moving the parameter, until the array is dropped."""
    for make in (lambda tensor: tensor.numpy(), np.from_dlpack):
        model = small_model()
        array = make(model.state_dict()["0.weight"])
        raises(lockstep.Error, 'an array (.numpy() or DLPack) or a .detach() of "0.weight" exists', lambda: lockstep.adam(model))
        del array
        lockstep.adam(model)
    for move in (lambda model: lockstep.data_parallel(model, world), lambda model: model.sync_parameters(world, 0),
                 lambda model: model.sync_gradients(world)):
        model = small_model()
        np.from_dlpack(model.state_dict()["0.weight"])
        move(model)


def test_names_of_metrics():
    mine = lockstep.metric(name="mine", mean=lambda state: (0.0, state.count))
    seen = []
    _, trial = run_trial(metrics=["mae", mine], callbacks=[lambda state: seen.append(state.trial.metric("val_mine"))])
    assert np.isnan(trial.metric("mae")) and np.isnan(trial.metric("test_mae")) and trial.metric_values("mine") is None
    for read in (trial.metric, trial.metric_values):
        error = raises(lockstep.Error, 'there is no metric "mea"; available: loss, mae, mine, and with', lambda: read("mea"))
        assert str(error).endswith("; did you mean 'mae'?")
        assert error.status == lockstep.LS_ERR_ARGUMENT
    trial.run(1)
    assert len(seen) == 1 and np.isnan(seen[0]) and trial.metric_values("mae").shape == (1,)
    raises(lockstep.Error, 'there is no metric "acc"', lambda: run_trial(callbacks=[lambda state: state.trial.metric("acc")])[1].run(1))


def test_trials():
    seen = []
    mine = lockstep.metric(name="mine", mean=lambda state: (abs(state.output).sum().item(), state.count))
    steps = []

    @lockstep.on_step_training
    def count(state):
        steps.append(state.step)
        state.stop = state.epoch == 1 and state.batch == 1

    stopping = lockstep.early_stopping(monitor="loss", patience=5)
    model, trial = run_trial(metrics=["loss", "mae", mine], callbacks=[lambda state: seen.append((state.epoch, state.trial.metric("loss"))), stopping])
    trial.run(3)
    history = trial.history()
    assert [epoch for epoch, _ in seen] == [0, 1, 2] and [loss for _, loss in seen] == [each["loss"] for each in history]
    assert history[2]["loss"] < history[0]["loss"] and stopping.early_stopping_best() == history[2]["loss"] and history[0]["mine"] > 0
    trial.evaluate(make_loader(), "test")
    assert trial.metric("test_loss") > 0 and trial.predict(make_loader(), True).shape == (64, 1)
    model, trial = run_trial(callbacks=[count])
    trial.run(3)
    assert steps == [1, 2, 3, 4, 5, 6], steps

    def criterion(output, target):
        return (output - target).square().mean() + 0 * output.sum()

    plain, own = run_trial(), run_trial(criterion=criterion)
    plain[1].run(1), own[1].run(1)
    assert np.allclose(plain[0].state_dict()["0.weight"].numpy(), own[0].state_dict()["0.weight"].numpy(), atol=1e-6)
    with tempfile.TemporaryDirectory() as folder:
        _, trial = run_trial(checkpoint={"folder": folder, "every_epochs": 1})
        trial.run(2)
        again, resumed = run_trial(resume=folder)
        resumed.run(3)
        whole, straight = run_trial()
        straight.run(3)
        assert again.hash() == whole.hash()


def test_a_user_step():
    def step(state):
        with lockstep.scope():
            optimizer.zero_grad()
            output = state.model(state.input)
            loss = lockstep.mse_loss(output, state.target)
            loss.backward()
            optimizer.step()
            state.output, state.loss = output.detach().keep(), loss.detach().keep()

    lockstep.seed(1)
    model = small_model()
    optimizer = lockstep.adam(model, learning_rate=0.05)
    trial = lockstep.trial(model, optimizer, step=step, train=make_loader(), quiet=True)
    trial.run(2)
    other, plain = run_trial()
    plain.run(2)
    assert model.hash() == other.hash() and trial.history()[1]["loss"] == plain.history()[1]["loss"]


def test_exceptions_of_callbacks():
    for name in ("on_init", "on_start", "on_sample", "on_forward", "on_criterion", "on_backward", "on_step_training", "on_end_epoch", "on_end"):
        hook = getattr(lockstep, name)(fails)
        error = raises(ValueError, "mine 100 %s", lambda: run_trial(callbacks=[hook])[1].run(1))
        assert any(each.name == "fails" for each in traceback.extract_tb(error.__traceback__)), name
    taken = lockstep.on_init(fails)
    for _ in range(2):  # the failed trial has freed the callback
        raises((ValueError, lockstep.Error), "", lambda: run_trial(callbacks=[taken]))
    raises(lockstep.Error, "this Callback was closed", lambda: lockstep.once(taken))
    raises(ValueError, "mine", lambda: run_trial(criterion=fails)[1].run(1))
    raises(ValueError, "mine", lambda: run_trial(metrics=[lockstep.metric(name="m", mean=fails)])[1].run(1))
    interrupt = lockstep.on_step_training(lambda state: (_ for _ in ()).throw(KeyboardInterrupt()))
    raises(KeyboardInterrupt, "", lambda: run_trial(callbacks=[interrupt])[1].run(1))
    escaped = []
    run_trial(callbacks=[lockstep.on_forward(lambda state: escaped.append((state, state.output)))])[1].run(1)
    raises(lockstep.Error, "has ended", lambda: escaped[0][1].item())
    raises(lockstep.Error, "only until it returns", lambda: escaped[0][0].output)
    raises(AttributeError, "no field 'outputs'; available: trial, model", lambda: run_trial(callbacks=[lambda state: state.outputs])[1].run(1))
    raises(lockstep.Error, "copy its values", lambda: run_trial(callbacks=[lockstep.on_forward(lambda state: (state.output + 1).keep())])[1].run(1))
    kept = []
    run_trial(callbacks=[lockstep.on_forward(lambda state: kept.append(state.output.numpy()))])[1].run(1)
    [lockstep.full((16, 1), "f32", 9) for _ in range(100)]
    assert len({each.tobytes() for each in kept}) == 4  # the arrays keep the memory


def test_ownership_under_gc_stress():
    """Objects in cycles are freed in any order, also in the middle of calls and in another thread."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(5):
            model, trial = run_trial(callbacks=[lockstep.early_stopping(monitor="loss", patience=9), lambda state: gc.collect() and None])
            trial.run(1)
            cycle = [model, trial, lockstep.data_parallel(small_model(), lockstep.world()), lockstep.ema_new(model, 0.9)]
            cycle.append(cycle)
            arrays = [each.numpy() for each in model.parameters()]
            del model, trial, cycle
            gc.collect()
            assert all(np.isfinite(each).all() for each in arrays)
        x, y = (lockstep.from_numpy(each) for each in data())
        model = small_model()
        for _ in range(3):
            loss = lockstep.mse_loss(model(x), y)
            loss.backward()
    finally:
        gc.set_threshold(*before)
    alive = lockstep.memory_stats().total
    for _ in range(3):
        _, trial = run_trial()
        trial.run(1)
        del trial, _
    gc.collect()
    lockstep.ones(1)
    assert lockstep.memory_stats().total <= alive + 4096, (alive, lockstep.memory_stats().total)


def test_references_free_objects():
    """Without reference cycles in the program, an object is freed when its last reference is dropped: no garbage collection is needed."""
    gc.collect()
    gc.disable()
    try:
        stopping = lockstep.early_stopping(monitor="loss")
        model, trial = run_trial(callbacks=[stopping, lambda state: None], metrics=["loss", lockstep.metric_named("mae")])
        trial.run(1)
        watches = [weakref.ref(model), weakref.ref(trial)]
        del model, trial
        assert watches[1]() is not None and stopping.early_stopping_best() > 0  # the callback keeps its trial
        del stopping
        assert [watch() for watch in watches] == [None, None]
    finally:
        gc.enable()


def test_nothing_stays_outside_scopes():
    """Modules make tensors on their way. Outside scopes, they are freed with the result, so their arrays are, too."""
    held = lockstep._tensor._held
    before = len(held)
    model = small_model()
    for _ in range(3):
        x, y = (lockstep.from_numpy(each) for each in data())
        lockstep.mse_loss(model(x), y)
        nn.gru(4, 3, layers=2)(x.reshape((4, 16, 4)), None, None, outputs=2)
        x.sort(0), x.split(16), (x * 2).softmax(-1), x[3:, ::2]
        loss = lockstep.mse_loss(nn.sequential(nn.linear(4, 8), nn.relu(), nn.linear(8, 1))(x), y)
        loss.backward()
        del x, y, loss
        gc.collect()
        assert len(held) == before, (len(held), before)


def test_threads():
    """A tensor that another thread drops is freed by its own thread."""
    made = [lockstep.ones(1000) for _ in range(100)]
    before = lockstep.memory_stats().total
    thread = threading.Thread(target=made.clear)
    thread.start()
    thread.join()
    lockstep.ones(1)
    assert lockstep.memory_stats().total <= before - 100 * 4000 + 4096
    results = []

    def work():
        try:
            with lockstep.scope():
                results.append((lockstep.ones(10) * 3).sum().item())
            lockstep.ones((2, 3)) @ lockstep.ones((2, 3))
        except lockstep.Error as error:
            results.append(error.name)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [each.start() for each in threads], [each.join() for each in threads]
    assert sorted(map(str, results)) == ["30.0"] * 4 + ["LS_ERR_SHAPE"] * 4, results


world = lockstep.init()
for name, test in list(globals().items()):
    if name.startswith("test_") and (len(sys.argv) == 1 or name in sys.argv):
        test()
        print("ok", name, flush=True)
lockstep.finalize()
print("right")
