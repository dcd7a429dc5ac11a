"""Trains with custom and built-in callbacks and metrics, over cffi: trial_program.py LIBRARY INCLUDE.

The declarations are those of the headers, after the preprocessor; the library is opened, not linked.
"""
import re
import subprocess
import sys

import cffi

library, include = sys.argv[1:]
EPOCHS, SAMPLES, FEATURES = 5, 64, 4

# Replaces the preprocessor: cffi knows size_t, bool and the types of stdint.h.
headers = subprocess.run(["cc", "-E", "-P", "-I" + include, "-x", "c", "-"], input="#include <lockstep/lockstep.h>\n",
                         capture_output=True, text=True, check=True).stdout
headers = re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", "", headers)
headers = headers[headers.index("const char *ls_version"):]
ffi = cffi.FFI()
ffi.cdef(headers)
ls = ffi.dlopen(library)
NULL = ffi.NULL


def text(pointer):
    return ffi.string(pointer).decode()


def made(pointer):
    """Returns the object, unless its constructor failed."""
    if pointer == NULL:
        sys.exit(text(ls.ls_error_message()))
    return pointer


def good(status):
    if status != ls.LS_OK:
        sys.exit(text(ls.ls_error_message()))


def shape(*sizes):
    return ls.ls_shape_make(len(sizes), list(sizes))


# ---- a custom callback and a custom metric ----
seen = {"epochs": [], "batches": 0}


@ffi.callback("ls_callback_function", error=ls.LS_ERR_INTERNAL)
def on_end_epoch(state, user):
    seen["epochs"].append(state.epoch)
    if user != NULL:
        return ls.ls_error_set_text(ls.LS_ERR_ARGUMENT, b"100 %s of Python")
    return ls.LS_OK


@ffi.callback("ls_status(const ls_trial_state *, void *, double *, double *)", error=ls.LS_ERR_INTERNAL)
def mean_of_outputs(state, user, total, weight):
    seen["batches"] += 1
    total[0] = ls.ls_item(ls.ls_sum(state.output))
    weight[0] = state.count
    return ls.LS_OK


def own_callback(user=NULL):
    hooks = ffi.new("ls_callback_hooks *", {"name": ffi.new("char[]", b"mine"), "on_end_epoch": on_end_epoch})
    return made(ls.ls_callback_new(hooks, user))


def own_metric():
    functions = ffi.new("ls_metric_functions *", {"name": name, "mean": mean_of_outputs})
    return made(ls.ls_metric_new(functions, NULL))


def train(model, optimizer, loader, callbacks, metrics):
    """A trial of EPOCHS epochs, its status and, if it has not failed, its history of the metric "mine"."""
    callback_list = ffi.new("ls_callback *[]", callbacks)
    metric_list = ffi.new("ls_metric *[]", metrics)
    names = ffi.new("char *[]", [ffi.cast("char *", loss_name), NULL])
    options = ffi.new("ls_trial_options *", {
        "model": model, "optimizer": optimizer, "criterion": ffi.addressof(ls, "ls_criterion_mse"), "train": loader,
        "metrics": ffi.cast("const char *const *", names), "custom_metrics": metric_list,
        "custom_metric_count": len(metrics), "callbacks": callback_list, "callback_count": len(callbacks), "quiet": True})
    trial = made(ls.ls_trial_new(options))
    status = ls.ls_trial_run(trial, EPOCHS)
    if status != ls.LS_OK:  # reading a metric that the trial does not have replaces the error
        return trial, status, None
    history = [[ls.ls_trial_history(trial, epoch, metric) for epoch in range(EPOCHS)] for metric in (loss_name, name)]
    return trial, status, history


name, loss_name = ffi.new("char[]", b"mine"), ffi.new("char[]", b"loss")
world = made(ls.ls_init(NULL))
rank, ranks = ls.ls_comm_rank(world), ls.ls_comm_size(world)
ls.ls_seed(7)
x = made(ls.ls_randn(shape(SAMPLES, FEATURES), ls.LS_F32))
axes = ls.ls_axes_make(1, [1])
y = made(ls.ls_add_integer(ls.ls_mul_number(ls.ls_sum_axes(x, axes, True), 0.5), 1))
loading = ffi.new("ls_loader_options *", {"global_batch_size": 16, "comm": world})
loader = made(ls.ls_loader_new(ls.ls_tensor_dataset(x, y), loading))
layers = ffi.new("ls_module *[]", [ls.ls_nn_linear(FEATURES, 8), ls.ls_nn_tanh(), ls.ls_nn_linear(8, 1)])
model = made(ls.ls_data_parallel(ls.ls_sequential_of(layers, len(layers)), world, NULL))
rates = ffi.new("ls_adam_options *", {"learning_rate": 0.01, "beta1": ls.ls_option_zero()})
optimizer = made(ls.ls_adam(model, rates))

monitor = ffi.new("char[]", b"loss")
stopping = made(ls.ls_early_stopping(ffi.new("ls_early_stopping_options *", {"monitor": monitor, "patience": EPOCHS})))
trial, status, (losses, means) = train(
    model, optimizer, loader, [own_callback(), stopping, made(ls.ls_gradient_norm_clipping(1))],
    [own_metric(), made(ls.ls_metric_named(b"mae"))])
good(status)
assert seen["epochs"] == list(range(EPOCHS)), seen
assert seen["batches"] == EPOCHS * SAMPLES // 16, seen
assert losses[-1] < losses[0] and ls.ls_early_stopping_best(stopping) == min(losses), losses
assert all(abs(mean) < 10 for mean in means) and len(set(means)) == EPOCHS, means
ls.ls_trial_free(trial)

# If the custom callback fails on rank 0, every rank gets its message, and the other ranks also its rank.
trial, status, _ = train(model, optimizer, loader, [own_callback(ffi.cast("void *", 1) if rank == 0 else NULL)], [])
message = text(ls.ls_error_message())
assert status == ls.LS_ERR_ARGUMENT and "100 %s of Python" in message, message
assert rank == 0 or "rank 0 failed" in message, message
ls.ls_trial_free(trial)
# A constructor that fails returns NULL.
assert ls.ls_gradient_norm_clipping(-1) == NULL and ls.ls_error_status() == ls.LS_ERR_ARGUMENT

ls.ls_optimizer_free(optimizer)
ls.ls_module_free(model)
ls.ls_loader_free(loader)
good(ls.ls_finalize())
if rank == 0:
    print(f"{ranks} ranks: right")
