/*
 * Ranks without a given key share a key of their user, so other users of the machine cannot join them.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/comm.h>

#include "base/log.h"
#include "comm/user_key.h"
#include "tests/support/files.h"
#include "tests/support/processes.h"
#include "tests/support/unauthenticated.h"

enum { AT_ONCE = 12, OTHER_USER = 65534, LONELY = 271828 };

/*
 * Whether /tmp is empty and visible only to this process and its children. Only root can mount such a /tmp and act as
 * several users.
 */
static bool has_own_tmp;

static int mount_own_tmp(void **state) {
    (void)state;
    has_own_tmp = geteuid() == 0 && unshare(CLONE_NEWNS) == 0 &&
                  mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                  mount("none", "/tmp", "tmpfs", 0, "mode=1777") == 0;
    return 0;
}

/* Sets the locations that a process uses: its session's folder and its home. */
static void live_in(const char *session, const char *home) {
    setenv("XDG_RUNTIME_DIR", session, 1);
    setenv("HOME", home, 1);
}

static const char *make_folder(const char *name, mode_t mode) {
    const char *path = test_path(name);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static void write_text(const char *path, const char *text, mode_t mode) {
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text) && fchmod(file, mode) == 0);
    close(file);
}

/* ---- one key for all --------------------------------------------------------------------------------------------- */

typedef struct race {
    const char *session;
    ls_key *keys;
    int start[2]; /* a pipe that the test closes when all are ready */
} race;

static const char *find_at_once(int number, const void *what) {
    const race *r = what;
    char byte;
    live_in(r->session, test_path("absent"));
    close(r->start[1]);
    LS_MUST(read(r->start[0], &byte, 1) == 0);
    LS_MUST(ls_key_find(&r->keys[number], NULL) == LS_OK);
    return NULL;
}

TEST(all_find_one_key) {
    ls_key *keys = mmap(NULL, AT_ONCE * sizeof *keys, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int round = 0; round < 20; round++) {
        pid_t processes[AT_ONCE];
        char name[24];
        struct stat about;
        snprintf(name, sizeof name, "session%d", round);
        race r = {.session = make_folder(name, 0700), .keys = keys};
        assert_int_equal(pipe(r.start), 0);
        for (int i = 0; i < AT_ONCE; i++) {
            processes[i] = process_start(find_at_once, i, &r);
        }
        close(r.start[0]);
        close(r.start[1]);
        for (int i = 0; i < AT_ONCE; i++) {
            assert_int_equal(process_wait(processes[i]), 0);
        }
        for (int i = 0; i < AT_ONCE; i++) {
            assert_int_equal(keys[i].size, 64);
            assert_false(keys[i].given);
            assert_memory_equal(keys[i].bytes, keys[0].bytes, keys[0].size);
        }
        snprintf(name, sizeof name, "session%d/lockstep", round);
        assert_int_equal(test_folder_count(test_path(name)), 1); /* contains the key, and no temporary file */
        assert_int_equal(stat(test_path(name), &about), 0);
        assert_int_equal(about.st_mode & 0777, 0700);
        strcat(name, "/key");
        assert_int_equal(stat(test_path(name), &about), 0);
        assert_int_equal(about.st_mode & 0777, 0600);
    }
    munmap(keys, AT_ONCE * sizeof *keys);
}

/* A relative path would put the key into the working directory. */
static const char *find_by_relative_path(int number, const void *what) {
    ls_key key, again;
    char home[300];
    (void)number;
    snprintf(home, sizeof home, "%s/home", (const char *)what);
    LS_MUST(chdir(what) == 0 && mkdir("session", 0700) == 0 && mkdir("home", 0700) == 0);
    live_in("session", home);
    LS_MUST(ls_key_find(&key, NULL) == LS_OK && key.size == 64);
    LS_MUST(test_folder_count("session") == 0);
    live_in(test_path("absent"), home);
    LS_MUST(ls_key_find(&again, NULL) == LS_OK && memcmp(key.bytes, again.bytes, key.size) == 0);
    return NULL;
}

