/*
 * The key-value store with several clients, over TCP and in a folder, and the wire format of the TCP store.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/comm.h>

#include "base/log.h"
#include "comm/store.h"
#include "comm/store_roster.h"
#include "comm/store_table.h"

enum { CLIENTS = 4, ROUNDS = 50 };

typedef struct client {
    char url[256];
    const char *key;
    int number;
    bool failed;
} client;

static bool serve_in_folder; /* the kind of store for the tests */
static char folder[] = "/tmp/lockstep-store-XXXXXX";

static ls_store *serve(const char *key, double timeout, char *url, size_t capacity) {
    snprintf(url, capacity, "tcp://127.0.0.1:0");
    if (serve_in_folder) {
        snprintf(url, capacity, "file://%s/store", folder);
    }
    ls_store *store = ls_store_open(url, &(ls_store_options){.serve = true, .timeout = timeout, .key = key});
    if (store == NULL) {
        fail_msg("%s", ls_error_message());
    }
    if (!serve_in_folder) {
        snprintf(url, capacity, "tcp://127.0.0.1:%d", ls_store_port(store));
    }
    return store;
}

TEST(test_set_get) {
    char url[256];
    ls_store *store = serve(NULL, 5, url, sizeof url);
    ls_store *other = ls_store_open(url, &(ls_store_options){.timeout = 5});
    assert_non_null(other);
    char value[16];
    size_t size = 99;
    assert_int_equal(ls_store_set(store, "a", "hello", 5), LS_OK);
    assert_int_equal(ls_store_get(other, "a", value, sizeof value, &size), LS_OK);
    assert_int_equal(size, 5);
    assert_memory_equal(value, "hello", 5);
    assert_int_equal(ls_store_set(other, "a", NULL, 0), LS_OK);
    assert_int_equal(ls_store_get(store, "a", value, sizeof value, &size), LS_OK);
    assert_int_equal(size, 0);
    assert_int_equal(ls_store_wait(store, "a", 1), LS_OK);
    assert_int_equal(ls_store_set(store, "b/../c d", "123", 3), LS_OK);
    expect_error(ls_store_get(other, "b/../c d", value, 2, &size), LS_ERR_ARGUMENT, "3 bytes");
    assert_int_equal(ls_store_get(other, "b/../c d", value, 3, &size), LS_OK);
    ls_store_close(other);
    ls_store_close(store);
}

TEST(test_wrong_arguments) {
    char url[256], key[300], value[4];
    const size_t too_many = (1U << 20) + 1;
    size_t size;
    bool swapped;
    ls_store *store = serve(NULL, 5, url, sizeof url);
    memset(key, 'k', sizeof key);
    key[256] = '\0';
    expect_error(ls_store_set(store, key, "", 0), LS_ERR_ARGUMENT, "256 bytes");
    key[255] = '\0';
    assert_int_equal(ls_store_set(store, key, "x", 1), LS_OK);
    assert_int_equal(ls_store_get(store, key, value, sizeof value, &size), LS_OK);
    expect_error(ls_store_set(store, "", "", 0), LS_ERR_ARGUMENT, "0 bytes");
    expect_error(ls_store_set(store, NULL, "", 0), LS_ERR_ARGUMENT, "key is NULL");
    expect_error(ls_store_set(NULL, "a", "", 0), LS_ERR_ARGUMENT, "store is NULL");
    expect_error(ls_store_set(store, "a", NULL, 1), LS_ERR_ARGUMENT, "value is NULL");
    expect_error(ls_store_set(store, "a", value, too_many), LS_ERR_ARGUMENT, "1048577 bytes");
    expect_error(ls_store_get(store, "a", NULL, 0, &size), LS_ERR_ARGUMENT, "value is NULL");
    expect_error(ls_store_wait(store, "a", -1), LS_ERR_ARGUMENT, "-1 s");
    expect_error(ls_store_compare_set(store, "a", NULL, 1, "", 0, &swapped), LS_ERR_ARGUMENT, "NULL");
    expect_error(ls_store_compare_set(store, "a", "", 0, NULL, 1, &swapped), LS_ERR_ARGUMENT, "NULL");
    expect_error(ls_store_compare_set(store, "a", "", 0, "", 0, NULL), LS_ERR_ARGUMENT, "NULL");
    expect_error(ls_store_compare_set(store, "a", value, too_many, "", 0, &swapped), LS_ERR_ARGUMENT, "1048577 bytes");
    expect_error(ls_store_compare_set(store, "a", "", 0, value, too_many, &swapped), LS_ERR_ARGUMENT, "1048577 bytes");
    assert_null(ls_store_open(NULL, NULL));
    assert_null(ls_store_open("http://127.0.0.1:1", NULL));
    expect_error(ls_error_status(), LS_ERR_ARGUMENT, "neither tcp:// nor file://");
    assert_null(ls_store_open(url, &(ls_store_options){.timeout = -2}));
    expect_error(ls_error_status(), LS_ERR_ARGUMENT, "-2 s");
    ls_store_close(NULL);
    assert_int_equal(ls_store_port(NULL), 0);
    ls_store_close(store);
}

