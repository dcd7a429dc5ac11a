#include "comm/store_roster.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "comm/backend.h"

ls_status ls_roster_make(ls_roster *roster, int size) {
    ls_rank_state *states = ls_allocate_zeroed((size_t)size, sizeof *states);
    ls_peer_info *peer_infos = ls_allocate_zeroed((size_t)size, sizeof *peer_infos);
    if (states == NULL || peer_infos == NULL) {
        ls_free(states);
        ls_free(peer_infos);
        return ls_fail(LS_ERR_MEMORY, "out of memory for a list of %d ranks", size);
    }
    roster->size = size;
    roster->states = states;
    roster->peer_infos = peer_infos;
    return LS_OK;
}

void ls_roster_free(ls_roster *roster) {
    ls_free(roster->states);
    ls_free(roster->peer_infos);
    *roster = (ls_roster){0};
}

static int count_of(const ls_roster *roster, ls_rank_state state) {
    int count = 0;
    for (int rank = 0; rank < roster->size; rank++) {
        count += roster->states[rank] == state;
    }
    return count;
}

ls_status ls_peer_info_compare_builds(int rank, const ls_peer_info *peer_info, int other, const ls_peer_info *others) {
    return strcmp(peer_info->build, others->build) == 0
               ? LS_OK
               : ls_fail(
                     LS_ERR_MISMATCH,
                     "rank %d (process %s on %s) runs Lockstep %s, but rank %d (process %s on %s) runs Lockstep %s: "
                     "run the same build of Lockstep on all ranks",
                     rank, peer_info->process, peer_info->host, peer_info->build, other, others->process, others->host,
                     others->build);
}

/* Returns the first rank that has arrived. */
static int find_here(const ls_roster *roster) {
    int rank = 0;
    while (rank < roster->size && roster->states[rank] == LS_RANK_MISSING) {
        rank++;
    }
    return rank;
}

ls_status ls_roster_enter(ls_roster *roster, int rank, int size, const ls_peer_info *peer_info) {
    if (roster->size == 0) {
        LS_TRY(ls_roster_make(roster, size));
    }
    if (size != roster->size) {
        return ls_fail(LS_ERR_MISMATCH, "process %s on %s reports a world of %d ranks, but other processes report %d",
                       peer_info->process, peer_info->host, size, roster->size);
    }
    if (roster->states[rank] != LS_RANK_MISSING) {
        const ls_peer_info *first = &roster->peer_infos[rank];
        return ls_fail(LS_ERR_ARGUMENT, "two processes joined as rank %d: process %s on %s and process %s on %s", rank,
                       first->process, first->host, peer_info->process, peer_info->host);
    }
    const int first = find_here(roster);
    LS_TRY(first < size ? ls_peer_info_compare_builds(rank, peer_info, first, &roster->peer_infos[first]) : LS_OK);
    roster->peer_infos[rank] = *peer_info;
    roster->states[rank] = LS_RANK_HERE;
    roster->complete = count_of(roster, LS_RANK_MISSING) == 0;
    return LS_OK;
}

bool ls_roster_is_over(const ls_roster *roster) {
    return count_of(roster, LS_RANK_MISSING) == 0 && count_of(roster, LS_RANK_HERE) == 0;
}

/* Writes the ranks in the state `state`, "rank 3" or "ranks 0, 2 and 5", naming only the first few. Returns `text`. */
static const char *text_of(const ls_roster *roster, ls_rank_state state, char *text, size_t capacity) {
    enum { NAMED = 16 };
    const int total = count_of(roster, state);
    const int named = total > NAMED ? NAMED - 1 : total;
    size_t used = (size_t)snprintf(text, capacity, total == 1 ? "rank " : "ranks ");
    int seen = 0;
    for (int rank = 0; rank < roster->size && seen < named && used < capacity; rank++) {
        if (roster->states[rank] == state) {
            const char *between = seen == 0 ? "" : seen + 1 == total ? " and " : ", ";
            used += (size_t)snprintf(text + used, capacity - used, "%s%d", between, rank);
            seen++;
        }
    }
    if (total > named && used < capacity) {
        snprintf(text + used, capacity - used, " and %d more", total - named);
    }
    return text;
}

