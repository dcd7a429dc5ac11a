#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/doctor.h"

enum { LINE = 256 };

/* ---- what the kernel says -------------------------------------------------------------------------------------- */

/* Returns the first hardware thread of the core of `cpu`: `cpu` itself if it is the only one. */
static int first_sibling(int cpu) {
    char path[128];
    char line[LINE];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    return ls_report_read_line(path, line, sizeof line) ? atoi(line) : cpu;
}

/* Returns the CPU quota of the cgroup, in cores; 0: no quota. */
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
    json_t *list;    /* their numbers */
    char text[LINE]; /* the same list as "0-3,8" */
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

void ls_doctor_cores(ls_doctor_report *report) {
    static const char cpuinfo[] = "/proc/cpuinfo";
    char model[LINE] = "";
    char flags[8192] = "";
    usable_cores usable;
    find_usable(&usable);
    (void)ls_report_read_field(cpuinfo, "model name", model, sizeof model);
    (void)ls_report_read_field(cpuinfo, "flags", flags, sizeof flags);
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
}
