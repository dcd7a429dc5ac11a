/*
 * Guarantees for programs and for the layers above devices: selecting a device, moving between devices, missing
 * features, errors that are reported later, streams and events. The second device is the device of tests/shadow.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <lockstep/data.h>
#include <lockstep/loss.h>
#include <lockstep/nn.h>
#include <lockstep/optim.h>

#include "tensor/device.h"
#include "tests/support/elements.h"

static const char there[] = "shadow:0";

static const ls_device *shadow(void) {
    const ls_device *device = ls_device_find("a test", there);
    assert_non_null(device);
    return device;
}

TEST(test_choosing_one) {
    expect_error(ls_use_device("npu:7"), LS_ERR_ARGUMENT,
                 "ls_use_device: there is no device \"npu:7\"; available: cpu, shadow:0");
    expect_error(ls_use_device(NULL), LS_ERR_ARGUMENT, "ls_use_device: the name of the device is NULL");
    assert_int_equal(ls_use_device(there), LS_OK);
    assert_string_equal(ls_default_device(), there);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_full(LS_SHAPE(3), LS_F32, 2);
    assert_string_equal(ls_device_of(x), there);
    assert_string_equal(ls_device_of(ls_exp(x)), there);
    assert_true(ls_item(ls_sum(ls_mul(x, x))) == 12);
    assert_null(ls_data(x));
    expect_error(ls_scope_end(scope), LS_ERR_STATE, "is on shadow:0, whose memory the program cannot read");
    assert_int_equal(ls_use_device("cpu"), LS_OK);
    assert_null(ls_device_of(NULL));
}

TEST(test_from_one_to_another) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_arange(LS_SHAPE(2, 3), LS_F64), *y = ls_to_device(ls_transpose(x, 0, 1), there);
    assert_string_equal(ls_device_of(y), there);
    assert_true(ls_equal(ls_transpose(x, 0, 1), y));
    assert_true(ls_allclose(ls_to_device(ls_square(y), "cpu"), ls_square(ls_transpose(x, 0, 1)), 0, 0));
    assert_string_equal(ls_device_of(ls_to_device(x, "cpu")), "cpu");
    assert_int_equal(ls_copy_into(y, ls_transpose(x, 0, 1)), LS_OK);
    assert_int_equal(ls_copy_into(x, ls_select(y, 1, 0)), LS_OK); /* three numbers, twice */
    assert_true(ls_at(x, (const int64_t[]){1, 2}) == 2);
    assert_null(ls_add(x, ls_transpose(y, 0, 1)));
    expect_error(ls_scope_end(scope), LS_ERR_ARGUMENT,
                 "ls_add: argument 2 is on shadow:0, but the arguments before it are on cpu");
    scope = ls_scope_begin();
    assert_null(ls_to_device(ls_zeros(LS_SHAPE(1), LS_F32), "nowhere"));
    expect_error(ls_scope_end(scope), LS_ERR_ARGUMENT, "ls_to_device: there is no device \"nowhere\"");
}

static ls_tensor *loss_of(ls_module *model, ls_tensor *x) {
    return ls_mean(ls_square(ls_forward(model, x)));
}

static struct moved {
    ls_module *model;
    ls_tensor *x;
} moved;

static ls_status evaluate(void *argument, double *loss) {
    (void)argument;
    ls_tensor *value = loss_of(moved.model, moved.x);
    *loss = ls_item(value);
    return ls_backward(value);
}

TEST(test_a_model_that_moves) {
    ls_seed(3);
    ls_module *model = ls_sequential(ls_nn_linear(4, 3), ls_nn_batch_norm_1d(3, NULL), ls_nn_linear(3, 1));
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_randn(LS_SHAPE(5, 4), LS_F32);
    const uint64_t hash = ls_module_hash(model);
    ls_optimizer *early = ls_sgd(model, NULL);
    assert_int_equal(ls_backward(loss_of(model, x)), LS_OK);
    ls_tensor *gradient = ls_clone(ls_detach(ls_grad(ls_module_parameter(model, 0))));
    assert_ptr_equal(ls_to_device(model, there), model);
    assert_true(ls_module_hash(model) == hash);
    assert_string_equal(ls_device_of(ls_module_parameter(model, 0)), there);
    assert_string_equal(ls_device_of(ls_module_buffer(model, 0)), there);
    assert_true(ls_equal(ls_grad(ls_module_parameter(model, 0)), gradient)); /* which has moved, too */
    expect_error(ls_optimizer_step(early), LS_ERR_STATE, "create the optimizer after moving the model");
    ls_optimizer_free(early);
    ls_tensor *before = loss_of(model, ls_to_device(x, there));
    assert_ptr_equal(ls_to_device(model, "cpu"), model);
    expect_error(ls_backward(before), LS_ERR_STATE, "later modified in place (by ls_to_device)");
    ls_optimizer *descent = ls_lbfgs(model, NULL);
    moved = (struct moved){model, x};
    assert_int_equal(ls_optimizer_step_closure(descent, evaluate, NULL, NULL), LS_OK);
    assert_ptr_equal(ls_to_device(model, there), model);
    moved.x = ls_to_device(x, there);
    expect_error(ls_optimizer_step_closure(descent, evaluate, NULL, NULL), LS_ERR_STATE,
                 "create the optimizer after moving the model");
    ls_optimizer_free(descent);
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1, .momentum = 0.9});
    ls_module_zero_grad(model);
    assert_int_equal(ls_backward(loss_of(model, ls_to_device(x, there))), LS_OK);
    assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    assert_true(ls_module_hash(model) != hash);
    assert_int_equal(ls_scope_end(scope), LS_ERR_STATE); /* the error of the refused pass */
    assert_null(ls_to_device(model, "nowhere"));
    assert_null(ls_to_device((ls_module *)NULL, there));
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

