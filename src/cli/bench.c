#include "cli/bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "cli/cli.h"
#include "cli/doctor.h"
#include "cli/job.h"
#include "cli/program.h"
#include "comm/algorithm.h"
#include "comm/backend.h"
#include "comm/reduce.h"
#include "comm/rendezvous.h"
#include "comm/transport.h"

enum { MOST_ITERATIONS = 1000000, USUAL_RANKS = 2, MOST_RANKS = 4096, MOST_ALGORITHMS = 512, MOST_COMPUTE_MS = 60000 };
static const size_t MOST_BYTES = (size_t)1 << 40;

typedef struct bench_values {
    int ranks;
    const char *backend;
    const char *sizes;
    const char *dtype;
    const char *op;
    const char *algorithm;
    int iterations;
    int simulate;
    const char *latency;
    const char *bandwidth;
    const char *overhead;
    const char *eager;
    bool registered;
    bool in_place;
    bool fresh;
    bool any_order;
    bool json;
    int compute;
} bench_values;

static const ls_cli_option options[] = {
    {"ranks", 'n', LS_OPTION_COUNT, "N", offsetof(bench_values, ranks), 1, MOST_RANKS, "number of ranks (2)"},
    {"backend", 0, LS_OPTION_TEXT, "B", offsetof(bench_values, backend), 0, 0, "backend (the best for these ranks)"},
    {"sizes", 0, LS_OPTION_TEXT, "LIST", offsetof(bench_values, sizes), 0, 0,
     "bytes, with K, M, G for 2^10, 2^20, 2^30\n(4,1K,64K,1M,16M,64M)"},
    {"dtype", 0, LS_OPTION_TEXT, "T", offsetof(bench_values, dtype), 0, 0,
     "type of the elements: f32 f64 bf16 f16 i64 i32 u8 bool\n(f32)"},
    {"op", 0, LS_OPTION_TEXT, "OP", offsetof(bench_values, op), 0, 0,
     "reduction: sum avg prod min max land lor lxor band bor\nbxor minloc maxloc (sum)"},
    {"iterations", 0, LS_OPTION_COUNT, "K", offsetof(bench_values, iterations), 1, MOST_ITERATIONS,
     "timed iterations of each size (as many as fit into 0.25 s)"},
    {"algorithm", 0, LS_OPTION_TEXT, "A", offsetof(bench_values, algorithm), 0, 0,
     "algorithm of the call (the fastest by model and\nmeasurement); all: each algorithm in turn"},
    {"registered", 0, LS_OPTION_FLAG, NULL, offsetof(bench_values, registered), 0, 0,
     "buffers from ls_comm_alloc instead of ordinary memory"},
    {"in-place", 0, LS_OPTION_FLAG, NULL, offsetof(bench_values, in_place), 0, 0,
     "allreduce: one buffer, which the result replaces"},
    {"fresh", 0, LS_OPTION_FLAG, NULL, offsetof(bench_values, fresh), 0, 0,
     "each rank writes its input before each call, as a backward\npass does (not timed)"},
    {"any-order", 0, LS_OPTION_FLAG, NULL, offsetof(bench_values, any_order), 0, 0,
     "reductions in any order, so that backends mpi and gloo can\nuse the collectives of their library"},
    {"compute", 0, LS_OPTION_COUNT, "MS", offsetof(bench_values, compute), 1, MOST_COMPUTE_MS,
     "start each call, compute for MS milliseconds, and wait for\nthe call; the times exclude the computation"},
    {"json", 0, LS_OPTION_FLAG, NULL, offsetof(bench_values, json), 0, 0, "one JSON object per size and line"},
    {"simulate", 0, LS_OPTION_COUNT, "P", offsetof(bench_values, simulate), 1, MOST_RANKS,
     "start no ranks: compute the time for P ranks in a network\nmodel (allreduce if COLLECTIVE is missing)"},
    {"latency", 0, LS_OPTION_TEXT, "T", offsetof(bench_values, latency), 0, 0,
     "with --simulate: latency of the network, such as 2us"},
    {"bandwidth", 0, LS_OPTION_TEXT, "R", offsetof(bench_values, bandwidth), 0, 0,
     "with --simulate: bandwidth of a link, such as 12GB/s"},
    {"overhead", 0, LS_OPTION_TEXT, "T", offsetof(bench_values, overhead), 0, 0,
     "with --simulate: processor time per message at each end\n(300ns)"},
    {"eager", 0, LS_OPTION_TEXT, "S", offsetof(bench_values, eager), 0, 0,
     "with --simulate: largest message of the eager protocol (8K)"},
};

