/*
 * Writing TensorBoard's event files, on any device: files that are byte for byte equal to the files of TensorBoard's
 * own writers, and failed writes.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <lockstep/autograd.h>
#include <lockstep/formats.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "formats/events.h"
#include "tests/support/allocator.h"
#include "tests/support/events.h"
#include "tests/support/files.h"

enum { PATH_ROOM = 400, RECORDS = 16 };

static ls_events *begin(const char *folder, const ls_events_options *options) {
    ls_events *events = ls_events_open(test_path(folder), options);
    if (events == NULL) {
        fail_msg("%s", ls_error_message());
    }
    return events;
}

/* Frees the writer and returns the path of its file. */
static const char *end(ls_events *events) {
    static char path[PATH_ROOM];
    snprintf(path, sizeof path, "%s", ls_events_path(events));
    assert_int_equal(ls_events_close(events), LS_OK);
    return path;
}

static void read_into(events_list *list, const char *path) {
    memset(list, 0, sizeof *list);
    if (ls_events_read(path, events_note, list) != LS_OK) {
        fail_msg("%s", ls_error_message());
    }
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

TEST(test_the_file_has_its_name_and_version) {
    static const int version[] = {LS_EVENT_FILE_VERSION, 0};
    char host[256] = "", folder[PATH_ROOM], wanted[2 * PATH_ROOM];
    long long seconds;
    int length = 0;
    size_t size;
    events_record record;
    snprintf(folder, sizeof folder, "%s", test_path("a/b//c"));
    char suffix[150] = "";
    memset(suffix, 'v', sizeof suffix - 1);
    const long long before = (long long)time(NULL);
    ls_events *events = begin("a/b//c", &(ls_events_options){.suffix = suffix});
    const char *path = ls_events_path(events);
    assert_int_equal(strncmp(path, folder, strlen(folder)), 0);
    assert_int_equal(sscanf(path + strlen(folder), "/events.out.tfevents.%10lld%n", &seconds, &length), 1);
    assert_true(seconds >= before && seconds <= (long long)time(NULL));
    gethostname(host, sizeof host - 1);
    snprintf(wanted, sizeof wanted, ".%s.%ld.0%s", host, (long)getpid(), suffix);
    assert_string_equal(path + strlen(folder) + length, wanted);
    uint8_t *bytes = events_load(path, &size); /* while the writer exists */
    assert_int_equal(events_records(bytes, size, &record, 1), 1);
    const uint8_t *text = events_find(record.event, record.size, version, &size);
    assert_int_equal(size, 13);
    assert_memory_equal(text, "brain.Event:2", 13);
    free(bytes);
    (void)end(events);
}

enum { THREADS = 8 };

static void *write_one(void *folder) {
    ls_events *events = ls_events_open(folder, NULL);
    const bool good = events != NULL && ls_events_scalar(events, "a", 1, 1) == LS_OK;
    const bool closed = ls_events_close(events) == LS_OK;
    ls_thread_end();
    return good && closed ? folder : NULL;
}

/* Several writers in one folder, at the same time and one after another, each have their own file. */
TEST(test_writers_do_not_share_files) {
    pthread_t threads[THREADS];
    char folder[PATH_ROOM];
    snprintf(folder, sizeof folder, "%s", test_path("together/here"));
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, write_one, folder), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_ptr_equal(result, folder);
    }
    assert_non_null(write_one(folder));
    assert_int_equal(test_folder_count(folder), THREADS + 1);
}

/* The name is predictable, so another user may have created a symbolic link with this name: it is not followed. */
TEST(test_links_are_not_followed) {
    enum { SECONDS = 100 };
    char folder[PATH_ROOM], host[256] = "", name[2 * PATH_ROOM];
    struct stat about;
    ls_events *events = begin("links", NULL);
    (void)end(events);
    snprintf(folder, sizeof folder, "%s", test_path("links"));
    const char *victim = test_file("victim", "mine", 4);
    gethostname(host, sizeof host - 1);
    for (int i = 0; i < 2 * SECONDS; i++) {
        snprintf(name, sizeof name, "%s/events.out.tfevents.%010lld.%s.%ld.%d", folder, (long long)time(NULL) + i / 2,
                 host, (long)getpid(), i % 2);
        (void)!symlink(i < SECONDS ? victim : "absent", name);
    }
    events = begin("links", NULL);
    assert_int_equal(lstat(ls_events_path(events), &about), 0);
    assert_true(S_ISREG(about.st_mode));
    (void)end(events);
    assert_int_equal(stat(victim, &about), 0);
    assert_int_equal(about.st_size, 4);
}