TEST(relative_path_is_ignored) {
    assert_int_equal(process_wait(process_start(find_by_relative_path, 0, make_folder("relative", 0700))), 0);
}

/* ---- untrusted locations ----------------------------------------------------------------------------------------- */

static void write_elsewhere(const char *session, int kind) {
    static const char planted[] = "00000000000000000000000000000000000000000000000000000000000000000";
    char folder[300], file[310], other[310];
    snprintf(folder, sizeof folder, "%s/lockstep", session);
    snprintf(file, sizeof file, "%s/key", folder);
    snprintf(other, sizeof other, "%s/planted", session);
    if (kind == 0) { /* the folder is a link to a valid folder */
        assert_int_equal(mkdir(other, 0700), 0);
        assert_int_equal(symlink(other, folder), 0);
        return;
    }
    assert_int_equal(mkdir(folder, 0700), 0);
    if (kind == 1) { /* other users can write to the folder */
        write_text(file, planted, 0600);
        assert_int_equal(chmod(folder, 0777), 0);
    } else if (kind == 2) { /* other users can read the file */
        write_text(file, planted, 0644);
    } else if (kind == 3) {
        write_text(other, planted, 0600);
        assert_int_equal(symlink(other, file), 0);
    } else if (kind == 4) {
        assert_int_equal(mkfifo(file, 0600), 0);
    } else if (kind == 5) { /* as after a power failure */
        write_text(file, "", 0600);
    } else if (kind == 6) {
        write_text(file, "no key at all, whoever wrote it and however long it may be......", 0600);
    } else { /* another user's */
        write_text(file, planted, 0600);
        assert_int_equal(chown(file, OTHER_USER, OTHER_USER), 0);
    }
}

enum { KINDS = 8 };

static const char *find_two_ways(int number, const void *what) {
    const char *session = what;
    ls_key first, second;
    char home[300];
    process_kill_self_in(30000); /* a FIFO must not block */
    snprintf(home, sizeof home, "%s/home%d", session, number);
    LS_MUST(mkdir(home, 0700) == 0);
    live_in(session, home);
    LS_MUST(ls_key_find(&first, NULL) == LS_OK && first.size == 64);
    LS_MUST(memcmp(first.bytes, "00000000", 8) != 0 && memcmp(first.bytes, "no key", 6) != 0);
    live_in(test_path("absent"), home); /* the key came from the next location */
    LS_MUST(ls_key_find(&second, NULL) == LS_OK && second.size == 64);
    LS_MUST(memcmp(first.bytes, second.bytes, second.size) == 0);
    return NULL;
}

static const char *find_in_home(int number, const void *what) {
    (void)number;
    ls_key key;
    live_in(test_path("absent"), what);
    return ls_key_find(&key, NULL) == LS_OK ? NULL : "ls_key_find";
}

TEST(unsafe_places_are_left_alone) {
    const int kinds = geteuid() == 0 ? KINDS : KINDS - 1; /* only root can create a file of another user */
    for (int kind = 0; kind < kinds; kind++) {
        char name[24];
        snprintf(name, sizeof name, "unsafe%d", kind);
        const char *session = make_folder(name, 0700);
        write_elsewhere(session, kind);
        const int how = process_wait(process_start(find_two_ways, kind, session));
        if (how != 0) {
            fail_msg("kind %d", kind);
        }
    }
}

/* Root may have the HOME of the user who ran sudo. */
TEST(nothing_is_made_in_the_home_of_another_user) {
    if (!has_own_tmp) {
        skip();
    }
    const char *home = make_folder("other_home", 0755);
    assert_int_equal(chown(home, OTHER_USER, OTHER_USER), 0);
    char cache[300];
    struct stat about;
    snprintf(cache, sizeof cache, "%s/.cache", home);
    const int how = process_wait(process_start(find_in_home, 0, home));
    assert_int_equal(stat(cache, &about), -1);
    assert_int_equal(how, 0);
}

