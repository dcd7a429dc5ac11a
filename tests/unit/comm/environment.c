/*
 * How ls_init combines its options with the environment, case by case.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <fcntl.h>
#include <unistd.h>

#include "comm/rendezvous.h"
#include "tests/support/commas.h"

static const char *const names[] = {"RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_RANK",
                                    "LOCAL_WORLD_SIZE",
                                    "MASTER_ADDR",
                                    "MASTER_PORT",
                                    "LOCKSTEP_KEY",
                                    "LOCKSTEP_TIMEOUT",
                                    "LOCKSTEP_STORE_FD",
                                    "TORCHELASTIC_USE_AGENT_STORE",
                                    "TORCHELASTIC_RUN_ID",
                                    "LOCKSTEP_LAUNCH",
                                    "PMIX_RANK",
                                    "PMIX_NAMESPACE",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_RANK",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "MPI_LOCALRANKID",
                                    "MPI_LOCALNRANKS",
                                    "SLURM_PROCID",
                                    "SLURM_NTASKS",
                                    "SLURM_LOCALID",
                                    "SLURM_JOB_ID",
                                    "SLURM_STEP_ID",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_STEP_NUM_NODES",
                                    "SLURM_STEP_NODELIST"};

enum { NAMES = sizeof names / sizeof *names, MOST = 8 };

/* Sets the environment to only these "NAME=VALUE" strings. */
static void set_environment(const char *const settings[MOST]) {
    for (size_t i = 0; i < NAMES; i++) {
        unsetenv(names[i]);
    }
    for (size_t i = 0; i < MOST && settings[i] != NULL; i++) {
        char name[64] = "";
        const char *equals = strchr(settings[i], '=');
        memcpy(name, settings[i], (size_t)(equals - settings[i]));
        setenv(name, equals + 1, 1);
    }
}

#define SLURM "SLURM_PROCID=5", "SLURM_STEP_NUM_TASKS=8", "SLURM_LOCALID=1", "SLURM_JOB_ID=1428", "SLURM_STEP_ID=0"

#define PMIX(rank) "PMIX_RANK=" rank, "PMIX_NAMESPACE=prterun-x-1@1"

#define MASTER "MASTER_ADDR=10.0.0.7", "MASTER_PORT=29500"