TEST(test_files_that_cannot_be_made) {
    char inside[PATH_ROOM], longest[5000];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    snprintf(inside, sizeof inside, "%s/folder", test_file("plain", "", 0));
    const struct {
        const char *folder;
        double flush_seconds;
        ls_status status;
        const char *part;
    } cases[] = {
        {NULL, 0, LS_ERR_ARGUMENT, "ls_events_open: the folder is empty"},
        {"", 0, LS_ERR_ARGUMENT, "the folder is empty"},
        {test_path("."), -1, LS_ERR_ARGUMENT, "flush_seconds is -1"},
        {test_path("."), (double)NAN, LS_ERR_ARGUMENT, "flush_seconds is nan"},
        {inside, 0, LS_ERR_IO, "/plain: File exists"},
        {test_path("plain"), 0, LS_ERR_IO, "/plain: File exists"},
        {"/proc/absent", 0, LS_ERR_IO, "cannot create the folder /proc/absent: "},
        {"/proc", 0, LS_ERR_IO, "cannot write /proc/events.out.tfevents."},
        {longest, 0, LS_ERR_IO, "File name too long"},
    };
    const int descriptors = test_descriptors_count();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_null(ls_events_open(cases[i].folder, &(ls_events_options){.flush_seconds = cases[i].flush_seconds}));
        expect_error(ls_error_status(), cases[i].status, cases[i].part);
    }
    assert_int_equal(test_descriptors_count(), descriptors);
    assert_int_equal(ls_events_close(NULL), LS_OK);
    assert_null(ls_events_path(NULL));
    expect_error(ls_events_flush(NULL), LS_ERR_IO,
                 "the writer is NULL"); /* contains the reason why the writer is NULL */
}

TEST(test_descriptors_are_not_inherited) {
    const int descriptors = test_descriptors_count();
    ls_events *events = begin("own", NULL);
    assert_int_equal(test_descriptors_count(), descriptors + 1);
    assert_true(fcntl(events->fd, F_GETFD) & FD_CLOEXEC);
    (void)end(events);
    assert_int_equal(test_descriptors_count(), descriptors);
}

/* ---- flushing ---------------------------------------------------------------------------------------------------- */

static size_t size_of(const ls_events *events) {
    struct stat about;
    assert_int_equal(stat(ls_events_path(events), &about), 0);
    return (size_t)about.st_size;
}

TEST(test_records_wait_for_a_flush) {
    events_list list;
    ls_events *events = begin("waiting", &(ls_events_options){.flush_seconds = 1e9});
    const size_t before = size_of(events);
    assert_int_equal(ls_events_scalar(events, "a", 1, 2), LS_OK);
    assert_int_equal(size_of(events), before);
    assert_int_equal(ls_events_flush(events), LS_OK);
    read_into(&list, ls_events_path(events));
    assert_int_equal(list.count, 1);
    assert_int_equal(ls_events_flush(events), LS_OK); /* flushes an empty buffer */
    read_into(&list, ls_events_path(events));
    assert_int_equal(list.count, 1);
    const size_t after = size_of(events);
    for (int i = 0; i < 2000; i++) { /* about 50 bytes each, so more than the buffer holds */
        assert_int_equal(ls_events_scalar(events, "a", i, 2), LS_OK);
    }
    assert_true(size_of(events) > after);
    assert_int_equal(ls_events_scalar(events, "b", 1, 2), LS_OK);
    (void)end(events);
}

TEST(test_records_that_do_not_wait) {
    events_list list;
    ls_events *events = begin("at-once", &(ls_events_options){.flush_seconds = LS_ZERO});
    for (int i = 1; i < 4; i++) {
        assert_int_equal(ls_events_scalar(events, "a", i, 2), LS_OK);
        read_into(&list, ls_events_path(events));
        assert_int_equal(list.count, i);
    }
    (void)end(events);
}