/* ---- the command line -------------------------------------------------------------------------------------------- */

static ls_status read_size(const char *option, const char *text, size_t length, size_t *size) {
    static const char units[] = "KMG";
    char *end = NULL;
    errno = 0;
    const unsigned long long number = strtoull(text, &end, 10);
    int shift = 0;
    const char *unit = end < text + length ? strchr(units, *end) : NULL;
    if (unit != NULL && *unit != '\0') {
        shift = 10 * (int)(unit - units + 1);
        end++;
    }
    const bool fits = errno == 0 && number >= 1 && number <= MOST_BYTES >> shift;
    if (text[0] < '0' || text[0] > '9' || end != text + length || !fits) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "lockstep bench: --%s: '%.*s' is not a size; expected a number of bytes such as 4, 64K, 16M or "
                       "1G, from 1 to 1024G%s",
                       option, (int)(length < 64 ? length : 64), text,
                       strcmp(option, "sizes") == 0 ? ", separated by commas" : "");
    }
    *size = (size_t)number << shift;
    return LS_OK;
}

static ls_status read_sizes(const char *text, ls_bench_plan *plan) {
    for (;;) {
        const size_t length = strcspn(text, ",");
        if (plan->size_count == LS_BENCH_SIZES) {
            return ls_fail(LS_ERR_ARGUMENT, "lockstep bench: --sizes: more than %d sizes", LS_BENCH_SIZES);
        }
        LS_TRY(read_size("sizes", text, length, &plan->sizes[plan->size_count++]));
        if (text[length] == '\0') {
            return LS_OK;
        }
        text += length + 1;
    }
}

static ls_status read_dtype(const char *text, ls_dtype *dtype) {
    for (int i = 0; i < LS_DTYPE_COUNT; i++) {
        if (strcmp(text, ls_dtype_name((ls_dtype)i)) == 0) {
            *dtype = (ls_dtype)i;
            return LS_OK;
        }
    }
    return ls_fail(LS_ERR_ARGUMENT,
                   "lockstep bench: unknown dtype '%s'; available: f32, f64, bf16, f16, i64, i32, u8, bool", text);
}

static ls_status read_op(const char *text, ls_reduction *reduction) {
    for (int i = 0; i < LS_REDUCTION_COUNT; i++) {
        if (strcmp(text, ls_reduction_name((ls_reduction)i)) == 0) {
            *reduction = (ls_reduction)i;
            return LS_OK;
        }
    }
    return ls_fail(LS_ERR_ARGUMENT,
                   "lockstep bench: unknown reduction '%s'; available: sum, avg, prod, min, max, land, lor, lxor, "
                   "band, bor, bxor, minloc, maxloc",
                   text);
}

/* Rejects options that have no meaning for this collective. */
static ls_status check_fit(const bench_values *values, const ls_bench_collective *collective) {
    const char *name = collective->name;
    if (!collective->reduces && values->op != NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep bench: --op %s: %s is not a reduction", values->op, name);
    }
    if (!collective->reduces && values->any_order) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep bench: --any-order: %s is not a reduction", name);
    }
    if (collective->receive == LS_BENCH_NOTHING &&
        (values->sizes != NULL || values->dtype != NULL || values->registered || values->fresh)) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep bench: %s moves no data, so --%s cannot be used", name,
                       values->sizes != NULL   ? "sizes"
                       : values->dtype != NULL ? "dtype"
                       : values->registered    ? "registered"
                                               : "fresh");
    }
    if (values->compute != 0 && (collective->operation == LS_OP_SEND || values->fresh)) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep bench: --compute cannot be combined with %s",
                       values->fresh ? "--fresh" : "messages between two ranks");
    }
    if (values->in_place && !collective->may_be_in_place) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep bench: --in-place is supported for allreduce only; %s %s", name,
                       collective->in_place                      ? "always has one buffer"
                       : collective->receive == LS_BENCH_NOTHING ? "has no buffer"
                                                                 : "needs two buffers");
    }
    return LS_OK;
}

