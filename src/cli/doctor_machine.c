/* The machine: cores, memory, limits. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/doctor.h"

enum { LINE = 256, FEW_FILES = 1024 };
static const uint64_t SMALL_SHM = (uint64_t)256 << 20;

/* ---- cores ------------------------------------------------------------------------------------------------------- */

/* Returns the first hardware thread of the core that contains `cpu`: `cpu` itself if it is the only one. */
static int first_sibling(int cpu) {
    char path[128];
    char line[LINE];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    return ls_report_read_line(path, line, sizeof line) ? atoi(line) : cpu;
}

/* Returns the CPU quota of the cgroup, in cores, or 0 if there is no quota. */
static double read_quota(void) {
    char line[LINE];
    double quota = 0.0;
    double period = 0.0;
    const bool found = ls_report_read_line("/sys/fs/cgroup/cpu.max", line, sizeof line);
    return found && sscanf(line, "%lf %lf", &quota, &period) == 2 && period > 0.0 ? quota / period : 0.0;
}

typedef struct usable_cores {
    int count;
    int physical;
    json_t *list;    /* numbers of the cores */
    char text[LINE]; /* the same list as text, such as "0-3,8" */
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
            self->physical++;
        }
    }
}

static void check_model(ls_doctor_report *report, const ls_doctor_check *check) {
    char model[LINE] = "";
    (void)ls_report_read_field("/proc/cpuinfo", "model name", model, sizeof model);
    ls_report_fact(report, check->name, ls_report_text(model), "%s", model[0] != '\0' ? model : "unknown");
}

static void check_online(ls_doctor_report *report, const ls_doctor_check *check) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    ls_report_fact(report, check->name, json_integer(online), "%ld", online);
}

/* Reports the number of usable cores, how many of them are physical, and the CPU quota. */
static void check_usable(ls_doctor_report *report, const ls_doctor_check *check) {
    usable_cores usable;
    const double quota = read_quota();
    find_usable(&usable);
    ls_report_fact(report, check->name, usable.list, "%d: %s", usable.count, usable.text);
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
                       "the control group limits this process to the time of %.2f cores: the kernel will pause ranks "
                       "at times, and other ranks then wait for them",
                       quota);
    }
}

static void check_virtual_machine(ls_doctor_report *report, const ls_doctor_check *check) {
    char flags[8192] = "";
    (void)ls_report_read_field("/proc/cpuinfo", "flags", flags, sizeof flags);
    const bool is_virtual = strstr(flags, " hypervisor") != NULL;
    ls_report_fact(report, check->name, json_boolean(is_virtual), is_virtual ? "yes" : "no");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void report_bytes(ls_doctor_report *report, const char *key, uint64_t bytes) {
    ls_report_fact(report, key, json_integer((json_int_t)bytes), "%s", ls_size_describe((int64_t)bytes).text);
}

/* Reports a value of /proc/meminfo, or 0 if it is missing. The check's data is the name of the value in this file. */
static void check_meminfo(ls_doctor_report *report, const ls_doctor_check *check) {
    char kilobytes[LINE] = "";
    (void)ls_report_read_field("/proc/meminfo", check->data, kilobytes, sizeof kilobytes);
    report_bytes(report, check->name, strtoull(kilobytes, NULL, 10) * 1024U);
}

static void check_group_limit(ls_doctor_report *report, const ls_doctor_check *check) {
    char line[LINE];
    const bool found = ls_report_read_line("/sys/fs/cgroup/memory.max", line, sizeof line);
    if (found && line[0] >= '0' && line[0] <= '9') {
        report_bytes(report, check->name, strtoull(line, NULL, 10));
    } else {
        ls_report_fact(report, check->name, json_null(), "none");
    }
}

/* Backend shm itself does not use /dev/shm: its memory has no name. */
static void check_shm(ls_doctor_report *report, const ls_doctor_check *check) {
    struct statvfs about;
    if (statvfs("/dev/shm", &about) != 0) {
        ls_report_fact(report, check->name, json_null(), "/dev/shm is missing");
        ls_report_fact(report, "shm_free_bytes", json_null(), "/dev/shm is missing");
        ls_report_note(report, "there is no /dev/shm: MPI and other libraries need it (backend shm does not)");
        return;
    }
    const uint64_t total = (uint64_t)about.f_blocks * about.f_frsize;
    report_bytes(report, check->name, total);
    report_bytes(report, "shm_free_bytes", (uint64_t)about.f_bavail * about.f_frsize);
    if (total < SMALL_SHM) {
        ls_report_note(
            report,
            "/dev/shm holds %s, as in a container: MPI and other libraries may need more (backend shm does not use it)",
            ls_size_describe((int64_t)total).text);
    }
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

static void check_locked_memory(ls_doctor_report *report, const ls_doctor_check *check) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        ls_report_fact(report, check->name, json_null(), "unlimited");
    } else {
        report_bytes(report, check->name, limit.rlim_cur);
    }
}

static void check_open_files(ls_doctor_report *report, const ls_doctor_check *check) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        ls_report_fact(report, check->name, json_null(), "unlimited");
        return;
    }
    const unsigned long long most = limit.rlim_cur;
    ls_report_fact(report, check->name, json_integer((json_int_t)most), "%llu", most);
    if (most < FEW_FILES) {
        ls_report_note(report,
                       "the limit of %llu open files is low: rank 0 of a large job and its launcher need several per "
                       "rank (ulimit -n)",
                       most);
    }
}

/* Checks whether the setting of the Yama module allows a rank to read another rank's memory (process_vm_readv). */
static void check_ptrace(ls_doctor_report *report, const ls_doctor_check *check) {
    static const char *const meanings[] = {"ranks may read each other's memory",
                                           "ranks may read each other's memory only with the owner's permission (Yama)",
                                           "only root may read other processes' memory (Yama)",
                                           "nobody may read other processes' memory (Yama)"};
    char line[LINE];
    if (!ls_report_read_line("/proc/sys/kernel/yama/ptrace_scope", line, sizeof line)) {
        ls_report_fact(report, check->name, json_null(), "none: %s", meanings[0]);
        return;
    }
    const int scope = atoi(line);
    ls_report_fact(report, check->name, json_integer(scope), "%d: %s", scope,
                   meanings[scope < 0 || scope > 3 ? 3 : scope]);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

const ls_doctor_check ls_doctor_machine[] = {
    {"model", "cores", check_model, NULL},
    {"online", "cores", check_online, NULL},
    {"usable", "cores", check_usable, NULL},
    {"virtual_machine", "cores", check_virtual_machine, NULL},
    {"total_bytes", "memory", check_meminfo, "MemTotal"},
    {"available_bytes", "memory", check_meminfo, "MemAvailable"},
    {"group_limit_bytes", "memory", check_group_limit, NULL},
    {"shm_bytes", "memory", check_shm, NULL},
    {"locked_memory_bytes", "limits", check_locked_memory, NULL},
    {"open_files", "limits", check_open_files, NULL},
    {"ptrace_scope", "limits", check_ptrace, NULL},
    {NULL, NULL, NULL, NULL},
};