TEST(test_scalars_allocate_nothing) {
    test_allocator allocator;
    test_allocator_start(&allocator);
    ls_events *events = begin("steady", NULL);
    const long before = atomic_load(&allocator.calls);
    for (int i = 0; i < 5000; i++) {
        assert_int_equal(ls_events_scalar(events, "loss/train", i, i), LS_OK);
    }
    assert_int_equal(atomic_load(&allocator.calls), before);
    (void)end(events);
    assert_int_equal(test_allocator_stop(&allocator), 0);
}

/* ---- full disks -------------------------------------------------------------------------------------------------- */

static void limit_files(rlim_t bytes) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_IGN);
}

/*
 * A file size limit simulates a full disk in the middle of a record. Earlier records are written when there is space
 * again.
 */
TEST(test_full_disk) {
    events_list list;
    ls_events *events = begin("full", &(ls_events_options){.flush_seconds = 1e9});
    const size_t whole = size_of(events);
    assert_int_equal(ls_events_scalar(events, "a", 1, 1), LS_OK);
    assert_int_equal(ls_events_scalar(events, "a", 2, 2), LS_OK);
    limit_files(whole + 60);
    expect_error(ls_events_flush(events), LS_ERR_IO, ls_events_path(events));
    expect_error(ls_error_status(), LS_ERR_IO, "ls_events_flush: cannot write ");
    expect_error(ls_error_status(), LS_ERR_IO, ": File too large");
    assert_int_equal(size_of(events), whole);                     /* and not a part of a record */
    assert_int_equal(ls_events_scalar(events, "a", 3, 3), LS_OK); /* which waits, too */
    limit_files(RLIM_INFINITY);
    assert_int_equal(ls_events_scalar(events, "a", 4, 4), LS_OK);
    read_into(&list, end(events));
    assert_int_equal(list.count, 4);
    for (int i = 0; i < list.count; i++) {
        assert_int_equal(list.items[i].step, i + 1);
    }
}

TEST(test_full_disk_at_both_ends) {
    events_list list;
    char path[PATH_ROOM];
    limit_files(20);
    const int descriptors = test_descriptors_count();
    assert_null(ls_events_open(test_path("none"), NULL));
    limit_files(RLIM_INFINITY);
    expect_error(ls_error_status(), LS_ERR_IO, "ls_events_open: cannot write ");
    assert_int_equal(test_folder_count(test_path("none")), 0);
    ls_events *events = begin("last", NULL);
    snprintf(path, sizeof path, "%s", ls_events_path(events));
    assert_int_equal(ls_events_scalar(events, "a", 1, 1), LS_OK);
    limit_files(size_of(events) + 1);
    const ls_status status = ls_events_close(events);
    limit_files(RLIM_INFINITY);
    expect_error(status, LS_ERR_IO, "ls_events_close: cannot write ");
    assert_int_equal(test_descriptors_count(), descriptors);
    read_into(&list, path);
    assert_int_equal(list.count, 0);
}

/* Simulates a disk that accepts all bytes and loses them, as a network disk may. */
static bool lost;

int fsync(int fd) {
    errno = EIO;
    return lost && fd >= 0 ? -1 : 0;
}

TEST(test_disks_that_lose_what_they_took) {
    const int descriptors = test_descriptors_count();
    ls_events *events = begin("lost", NULL);
    assert_int_equal(ls_events_scalar(events, "a", 1, 1), LS_OK);
    lost = true;
    const ls_status status = ls_events_close(events);
    lost = false;
    expect_error(status, LS_ERR_IO, "ls_events_close: cannot write ");
    expect_error(status, LS_ERR_IO, ": Input/output error");
    assert_int_equal(test_descriptors_count(), descriptors);
}

/* Records that wait for disk space take at most a megabyte. Each is kept whole or dropped. */
TEST(test_what_waits_is_bounded) {
    enum { TEXT = 50000 };
    static char text[TEXT];
    events_list list;
    int kept = 0;
    memset(text, 'x', sizeof text - 1);
    ls_events *events = begin("bounded", &(ls_events_options){.flush_seconds = 1e9});
    limit_files(size_of(events));
    for (int i = 0; i < 40; i++) {
        const size_t before = events->records.used;
        const ls_status status = ls_events_text(events, "t", i, text);
        assert_int_equal(status, i == 0 ? LS_OK : LS_ERR_IO); /* a single record waits for others */
        kept += events->records.used > before;
        assert_true(events->records.used <= 1 << 20);
    }
    assert_int_equal(kept, (1 << 20) / TEXT);
    limit_files(RLIM_INFINITY);
    assert_int_equal(ls_events_scalar(events, "a", 1, 1), LS_OK);
    read_into(&list, end(events));
    assert_int_equal(list.count, kept + 1);
}

