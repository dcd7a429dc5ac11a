#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/doctor.h"

enum { LINE = 256 };

/* ---- whether two cores are two --------------------------------------------------------------------------------- */

enum { START_NS = 500000, SPIN_NS = 4000000, SPIN_ROUNDS = 3, CHAINS = 6 };
static const double ONE_CORE = 1.5; /* two that do less than this together look like one */
static const double UNSHARED = 0.9; /* of the time that a thread wanted: with less, others used its core */

typedef struct spinner {
    uint64_t start;
    uint64_t work;
    double share; /* of the time that it wanted it was given this much */
} spinner;

static uint64_t thread_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000U + (uint64_t)time.tv_nsec;
}

/* Independent chains of arithmetic, which fill a core: two threads of one core take it from each other. */
static void *spin(void *argument) {
    spinner *self = argument;
    uint64_t chain[CHAINS] = {1, 2, 3, 4, 5, 6};
    while (ls_clock_ns() < self->start) {
    }
    const uint64_t began = thread_ns();
    while (ls_clock_ns() < self->start + SPIN_NS) {
        for (int i = 0; i < 500; i++) {
            for (int j = 0; j < CHAINS; j++) {
                chain[j] = chain[j] * 6364136223846793005U + 1442695040888963407U;
            }
        }
        volatile uint64_t kept = chain[0] ^ chain[1] ^ chain[2] ^ chain[3] ^ chain[4] ^ chain[5];
        (void)kept;
        self->work++;
    }
    self->share = (double)(thread_ns() - began) / SPIN_NS;
    return NULL;
}

/* The work that threads on these cores do at once; 0 where they cannot be started, or other programs are in the way. */
static double work_on(const int *cores, int count) {
    pthread_t threads[2];
    spinner spinners[2] = {{0}};
    const uint64_t start = ls_clock_ns() + START_NS;
    int started = 0;
    int failure = 0;
    while (started < count && failure == 0) {
        cpu_set_t set;
        pthread_attr_t attributes;
        CPU_ZERO(&set);
        CPU_SET((unsigned)cores[started], &set);
        pthread_attr_init(&attributes);
        pthread_attr_setaffinity_np(&attributes, sizeof set, &set);
        spinners[started].start = start;
        failure = pthread_create(&threads[started], &attributes, spin, &spinners[started]);
        pthread_attr_destroy(&attributes);
        started += failure == 0;
    }
    double work = 0.0;
    bool alone = true;
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
        work += (double)spinners[i].work;
        alone = alone && spinners[i].share >= UNSHARED;
    }
    return failure == 0 && alone ? work : 0.0;
}

static double larger(double left, double right) {
    return left > right ? left : right;
}

/* The work of both cores at once by that of one alone: 2 where they are two; each the best of a few; 0: unknown. */
static double pair_speedup(const int cores[2]) {
    double alone[2] = {0.0};
    double both = 0.0;
    for (int round = 0; round < SPIN_ROUNDS; round++) {
        alone[0] = larger(alone[0], work_on(&cores[0], 1));
        alone[1] = larger(alone[1], work_on(&cores[1], 1));
        both = larger(both, work_on(cores, 2));
    }
    return alone[0] > 0.0 && alone[1] > 0.0 ? 2.0 * both / (alone[0] + alone[1]) : 0.0;
}

/* ---- what the kernel says -------------------------------------------------------------------------------------- */