static ls_status check_backend(const char *name, int ranks) {
    const ls_backend *backend = ls_backend_find(name);
    if (backend == NULL) {
        char reason[LS_ERROR_CAPACITY];
        snprintf(reason, sizeof reason, "%s", ls_error_message());
        return ls_fail(LS_ERR_ARGUMENT, "lockstep bench: --backend: %s", reason);
    }
    if (backend == &ls_backend_self && ranks > 1) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep bench: --backend self supports one rank only: use -n 1, not -n %d",
                       ranks);
    }
    return LS_OK;
}

static ls_status make_plan(const bench_values *values, const char *name, ls_bench_plan *plan) {
    *plan = (ls_bench_plan){.collective = ls_bench_find(name),
                            .backend = values->backend,
                            .iterations = values->iterations,
                            .registered = values->registered,
                            .in_place = values->in_place,
                            .fresh = values->fresh,
                            .any_order = values->any_order,
                            .json = values->json,
                            .compute_ms = values->compute};
    if (plan->collective == NULL) {
        return LS_ERR_ARGUMENT;
    }
    LS_TRY(check_fit(values, plan->collective));
    LS_TRY(read_dtype(values->dtype != NULL ? values->dtype : "f32", &plan->dtype));
    LS_TRY(read_op(values->op != NULL ? values->op : "sum", &plan->reduction));
    if (plan->collective->reduces && ls_reduce_check("", plan->dtype, plan->reduction) != LS_OK) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep bench: --op %s is not defined for --dtype %s",
                       ls_reduction_name(plan->reduction), ls_dtype_name(plan->dtype));
    }
    if (plan->collective->receive == LS_BENCH_NOTHING) {
        plan->size_count = 1;
        return LS_OK;
    }
    return read_sizes(values->sizes != NULL ? values->sizes : "4,1K,64K,1M,16M,64M", plan);
}

/* Reads --simulate and its options, and rejects options that conflict with them. */
static ls_status read_cluster(const bench_values *values, ls_bench_cluster *cluster) {
    const struct {
        const char *name;
        bool given;
        bool models; /* requires --simulate */
    } given[] = {{"latency", values->latency != NULL, true},     {"bandwidth", values->bandwidth != NULL, true},
                 {"overhead", values->overhead != NULL, true},   {"eager", values->eager != NULL, true},
                 {"ranks", values->ranks != 0, false},           {"backend", values->backend != NULL, false},
                 {"iterations", values->iterations != 0, false}, {"registered", values->registered, false},
                 {"in-place", values->in_place, false},          {"fresh", values->fresh, false},
                 {"any-order", values->any_order, false},        {"compute", values->compute != 0, false}};
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++) {
        if (given[i].given && given[i].models != (values->simulate != 0)) {
            return ls_fail(LS_ERR_ARGUMENT, "lockstep bench: --%s %s", given[i].name,
                           given[i].models ? "is for --simulate P"
                                           : "cannot be combined with --simulate, which starts no ranks");
        }
    }
    if (values->simulate == 0) {
        return LS_OK;
    }
    if (values->latency == NULL || values->bandwidth == NULL) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "lockstep bench: --simulate needs --latency and --bandwidth, as in --simulate %d "
                       "--latency 2us --bandwidth 12GB/s",
                       values->simulate);
    }
    *cluster = (ls_bench_cluster){.ranks = values->simulate, .overhead_ns = 300, .eager = 8192};
    LS_TRY(ls_bench_read_time("latency", values->latency, &cluster->latency_ns));
    LS_TRY(ls_bench_read_rate("bandwidth", values->bandwidth, &cluster->bytes_per_ns));
    LS_TRY(values->overhead != NULL ? ls_bench_read_time("overhead", values->overhead, &cluster->overhead_ns) : LS_OK);
    LS_TRY(values->eager != NULL ? read_size("eager", values->eager, strlen(values->eager), &cluster->eager) : LS_OK);
    if (cluster->eager < LS_TRANSPORT_LEAST_EAGER) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep bench: --eager %s: must be at least %d bytes", values->eager,
                       LS_TRANSPORT_LEAST_EAGER);
    }
    return LS_OK;
}