/* Memory runs out at every possible point: the record is dropped, the writer continues, and nothing leaks. */
static ls_status write_everything(ls_events *events) {
    static char text[100000];
    memset(text, 'x', sizeof text - 1);
    ls_scope *scope = ls_scope_begin();
    if (scope == NULL) {
        return ls_error_status();
    }
    ls_tensor *tensor = ls_transpose(ls_ones(LS_SHAPE(70, 50), LS_F32), 0, 1);
    ls_status status = ls_events_histogram(events, "h", 1, tensor);
    if (status == LS_OK) {
        status = ls_events_image(events, "i", 1, tensor);
    }
    if (status == LS_OK) {
        status = ls_events_text(events, "t", 1, text);
    }
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static bool write_with_little(long n) {
    test_allocator allocator;
    events_list list;
    test_allocator_start(&allocator);
    atomic_store(&allocator.fail_once, n);
    long calls = n + 1;
    ls_events *events = ls_events_open(test_path("little"), NULL);
    if (events == NULL) {
        assert_int_equal(ls_error_status(), LS_ERR_MEMORY);
    } else {
        const ls_status status = write_everything(events);
        if (status != LS_OK && status != LS_ERR_MEMORY) {
            fail_msg("allocation %ld: %s", n, ls_error_message());
        }
        assert_int_equal(ls_events_scalar(events, "s", 1, 1), LS_OK);
        const char *path = end(events);
        calls = atomic_load(&allocator.calls);
        atomic_store(&allocator.fail_once, -1);
        read_into(&list, path);
        assert_string_equal(list.tags[list.count - 1], "s");
        assert_int_equal(list.count == 4, status == LS_OK);
    }
    assert_int_equal(test_allocator_stop(&allocator), 0);
    return calls > n;
}

TEST(test_memory_runs_out) {
    long n = 0;
    while (write_with_little(n)) {
        n++;
    }
    assert_true(n > 10);
}

/* ---- contents ---------------------------------------------------------------------------------------------------- */

TEST(test_scalars_are_read_back) {
    static const struct {
        const char *tag;
        int64_t step;
        double value, read;
    } cases[] = {{"loss/train", 1, 0.5, 0.5},
                 {"gr\xc3\xb6\xc3\x9f"
                  "e",
                  INT64_MAX, -0.0, -0.0},
                 {"", INT64_MIN, 1e300, INFINITY},
                 {"a b\n\"", -1, 0.1, (double)0.1F}};
    events_list list;
    struct timespec before, after;
    clock_gettime(CLOCK_REALTIME, &before);
    ls_events *events = begin("scalars", NULL);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ls_events_scalar(events, cases[i].tag, cases[i].step, cases[i].value), LS_OK);
    }
    assert_int_equal(ls_events_scalar(events, "nan", 0, (double)NAN), LS_OK);
    clock_gettime(CLOCK_REALTIME, &after);
    read_into(&list, end(events));
    assert_int_equal(list.count, 5);
    for (int i = 0; i < 4; i++) {
        const ls_events_item *item = &list.items[i];
        assert_int_equal(item->kind, LS_EVENTS_SCALAR);
        assert_string_equal(item->tag, cases[i].tag);
        assert_true(item->step == cases[i].step);
        assert_memory_equal(&item->value, &cases[i].read, sizeof(double));
        assert_true(item->wall_time >= (double)before.tv_sec && item->wall_time <= (double)after.tv_sec + 1);
    }
    assert_true(isnan(list.items[4].value));
}

/* Checks that record `a` of one file equals record `b` of another file, except for the time. */
static void expect_same(const events_record *a, const events_record *b) {
    uint8_t of_a[1 << 14], of_b[1 << 14];
    assert_true(a->size <= sizeof of_a && b->size <= sizeof of_b);
    memcpy(of_a, a->event, a->size);
    memcpy(of_b, b->event, b->size);
    assert_int_equal(of_a[0], 1 << 3 | 1); /* the time comes first */
    memset(of_a + 1, 0, 8);
    memset(of_b + 1, 0, 8);
    assert_int_equal(a->size, b->size);
    assert_memory_equal(of_a, of_b, a->size);
}

