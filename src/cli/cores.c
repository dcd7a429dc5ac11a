#include "cli/cores.h"

#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/share.h"
#include "base/status.h"

/*
 * Loads only the cores and hardware threads to which this process is bound. Devices, caches, plug-ins and the x86
 * probe, which visits every core, would make the start of a job slow on large machines. Returns NULL if hwloc fails.
 */
static hwloc_topology_t load_topology(void) {
    static const char plugins[] = "HWLOC_PLUGINS_PATH";
    const bool hide_plugins = getenv(plugins) == NULL && setenv(plugins, "", 1) == 0;
    hwloc_topology_t topology = NULL;
    hwloc_bitmap_t mine = hwloc_bitmap_alloc();
    bool loaded = mine != NULL && hwloc_topology_init(&topology) == 0;
    if (loaded) {
        hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
        hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
        hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
        loaded = hwloc_topology_load(topology) == 0;
    }
    if (loaded && hwloc_get_cpubind(topology, mine, HWLOC_CPUBIND_PROCESS) == 0) {
        hwloc_topology_restrict(topology, mine, 0);
    }
    hwloc_bitmap_free(mine);
    if (hide_plugins) {
        unsetenv(plugins);
    }
    if (!loaded && topology != NULL) {
        hwloc_topology_destroy(topology);
        topology = NULL;
    }
    return topology;
}

/*
 * Returns the units of a rank: its own share, or a share that several neighboring ranks use together if the number of
 * ranks is a multiple of the number of units.
 */
static ls_share units_of(int count, int ranks, int rank) {
    return ranks > count ? (ls_share){.start = rank / (ranks / count), .count = 1} : ls_share_of(count, ranks, rank);
}

static ls_status make_sets(ls_cores *cores, hwloc_topology_t topology, hwloc_obj_type_t unit, int count, int ranks) {
    const int highest = hwloc_bitmap_last(hwloc_topology_get_topology_cpuset(topology));
    cores->set_size = CPU_ALLOC_SIZE((size_t)highest + 1);
    cores->sets = ls_allocate_zeroed((size_t)ranks, cores->set_size);
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (cores->sets == NULL || set == NULL) {
        hwloc_bitmap_free(set);
        return ls_fail_memory("lockstep run", (size_t)ranks * cores->set_size);
    }
    for (int rank = 0; rank < ranks; rank++) {
        const ls_share units = units_of(count, ranks, rank);
        hwloc_bitmap_zero(set);
        for (int64_t i = units.start; i < units.start + units.count; i++) {
            const hwloc_obj_t object = hwloc_get_obj_by_type(topology, unit, (unsigned)i);
            hwloc_bitmap_or(set, set, object->cpuset);
        }
        cpu_set_t *place = (cpu_set_t *)((char *)cores->sets + (size_t)rank * cores->set_size);
        hwloc_cpuset_to_glibc_sched_affinity(topology, set, place, cores->set_size);
    }
    hwloc_bitmap_free(set);
    return LS_OK;
}

ls_status ls_cores_share(ls_cores *cores, int ranks, bool bind) {
    *cores = (ls_cores){.threads = 1};
    hwloc_topology_t topology = load_topology();
    if (topology == NULL) {
        return LS_OK; /* the job still runs if the machine does not report its cores */
    }
    const int core_count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    const int thread_count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    const bool whole_cores = core_count >= ranks;
    const int count = whole_cores ? core_count : thread_count;
    cores->threads = count > ranks ? count / ranks : 1;
    ls_status status = LS_OK;
    const bool even = count > 0 && (count >= ranks || ranks % count == 0);
    if (bind && ranks > 1 && even) {
        status = make_sets(cores, topology, whole_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU, count, ranks);
    }
    hwloc_topology_destroy(topology);
    return status;
}

const cpu_set_t *ls_cores_of_rank(const ls_cores *cores, int rank) {
    return cores->sets != NULL ? (const cpu_set_t *)((const char *)cores->sets + (size_t)rank * cores->set_size) : NULL;
}

void ls_cores_release(ls_cores *cores) {
    ls_free(cores->sets);
    cores->sets = NULL;
}