/* ---- other users ------------------------------------------------------------------------------------------------- */

typedef struct job {
    int port, size;
    bool by_environment;
    const char *session, *home; /* of the job's ranks */
    const char *elsewhere;      /* of the other user */
} job;

static ls_comm *join(const job *j, int rank, double timeout) {
    char text[64];
    if (!j->by_environment) {
        snprintf(text, sizeof text, "tcp://127.0.0.1:%d", j->port);
        return ls_init(&(ls_init_options){.init = text, .world_size = j->size, .rank = rank, .timeout = timeout});
    }
    const struct {
        const char *name;
        int value;
    } variables[] = {{"RANK", rank}, {"WORLD_SIZE", j->size}, {"MASTER_PORT", j->port - 1}};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        snprintf(text, sizeof text, "%d", variables[i].value);
        setenv(variables[i].name, text, 1);
    }
    setenv("MASTER_ADDR", "localhost", 1); /* as set by torchrun, which itself uses the previous port */
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    return ls_init(&(ls_init_options){.timeout = timeout});
}

static const char *rightful(int rank, const void *what) {
    const job *j = what;
    char secret[16] = "";
    live_in(j->session, j->home);
    ls_comm *world = join(j, rank, 60);
    LS_MUST(world != NULL);
    if (rank == 0) {
        strcpy(secret, "for ranks only");
    }
    LS_MUST(ls_comm_broadcast(world, secret, sizeof secret, LS_U8, 0, NULL) == LS_OK);
    LS_MUST(strcmp(secret, "for ranks only") == 0);
    return ls_finalize() == LS_OK ? NULL : "ls_finalize";
}

static const char *other_user(int rank, const void *what) {
    const job *j = what;
    if (geteuid() == 0) { /* without root, a different folder simulates another user */
        LS_MUST(setresgid(OTHER_USER, OTHER_USER, OTHER_USER) == 0 &&
                setresuid(OTHER_USER, OTHER_USER, OTHER_USER) == 0);
    }
    live_in(j->elsewhere, test_path("absent"));
    LS_MUST(join(j, rank, 20) == NULL);
    LS_MUST(failed_with(LS_ERR_DENIED,
                        "LOCKSTEP_KEY is not set, and the keys that this process and the job use by default differ"));
    LS_MUST(failed_with(LS_ERR_DENIED, "set LOCKSTEP_KEY to the same secret for all"));
    return NULL;
}

TEST(other_users_cannot_join) {
    char session[320], elsewhere[320], absent[320]; /* copies, because test_path keeps only four paths */
    snprintf(session, sizeof session, "%s", make_folder("rightful", 0700));
    snprintf(elsewhere, sizeof elsewhere, "%s", make_folder("theirs", 0700));
    snprintf(absent, sizeof absent, "%s", test_path("absent"));
    assert_true(geteuid() != 0 || chown(elsewhere, OTHER_USER, OTHER_USER) == 0);
    char parent[320];
    snprintf(parent, sizeof parent, "%s", session);
    *strrchr(parent, '/') = '\0';
    assert_int_equal(chmod(parent, 0711),
                     0); /* makes the test's folder accessible, so that the other user can reach theirs */
    for (int size = 2; size <= 3; size++) {
        for (int by_environment = 0; by_environment < 2; by_environment++) {
            pid_t ranks[3];
            const job j = {.port = free_port(),
                           .size = size,
                           .by_environment = by_environment,
                           .session = session,
                           .home = absent,
                           .elsewhere = elsewhere};
            ranks[0] = process_start(rightful, 0, &j);
            const int how = process_wait(process_start(other_user, 1, &j));
            for (int rank = 1; rank < size; rank++) {
                ranks[rank] = process_start(rightful, rank, &j);
            }
            for (int rank = 0; rank < size; rank++) {
                assert_int_equal(process_wait(ranks[rank]), 0);
            }
            assert_int_equal(how, 0);
        }
    }
}