static const struct {
    ls_init_options options;
    const char *environment[MOST];
    const char *url; /* NULL: refused */
    int rank, size, local_rank, local_size;
    const char *says;
} rows[] = {
    {{0}, {NULL}, "", 0, 1, -1, 0, NULL},
    {{0}, {"LOCAL_RANK=3", "MASTER_PORT=x"}, "", 0, 1, -1, 0, NULL},
    {{0}, {"RANK=1", "WORLD_SIZE=4", MASTER}, "tcp://10.0.0.7:29500", 1, 4, -1, 0, NULL},
    {{.init = "env://"}, {"RANK=1", "WORLD_SIZE=4", MASTER}, "tcp://10.0.0.7:29500", 1, 4, -1, 0, NULL},
    {{0},
     {"RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", MASTER},
     "tcp://10.0.0.7:29500",
     3,
     4,
     1,
     2,
     NULL},
    {{0}, {"RANK=0", "WORLD_SIZE=1"}, "", 0, 1, -1, 0, NULL},
    {{0}, {"PMI_RANK=1", "PMI_SIZE=3"}, "", 1, 3, -1, 0, NULL},
    {{0}, {"PMI_RANK=2", "PMI_SIZE=3", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"}, "", 2, 3, 1, 2, NULL},
    {{0}, {"PMI_RANK=99999", "PMI_SIZE=100000"}, "", 99999, 100000, -1, 0, NULL},
    {{.init = "mpi://"},
     {"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=3", "OMPI_COMM_WORLD_LOCAL_RANK=0",
      "OMPI_COMM_WORLD_LOCAL_SIZE=1"},
     "",
     2,
     3,
     0,
     1,
     NULL},
    /* A launcher that started one process, and launchers inside another launcher. */
    {{0}, {"RANK=0", "WORLD_SIZE=1", "PMI_RANK=0", "PMI_SIZE=1"}, "", 0, 1, -1, 0, NULL},
    {{0}, {"RANK=0", "WORLD_SIZE=1", PMIX("0")}, "", 0, 1, -1, 0, NULL},
    {{0}, {"RANK=0", "WORLD_SIZE=1", "PMI_RANK=1", "PMI_SIZE=3", "LOCKSTEP_LAUNCH=x"}, "", 0, 1, -1, 0, NULL},
    {{0}, {"RANK=0", "WORLD_SIZE=1", PMIX("1"), "TORCHELASTIC_RUN_ID=x"}, "", 0, 1, -1, 0, NULL},
    /* Without a launcher, Open MPI's MPI_Init sets PMIx variables in its process. */
    {{0}, {PMIX("0")}, "", 0, 1, -1, 0, NULL},
    /* Open MPI's mpirun and srun set PMIx variables, too. */
    {{0}, {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", PMIX("1")}, "", 1, 2, -1, 0, NULL},
    {{0}, {"RANK=1", "WORLD_SIZE=2", MASTER, PMIX("1")}, "tcp://10.0.0.7:29500", 1, 2, -1, 0, NULL},
    {{0}, {SLURM, "SLURM_STEP_NODELIST=n1", PMIX("5")}, "tcp://n1:29996", 5, 8, 1, 0, NULL},
    {{.init = "tcp://h:7", .world_size = 1}, {"PMI_RANK=1", "PMI_SIZE=3"}, "", 0, 1, -1, 0, NULL},
    /* srun */
    {{0}, {SLURM, "SLURM_STEP_NODELIST=n[03-05,9],z"}, "tcp://n03:29996", 5, 8, 1, 0, NULL},
    {{0}, {SLURM, "SLURM_STEP_NODELIST=n1", "SLURM_STEP_NUM_NODES=1"}, "tcp://127.0.0.1:29996", 5, 8, 1, 0, NULL},
    {{0},
     {"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_ID=1428", "SLURM_STEP_ID=3", "SLURM_STEP_NODELIST=n1"},
     "tcp://n1:29999", /* another step, another port */
     0,
     2,
     -1,
     0,
     NULL},
    {{0}, {SLURM, "SLURM_STEP_NODELIST=n1", MASTER}, "tcp://10.0.0.7:29500", 5, 8, 1, 0, NULL},
    {{.init = "file://x"}, {SLURM, "SLURM_STEP_NODELIST=n1"}, "file://x", 5, 8, 1, 0, NULL},
    {{0},
     {SLURM, "SLURM_STEP_NODELIST=n1", "RANK=0", "WORLD_SIZE=1"},
     NULL,
     0,
     0,
     0,
     0,
     "a launcher started several processes (SLURM_STEP_NUM_TASKS=8)"},
    {{0},
     {"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_STEP_NODELIST=n1", "RANK=0", "WORLD_SIZE=1"},
     "",
     0,
     1,
     -1,
     0,
     NULL},
    {{0}, {"SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_JOB_ID=9"}, "", 0, 1, -1, 0, NULL}, /* a batch script */
    {{0}, {"SLURM_PROCID=0", "SLURM_NTASKS=1", "SLURM_STEP_NODELIST=n1"}, "", 0, 1, -1, 0, NULL},
    {{0},
     {SLURM, "SLURM_STEP_NODELIST=n[1-2"},
     NULL,
     0,
     0,
     0,
     0,
     "SLURM_STEP_NODELIST: \"n[1-2\" is not a list of hosts"},
    {{0}, {"SLURM_PROCID=4", "SLURM_NTASKS=4", "SLURM_STEP_NODELIST=n1"}, NULL, 0, 0, 0, 0, "SLURM_PROCID=4 must be"},

    {{0}, {"RANK=", "WORLD_SIZE="}, "", 0, 1, -1, 0, NULL},
    {{0}, {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=::1", "MASTER_PORT=1"}, "tcp://[::1]:1", 1, 2, -1, 0, NULL},
    {{0}, {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=[::1]", "MASTER_PORT=1"}, "tcp://[::1]:1", 1, 2, -1, 0, NULL},
    {{0},
     {"RANK=1", "WORLD_SIZE=2", MASTER, "TORCHELASTIC_USE_AGENT_STORE=True"},
     "tcp://10.0.0.7:29501",
     1,
     2,
     -1,
     0,
     NULL},
    {{0},
     {"RANK=1", "WORLD_SIZE=2", MASTER, "TORCHELASTIC_USE_AGENT_STORE=False"},
     "tcp://10.0.0.7:29500",
     1,
     2,
     -1,
     0,
     NULL},
    {{.init = "tcp://h:7", .world_size = 3, .rank = 2}, {NULL}, "tcp://h:7", 2, 3, -1, 0, NULL},
    {{.init = "tcp://h:7", .world_size = 3, .rank = 2},
     {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0"},
     "tcp://h:7",
     2,
     3,
     -1,
     0,
     NULL},
    {{.init = "tcp://h:65535", .world_size = 4096, .rank = 4095}, {NULL}, "tcp://h:65535", 4095, 4096, -1, 0, NULL},
    {{.init = "tcp://h:1", .world_size = 2}, {NULL}, "tcp://h:1", 0, 2, -1, 0, NULL},
    {{0}, {"RANK=1", "WORLD_SIZE=4096", "MASTER_ADDR=h", "MASTER_PORT=65535"}, "tcp://h:65535", 1, 4096, -1, 0, NULL},
    {{0},
     {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=65534", "TORCHELASTIC_USE_AGENT_STORE=True"},
     "tcp://h:65535",
     1,
     2,
     -1,
     0,
     NULL},
    {{0},
     {"RANK=1", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "LOCAL_RANK=1", MASTER},
     "tcp://10.0.0.7:29500",
     1,
     2,
     1,
     2,
     NULL},
    {{0}, {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=1", MASTER}, "tcp://10.0.0.7:29500", 0, 2, 1, 0, NULL},
    {{.init = "file:///x y", .world_size = 2}, {NULL}, "file:///x y", 0, 2, -1, 0, NULL},
    {{.init = "file://x"}, {"RANK=1", "WORLD_SIZE=2"}, "file://x", 1, 2, -1, 0, NULL},
    {{.world_size = 2, .rank = 1}, {MASTER}, "tcp://10.0.0.7:29500", 1, 2, -1, 0, NULL},

    {{0}, {"RANK=1"}, NULL, 0, 0, 0, 0, "WORLD_SIZE is not set"},
    {{0}, {"WORLD_SIZE=2"}, NULL, 0, 0, 0, 0, "RANK is not set"},
    {{.init = "env://"}, {NULL}, NULL, 0, 0, 0, 0, "WORLD_SIZE is not set"},
    {{0}, {"RANK=abc", "WORLD_SIZE=2", MASTER}, NULL, 0, 0, 0, 0, "RANK=abc is not a whole number"},
    {{0}, {"RANK=1x", "WORLD_SIZE=2", MASTER}, NULL, 0, 0, 0, 0, "RANK=1x is not a whole number"},
    {{0}, {"RANK=2", "WORLD_SIZE=2", MASTER}, NULL, 0, 0, 0, 0, "RANK=2 must be below WORLD_SIZE=2"},
    {{0}, {"RANK=-1", "WORLD_SIZE=2", MASTER}, NULL, 0, 0, 0, 0, "RANK=-1 must be from 0"},
    {{0}, {"RANK=0", "WORLD_SIZE=0", MASTER}, NULL, 0, 0, 0, 0, "WORLD_SIZE=0 must be from 1"},
    {{0}, {"RANK=0", "WORLD_SIZE=99999999999999999999", MASTER}, NULL, 0, 0, 0, 0, "must be from 1 to 4096"},
    {{0}, {"RANK=0", "WORLD_SIZE=2", "MASTER_PORT=1"}, NULL, 0, 0, 0, 0, "MASTER_ADDR is not set"},
    {{0}, {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h"}, NULL, 0, 0, 0, 0, "MASTER_PORT is not set"},
    {{0}, {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=0"}, NULL, 0, 0, 0, 0, "MASTER_PORT=0 must be"},
    {{0}, {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=65536"}, NULL, 0, 0, 0, 0, "from 1 to 65535"},
    {{0},
     {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=65535", "TORCHELASTIC_USE_AGENT_STORE=True"},
     NULL,
     0,
     0,
     0,
     0,
     "no higher port"},
    {{0}, {"RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=3", MASTER}, NULL, 0, 0, 0, 0, "LOCAL_WORLD_SIZE=3 must be"},
    {{0},
     {"RANK=0", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2", "LOCAL_RANK=2", MASTER},
     NULL,
     0,
     0,
     0,
     0,
     "LOCAL_RANK=2 must be from 0 to 1"},
    {{0}, {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=2", MASTER}, NULL, 0, 0, 0, 0, "LOCAL_RANK=2 must be from 0 to 1"},
    {{0}, {"RANK=0", "WORLD_SIZE=4097", MASTER}, NULL, 0, 0, 0, 0, "must be from 1 to 4096"},
    {{0}, {"RANK=0", "WORLD_SIZE=2", "LOCKSTEP_STORE_FD=x", MASTER}, NULL, 0, 0, 0, 0, "LOCKSTEP_STORE_FD=x"},
    {{.timeout = -1}, {NULL}, NULL, 0, 0, 0, 0, "timeout is -1 s"},
    {{0}, {"LOCKSTEP_TIMEOUT=soon"}, NULL, 0, 0, 0, 0, "LOCKSTEP_TIMEOUT=soon"},
    {{0}, {"LOCKSTEP_TIMEOUT=5s"}, NULL, 0, 0, 0, 0, "LOCKSTEP_TIMEOUT=5s"},
    {{0}, {"LOCKSTEP_TIMEOUT=-1"}, NULL, 0, 0, 0, 0, "LOCKSTEP_TIMEOUT=-1"},
    {{0}, {"LOCKSTEP_TIMEOUT=0"}, NULL, 0, 0, 0, 0, "LOCKSTEP_TIMEOUT=0"},
    {{0}, {"LOCKSTEP_TIMEOUT=inf"}, NULL, 0, 0, 0, 0, "LOCKSTEP_TIMEOUT=inf"},
    {{.world_size = -1}, {NULL}, NULL, 0, 0, 0, 0, "world_size is -1"},
    {{.world_size = 4097}, {NULL}, NULL, 0, 0, 0, 0, "world_size is 4097"},
    {{.init = "tcp://h:7", .world_size = 2, .rank = 2}, {NULL}, NULL, 0, 0, 0, 0, "rank is 2, but must be from 0 to 1"},
    {{.init = "tcp://h:7"}, {NULL}, NULL, 0, 0, 0, 0, "WORLD_SIZE is not set"},
    {{.init = "tcp://h", .world_size = 2}, {NULL}, NULL, 0, 0, 0, 0, "not of the form tcp://HOST:PORT"},
    {{.init = "tcp://:7", .world_size = 2}, {NULL}, NULL, 0, 0, 0, 0, "not of the form tcp://HOST:PORT"},
    {{.init = "tcp://h:", .world_size = 2}, {NULL}, NULL, 0, 0, 0, 0, "the port is \"\""},
    {{.init = "tcp://h:7a", .world_size = 2}, {NULL}, NULL, 0, 0, 0, 0, "the port is \"7a\""},
    {{.init = "tcp://h:-7", .world_size = 2}, {NULL}, NULL, 0, 0, 0, 0, "the port is \"-7\""},
    {{.init = "tcp://h:0", .world_size = 2}, {NULL}, NULL, 0, 0, 0, 0, "its port must be from 1 to 65535"},
    {{.init = "tcp://h:65536", .world_size = 1}, {NULL}, NULL, 0, 0, 0, 0, "the port is \"65536\""},
    {{.init = "tcp://[]:7", .world_size = 1}, {NULL}, NULL, 0, 0, 0, 0, "not of the form tcp://HOST:PORT"},
    {{.init = "file://", .world_size = 2}, {NULL}, NULL, 0, 0, 0, 0, "names no folder"},
    {{0}, {"RANK=0", "WORLD_SIZE=4097"}, NULL, 0, 0, 0, 0, "WORLD_SIZE=4097 must be from 1 to 4096"},
    {{.init = "mpi://"}, {NULL}, NULL, 0, 0, 0, 0, "no MPI launcher started this process"},
    {{.init = "mpi://", .world_size = 2}, {"PMI_RANK=0", "PMI_SIZE=2"}, NULL, 0, 0, 0, 0, "world_size is 2"},
    {{.backend = "self"}, {"PMI_RANK=0", "PMI_SIZE=2"}, NULL, 0, 0, 0, 0, "not \"self\""},
    {{0}, {"PMI_RANK=2", "PMI_SIZE=2"}, NULL, 0, 0, 0, 0, "PMI_RANK=2 must be from 0 to 1"},
    {{0}, {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=0"}, NULL, 0, 0, 0, 0, "OMPI_COMM_WORLD_SIZE=0 must be"},
    {{0}, {"RANK=0", "WORLD_SIZE=1", "PMI_RANK=1", "PMI_SIZE=3"}, NULL, 0, 0, 0, 0, "(PMI_SIZE=3), each of which"},
    {{0},
     {"RANK=0", "WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2"},
     NULL,
     0,
     0,
     0,
     0,
     "unset RANK and WORLD_SIZE"},
    {{0}, {"RANK=0", "WORLD_SIZE=1", PMIX("1")}, NULL, 0, 0, 0, 0, "(PMIX_RANK=1), each of which"},
    {{.init = "env://"}, {PMIX("0")}, NULL, 0, 0, 0, 0, "WORLD_SIZE is not set"},
    {{.init = "", .world_size = 2}, {NULL}, NULL, 0, 0, 0, 0, "init is \"\", but must be env://"},
};

TEST(test_rows) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_job job;
        set_environment(rows[i].environment);
        const ls_status status = ls_job_read(&job, &rows[i].options);
        if (rows[i].url == NULL) {
            if (status != LS_ERR_ARGUMENT || strstr(ls_error_message(), rows[i].says) == NULL) {
                fail_msg("row %zu: %s: %s; expected \"%s\"", i, ls_status_name(status), ls_error_message(),
                         rows[i].says);
            }
        } else if (status != LS_OK || strcmp(job.url, rows[i].url) != 0 || job.rank != rows[i].rank ||
                   job.size != rows[i].size || job.local_rank != rows[i].local_rank ||
                   job.local_size != rows[i].local_size || job.listener != -1) {
            fail_msg("row %zu: %s (%s): %s, rank %d of %d, locally %d of %d", i, ls_status_name(status),
                     ls_error_message(), job.url, job.rank, job.size, job.local_rank, job.local_size);
        }
    }
}

TEST(test_first_host) {
    static const char *const lists[][2] = {{"a", "a"},
                                           {"a,b", "a"},
                                           {"node[01-03,07]", "node01"},
                                           {"node[7,01-03],x", "node7"},
                                           {"r[1-2]n[08-09]-ib,z", "r1n08-ib"},
                                           {"10.0.0.1,10.0.0.2", "10.0.0.1"},
                                           {"", NULL},
                                           {",b", NULL},
                                           {"n[", NULL},
                                           {"n[]", NULL},
                                           {"n[1", NULL},
                                           {"n]", NULL},
                                           {"n[x-y]", NULL}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char host[LS_HOST_CAPACITY] = "";
        const ls_status status = ls_slurm_first_host(lists[i][0], host);
        if (lists[i][1] == NULL ? status != LS_ERR_ARGUMENT : status != LS_OK || strcmp(host, lists[i][1]) != 0) {
            fail_msg("\"%s\": %s, \"%s\"", lists[i][0], ls_status_name(status), host);
        }
    }
}

/* Tests the longest supported name, and one byte more, as `open`HOST`close`. */
static void check_longest_host(const char *open, const char *close, bool slurm) {
    for (size_t length = LS_HOST_CAPACITY - 1; length <= LS_HOST_CAPACITY; length++) {
        char name[LS_HOST_CAPACITY + 1] = "", text[LS_HOST_CAPACITY + 32];
        struct {
            ls_address address;
            char behind[8];
        } result = {.behind = "behind"};
        memset(name, 'x', length);
        snprintf(text, sizeof text, "%s%s%s", open, name, close);
        const ls_status status =
            slurm ? ls_slurm_first_host(text, result.address.host) : ls_address_parse(text, &result.address);
        assert_string_equal(result.behind, "behind");
        if (length == LS_HOST_CAPACITY) {
            assert_int_equal(status, LS_ERR_ARGUMENT);
            assert_true(slurm || strstr(ls_error_message(), ":7\" is not of the form tcp://HOST:PORT") != NULL);
        } else {
            assert_int_equal(status, LS_OK);
            assert_string_equal(result.address.host, name);
        }
    }
}

TEST(test_longest_host) {
    check_longest_host("tcp://", ":7", false);
    check_longest_host("tcp://[", "]:7", false);
    check_longest_host("", "", true);
    check_longest_host("", ",y", true);
}

/* Tests the longest supported host and URL, and one byte more. */
TEST(test_longest_place) {
    char host[LS_HOST_CAPACITY + 1] = "", master[LS_HOST_CAPACITY + 32], url[LS_URL_CAPACITY + 1] = "";
    memset(host, 'h', LS_HOST_CAPACITY);
    memset(url, 'u', LS_URL_CAPACITY);
    memcpy(url, "file://", strlen("file://"));
    for (int over = 1; over >= 0; over--) {
        struct {
            ls_job job;
            char behind[8];
        } result = {.behind = "behind"};
        host[LS_HOST_CAPACITY - 1 + over] = '\0';
        url[LS_URL_CAPACITY - 1 + over] = '\0';
        snprintf(master, sizeof master, "MASTER_ADDR=%s", host);
        set_environment((const char *[MOST]){"RANK=1", "WORLD_SIZE=2", "MASTER_PORT=7", master});
        assert_int_equal(ls_job_read(&result.job, NULL), over ? LS_ERR_ARGUMENT : LS_OK);
        assert_true(over ? strstr(ls_error_message(), "MASTER_ADDR has 256 bytes") != NULL
                         : strstr(result.job.url, host) != NULL);
        assert_int_equal(ls_job_read(&result.job, &(ls_init_options){.init = url}), over ? LS_ERR_ARGUMENT : LS_OK);
        assert_true(over ? strstr(ls_error_message(), "init has 4096 bytes") != NULL
                         : strcmp(result.job.url, url) == 0);
        assert_string_equal(result.behind, "behind");
    }
}

TEST(test_key_and_timeout) {
    ls_job job;
    set_environment((const char *[MOST]){"LOCKSTEP_KEY=from outside", "LOCKSTEP_TIMEOUT=2.5"});
    assert_int_equal(ls_job_read(&job, NULL), LS_OK);
    assert_string_equal(job.key, "from outside");
    assert_true(job.timeout == 2.5);
    assert_int_equal(ls_job_read(&job, &(ls_init_options){.key = "mine", .timeout = 7}), LS_OK);
    assert_string_equal(job.key, "mine");
    assert_true(job.timeout == 7);
    set_environment((const char *[MOST]){NULL});
    assert_int_equal(ls_job_read(&job, NULL), LS_OK);
    assert_null(job.key);
    assert_true(job.timeout == LS_DEFAULT_TIMEOUT);
}

TEST(test_timeout_has_a_point_in_every_locale) {
    if (!commas_begin()) {
        skip();
    }
    ls_job job;
    set_environment((const char *[MOST]){"LOCKSTEP_TIMEOUT=2.5"});
    const ls_status status = ls_job_read(&job, NULL);
    commas_end();
    assert_int_equal(status, LS_OK);
    assert_true(job.timeout == 2.5);
}

/* Rank 0 uses the launcher's socket if it listens on the master's port; other ranks never do. */
TEST(test_inherited_socket) {
    int listener;
    const ls_address any = {.host = "127.0.0.1"};
    assert_int_equal(ls_socket_listen(&any, false, &listener), LS_OK);
    char fd[40], port[40], other[40];
    snprintf(fd, sizeof fd, "LOCKSTEP_STORE_FD=%d", listener);
    snprintf(port, sizeof port, "MASTER_PORT=%d", ls_socket_port(listener));
    snprintf(other, sizeof other, "MASTER_PORT=%d", ls_socket_port(listener) - 1);
    ls_job job;
    set_environment((const char *[MOST]){"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", port, fd});
    assert_int_equal(ls_job_read(&job, NULL), LS_OK);
    assert_int_equal(job.listener, listener);
    setenv("RANK", "1", 1);
    assert_int_equal(ls_job_read(&job, NULL), LS_OK);
    assert_int_equal(job.listener, -1);
    set_environment((const char *[MOST]){"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", other, fd});
    assert_int_equal(ls_job_read(&job, NULL), LS_OK);
    assert_int_equal(job.listener, -1);
    close(listener);
    assert_int_equal(ls_job_read(&job, NULL), LS_OK);
    assert_int_equal(job.listener, -1);
    const int file = open("/dev/null", O_RDONLY);
    assert_int_equal(ls_socket_adopt(file, false), LS_ERR_ARGUMENT);
    close(file);
}

TEST(test_open_to_others_needs_a_key) {
    int listener = -1, connection = -1;
    bool retry = true;
    const ls_address outside = {.host = "0.0.0.0"}, far = {.host = "192.0.2.1", .port = 9};
    assert_int_equal(ls_socket_listen(&outside, false, &listener), LS_ERR_DENIED);
    expect_message("set LOCKSTEP_KEY");
    assert_int_equal(ls_socket_connect(&far, false, 0, &connection, &retry), LS_ERR_DENIED);
    assert_false(retry);
    assert_int_equal(ls_socket_listen(&outside, true, &listener), LS_OK);
    assert_int_equal(ls_socket_adopt(listener, false), LS_ERR_DENIED);
    const ls_address same = {.host = "127.0.0.1", .port = ls_socket_port(listener)};
    int second;
    assert_int_equal(ls_socket_listen(&same, true, &second), LS_ERR_IO);
    expect_message("in use");
    close(listener);
    const ls_address foreign = {.host = "192.0.2.1", .port = 0}, unknown = {.host = "no.such.host.invalid"};
    assert_int_equal(ls_socket_listen(&foreign, true, &second), LS_ERR_IO);
    expect_message("not an address of this machine");
    assert_int_equal(ls_socket_listen(&unknown, true, &second), LS_ERR_IO);
    expect_message("no.such.host.invalid");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_host),       cmocka_unit_test(test_longest_host),
        cmocka_unit_test(test_longest_place),    cmocka_unit_test(test_rows),
        cmocka_unit_test(test_key_and_timeout),  cmocka_unit_test(test_timeout_has_a_point_in_every_locale),
        cmocka_unit_test(test_inherited_socket), cmocka_unit_test(test_open_to_others_needs_a_key),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