/* Reads the options, which may precede or follow COLLECTIVE. */
static ls_status parse(int argc, char **argv, bench_values *values, const char **collective, bool *help) {
    int rest = 0;
    LS_TRY(ls_options_parse(&ls_bench_command, argc, argv, values, &rest, help));
    if (*help) {
        return LS_OK;
    }
    char names[256];
    if (rest == argc && values->simulate != 0) {
        *collective = "allreduce";
        return LS_OK;
    }
    if (rest == argc) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep bench: no COLLECTIVE given; available: %s",
                       ls_bench_names(names, sizeof names));
    }
    *collective = argv[rest];
    argc -= rest;
    argv += rest;
    LS_TRY(ls_options_parse(&ls_bench_command, argc, argv, values, &rest, help));
    if (!*help && rest < argc) {
        return ls_fail(
            LS_ERR_ARGUMENT,
            "lockstep bench: unexpected argument '%s': only one COLLECTIVE can be given (usage: lockstep bench %s)",
            argv[rest], ls_bench_command.usage);
    }
    return LS_OK;
}

/* ---- running it -------------------------------------------------------------------------------------------------- */

/* Returns true if argument `i` is this option, and then sets *count to the number of arguments that the option
 * occupies. */
static bool is_option(char **argv, int i, const char *name, char letter, int *count) {
    const size_t length = strlen(name);
    const bool is_long = strncmp(argv[i], "--", 2) == 0 && strncmp(argv[i] + 2, name, length) == 0;
    const bool is_short = letter != 0 && argv[i][0] == '-' && argv[i][1] == letter;
    const char *value = is_long ? argv[i] + 2 + length : argv[i] + 2;
    *count = (is_long || is_short) && *value == '\0' ? 2 : 1;
    return is_short || (is_long && (*value == '\0' || *value == '='));
}

/* Starts this program again as the ranks of a job, with the same arguments except the number of ranks and the
 * algorithm, which are in the environment. */
static ls_status start_ranks(int argc, char **argv, int ranks, int *exit_status) {
    char **words = ls_allocate_zeroed((size_t)argc + 2, sizeof *words);
    int count = 0;
    if (words == NULL) {
        return ls_fail_memory("lockstep bench", ((size_t)argc + 2) * sizeof *words);
    }
    words[count++] = "lockstep";
    for (int i = 0, width = 1; i < argc; i += width) {
        if (!is_option(argv, i, "ranks", 'n', &width) && !is_option(argv, i, "algorithm", 0, &width)) {
            words[count++] = argv[i];
            width = 1;
        }
    }
    char path[PATH_MAX];
    ls_cores cores;
    const ls_job_options job = {
        .path = ls_program_self(path), .argv = words, .cores = &cores, .ranks = ranks, .grace = 5.0};
    ls_job_outcome outcome = {0};
    ls_status status = ls_cores_share(&cores, ranks, true);
    if (status == LS_OK) {
        status = ls_job_run(&job, 0, &outcome);
    }
    ls_cores_release(&cores);
    ls_free(words);
    *exit_status = outcome.exit_status;
    return status;
}

/*
 * Returns whether a launcher, such as mpirun, started this process as a rank. If the environment is invalid, returns
 * true, so that ls_init reports the error.
 */
static bool is_rank(const char *backend) {
    ls_job job;
    return (getenv("RANK") != NULL && getenv("WORLD_SIZE") != NULL) ||
           ls_job_read(&job, &(ls_init_options){.backend = backend}) != LS_OK || job.size > 1;
}

/* ---- algorithms -------------------------------------------------------------------------------------------------- */

/* Returns the algorithms of the collective on the backend as bits. NULL selects shm. */
static uint32_t algorithms_of(const char *collective, const char *backend) {
    const bool shm = backend == NULL || strcmp(backend, "shm") == 0;
    const ls_algorithm_list list = shm ? ls_shm_algorithms : ls_engine_algorithms(backend);
    for (int operation = 0; operation < LS_OP_COUNT; operation++) {
        if (strcmp(ls_operation_name((ls_operation)operation), collective) == 0) {
            return list.calls[operation];
        }
    }
    return 0;
}

