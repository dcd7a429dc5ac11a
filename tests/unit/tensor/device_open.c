/*
 * Naming a GPU: names that open module cuda, invalid names, and the message if there is no module or no GPU, or if the
 * module fails. The module is tests/fake_cuda. A process opens it only once, so each case has its own process.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/data.h>
#include <lockstep/nn.h>

#include "tensor/device.h"
#include "tensor/device/cuda/cuda.h"
#include "tests/support/processes.h"

/* The environment of a process: FAKE_CUDA for the module, and the path of the module. */
typedef struct circumstances {
    const char *gpus;
    const char *folder;
} circumstances;

static void enter(const void *what) {
    const circumstances *here = what;
    setenv("LOCKSTEP_MODULE_PATH", here->folder != NULL ? here->folder : LS_FAKE_CUDA, 1);
    setenv("FAKE_CUDA", here->gpus, 1);
}

static void run_in(process_body body, const char *gpus, const char *folder) {
    const circumstances here = {gpus, folder};
    processes_run(1, body, &here, 0);
}

static bool refused(const char *name, ls_status status, const char *words) {
    return ls_use_device(name) == status && failed_with(status, words);
}

static const char *use_gpu(int number, const void *what) {
    (void)number;
    enter(what);
    LS_MUST(strcmp(ls_default_device(), "cpu") == 0);
    LS_MUST(ls_use_device("cuda") == LS_OK);
    LS_MUST(strcmp(ls_default_device(), "cuda:0") == 0);
    LS_MUST(ls_device_find("a test", "cuda") == ls_device_find("a test", "cuda:0"));
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_from(LS_SHAPE(2, 2), LS_F64, (const double[]){1, 2, 3, 4});
    LS_MUST(strcmp(ls_device_of(x), "cuda:0") == 0);
    LS_MUST(ls_at(x, (const int64_t[]){1, 0}) == 3);
    LS_MUST(ls_at(ls_to_device(x, "cpu"), (const int64_t[]){0, 1}) == 2);
    LS_MUST(ls_data(ls_to_device(x, "cuda:0")) == NULL);
    LS_MUST(ls_device_wait("cuda") == LS_OK);
    LS_MUST(ls_exp(x) == NULL && failed_with(LS_ERR_UNSUPPORTED, "has no kernel \"exp\""));
    (void)ls_scope_end(scope);
    LS_MUST(refused("cuda:1", LS_ERR_DEVICE, "ls_use_device: no device \"cuda:1\": the GPU has fallen off the bus"));
    LS_MUST(strcmp(ls_default_device(), "cuda:0") == 0); /* as before */
    LS_MUST(refused("cuda:2", LS_ERR_ARGUMENT,
                    "there is no device \"cuda:2\": this process has 2 GPUs, \"cuda:0\" to \"cuda:1\""));
    LS_MUST(refused("tpu:0", LS_ERR_ARGUMENT, "there is no device \"tpu:0\"; available: cpu, shadow:0"));
    LS_MUST(strstr(ls_error_message(), "cuda:0") != NULL);
    return NULL;
}

static const char *by_environment(int number, const void *what) {
    (void)number;
    enter(what);
    setenv("LOCKSTEP_DEVICE", "cuda:0", 1);
    ls_tensor *x = ls_from(LS_SHAPE(3), LS_F32, (const float[]){1, 2, 3});
    LS_MUST(x != NULL && strcmp(ls_device_of(x), "cuda:0") == 0);
    ls_release(x);
    LS_MUST(ls_use_device("cpu") == LS_OK);
    x = ls_zeros(LS_SHAPE(2, 1), LS_F32);
    ls_loader *loader = ls_loader_new(ls_tensor_dataset(x, x), &(ls_loader_options){.device = "cuda:0"});
    ls_batch batch;
    bool more = false;
    LS_MUST(ls_loader_next(loader, &batch, &more) == LS_OK && strcmp(ls_device_of(batch.input), "cuda:0") == 0);
    ls_loader_free(loader);
    ls_module *model = ls_to_device(ls_nn_linear(2, 1), "cuda");
    LS_MUST(model != NULL && strcmp(ls_device_of(ls_module_parameter(model, 1)), "cuda:0") == 0);
    ls_module_free(model);
    return NULL;
}

static const char *one_gpu(int number, const void *what) {
    (void)number;
    enter(what);
    LS_MUST(refused("cuda:7", LS_ERR_ARGUMENT, "this process has one GPU, \"cuda:0\""));
    setenv("LOCKSTEP_DEVICE", "cuda:3", 1);
    LS_MUST(ls_default_device() == NULL);
    LS_MUST(failed_with(LS_ERR_ARGUMENT, "LOCKSTEP_DEVICE: there is no device \"cuda:3\": this process has one GPU"));
    return NULL;
}