/* Writes the hosts of the ranks that have arrived, without duplicates: "node1, node2 and others". */
static void list_hosts(const ls_roster *roster, char *text, size_t capacity) {
    enum { NAMED = 6 };
    const char *hosts[NAMED];
    int count = 0;
    size_t used = 0;
    for (int rank = 0; rank < roster->size; rank++) {
        int known = 0;
        while (known < count && strcmp(hosts[known], roster->peer_infos[rank].host) != 0) {
            known++;
        }
        if (roster->states[rank] != LS_RANK_HERE || known < count) {
            continue;
        }
        if (count == NAMED) {
            snprintf(text + used, capacity - used, " and others");
            return;
        }
        hosts[count++] = roster->peer_infos[rank].host;
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", used > 0 ? ", " : "", hosts[known]);
    }
}

void ls_roster_report_missing(const ls_roster *roster) {
    char missing[160];
    char here[160];
    char hosts[512] = "nowhere";
    list_hosts(roster, hosts, sizeof hosts);
    ls_log_write(LS_LOG_WARNING, "waiting for %s of %d; %s joined from %s",
                 text_of(roster, LS_RANK_MISSING, missing, sizeof missing), roster->size,
                 text_of(roster, LS_RANK_HERE, here, sizeof here), hosts);
}

ls_deadline ls_roster_tell_staying(ls_roster *roster, bool waiting) {
    ls_rank_list staying = {.count = 0};
    char left[160];
    char more[192];
    for (int rank = 0; waiting && rank < roster->size; rank++) {
        if (roster->states[rank] == LS_RANK_HERE) {
            ls_rank_list_add(&staying, rank);
        }
    }
    if (staying.count == 0) {
        roster->leaving_ns = roster->told_ns = 0;
        return LS_DEADLINE_NEVER;
    }
    const uint64_t now = ls_clock_ns();
    roster->leaving_ns = roster->leaving_ns != 0 ? roster->leaving_ns : now;
    snprintf(more, sizeof more, "; %s called it", text_of(roster, LS_RANK_LEFT, left, sizeof left));
    ls_comm_tell_waiting(&(ls_waiting){
        .awaited = &staying, .waited_ns = now - roster->leaving_ns, .told_ns = &roster->told_ns, .more = more});
    return ls_deadline_after(1);
}

ls_status ls_roster_fail_missing(const ls_roster *roster, double seconds) {
    char missing[160];
    char refused[80] = "";
    if (roster->refused > 0) {
        snprintf(refused, sizeof refused, " (refused because of a wrong or missing key: %d)", roster->refused);
    }
    return ls_fail(LS_ERR_TIMEOUT, "%s of %d did not join within %g s%s",
                   text_of(roster, LS_RANK_MISSING, missing, sizeof missing), roster->size, seconds, refused);
}

ls_status ls_roster_fail_staying(const ls_roster *roster, double seconds) {
    char here[160];
    return ls_fail(LS_ERR_TIMEOUT, "%s of %d did not call ls_finalize within %g s",
                   text_of(roster, LS_RANK_HERE, here, sizeof here), roster->size, seconds);
}

ls_status ls_roster_check_deaths(const ls_roster *roster) {
    const int count = count_of(roster, LS_RANK_DEAD);
    if (count == 0) {
        return LS_OK;
    }
    const char *when = roster->complete ? "without ls_finalize" : "while the ranks were meeting";
    char dead[160];
    text_of(roster, LS_RANK_DEAD, dead, sizeof dead);
    if (count > 1) {
        return ls_fail(LS_ERR_PEER, "%s of %d ended %s", dead, roster->size, when);
    }
    int rank = 0;
    while (roster->states[rank] != LS_RANK_DEAD) {
        rank++;
    }
    return ls_fail(LS_ERR_PEER, "%s of %d (process %s on %s) ended %s", dead, roster->size,
                   roster->peer_infos[rank].process, roster->peer_infos[rank].host, when);
}

int ls_roster_find_elsewhere(const ls_roster *world, int rank) {
    for (int other = 0; other < world->size; other++) {
        if (strcmp(world->peer_infos[other].machine, world->peer_infos[rank].machine) != 0) {
            return other;
        }
    }
    return -1;
}

bool ls_roster_can_share(const ls_roster *world) {
    return ls_roster_find_elsewhere(world, 0) < 0 && world->size <= LS_RANKS_MAX;
}
