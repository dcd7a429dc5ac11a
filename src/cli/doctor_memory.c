#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "cli/cli.h"
#include "cli/doctor.h"

enum { LINE = 256, FEW_FILES = 1024 };
static const uint64_t SMALL_SHM = (uint64_t)256 << 20;

/* ---- memory ---------------------------------------------------------------------------------------------------- */

/* Returns a value of /proc/meminfo in bytes, or 0 if it is missing. */
static uint64_t read_meminfo(const char *name) {
    char kilobytes[LINE] = "";
    (void)ls_report_read_field("/proc/meminfo", name, kilobytes, sizeof kilobytes);
    return strtoull(kilobytes, NULL, 10) * 1024U;
}

static void report_bytes(ls_doctor_report *report, const char *key, uint64_t bytes) {
    ls_report_fact(report, key, json_integer((json_int_t)bytes), "%s", ls_size_describe((int64_t)bytes).text);
}

static void check_group_limit(ls_doctor_report *report) {
    char line[LINE];
    const bool found = ls_report_read_line("/sys/fs/cgroup/memory.max", line, sizeof line);
    if (found && line[0] >= '0' && line[0] <= '9') {
        report_bytes(report, "group_limit_bytes", strtoull(line, NULL, 10));
    } else {
        ls_report_fact(report, "group_limit_bytes", json_null(), "none");
    }
}

/* Backend shm itself does not use /dev/shm: its memory has no name. */
static void check_shm(ls_doctor_report *report) {
    struct statvfs about;
    if (statvfs("/dev/shm", &about) != 0) {
        ls_report_fact(report, "shm_bytes", json_null(), "/dev/shm is missing");
        ls_report_fact(report, "shm_free_bytes", json_null(), "/dev/shm is missing");
        ls_report_note(report, "there is no /dev/shm: MPI and other libraries want it (backend shm does not)");
        return;
    }
    const uint64_t total = (uint64_t)about.f_blocks * about.f_frsize;
    report_bytes(report, "shm_bytes", total);
    report_bytes(report, "shm_free_bytes", (uint64_t)about.f_bavail * about.f_frsize);
    if (total < SMALL_SHM) {
        ls_report_note(report,
                       "/dev/shm holds %s, as in a container: MPI and other libraries may want more (backend shm does "
                       "not use it)",
                       ls_size_describe((int64_t)total).text);
    }
}

void ls_doctor_memory(ls_doctor_report *report) {
    report_bytes(report, "total_bytes", read_meminfo("MemTotal"));
    report_bytes(report, "available_bytes", read_meminfo("MemAvailable"));
    check_group_limit(report);
    check_shm(report);
}

/* ---- limits ---------------------------------------------------------------------------------------------------- */

static void check_locked_memory(ls_doctor_report *report) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        ls_report_fact(report, "locked_memory_bytes", json_null(), "unlimited");
    } else {
        report_bytes(report, "locked_memory_bytes", limit.rlim_cur);
    }
}

static void check_open_files(ls_doctor_report *report) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        ls_report_fact(report, "open_files", json_null(), "unlimited");
        return;
    }
    const unsigned long long most = limit.rlim_cur;
    ls_report_fact(report, "open_files", json_integer((json_int_t)most), "%llu", most);
    if (most < FEW_FILES) {
        ls_report_note(report,
                       "%llu open files are few: rank 0 of a large job and its launcher hold some per rank "
                       "(ulimit -n)",
                       most);
    }
}

/* Checks, by the setting of the Yama module, whether a rank may read another rank's memory (process_vm_readv). */
static void check_ptrace(ls_doctor_report *report) {
    static const char *const meanings[] = {
        "ranks may read each other's memory", "ranks may not read each other's memory without being asked (Yama)",
        "only root may read other processes' memory (Yama)", "nobody may read other processes' memory (Yama)"};
    char line[LINE];
    if (!ls_report_read_line("/proc/sys/kernel/yama/ptrace_scope", line, sizeof line)) {
        ls_report_fact(report, "ptrace_scope", json_null(), "none: %s", meanings[0]);
        return;
    }
    const int scope = atoi(line);
    ls_report_fact(report, "ptrace_scope", json_integer(scope), "%d: %s", scope,
                   meanings[scope < 0 || scope > 3 ? 3 : scope]);
}

void ls_doctor_limits(ls_doctor_report *report) {
    check_locked_memory(report);
    check_open_files(report);
    check_ptrace(report);
}
