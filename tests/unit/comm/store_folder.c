/*
 * Trust in a folder store: it accepts only folders that no other user can write to, and plain files in them.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/store.h"
#include "tests/support/files.h"
#include "tests/support/processes.h"

#define KEY "a key that only this user knows"

enum { NOBODY = 65534 };

/* The expected error on each rank of a world of `size` ranks. */
typedef struct refusal {
    char url[400];
    int size;
    ls_status status;
    const char *says;
} refusal;

static const char *be_refused(int rank, const void *what) {
    const refusal *r = what;
    process_kill_self_in(30000); /* a hanging call should fail here, before the test's timeout */
    LS_MUST(ls_init(&(ls_init_options){
                .init = r->url, .world_size = r->size, .rank = rank, .timeout = 0.5, .key = KEY}) == NULL);
    LS_MUST(failed_with(r->status, r->says));
    return NULL;
}

/* Tests every rank of 2 and of 3 ranks. If rank 0 fails, the others may get the same error, or an error saying that no
 * rank serves the store. */
static void all_are_refused(const char *path, const char *says) {
    for (int size = 2; size <= 3; size++) {
        refusal r = {.size = size, .status = LS_ERR_DENIED, .says = says};
        snprintf(r.url, sizeof r.url, "file://%s", path);
        processes_run(size, be_refused, &r, 0);
    }
}

static const char *meets(int rank, const void *what) {
    const refusal *r = what;
    ls_comm *world =
        ls_init(&(ls_init_options){.init = r->url, .world_size = r->size, .rank = rank, .timeout = 60, .key = KEY});
    LS_MUST(world != NULL);
    LS_MUST(ls_comm_barrier(world, NULL) == LS_OK);
    LS_MUST(ls_finalize() == LS_OK);
    return NULL;
}

static void all_meet(const char *path) {
    for (int size = 2; size <= 3; size++) {
        refusal r = {.size = size};
        snprintf(r.url, sizeof r.url, "file://%s", path);
        processes_run(size, meets, &r, 0);
    }
}

static void make_folder(const char *path, mode_t mode) {
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(chmod(path, mode), 0); /* for any umask */
}

TEST(folders_that_others_can_write_to) {
    static const mode_t modes[] = {0777, 01777, 0770, 0702};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        char name[16];
        snprintf(name, sizeof name, "open%zu", i);
        const char *path = test_path(name);
        make_folder(path, modes[i]);
        all_are_refused(path, "chmod go-w");
        assert_int_equal(rmdir(path), 0); /* nothing was written there */
    }
    const char *within = test_path("sticky/meet"); /* as the message recommends */
    make_folder(test_path("sticky"), 01777);
    all_meet(within);
}

TEST(folders_that_others_can_read) {
    const char *path = test_path("readable");
    const char *link = test_path("link");
    make_folder(path, 0755);
    all_meet(path);
    assert_int_equal(symlink(path, link), 0); /* a symbolic link made by the user */
    all_meet(link);
}

TEST(folders_of_others) {
    if (geteuid() != 0) {
        skip(); /* only root can change the owner of a folder */
    }
    const char *path = test_path("foreign");
    make_folder(path, 0755);
    assert_int_equal(chown(path, NOBODY, NOBODY), 0);
    all_are_refused(path, "belongs to user 65534");
}

TEST(links_and_pipes_for_files) {
    char at[400];
    const char *target = test_path("target");

    const char *path = test_path("lock");
    make_folder(path, 0700);
    snprintf(at, sizeof at, "%s/.lockstep-lock", path);
    assert_int_equal(symlink(target, at), 0);
    refusal r = {.size = 2, .status = LS_ERR_DENIED, .says = "is not a regular file"};
    snprintf(r.url, sizeof r.url, "file://%s", path);
    assert_int_equal(process_wait(process_start(be_refused, 0, &r)), 0);
    assert_int_equal(access(target, F_OK), -1); /* the process created nothing there */

    path = test_path("pipe");
    make_folder(path, 0700);
    snprintf(at, sizeof at, "%s/current", path);
    assert_int_equal(mkfifo(at, 0600), 0);
    all_are_refused(path, "current in the store's folder is not a regular file");

    path = test_path("linked");
    make_folder(path, 0700);
    snprintf(at, sizeof at, "%s/current", path);
    assert_int_equal(symlink("/etc/passwd", at), 0);
    all_are_refused(path, "current in the store's folder is not a regular file");
}