TEST(test_large_values) {
    char url[256];
    const size_t full = 1U << 20;
    unsigned char *sent = malloc(full), *received = malloc(full);
    ls_store *store = serve("a key", 5, url, sizeof url);
    ls_store *other = ls_store_open(url, &(ls_store_options){.timeout = 5, .key = "a key"});
    assert_non_null(other);
    for (size_t i = 0; i < full; i++) {
        sent[i] = (unsigned char)(i * 7 + i / 251);
    }
    size_t size = 0;
    bool swapped = false;
    assert_int_equal(ls_store_set(store, "large", sent, full), LS_OK);
    assert_int_equal(ls_store_get(other, "large", received, full, &size), LS_OK);
    assert_int_equal(size, full);
    assert_memory_equal(sent, received, full);
    assert_int_equal(ls_store_compare_set(other, "large", sent, full, received, full - 1, &swapped), LS_OK);
    assert_true(swapped);
    ls_store_close(other);
    ls_store_close(store);
    free(sent);
    free(received);
}

TEST(test_counters) {
    char url[256], text[32] = "";
    int64_t sum = 99;
    size_t size;
    ls_store *store = serve(NULL, 5, url, sizeof url);
    assert_int_equal(ls_store_add(store, "n", 5, &sum), LS_OK);
    assert_int_equal(sum, 5);
    assert_int_equal(ls_store_add(store, "n", -7, NULL), LS_OK);
    assert_int_equal(ls_store_add(store, "n", 0, &sum), LS_OK);
    assert_int_equal(sum, -2);
    assert_int_equal(ls_store_get(store, "n", text, sizeof text, &size), LS_OK);
    assert_int_equal(size, 2);
    assert_memory_equal(text, "-2", 2);
    assert_int_equal(ls_store_add(store, "n", INT64_MIN + 2, &sum), LS_OK);
    assert_true(sum == INT64_MIN);
    expect_error(ls_store_add(store, "n", -1, &sum), LS_ERR_ARGUMENT, "more than 64 bits");
    assert_int_equal(ls_store_set(store, "word", "12x", 3), LS_OK);
    expect_error(ls_store_add(store, "word", 1, &sum), LS_ERR_FORMAT, "not a number");
    assert_int_equal(ls_store_set(store, "word", " 12", 3), LS_OK);
    expect_error(ls_store_add(store, "word", 1, &sum), LS_ERR_FORMAT, "not a number");
    assert_int_equal(ls_store_set(store, "word", "9223372036854775808", 19), LS_OK); /* more than 64 bits */
    expect_error(ls_store_add(store, "word", -1, &sum), LS_ERR_FORMAT, "not a number");
    static const char zeros[] = "0000000000000000000000000000";
    for (size_t length = 20; length < sizeof zeros; length++) { /* longer than any number that the store writes */
        assert_int_equal(ls_store_set(store, "word", zeros, length), LS_OK);
        const ls_status status = ls_store_add(store, "word", 1, &sum);
        assert_true(length < LS_COUNTER_SIZE ? status == LS_OK && sum == 1 : status == LS_ERR_FORMAT);
    }
    assert_int_equal(ls_store_set(store, "word", "41", 2), LS_OK);
    assert_int_equal(ls_store_add(store, "word", 1, &sum), LS_OK);
    assert_int_equal(sum, 42);
    ls_store_close(store);
}