/* ---- no location at all ------------------------------------------------------------------------------------------ */

static char warning[1024];
static int warnings;

static void keep_warning(ls_log_level level, int rank, const char *line, void *user) {
    (void)rank;
    (void)user;
    warnings += level == LS_LOG_WARNING;
    snprintf(warning, sizeof warning, "%s", line);
}

static const char *without_a_place(int rank, const void *what) {
    if (setresgid(LONELY, LONELY, LONELY) != 0 || setresuid(LONELY, LONELY, LONELY) != 0) {
        return "cannot be another user";
    }
    ls_log_set_sink(keep_warning, NULL);
    for (int i = 0; i < 2; i++) {
        const char *failure = rightful(rank, what);
        if (failure != NULL) {
            return failure;
        }
    }
    ls_log_set_sink(NULL, NULL);
    LS_MUST(warnings == 1); /* once per process */
    LS_MUST(strstr(warning, "other users of this machine can join the job; set LOCKSTEP_KEY to the same secret") !=
            NULL);
    LS_MUST(strstr(warning, "belongs to user 0 and this process to user 271828") != NULL);
    return NULL;
}

/* Another user occupies the last location: the job runs without it, and warns. */
TEST(another_user_can_keep_nobody_from_starting) {
    char taken[64];
    if (!has_own_tmp) {
        skip();
    }
    snprintf(taken, sizeof taken, "/tmp/lockstep-%d", LONELY);
    assert_int_equal(mkdir(taken, 0755), 0);
    for (int size = 2; size <= 3; size++) {
        const job j = {.port = free_port(), .size = size, .session = test_path("absent"), .home = test_path("absent")};
        processes_run(size, without_a_place, &j, 0);
    }
}

/* ---- keys that can be guessed ------------------------------------------------------------------------------------ */

/* Counts the warnings with each key of a list. The expected text of the warning follows the list's NULL. */
static const char *count_short(int number, const void *what) {
    const char *const *texts = what;
    ls_key key;
    int i = 0;
    ls_log_set_sink(keep_warning, NULL);
    for (; texts[i] != NULL; i++) {
        LS_MUST(ls_key_find(&key, texts[i]) == LS_OK && key.given && key.size == strlen(texts[i]));
    }
    LS_MUST(warnings == number);
    LS_MUST(number == 0 || strstr(warning, texts[i + 1]) != NULL);
    LS_MUST(number == 0 || strstr(warning, "head -c 32 /dev/urandom | base64") != NULL);
    return NULL;
}

TEST(short_keys_are_told_once) {
    static const char *const fine[] = {"sixteen bytes...", "and a longer one than that", NULL};
    static const char *const few[] = {"k", "q", "fifteen bytes..", NULL, "has 1 byte and can be guessed"};
    static const char *const nearly[] = {"fifteen bytes..", NULL, "has 15 bytes and can be guessed"};
    assert_int_equal(process_wait(process_start(count_short, 0, fine)), 0);
    assert_int_equal(process_wait(process_start(count_short, 1, few)), 0);
    assert_int_equal(process_wait(process_start(count_short, 1, nearly)), 0);
}

int main(void) {
    umask(022);
    unsetenv("LOCKSTEP_KEY");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_find_one_key),
        cmocka_unit_test(relative_path_is_ignored),
        cmocka_unit_test(unsafe_places_are_left_alone),
        cmocka_unit_test(other_users_cannot_join),
        cmocka_unit_test(another_user_can_keep_nobody_from_starting),
        cmocka_unit_test(short_keys_are_told_once),
        cmocka_unit_test(nothing_is_made_in_the_home_of_another_user),
    };
    return cmocka_run_group_tests(tests, mount_own_tmp, test_files_teardown);
}
