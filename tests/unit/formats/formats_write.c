/*
 * How files are written: under unpredictable names, in the folder of the new file, so that links and other entries
 * created by other users have no effect. Open files are not inherited by other programs.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <lockstep/lockstep.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/fsuid.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/memory.h"
#include "formats/file.h"
#include "tests/support/files.h"
#include "tests/support/processes.h"

/* ---- random names ------------------------------------------------------------------------------------------------ */

static bool foreseen;       /* whether the attacker guesses the names, */
static uint64_t next_guess; /* and the number of the next name, and then of later names */

/* Replaces the C library's function. */
ssize_t getrandom(void *buffer, size_t length, unsigned flags) {
    if (foreseen && length == sizeof next_guess) {
        memcpy(buffer, &next_guess, length);
        next_guess++;
        return (ssize_t)length;
    }
    return syscall(SYS_getrandom, buffer, length, flags);
}

/* ---- every writer ------------------------------------------------------------------------------------------------ */

static ls_status write_safetensors(const char *path) {
    ls_tensor *tensor = ls_ones(LS_SHAPE(2), LS_F32);
    const ls_status status = ls_safetensors_save(path, &(ls_named){"a", tensor}, 1, NULL);
    ls_release(tensor);
    return status;
}

static ls_status write_idx(const char *path) {
    ls_tensor *tensor = ls_ones(LS_SHAPE(2), LS_F32);
    const ls_status status = ls_idx_write(path, tensor);
    ls_release(tensor);
    return status;
}

static ls_status write_state(const char *path) {
    ls_module *model = ls_nn_linear(2, 2);
    ls_optimizer *optimizer = ls_adam(model, NULL);
    const ls_status status = ls_optimizer_save(optimizer, path, NULL);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return status;
}

static ls_status write_trace(const char *path) {
    ls_comm *world = ls_init(NULL);
    ls_status status = world != NULL ? ls_trace_start() : ls_error_status();
    if (status == LS_OK) {
        status = ls_trace_stop(world, path);
    }
    ls_finalize();
    return status;
}

static const struct {
    const char *name;
    ls_status (*write)(const char *path);
} writers[] = {
    {"weights", write_safetensors}, {"data", write_idx},    {"data.gz", write_idx},
    {"state", write_state},         {"trace", write_trace},
};

enum { WRITERS = sizeof writers / sizeof *writers };

/* ---- links ------------------------------------------------------------------------------------------------------- */

/* Acts as a different user if possible, in a folder like /tmp. */
static const char *plant(int number, const void *what) {
    (void)number;
    const char *const *names = what;
    LS_MUST(geteuid() != 0 || setuid(65534) == 0);
    LS_MUST(symlink(names[0], names[1]) == 0);
    return NULL;
}

static void plant_link(const char *target, const char *path) {
    const char *const names[] = {target, path};
    assert_int_equal(process_wait(process_start(plant, 0, names)), 0);
}

static void expect_content(const char *path, const char *content) {
    char text[64] = "";
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(text, content);
}

static char victim[320];

static int make_folder(void **state) {
    (void)state;
    snprintf(victim, sizeof victim, "%s", test_file("victim", "mine", 4));
    return chmod(test_path("."), S_ISVTX | 0777);
}

TEST(test_links_are_not_followed) {
    for (int i = 0; i < WRITERS; i++) {
        char beside[400];
        struct stat about;
        const char *path = test_path(writers[i].name);
        snprintf(beside, sizeof beside, "%s.new-%ld", path, (long)getpid()); /* a predictable name */
        plant_link(victim, beside);
        plant_link(victim, path);
        assert_int_equal(writers[i].write(path), LS_OK);
        expect_content(victim, "mine");
        assert_int_equal(lstat(path, &about), 0);
        assert_true(S_ISREG(about.st_mode) && about.st_uid == geteuid());
        assert_int_equal(unlink(beside), 0);
    }
    assert_int_equal(test_files_count(), 1 + WRITERS); /* nothing else is left */
}

/* If the drawn name already exists, a new name is drawn, a limited number of times. */
TEST(test_guessed_names_are_left_alone) {
    enum { GUESSES = 100 };
    char path[320], beside[GUESSES][360];
    snprintf(path, sizeof path, "%s", test_path("guessed"));
    for (int i = 0; i < GUESSES; i++) {
        snprintf(beside[i], sizeof beside[i], "%s.new-%016x", path, i + 1);
        assert_int_equal(symlink(victim, beside[i]), 0);
    }
    foreseen = true;
    next_guess = 1;
    assert_int_equal(write_safetensors(path), LS_ERR_IO);
    expect_message("File exists");
    assert_int_equal(access(path, F_OK), -1);
    next_guess = GUESSES - 1;
    assert_int_equal(write_safetensors(path), LS_OK); /* the third name is free */
    foreseen = false;
    assert_int_equal(next_guess, GUESSES + 2);
    expect_content(victim, "mine");
    for (int i = 0; i < GUESSES; i++) {
        assert_int_equal(unlink(beside[i]), 0);
    }
    assert_int_equal(unlink(path), 0);
}