TEST(test_compare_set) {
    char url[256], value[8];
    size_t size;
    bool swapped = true;
    ls_store *store = serve(NULL, 5, url, sizeof url);
    assert_int_equal(ls_store_compare_set(store, "k", "x", 1, "y", 1, &swapped), LS_OK);
    assert_false(swapped);
    assert_int_equal(ls_store_compare_set(store, "k", NULL, 0, "one", 3, &swapped), LS_OK);
    assert_true(swapped);
    assert_int_equal(ls_store_compare_set(store, "k", NULL, 0, "two", 3, &swapped), LS_OK);
    assert_false(swapped);
    assert_int_equal(ls_store_compare_set(store, "k", "onE", 3, "two", 3, &swapped), LS_OK);
    assert_false(swapped);
    assert_int_equal(ls_store_compare_set(store, "k", "one", 3, "two", 3, &swapped), LS_OK);
    assert_true(swapped);
    assert_int_equal(ls_store_get(store, "k", value, sizeof value, &size), LS_OK);
    assert_memory_equal(value, "two", 3);
    ls_store_close(store);
}

TEST(test_timeouts) {
    char url[256], value[8];
    size_t size;
    ls_store *store = serve(NULL, 0.1, url, sizeof url);
    expect_error(ls_store_get(store, "never", value, sizeof value, &size), LS_ERR_TIMEOUT, "\"never\"");
    expect_error(ls_store_wait(store, "never", 0.05), LS_ERR_TIMEOUT, "0.05 s");
    expect_error(ls_store_wait(store, "never", 0), LS_ERR_TIMEOUT, "0.1 s");
    expect_error(ls_store_wait(store, "never", LS_ZERO), LS_ERR_TIMEOUT, "0.1 s");
    assert_int_equal(ls_store_set(store, "now", "", 0), LS_OK); /* the store stays usable */
    assert_int_equal(ls_store_wait(store, "now", 0), LS_OK);
    ls_store_close(store);
}

static void *set_later(void *argument) {
    client *self = argument;
    ls_store *store = ls_store_open(self->url, &(ls_store_options){.timeout = 10});
    usleep(30000);
    self->failed = store == NULL || ls_store_set(store, "late", "here", 4) != LS_OK;
    ls_store_close(store);
    return NULL;
}

TEST(test_waiting_for_another) {
    client self = {0};
    char value[8];
    size_t size = 0;
    pthread_t thread;
    ls_store *store = serve(NULL, 10, self.url, sizeof self.url);
    assert_int_equal(pthread_create(&thread, NULL, set_later, &self), 0);
    assert_int_equal(ls_store_get(store, "late", value, sizeof value, &size), LS_OK);
    assert_int_equal(size, 4);
    pthread_join(thread, NULL);
    assert_false(self.failed);
    ls_store_close(store);
}

/* Every client counts up, passes on a token with compare_set, and checks the results. */
static ls_status work_together(const client *self, ls_store *store) {
    for (int round = 0; round < ROUNDS; round++) {
        if (ls_store_add(store, "count", 1, NULL) != LS_OK) {
            return ls_error_status();
        }
    }
    for (bool swapped = false; !swapped;) {
        const char token[2] = {(char)('a' + self->number), (char)('b' + self->number)};
        if (ls_store_compare_set(store, "token", &token[0], self->number > 0, &token[1], 1, &swapped) != LS_OK) {
            return ls_error_status();
        }
        if (self->number == 0 && !swapped) {
            return LS_ERR_INTERNAL;
        }
    }
    char name[32];
    snprintf(name, sizeof name, "done %d", self->number);
    if (ls_store_set(store, name, name, strlen(name)) != LS_OK) {
        return ls_error_status();
    }
    for (int other = 0; other < CLIENTS; other++) {
        snprintf(name, sizeof name, "done %d", other);
        if (ls_store_wait(store, name, 0) != LS_OK) {
            return ls_error_status();
        }
    }
    return LS_OK;
}