/* Names are checked before anything is opened. */
static const char *wrong_names(int number, const void *what) {
    static const char *const names[] = {"cuda:",   "cuda:x",  "cuda:-1", "cuda:00",  "cuda:01",
                                        "cuda:0x", "cuda: 0", "cuda:0 ", "cuda:1.5", "cuda:99999999999999999999",
                                        "cuda:+1"};
    (void)number;
    enter(what);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        LS_MUST(refused(names[i], LS_ERR_ARGUMENT, "is not a device: GPUs are \"cuda:0\", \"cuda:1\" and so on"));
    }
    LS_MUST(*ls_cuda_failure() == '\0');
    static const char *const others[] = {"", "Cuda:0", "cudas", "cuda0", "gpu"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        LS_MUST(refused(others[i], LS_ERR_ARGUMENT, "; available: cpu, shadow:0"));
    }
    LS_MUST(ls_device_wait("cuda:x") == LS_ERR_ARGUMENT && failed_with(LS_ERR_ARGUMENT, "ls_device_wait: \"cuda:x\""));
    ls_scope *scope = ls_scope_begin();
    LS_MUST(ls_to_device(ls_zeros(LS_SHAPE(1), LS_F32), "cuda:x") == NULL);
    LS_MUST(ls_scope_end(scope) == LS_ERR_ARGUMENT && failed_with(LS_ERR_ARGUMENT, "ls_to_device: \"cuda:x\" is no"));
    return NULL;
}

static const char *no_gpu(int number, const void *what) {
    (void)number;
    enter(what);
    LS_MUST(refused("cuda:0", LS_ERR_DEVICE, "ls_use_device: no device \"cuda:0\": no driver answers"));
    LS_MUST(refused("cuda", LS_ERR_DEVICE, "no device \"cuda\": no driver answers"));
    LS_MUST(ls_cuda_open() != NULL && ls_cuda_open() == ls_cuda_open());
    return NULL;
}

static const char *no_driver(int number, const void *what) {
    (void)number;
    enter(what);
    LS_MUST(refused("cuda:0", LS_ERR_DEVICE, "no device \"cuda:0\": there is no NVIDIA driver"));
    return NULL;
}

static const char *older(int number, const void *what) {
    (void)number;
    enter(what);
    LS_MUST(refused("cuda:0", LS_ERR_UNSUPPORTED, "lockstep-cuda.so belongs to a different version of Lockstep"));
    return NULL;
}

static const char *not_a_library(int number, const void *what) {
    (void)number;
    enter(what);
    LS_MUST(refused("cuda:0", LS_ERR_UNSUPPORTED, "no device \"cuda:0\": lockstep-cuda.so cannot be opened: "));
    LS_MUST(strcmp(ls_default_device(), "cpu") == 0); /* everything else still works */
    ls_tensor *x = ls_ones(LS_SHAPE(3), LS_F32);
    LS_MUST(ls_item(ls_sum(x)) == 3);
    ls_release(x);
    return NULL;
}

/* Several threads name a GPU for the first time, and all get the same device. */
static void *name_it(void *found) {
    *(const ls_device **)found = ls_device_find("a test", "cuda:0");
    return NULL;
}

static const char *at_once(int number, const void *what) {
    enum { THREADS = 8 };
    const ls_device *found[THREADS] = {NULL};
    pthread_t threads[THREADS];
    (void)number;
    enter(what);
    for (int i = 0; i < THREADS; i++) {
        LS_MUST(pthread_create(&threads[i], NULL, name_it, &found[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < THREADS; i++) {
        LS_MUST(found[i] != NULL && found[i] == found[0]);
    }
    int there = 0;
    for (int i = 0; ls_device_at(i) != NULL; i++) {
        there += strcmp(ls_device_at(i)->name, "cuda:0") == 0;
    }
    LS_MUST(there == 1);
    return NULL;
}

TEST(test_a_gpu) {
    run_in(use_gpu, "2", NULL);
    run_in(by_environment, "1", NULL);
    run_in(one_gpu, "1", NULL);
    run_in(at_once, "1", NULL);
}

TEST(test_names_that_are_none) {
    run_in(wrong_names, "2", NULL);
}

TEST(test_none_there) {
    run_in(no_gpu, "0", NULL);
    run_in(no_driver, "none", NULL);
    run_in(older, "older", NULL);
    char folder[] = "/tmp/lockstep-open-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/lockstep-cuda.so", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs("no library\n", file);
    (void)fclose(file);
    run_in(not_a_library, "1", folder);
    (void)unlink(path);
    (void)rmdir(folder);
}

int main(void) {
    unsetenv("LOCKSTEP_DEVICE");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_gpu),
        cmocka_unit_test(test_names_that_are_none),
        cmocka_unit_test(test_none_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