/* A custom rule that returns its gradient on the wrong device, and a start gradient on the wrong device. */
static ls_status on_cpu_forward(ls_custom_call *call) {
    call->outputs[0] = ls_square(call->inputs[0]);
    return LS_OK;
}

static ls_status on_cpu_backward(ls_custom_call *call) {
    call->input_gradients[0] = ls_zeros(ls_shape_of(call->inputs[0]), LS_F32);
    return LS_OK;
}

static ls_tensor *made_there(int64_t size) {
    return ls_to_device(ls_ones(LS_SHAPE(size), LS_F32), there);
}

TEST(test_gradients_elsewhere) {
    static const ls_custom_op op = {.name = "wrong_place", .forward = on_cpu_forward, .backward = on_cpu_backward};
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = made_there(3);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    expect_error(ls_backward(ls_sum(ls_custom(&op, &x, 1, NULL, NULL))), LS_ERR_ARGUMENT,
                 "wrong_place: the gradient of argument 1 is on cpu, but the argument is on shadow:0");
    assert_null(ls_grad(x));
    expect_error(ls_backward_with(ls_square(x), &(ls_backward_options){.gradient = ls_ones(LS_SHAPE(3), LS_F32)}),
                 LS_ERR_ARGUMENT, "ls_backward_with: the gradient is on cpu, but the output is on shadow:0");
    (void)ls_scope_end(scope);
}

/* An operation that runs on the host and has no inputs, outside any scope. */
static ls_status three_forward(ls_custom_call *call) {
    call->outputs[0] = ls_full(LS_SHAPE(2), LS_F32, 3);
    return LS_OK;
}

TEST(test_own_operations_on_the_host) {
    static const ls_custom_op three = {.name = "three", .forward = three_forward, .on_host = true};
    assert_int_equal(ls_use_device(there), LS_OK);
    ls_tensor *y = ls_custom(&three, NULL, 0, NULL, NULL);
    assert_string_equal(ls_device_of(y), there);
    assert_true(ls_at(y, (const int64_t[]){1}) == 3);
    ls_tensor *x = ls_ones(LS_SHAPE(2), LS_F32), *z = ls_custom(&three, &x, 1, NULL, NULL);
    assert_string_equal(ls_device_of(x), there);
    assert_true(ls_at(z, (const int64_t[]){0}) == 3);
    ls_release(x);
    ls_release(y);
    ls_release(z);
    assert_int_equal(ls_use_device("cpu"), LS_OK);
}

TEST(test_parts_on_two_devices) {
    ls_module *model = ls_sequential(ls_nn_linear(2, 2), ls_to_device(ls_nn_linear(2, 1), there));
    assert_non_null(model);
    assert_null(ls_sgd(model, NULL));
    expect_error(ls_error_status(), LS_ERR_UNSUPPORTED,
                 "the parameter 1.weight is on shadow:0, but the parameters before it are on cpu");
    ls_module_free(model);
}

TEST(test_batches) {
    ls_tensor *x = ls_arange(LS_SHAPE(6, 2), LS_F32);
    ls_loader *loader = ls_loader_new(ls_tensor_dataset(x, x),
                                      &(ls_loader_options){.batch_size = 4, .no_shuffle = true, .device = there});
    ls_batch batch;
    bool more = false;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_string_equal(ls_device_of(batch.input), there);
    assert_true(ls_at(batch.target, (const int64_t[]){3, 1}) == 7);
    ls_loader_free(loader);
    x = ls_zeros(LS_SHAPE(2, 1), LS_F32);
    assert_null(ls_loader_new(ls_tensor_dataset(x, x), &(ls_loader_options){.device = "nowhere"}));
    expect_error(ls_error_status(), LS_ERR_ARGUMENT, "ls_loader_new: there is no device \"nowhere\"");
}