/*
 * Compares the records after the version record. `wanted` lists the fixture's records that `path` must contain, as
 * numbers from 1, terminated by 0.
 */
static void expect_fixture(const char *path, const char *fixture, const int *wanted) {
    size_t size, fixture_size;
    events_record records[RECORDS], fixture_records[RECORDS];
    uint8_t *bytes = events_load(path, &size), *fixture_bytes = events_load(fixture, &fixture_size);
    const int count = events_records(bytes, size, records, RECORDS);
    const int fixture_count = events_records(fixture_bytes, fixture_size, fixture_records, RECORDS);
    int i = 1;
    for (; wanted[i - 1] != 0; i++) {
        assert_true(i < count && wanted[i - 1] < fixture_count);
        expect_same(&records[i], &fixture_records[wanted[i - 1]]);
    }
    assert_int_equal(count, i);
    free(bytes);
    free(fixture_bytes);
}

/* tests/fixtures/make_events.py writes the same. */
TEST(test_bytes_are_those_of_tensorboard) {
    const ls_events_node nodes[] = {{"input", "Input", NULL},
                                    {"a/weights", "Parameter", (const char *const[]){NULL}},
                                    {"a/product", "Linear", (const char *const[]){"input", "a/weights", NULL}}};
    ls_events *events = begin("tensorboard", NULL);
    assert_int_equal(ls_events_scalar(events, "loss/train", 1, 0.5), LS_OK);
    assert_int_equal(ls_events_scalar(events,
                                      "gr\xc3\xb6\xc3\x9f"
                                      "e",
                                      -2, -1e30),
                     LS_OK);
    assert_int_equal(ls_events_text(events, "note", 3, "some *text*\n\n\xc3\xa4"), LS_OK);
    assert_int_equal(ls_events_graph(events, nodes, 3), LS_OK);
    expect_fixture(end(events), LS_FIXTURES "/tensorboard.events", (const int[]){1, 2, 3, 4, 0});
}

SCOPED_TEST(test_bytes_are_those_of_tensorboardx) {
    static const double numbers[] = {-3, -0.5, -0.5, 0, 0x1p-10, 0.25, 1, 1, 1000, 0x1p10};
    ls_tensor *values = ls_from(LS_SHAPE(5, 2), LS_F64, numbers);
    ls_events *events = begin("tensorboardx", NULL);
    assert_int_equal(ls_events_scalar(events, "metrics/accuracy", 1, 0.875), LS_OK);
    assert_int_equal(ls_events_histogram(events, "weights", 2, values), LS_OK);
    assert_int_equal(ls_events_histogram(events, "positive", 3, ls_narrow(values, 0, 3, 2)), LS_OK);
    assert_int_equal(ls_events_histogram(events, "one", 4, ls_narrow(ls_narrow(values, 0, 0, 1), 1, 1, 1)), LS_OK);
    expect_fixture(end(events), LS_FIXTURES "/tensorboardx.events", (const int[]){1, 2, 3, 4, 0});
}