/* Adds "COLLECTIVE:NAME" to the list in the environment, which initially was `before`. */
static ls_status use_algorithm(const char *before, const char *collective, const char *name) {
    char text[MOST_ALGORITHMS];
    const int length = snprintf(text, sizeof text, "%s%s%s:%s", before != NULL ? before : "",
                                before != NULL && *before != '\0' ? "," : "", collective, name);
    if (length >= (int)sizeof text || setenv(LS_ALGORITHM_VARIABLE, text, 1) != 0) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep bench: --algorithm '%.40s': " LS_ALGORITHM_VARIABLE " is too long",
                       name);
    }
    return LS_OK;
}

/* Starts a job for each algorithm of the collective. */
static ls_status compare_algorithms(int argc, char **argv, const bench_values *values, const char *collective,
                                    int *exit_status) {
    const uint32_t all = algorithms_of(collective, values->backend);
    const char *given = getenv(LS_ALGORITHM_VARIABLE);
    char before[MOST_ALGORITHMS]; /* the environment changes below */
    snprintf(before, sizeof before, "%s", given != NULL ? given : "");
    ls_status status = LS_OK;
    if (all == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep bench: --algorithm all: %s has only one algorithm", collective);
    }
    for (int id = 1; id < LS_ALGORITHM_COUNT && status == LS_OK && *exit_status == 0; id++) {
        if ((all & LS_ALGORITHM_BIT(id)) != 0) {
            status = use_algorithm(before, collective, ls_algorithm_name((ls_algorithm_id)id));
            if (status == LS_OK && !values->json) {
                printf("# algorithm %s\n", ls_algorithm_name((ls_algorithm_id)id));
                fflush(stdout);
            }
            status = status == LS_OK
                         ? start_ranks(argc, argv, values->ranks != 0 ? values->ranks : USUAL_RANKS, exit_status)
                         : status;
        }
    }
    return status;
}

static ls_status run(int argc, char **argv, int *exit_status) {
    bench_values values = {0};
    const char *collective = NULL;
    bool help = false;
    LS_TRY(parse(argc, argv, &values, &collective, &help));
    if (help) {
        char names[256];
        ls_options_help(&ls_bench_command);
        printf("\ncollectives:\n  %s\n", ls_bench_names(names, sizeof names));
        return LS_OK;
    }
    ls_bench_plan plan;
    LS_TRY(make_plan(&values, collective, &plan));
    ls_bench_cluster cluster = {0};
    LS_TRY(read_cluster(&values, &cluster));
    if (values.algorithm != NULL && strcmp(values.algorithm, "all") != 0) {
        LS_TRY(use_algorithm(getenv(LS_ALGORITHM_VARIABLE), collective, values.algorithm));
    }
    if (values.simulate != 0) {
        return ls_bench_simulate(&plan, &cluster);
    }
    const bool in_job = values.ranks == 0 && is_rank(values.backend);
    const bool compares = values.algorithm != NULL && strcmp(values.algorithm, "all") == 0;
    if (compares && in_job) {
        return ls_fail(
            LS_ERR_ARGUMENT,
            "lockstep bench: --algorithm all starts a job for each algorithm, so it cannot run inside a job");
    }
    const int ranks = values.ranks != 0 ? values.ranks : USUAL_RANKS;
    if (values.backend != NULL) {
        LS_TRY(check_backend(values.backend, in_job ? 0 : ranks));
    }
    if (!in_job && values.backend != NULL && strcmp(values.backend, "mpi") == 0) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "lockstep bench: --backend mpi needs ranks that mpirun started: mpirun -np %d lockstep bench %s "
                       "--backend mpi",
                       ranks, collective);
    }
    if (compares) {
        return compare_algorithms(argc, argv, &values, collective, exit_status);
    }
    if (!in_job) {
        return start_ranks(argc, argv, ranks, exit_status);
    }
    bool wrong = false;
    LS_TRY(ls_bench_rank(&plan, &wrong));
    *exit_status = wrong ? LS_EXIT_FAILED : 0;
    return LS_OK;
}