/* Renaming would replace a device or a pipe that programs have opened. */
TEST(test_only_files_are_replaced) {
    struct stat about;
    const char *pipe = test_path("pipe");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(write_safetensors(pipe), LS_ERR_IO);
    expect_message("it is a pipe, not a file");
    assert_true(lstat(pipe, &about) == 0 && S_ISFIFO(about.st_mode));
    assert_int_equal(unlink(pipe), 0);
    assert_int_equal(write_safetensors(test_path(".")), LS_ERR_IO);
    expect_message("it is a folder");
}

/* A link to a stream, for example /dev/stdout, belongs to the system: a writer must not replace it. */
TEST(test_links_to_streams_are_kept) {
    char open_file[64];
    FILE *file = fopen(test_path("open"), "w");
    assert_non_null(file);
    snprintf(open_file, sizeof open_file, "/proc/self/fd/%d", fileno(file)); /* leads to a regular file */
    const char *const targets[] = {"/dev/null", open_file};
    const char *link = test_path("stream");
    struct stat about;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(symlink(targets[i], link), 0);
        assert_int_equal(write_safetensors(link), LS_ERR_IO);
        expect_message(i == 0 ? "it is a link to a" : "it is a link to a stream");
        assert_true(lstat(link, &about) == 0 && S_ISLNK(about.st_mode));
        assert_int_equal(unlink(link), 0);
    }
    assert_int_equal(fclose(file), 0);
}

/* ---- names, modes and descriptors -------------------------------------------------------------------------------- */

TEST(test_names_are_not_foreseen) {
    char first[400];
    ls_new_file file;
    const mode_t mask = umask(027);
    for (int i = 0; i < 2; i++) {
        struct stat about;
        assert_int_equal(ls_file_create("test", test_path("named"), &file), LS_OK);
        assert_int_equal(fstat(fileno(file.stream), &about), 0);
        assert_int_equal(about.st_mode & 0777, 0640);
        assert_true(fcntl(fileno(file.stream), F_GETFD) & FD_CLOEXEC);
        assert_true(i == 0 || strcmp(first, file.temporary) != 0);
        snprintf(first, sizeof first, "%s", file.temporary);
        assert_int_equal(ls_file_commit("test", &file, LS_ERR_IO), LS_ERR_IO);
        assert_int_equal(access(first, F_OK), -1); /* removed */
    }
    umask(mask);
}

static void *read_pipe(void *path) {
    ls_tensor *tensor = ls_idx_read(path);
    const bool read = tensor != NULL;
    ls_release(tensor);
    return read ? path : NULL;
}

/* Returns a descriptor of the file `path` that an executed program would inherit, or -1 if there is none. */
static int inheritable(const char *path) {
    struct stat wanted, about;
    assert_int_equal(stat(path, &wanted), 0);
    for (int fd = 3; fd < 256; fd++) {
        if (fstat(fd, &about) == 0 && about.st_ino == wanted.st_ino && about.st_dev == wanted.st_dev &&
            (fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0) {
            return fd;
        }
    }
    return -1;
}

/* A reader waits for the end of its file, which is a pipe. */
TEST(test_open_files_are_not_inherited) {
    static const unsigned char idx[] = {0, 0, 8, 1, 0, 0, 0, 2, 1, 2};
    pthread_t thread;
    void *result;
    char path[320];
    snprintf(path, sizeof path, "%s", test_path("slow"));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(pthread_create(&thread, NULL, read_pipe, path), 0);
    const int end = open(path, O_WRONLY | O_CLOEXEC); /* returns after the reader has opened it */
    assert_int_equal(inheritable(path), -1);
    assert_int_equal(write(end, idx, sizeof idx), sizeof idx);
    close(end);
    pthread_join(thread, &result);
    assert_ptr_equal(result, path);
    assert_int_equal(unlink(path), 0);
}

/* A process may be allowed to create folders in a folder that it cannot list. */
TEST(test_folders_in_one_that_cannot_be_read) {
    enum { NOBODY = 65534 };
    char parent[320];
    struct stat about;
    snprintf(parent, sizeof parent, "%s", test_path("unlisted"));
    assert_int_equal(mkdir(parent, 0777), 0);
    assert_int_equal(chmod(parent, 0333), 0);
    *strrchr(parent, '/') = '\0';
    assert_int_equal(chmod(parent, 0711), 0);
    const bool is_root = geteuid() == 0;
    if (is_root) { /* root may read everything */
        (void)setfsuid(NOBODY);
    }
    const ls_status status = ls_folder_make("test", test_path("unlisted/deep/er"));
    if (is_root) {
        (void)setfsuid(0);
    }
    assert_int_equal(chmod(test_path("unlisted"), 0755), 0);
    assert_int_equal(status, LS_OK);
    assert_true(stat(test_path("unlisted/deep/er"), &about) == 0 && S_ISDIR(about.st_mode));
    assert_int_equal(rmdir(test_path("unlisted/deep/er")), 0);
    assert_int_equal(rmdir(test_path("unlisted/deep")), 0);
    assert_int_equal(rmdir(test_path("unlisted")), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links_are_not_followed),
        cmocka_unit_test(test_guessed_names_are_left_alone),
        cmocka_unit_test(test_only_files_are_replaced),
        cmocka_unit_test(test_links_to_streams_are_kept),
        cmocka_unit_test(test_names_are_not_foreseen),
        cmocka_unit_test(test_open_files_are_not_inherited),
        cmocka_unit_test(test_folders_in_one_that_cannot_be_read),
    };
    return cmocka_run_group_tests(tests, make_folder, test_files_teardown);
}