/* Refused calls write nothing. */
TEST(test_mistakes) {
    static const char latin[] = "gr\xf6\xdf"
                                "e";
    events_list list;
    ls_events *events = begin("mistakes", NULL);
    ls_tensor *tensor = ls_ones(LS_SHAPE(2, 2), LS_F32);
    (void)ls_error_set(LS_OK, "%s", "");
    expect_error(ls_events_scalar(NULL, "a", 0, 0), LS_ERR_ARGUMENT, "ls_events_scalar: the writer is NULL");
    expect_error(ls_events_histogram(NULL, "a", 0, tensor), LS_ERR_ARGUMENT, "ls_events_histogram: the writer is NULL");
    expect_error(ls_events_image(NULL, "a", 0, tensor), LS_ERR_ARGUMENT, "ls_events_image: the writer is NULL");
    expect_error(ls_events_text(NULL, "a", 0, "a"), LS_ERR_ARGUMENT, "ls_events_text: the writer is NULL");
    expect_error(ls_events_graph(NULL, NULL, 0), LS_ERR_ARGUMENT, "ls_events_graph: the writer is NULL");
    expect_error(ls_events_scalar(events, NULL, 0, 0), LS_ERR_ARGUMENT, ": the tag is NULL");
    expect_error(ls_events_text(events, NULL, 0, "a"), LS_ERR_ARGUMENT, ": the tag is NULL");
    expect_error(ls_events_image(events, NULL, 0, tensor), LS_ERR_ARGUMENT, ": the tag is NULL");
    expect_error(ls_events_scalar(events, latin, 0, 0), LS_ERR_ARGUMENT, ": 'gr??e' is not UTF-8");
    expect_error(ls_events_image(events, latin, 0, tensor), LS_ERR_ARGUMENT, ": 'gr??e' is not UTF-8");
    expect_error(ls_events_histogram(events, latin, 0, tensor), LS_ERR_ARGUMENT, ": 'gr??e' is not UTF-8");
    expect_error(ls_events_text(events, "a", 0, latin), LS_ERR_ARGUMENT, ": 'gr??e' is not UTF-8");
    expect_error(ls_events_text(events, "a", 0, NULL), LS_ERR_ARGUMENT, ": a string is NULL");
    expect_error(ls_events_histogram(events, "a", 0, NULL), LS_ERR_ARGUMENT, "'a': the tensor is NULL");
    expect_error(ls_events_image(events, "a", 0, NULL), LS_ERR_ARGUMENT, "'a': the tensor is NULL");
    expect_error(ls_events_graph(events, NULL, 1), LS_ERR_ARGUMENT, "nodes are NULL or their number, 1, is negative");
    expect_error(ls_events_graph(events, &(ls_events_node){0}, -1), LS_ERR_ARGUMENT, "-1, is negative");
    expect_error(ls_events_graph(events, &(ls_events_node){"a", NULL, NULL}, 1), LS_ERR_ARGUMENT,
                 ": node 0 has no operation");
    expect_error(ls_events_graph(events, &(ls_events_node){"", "a", NULL}, 1), LS_ERR_ARGUMENT, ": node 0 has no name");
    expect_error(ls_events_graph(events, (ls_events_node[]){{"a", "x", NULL}, {"b", "x", NULL}, {"a", "y", NULL}}, 3),
                 LS_ERR_ARGUMENT, ": nodes 0 and 2 have the same name, \"a\"");
    expect_error(
        ls_events_graph(events, (ls_events_node[]){{"a", "x", NULL}, {"b", "x", (const char *const[]){"a", "c", NULL}}},
                        2),
        LS_ERR_ARGUMENT, ": node \"b\" has the input \"c\", which is not a node");
    ls_release(tensor);
    expect_error(ls_events_histogram(events, "a", 0, tensor), LS_ERR_STATE, "ls_events_histogram");
    expect_error(ls_events_image(events, "a", 0, tensor), LS_ERR_STATE, "ls_events_image");
    assert_int_equal(ls_events_scalar(events, "good", 7, 1), LS_OK);
    read_into(&list, end(events));
    assert_int_equal(list.count, 1);
    assert_int_equal(list.items[0].step, 7);
}

/* A string of 2 GiB: the same megabyte mapped many times. */
TEST(test_records_have_a_limit) {
    enum { PART = 1 << 20 };
    const size_t size = (size_t)1 << 31;
    const int fd = memfd_create("text", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, PART), 0);
    char *text = mmap(NULL, size + PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(text, MAP_FAILED);
    for (size_t at = 0; at < size; at += PART) {
        assert_ptr_equal(mmap(text + at, PART, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0), text + at);
    }
    memset(text, 'a', PART);
    ls_events *events = begin("large", NULL);
    expect_error(ls_events_text(events, "a", 0, text), LS_ERR_ARGUMENT, ": a record must be smaller than 2 GiB");
    (void)end(events);
    munmap(text, size + PART);
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_file_has_its_name_and_version),
        cmocka_unit_test(test_writers_do_not_share_files),
        cmocka_unit_test(test_links_are_not_followed),
        cmocka_unit_test(test_files_that_cannot_be_made),
        cmocka_unit_test(test_descriptors_are_not_inherited),
        cmocka_unit_test(test_records_wait_for_a_flush),
        cmocka_unit_test(test_records_that_do_not_wait),
        cmocka_unit_test(test_scalars_allocate_nothing),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_full_disk_at_both_ends),
        cmocka_unit_test(test_disks_that_lose_what_they_took),
        cmocka_unit_test(test_what_waits_is_bounded),
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_scalars_are_read_back),
        cmocka_unit_test(test_bytes_are_those_of_tensorboard),
        cmocka_unit_test(test_bytes_are_those_of_tensorboardx),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_records_have_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