static void list_values(const char *option, FILE *stream) {
    if (option == NULL) {
        char names[256];
        fputs(ls_bench_names(names, sizeof names), stream);
    } else if (strcmp(option, "backend") == 0) {
        for (const ls_doctor_check *check = ls_doctor_backends; check->name != NULL; check++) {
            fprintf(stream, "%s ", check->name);
        }
    } else if (strcmp(option, "dtype") == 0) {
        for (int i = 0; i < LS_DTYPE_COUNT; i++) {
            fprintf(stream, "%s ", ls_dtype_name((ls_dtype)i));
        }
    } else if (strcmp(option, "op") == 0) {
        for (int i = 0; i < LS_REDUCTION_COUNT; i++) {
            fprintf(stream, "%s ", ls_reduction_name((ls_reduction)i));
        }
    } else if (strcmp(option, "algorithm") == 0) {
        for (int id = 1; id < LS_ALGORITHM_COUNT; id++) {
            fprintf(stream, "%s ", ls_algorithm_name((ls_algorithm_id)id));
        }
        fputs("all", stream);
    }
}

const ls_command ls_bench_command = {
    .name = "bench",
    .summary = "measure a collective, by size, and check its results",
    .usage = "COLLECTIVE [options]",
    .about =
        "Starts N ranks on this machine, times a collective for buffers of each size, and checks the results. The\n"
        "time of an iteration is the slowest rank's time. A barrier before each iteration is not timed. Calls\n"
        "shorter than 10 us are timed in groups: one iteration is the mean of a group.\n",
    .notes =
        "examples:\n"
        "  lockstep bench allreduce -n 4\n"
        "  lockstep bench allreduce --sizes 1K,1M --dtype bf16 --op avg --registered\n"
        "  lockstep bench allreduce --in-place --fresh          as for gradients\n"
        "  lockstep bench broadcast --json | python3 plot.py\n"
        "  lockstep bench allreduce --backend tcp -n 8 --algorithm all   compare the algorithms\n"
        "  lockstep run -n 2 --no-bind lockstep bench allreduce    inside a job, without -n: a rank of the job\n"
        "  mpirun -np 2 lockstep bench allreduce                   the same under mpirun\n"
        "  lockstep bench allreduce --simulate 1024 --latency 2us --bandwidth 12GB/s\n"
        "\n"
        "columns, and the keys of --json (collective backend ranks bytes iterations median_us p10_us p90_us\n"
        "algbw_gbps busbw_gbps compute_ms messages sent_bytes correct algorithm):\n"
        "  median   with --compute: of the time beyond the computation\n"
        "  bytes    size of a rank's larger buffer: whole elements, at least one for each rank that gets a part\n"
        "  algbw    bytes / median, in 10^9 bytes per second\n"
        "           (pingpong: half the time from rank 2k to rank 2k+1 and back)\n"
        "  busbw    algbw times the factor of nccl-tests: all-reduce 2(n-1)/n; reduce-scatter, all-gather,\n"
        "           gather, scatter and all-to-all (n-1)/n; others 1\n"
        "  messages, sent  messages and bytes of one call, agreement included, of the rank that sends most; - (null)\n"
        "           on backends that do not count: shm, self and gloo\n"
        "  algorithm  algorithm of the call, on backends with several; an algorithm that cannot make a call (its "
        "size,\n"
        "           the number of ranks) is replaced by the default\n"
        "  correct  whether all results were right, before and after the timed calls\n"
        "\n"
        "columns with --simulate, and its keys of --json (collective ranks bytes us messages sent_bytes textbook\n"
        "textbook_us textbook_messages textbook_sent_bytes):\n"
        "  lockstep us  time until the last rank has its result, in the LogGP model: all messages of Lockstep,\n"
        "           agreement included; computation is free\n"
        "  textbook  fastest well-known algorithm in the same model, without agreement\n"
        "\n"
        "exit status:\n"
        "  0    all results were correct\n"
        "  1    a result was wrong, or a rank failed\n"
        "  2    wrong command line\n",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .list_values = list_values,
    .run = run,
};