/* The value of the first line "name : value" of /proc/cpuinfo; empty where there is none. */
static void read_cpuinfo(const char *name, char *value, size_t capacity) {
    char line[8192];
    FILE *file = fopen("/proc/cpuinfo", "re");
    value[0] = '\0';
    while (file != NULL && value[0] == '\0' && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (colon != NULL && strncmp(line, name, strlen(name)) == 0) {
            snprintf(value, capacity, "%.*s", (int)strcspn(colon + 1 + strspn(colon + 1, " \t"), "\n"),
                     colon + 1 + strspn(colon + 1, " \t"));
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

/* The first of the hardware threads that share the core of `cpu`: its own number where it has the core alone. */
static int first_sibling(int cpu) {
    char path[128];
    char line[LINE];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    return ls_report_read_line(path, line, sizeof line) ? atoi(line) : cpu;
}

/* Cores' worth of time that the control group allows; 0: no limit. */
static double read_quota(void) {
    char line[LINE];
    double quota = 0.0;
    double period = 0.0;
    const bool found = ls_report_read_line("/sys/fs/cgroup/cpu.max", line, sizeof line);
    return found && sscanf(line, "%lf %lf", &quota, &period) == 2 && period > 0.0 ? quota / period : 0.0;
}

/* ---- facts ----------------------------------------------------------------------------------------------------- */

typedef struct usable_cores {
    int count;
    int physical;
    int pair[2];     /* on two physical cores, if there are two */
    json_t *list;    /* their numbers */
    char text[LINE]; /* the same as "0-3,8" */
} usable_cores;

static void add_range(usable_cores *self, int first, int last) {
    const size_t length = strlen(self->text);
    snprintf(self->text + length, sizeof self->text - length, first == last ? "%s%d" : "%s%d-%d", length > 0 ? "," : "",
             first, last);
}

static void find_usable(usable_cores *self) {
    cpu_set_t set;
    CPU_ZERO(&set);
    *self = (usable_cores){.list = json_array()};
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return;
    }
    int first = -1;
    for (int cpu = 0; cpu <= CPU_SETSIZE; cpu++) {
        const bool usable = cpu < CPU_SETSIZE && CPU_ISSET((unsigned)cpu, &set);
        if (!usable && first >= 0) {
            add_range(self, first, cpu - 1);
        }
        first = !usable ? -1 : first < 0 ? cpu : first;
        if (!usable) {
            continue;
        }
        self->count++;
        json_array_append_new(self->list, json_integer(cpu));
        const int sibling = first_sibling(cpu);
        if (sibling == cpu || !CPU_ISSET((unsigned)sibling, &set)) {
            if (self->physical < 2) {
                self->pair[self->physical] = cpu;
            }
            self->physical++;
        }
    }
}

/* What a speedup of two cores says; 0: other programs were in the way. */
static void report_pair(ls_report *report, const int pair[2], double speedup) {
    if (speedup == 0.0) {
        ls_report_fact(report, "pair_speedup", json_null(), "not measured: other programs are using cores %d and %d",
                       pair[0], pair[1]);
        return;
    }
    ls_report_fact(report, "pair_speedup", json_real(speedup), "cores %d and %d together do %.2f times the work of one",
                   pair[0], pair[1], speedup);
    if (speedup < ONE_CORE) {
        ls_report_note(report, "cores %d and %d look like one core: hardware threads of a virtual machine may", pair[0],
                       pair[1]);
    }
}

static void check_pair(ls_report *report, const usable_cores *usable) {
    if (usable->physical < 2) {
        ls_report_fact(report, "pair_speedup", json_null(), "not measured: there is one core");
    } else {
        report_pair(report, usable->pair, pair_speedup(usable->pair));
    }
}

void ls_doctor_cores(ls_report *report) {
    char model[LINE];
    char flags[8192];
    usable_cores usable;
    find_usable(&usable);
    read_cpuinfo("model name", model, sizeof model);
    read_cpuinfo("flags", flags, sizeof flags);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const bool is_virtual = strstr(flags, " hypervisor") != NULL;
    const double quota = read_quota();
    ls_report_fact(report, "model", ls_report_text(model), "%s", model[0] != '\0' ? model : "unknown");
    ls_report_fact(report, "online", json_integer(online), "%ld", online);
    ls_report_fact(report, "usable", usable.list, "%d: %s", usable.count, usable.text);
    ls_report_fact(report, "physical", json_integer(usable.physical), "%d", usable.physical);
    if (usable.physical < usable.count) {
        ls_report_note(report,
                       "%d usable processors are hardware threads of %d cores: more ranks than cores share them",
                       usable.count, usable.physical);
    }
    if (quota > 0.0) {
        ls_report_fact(report, "quota", json_real(quota), "%.2f cores' worth of time", quota);
    } else {
        ls_report_fact(report, "quota", json_null(), "none");
    }
    if (quota > 0.0 && quota < usable.count) {
        ls_report_note(report,
                       "the control group allows the time of %.2f cores: ranks that wait for each other will be "
                       "halted now and then",
                       quota);
    }
    ls_report_fact(report, "virtual_machine", json_boolean(is_virtual), is_virtual ? "yes" : "no");
    check_pair(report, &usable);
}
