/*
 * Who of a job is here, missing, gone or dead, and the sentences that say so. The TCP server keeps one from its
 * connections; the store in a folder fills one from its files.
 */
#ifndef LS_COMM_STORE_ROSTER_H
#define LS_COMM_STORE_ROSTER_H

#include "base/wait.h"
#include "comm/channel/build.h"
#include "comm/store_message.h"

#define LS_REPORT_SECONDS 5.0 /* between two reports about the ranks that are missing */

/* What a rank tells the others about itself when it joins: texts, each ended and filled up with NULs. */
typedef struct ls_peer_info {
    char build[LS_BUILD_CAPACITY]; /* of Lockstep: the same on all ranks. The first field in every version */
    char machine[112];             /* equal for processes that can share memory: see rendezvous.c */
    char host[64];                 /* for messages */
    char process[16];              /* process id, for messages */
    char backend[32];              /* that it asks for; empty: whatever fits */
} ls_peer_info;

typedef enum ls_rank_state { LS_RANK_MISSING = 0, LS_RANK_HERE, LS_RANK_LEFT, LS_RANK_DEAD } ls_rank_state;

typedef struct ls_roster {
    int size;      /* of the world; 0 before the first rank came */
    int refused;   /* processes turned away because of their key */
    bool complete; /* every rank came at some time */
    ls_rank_state *states;
    ls_peer_info *peer_infos;
    uint64_t leaving_ns; /* when it was first seen that ranks wait to leave; 0: none do */
    uint64_t told_ns;    /* how long they had waited when the log was told */
} ls_roster;

/* Makes room for `size` ranks. LS_ERR_MEMORY. */
ls_status ls_roster_make(ls_roster *roster, int size);
void ls_roster_free(ls_roster *roster);

/* LS_ERR_MISMATCH if two ranks run different builds of Lockstep. */
ls_status ls_peer_info_compare_builds(int rank, const ls_peer_info *peer_info, int other, const ls_peer_info *others);

/* Enters a rank. LS_ERR_MISMATCH with a sentence if world sizes or builds of Lockstep differ, LS_ERR_ARGUMENT if the
 * rank is taken. */
ls_status ls_roster_enter(ls_roster *roster, int rank, int size, const ls_peer_info *peer_info);

/* Whether each of them left or died. */
bool ls_roster_is_over(const ls_roster *roster);

/* Logs a warning with the missing ranks, and the hosts of the others. */
void ls_roster_report_missing(const ls_roster *roster);

/* Logs, when it is time, for which ranks the callers of ls_finalize wait, if any. Returns the time of the next call. */
ls_deadline ls_roster_tell_staying(ls_roster *roster, bool waiting);

/* Fails with LS_ERR_TIMEOUT, and names the ranks that did not come within this number of seconds. */
ls_status ls_roster_fail_missing(const ls_roster *roster, double seconds);

/* Fails with LS_ERR_TIMEOUT, and names the ranks that have not called ls_finalize within this number of seconds. */
ls_status ls_roster_fail_staying(const ls_roster *roster, double seconds);

/* Fails with LS_ERR_PEER, and names the ranks that died, if any. */
ls_status ls_roster_check_deaths(const ls_roster *roster);

/* Returns the first rank that is on another machine than `rank`, or -1 if all are on one machine. */
int ls_roster_find_elsewhere(const ls_roster *world, int rank);

/* Returns true if backend shm can carry these ranks: all share a machine, and they are few enough. */
bool ls_roster_can_share(const ls_roster *world);

#endif