/* The file contains a secret. All who can read it may join. */
TEST(the_secret_is_private) {
    struct stat about;
    char url[400], current[400];
    const char *path = test_path("private");
    make_folder(path, 0755);
    const mode_t before = umask(0);
    snprintf(url, sizeof url, "file://%s", path);
    snprintf(current, sizeof current, "%s/current", path);
    ls_store *store = ls_store_open(url, &(ls_store_options){.serve = true, .timeout = 5});
    assert_non_null(store);
    assert_int_equal(stat(current, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    ls_store_close(store);
    assert_int_equal(access(current, F_OK), -1);
    umask(before);
}

/* A killed job leaves its file: no process holds the lock, and another process may use the address. */
TEST(a_job_that_was_killed) {
    const char *path = test_path("killed");
    char current[400], text[LS_ANNOUNCEMENT_CAPACITY];
    ls_announcement left = {.address = {.host = "127.0.0.1", .port = 9}, .keyed = true};
    snprintf(current, sizeof current, "%s/current", path);
    make_folder(path, 0700);
    const size_t size = ls_announcement_write(&left, text);
    FILE *file = fopen(current, "w");
    assert_non_null(file);
    assert_true(fwrite(text, 1, size, file) == size && fclose(file) == 0);
    refusal r = {.size = 2, .status = LS_ERR_TIMEOUT, .says = "the last job there has ended"};
    snprintf(r.url, sizeof r.url, "file://%s", path);
    assert_int_equal(process_wait(process_start(be_refused, 1, &r)), 0);
    all_meet(path);
}

static void *find_store(void *url) {
    return ls_store_open(url, &(ls_store_options){.timeout = 60});
}

/* Opens a listening socket on loopback, and stores its port. */
static int listen_on(int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    *port = ntohs(address.sin_port);
    return listener;
}

/* Rank 0 exited and restarted at a different address while another rank was connecting to it. */
TEST(a_job_that_begins_anew) {
    const char *path = test_path("anew");
    char url[400];
    void *found = NULL;
    pthread_t finder;
    ls_gathering first;
    ls_announcement before = {.address = {.host = "127.0.0.1"}};
    const int listener = listen_on(&before.address.port);
    snprintf(url, sizeof url, "file://%s", path);
    assert_int_equal(ls_gathering_open(path, &first), LS_OK);
    assert_int_equal(ls_gathering_announce(&first, &before, 5), LS_OK);
    assert_int_equal(pthread_create(&finder, NULL, find_store, url), 0);
    assert_int_equal(poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 60000), 1);
    ls_gathering_close(&first);
    close(listener);
    ls_store *store = ls_store_open(url, &(ls_store_options){.serve = true, .timeout = 60});
    assert_non_null(store);
    assert_int_equal(pthread_join(finder, &found), 0);
    assert_non_null(found);
    ls_store_close(found);
    ls_store_close(store);
}

int main(void) {
    umask(022);
    unsetenv("LOCKSTEP_KEY");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_that_others_can_write_to),
        cmocka_unit_test(folders_that_others_can_read),
        cmocka_unit_test(folders_of_others),
        cmocka_unit_test(links_and_pipes_for_files),
        cmocka_unit_test(the_secret_is_private),
        cmocka_unit_test(a_job_that_was_killed),
        cmocka_unit_test(a_job_that_begins_anew),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