static void *be_client(void *argument) {
    client *self = argument;
    ls_store *store = ls_store_open(self->url, &(ls_store_options){.timeout = 20, .key = self->key});
    self->failed = store == NULL || work_together(self, store) != LS_OK;
    if (self->failed) {
        fprintf(stderr, "client %d: %s\n", self->number, ls_error_message());
    }
    ls_store_close(store);
    return NULL;
}

TEST(test_clients_at_once) {
    char url[256];
    client clients[CLIENTS] = {0};
    pthread_t threads[CLIENTS];
    ls_store *store = serve("k", 20, url, sizeof url);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (client){.key = "k", .number = i};
        memcpy(clients[i].url, url, sizeof url);
        assert_int_equal(pthread_create(&threads[i], NULL, be_client, &clients[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        assert_false(clients[i].failed);
    }
    int64_t count = 0;
    char token;
    size_t size;
    assert_int_equal(ls_store_add(store, "count", 0, &count), LS_OK);
    assert_true(count == CLIENTS * ROUNDS);
    assert_int_equal(ls_store_get(store, "token", &token, 1, &size), LS_OK);
    assert_int_equal(token, 'a' + CLIENTS);
    ls_store_close(store);
}

static void count_warnings(ls_log_level level, int rank, const char *line, void *user) {
    (void)rank;
    if (level == LS_LOG_WARNING && strstr(line, "refused") != NULL) {
        ++*(int *)user;
    }
    if (strstr(line, "secret") != NULL) { /* the keys of test_keys */
        *(int *)user += 1000;
    }
}

static void keep_line(ls_log_level level, int rank, const char *line, void *user) {
    (void)rank;
    snprintf(user, 512, "%s %s", level == LS_LOG_WARNING ? "warning:" : "?", line);
}

/* The output for a user who starts ranks by hand while some of them are missing. */
TEST(test_missing_ranks_are_told) {
    ls_roster roster = {0};
    char line[512] = "";
    ls_log_set_sink(keep_line, line);
    assert_int_equal(ls_roster_enter(&roster, 1, 5, &(ls_peer_info){.host = "node1", .process = "11"}), LS_OK);
    ls_roster_report_missing(&roster);
    assert_string_equal(line, "warning: waiting for ranks 0, 2, 3 and 4 of 5; rank 1 joined from node1");
    assert_int_equal(ls_roster_enter(&roster, 4, 5, &(ls_peer_info){.host = "node1", .process = "12"}), LS_OK);
    assert_int_equal(ls_roster_enter(&roster, 0, 5, &(ls_peer_info){.host = "node0", .process = "13"}), LS_OK);
    ls_roster_report_missing(&roster);
    assert_string_equal(line, "warning: waiting for ranks 2 and 3 of 5; ranks 0, 1 and 4 joined from node0, node1");
    ls_roster_free(&roster);

    for (int rank = 0; rank < 8; rank++) {
        ls_peer_info peer_info = {.process = "1"};
        snprintf(peer_info.host, sizeof peer_info.host, "%d%062d", rank, 0);
        assert_int_equal(ls_roster_enter(&roster, rank, 9, &peer_info), LS_OK);
    }
    ls_roster_report_missing(&roster);
    assert_non_null(strstr(line, "0 and others"));
    ls_roster_free(&roster);
    ls_log_set_sink(NULL, NULL);
}

TEST(test_keys) {
    char url[256];
    int warnings = 0;
    static const struct {
        const char *server, *client, *says;
    } rows[] = {
        {"secret 1", "secret 2", "a different key than the job (LOCKSTEP_KEY or .key)"},
        {"secret 1", NULL, "given none"},
        {"secret 1", "", "given none"},
        {NULL, "secret 1", "has no key"},
    };
    ls_log_set_sink(count_warnings, &warnings);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_store *store = serve(rows[i].server, 5, url, sizeof url);
        assert_null(ls_store_open(url, &(ls_store_options){.timeout = 5, .key = rows[i].client}));
        expect_error(ls_error_status(), LS_ERR_DENIED, rows[i].says);
        assert_null(strstr(ls_error_message(), "secret"));
        assert_int_equal(ls_store_set(store, "a", "b", 1), LS_OK); /* the store is not affected */
        ls_store *fine = ls_store_open(url, &(ls_store_options){.timeout = 5, .key = rows[i].server});
        assert_non_null(fine);
        ls_store_close(fine);
        ls_store_close(store);
    }
    char *long_key = malloc(258);
    memset(long_key, 'x', 257);
    long_key[257] = '\0';
    assert_null(ls_store_open(url, &(ls_store_options){.serve = true, .key = long_key}));
    expect_error(ls_error_status(), LS_ERR_ARGUMENT, "257 bytes");
    free(long_key);
    ls_log_set_sink(NULL, NULL);
    assert_int_equal(warnings, sizeof rows / sizeof *rows);
}

TEST(test_nobody_serves) {
    char url[256];
    ls_store *store = serve(NULL, 5, url, sizeof url);
    ls_store_close(store);
    assert_null(ls_store_open(url, &(ls_store_options){.timeout = 0.1}));
    expect_error(ls_error_status(), LS_ERR_TIMEOUT, "within 0.1 s");
}

TEST(test_server_ends) {
    char url[256];
    ls_store *store = serve(NULL, 5, url, sizeof url);
    ls_store *other = ls_store_open(url, &(ls_store_options){.timeout = 5});
    assert_non_null(other);
    ls_store_close(store);
    expect_error(ls_store_wait(other, "x", 0), LS_ERR_PEER, "has ended");
    expect_error(ls_store_set(other, "x", "", 0), LS_ERR_PEER, "has ended");
    ls_store_close(other);
}

static atomic_long allocations, held;
static long fail_at; /* the allocation that fails */

static void *allocate_or_not(size_t size, size_t alignment, void *user) {
    (void)user;
    if (atomic_fetch_add(&allocations, 1) == fail_at) {
        return NULL;
    }
    atomic_fetch_add(&held, 1);
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void release(void *memory, void *user) {
    (void)user;
    atomic_fetch_sub(&held, 1);
    free(memory);
}

static ls_status use_once(ls_store *store, const char *url) {
    char value[2000] = {0};
    size_t size;
    bool swapped;
    ls_store *other = ls_store_open(url, &(ls_store_options){.timeout = 5});
    ls_status status = other != NULL ? ls_store_set(other, "k", value, sizeof value) : ls_error_status();
    if (status == LS_OK) {
        status = ls_store_get(store, "k", value, sizeof value, &size);
    }
    if (status == LS_OK) {
        status = ls_store_compare_set(other, "k", value, sizeof value, "x", 1, &swapped);
    }
    if (status == LS_OK) {
        status = ls_store_add(other, "n", 1, NULL);
    }
    ls_store_close(other);
    return status;
}

/* Each allocation fails once. The result is an error without a leak; if the server's allocation fails, a lost
 * connection. */
TEST(test_out_of_memory) {
    char url[256];
    ls_status status = LS_ERR_MEMORY;
    int failures = 0;
    ls_log_set_level(LS_LOG_ERROR); /* the server warns about each connection that it closes */
    ls_set_allocator(&(ls_allocator){.allocate = allocate_or_not, .release = release});
    for (fail_at = 0; fail_at < atomic_load(&allocations) || status != LS_OK; fail_at++) {
        atomic_store(&allocations, 0);
        snprintf(url, sizeof url, "tcp://127.0.0.1:0");
        if (serve_in_folder) {
            snprintf(url, sizeof url, "file://%s/store", folder);
        }
        ls_store *store = ls_store_open(url, &(ls_store_options){.serve = true, .timeout = 5});
        if (store != NULL && !serve_in_folder) {
            snprintf(url, sizeof url, "tcp://127.0.0.1:%d", ls_store_port(store));
        }
        status = store != NULL ? use_once(store, url) : ls_error_status();
        ls_store_close(store);
        if (status != LS_OK && status != LS_ERR_MEMORY && status != LS_ERR_PEER) {
            fail_msg("allocation %ld: %s: %s", fail_at, ls_status_name(status), ls_error_message());
        }
        failures += status != LS_OK;
        assert_int_equal(atomic_load(&held), 0);
    }
    ls_set_allocator(NULL);
    ls_log_set_level(LS_LOG_WARNING);
    assert_true(failures >= 4);
}

TEST(test_sentences_name_a_call_once) {
    (void)ls_error_set(LS_ERR_MEMORY, "no room");
    assert_int_equal(ls_fail_in("ls_init"), LS_ERR_MEMORY);
    assert_string_equal(ls_error_message(), "ls_init: no room");
    assert_int_equal(ls_fail_in("ls_init"), LS_ERR_MEMORY);
    assert_string_equal(ls_error_message(), "ls_init: no room");
    (void)ls_fail_in("ls_in");
    assert_string_equal(ls_error_message(), "ls_in: ls_init: no room");
}

/* Write a user's file with this name, and check that it is unchanged. */
static void write_own(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(name, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void assert_own_stays(const char *name) {
    char path[256], text[256] = "";
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (file == NULL || fgets(text, sizeof text, file) == NULL || fclose(file) != 0 || strcmp(text, name) != 0) {
        fail_msg("the user's own file %s has changed", name);
    }
    assert_int_equal(unlink(path), 0);
}

TEST(test_own_files_stay) {
    static const char *const own[] = {"job-17", "lock", "temporary", "server"};
    char url[256];
    snprintf(url, sizeof url, "file://%s", folder);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        write_own(own[i]);
    }
    const ls_store_options options = {.serve = true, .timeout = 5};
    write_own("current");
    assert_null(ls_store_open(url, &options));
    expect_error(ls_error_status(), LS_ERR_FORMAT, "not written by Lockstep: choose a folder other than");
    assert_own_stays("current");
    ls_store *store = ls_store_open(url, &options);
    assert_non_null(store);
    assert_int_equal(ls_store_set(store, "k", "v", 1), LS_OK);
    ls_store_close(store);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        assert_own_stays(own[i]);
    }
}

static int use_folder(void **state) {
    (void)state;
    serve_in_folder = true;
    return mkdtemp(folder) == NULL;
}

static int leave_folder(void **state) {
    (void)state;
    serve_in_folder = false;
    return rmdir(folder); /* fails if a store left something behind */
}

#define KIND_TESTS                                                                                                     \
    cmocka_unit_test(test_set_get), cmocka_unit_test(test_wrong_arguments), cmocka_unit_test(test_large_values),       \
        cmocka_unit_test(test_counters), cmocka_unit_test(test_compare_set), cmocka_unit_test(test_timeouts),          \
        cmocka_unit_test(test_waiting_for_another), cmocka_unit_test(test_clients_at_once),                            \
        cmocka_unit_test(test_missing_ranks_are_told), cmocka_unit_test(test_keys),                                    \
        cmocka_unit_test(test_nobody_serves), cmocka_unit_test(test_out_of_memory),                                    \
        cmocka_unit_test(test_server_ends), cmocka_unit_test(test_sentences_name_a_call_once)

int main(void) {
    const struct CMUnitTest tests[] = {KIND_TESTS};
    const struct CMUnitTest folder_tests[] = {KIND_TESTS, cmocka_unit_test(test_own_files_stay)};
    const int failures = cmocka_run_group_tests_name("store on TCP", tests, NULL, NULL);
    return failures + cmocka_run_group_tests_name("store in a folder", folder_tests, use_folder, leave_folder);
}