TEST(test_what_fails_later) {
    assert_int_equal(ls_use_device(there), LS_OK);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *rows = ls_index_select(ls_ones(LS_SHAPE(3, 2), LS_F32), 0, ls_full(LS_SHAPE(1), LS_I64, 5));
    assert_non_null(rows); /* the error is not yet known */
    expect_error(ls_device_wait(there), LS_ERR_ARGUMENT, "index_select");
    assert_int_equal(ls_device_wait(there), LS_OK); /* reported once */
    rows = ls_index_select(ls_ones(LS_SHAPE(3, 2), LS_F32), 0, ls_full(LS_SHAPE(1), LS_I64, -9));
    assert_true(ls_item(ls_sum(rows)) != ls_item(ls_sum(rows))); /* NaN: the failure is reported here */
    expect_error(ls_scope_end(scope), LS_ERR_ARGUMENT, "index_select");
    assert_int_equal(ls_use_device("cpu"), LS_OK);
    expect_error(ls_device_wait("nowhere"), LS_ERR_ARGUMENT, "ls_device_wait: there is no device \"nowhere\"");
}

/* A device identical to the CPU device, except that it lacks two kernels. */
TEST(test_a_kernel_that_is_missing) {
    static ls_kernels kernels;
    static ls_device partial;
    kernels = *ls_cpu.kernels;
    kernels.exp = NULL;
    kernels.nll = NULL;
    ls_kernels_complete(&kernels);
    partial = ls_cpu;
    partial.name = "partial:0";
    partial.kernels = &kernels;
    assert_int_equal(ls_device_add(&partial), LS_OK);
    expect_error(ls_device_add(&partial), LS_ERR_STATE, "a device of this name exists already");
    assert_int_equal(ls_use_device("partial:0"), LS_OK);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_zeros(LS_SHAPE(2, 3), LS_F32);
    assert_true(ls_item(ls_sum(ls_cos(x))) == 6);
    assert_null(ls_exp(x));
    expect_error(ls_scope_end(scope), LS_ERR_UNSUPPORTED, "has no kernel \"exp\"");
    scope = ls_scope_begin();
    assert_null(ls_cross_entropy(ls_zeros(LS_SHAPE(2, 3), LS_F32), ls_zeros(LS_SHAPE(2), LS_I64), NULL));
    expect_error(ls_scope_end(scope), LS_ERR_UNSUPPORTED, "has no kernel \"nll\"");
    assert_int_equal(ls_use_device("cpu"), LS_OK);
}

/* Two streams: the second copies the result of the first after an event. */
TEST(test_streams_and_events) {
    const ls_device *device = shadow();
    enum { COUNT = 1000 };
    const size_t bytes = COUNT * sizeof(float);
    float *host = device->allocate_pinned(device, bytes);
    void *first = device->allocate(device, bytes), *second = device->allocate(device, bytes);
    ls_stream *makes = device->stream_new(device), *copies = device->stream_new(device);
    ls_event *event = device->event_new(device);
    assert_true(host != NULL && first != NULL && second != NULL && makes != NULL && copies != NULL && event != NULL);
    for (int i = 0; i < COUNT; i++) {
        host[i] = (float)i;
    }
    assert_int_equal(device->copy_from_host(makes, first, host, bytes), LS_OK);
    assert_int_equal(device->kernels->scale(makes, LS_F32, COUNT, 3, first), LS_OK);
    assert_int_equal(device->event_record(event, makes), LS_OK);
    assert_int_equal(device->event_wait(event, copies), LS_OK);
    assert_int_equal(device->copy(copies, second, first, bytes), LS_OK);
    assert_int_equal(device->clear(copies, second, sizeof(float)), LS_OK);
    float *back = device->allocate_pinned(device, bytes);
    assert_int_equal(device->copy_to_host(copies, back, second, bytes), LS_OK);
    assert_int_equal(device->stream_wait(copies), LS_OK);
    assert_true(device->event_done(event));
    for (int i = 0; i < COUNT; i++) {
        assert_true(back[i] == (i == 0 ? 0 : 3 * (float)i));
    }
    device->event_free(event);
    device->stream_free(makes);
    device->stream_free(copies);
    device->release(device, first, bytes);
    device->release(device, second, bytes);
    device->release_pinned(device, host, bytes);
    device->release_pinned(device, back, bytes);
    assert_int_equal(device->stream_wait(ls_device_stream(device)), LS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choosing_one),
        cmocka_unit_test(test_from_one_to_another),
        cmocka_unit_test(test_a_model_that_moves),
        cmocka_unit_test(test_parts_on_two_devices),
        cmocka_unit_test(test_gradients_elsewhere),
        cmocka_unit_test(test_own_operations_on_the_host),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_what_fails_later),
        cmocka_unit_test(test_streams_and_events),
        cmocka_unit_test(test_a_kernel_that_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
