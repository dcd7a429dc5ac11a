/*
 * The state of a job's ranks (present, missing, left or dead), and the messages about it. The TCP server updates a
 * roster from its connections.
 */
#ifndef LS_COMM_STORE_ROSTER_H
#define LS_COMM_STORE_ROSTER_H

#include "base/wait.h"
#include "comm/channel/build.h"
#include "comm/store_message.h"

#define LS_REPORT_SECONDS 5.0 /* interval between two reports about missing ranks */

/* The description of itself that a rank sends to the other ranks when it joins. Strings are padded with NULs. */
typedef struct ls_peer_info {
    char build[LS_BUILD_CAPACITY]; /* Lockstep's build, equal on all ranks; the first field in every version */
    char machine[112];             /* equal for processes that can share memory: see rendezvous.c */
    char host[64];                 /* for messages */
    char process[16];              /* process id, for messages */
    char backend[32];              /* requested backend; empty selects it automatically */
} ls_peer_info;

typedef enum ls_rank_state { LS_RANK_MISSING = 0, LS_RANK_HERE, LS_RANK_LEFT, LS_RANK_DEAD } ls_rank_state;

typedef struct ls_roster {
    int size;      /* world size; 0 before the first rank has arrived */
    int refused;   /* number of processes refused because of their key */
    bool complete; /* every rank has arrived at some time */
    ls_rank_state *states;
    ls_peer_info *peer_infos;
    uint64_t leaving_ns; /* time when ranks were first found waiting to leave; 0 if none wait */
    uint64_t told_ns;    /* how long they had waited when this was last logged */
} ls_roster;

/* Makes room for `size` ranks. Fails with LS_ERR_MEMORY if out of memory. */
ls_status ls_roster_make(ls_roster *roster, int size);
void ls_roster_free(ls_roster *roster);

/* Fails with LS_ERR_MISMATCH if two ranks run different builds of Lockstep. */
ls_status ls_peer_info_compare_builds(int rank, const ls_peer_info *peer_info, int other, const ls_peer_info *others);

/* Adds a rank. Fails with LS_ERR_MISMATCH and a message if world sizes or builds of Lockstep differ, and with
 * LS_ERR_ARGUMENT if the rank is already taken. */
ls_status ls_roster_enter(ls_roster *roster, int rank, int size, const ls_peer_info *peer_info);

/* Returns true if every rank has left or died. */
bool ls_roster_is_over(const ls_roster *roster);

/* Logs a warning that names the missing ranks and the hosts of the other ranks. */
void ls_roster_report_missing(const ls_roster *roster);

/* Logs, when it is time, which ranks the callers of ls_finalize wait for, if any. Returns the time of the next call. */
ls_deadline ls_roster_tell_staying(ls_roster *roster, bool waiting);

/* Fails with LS_ERR_TIMEOUT, naming the ranks that did not arrive within this number of seconds. */
ls_status ls_roster_fail_missing(const ls_roster *roster, double seconds);

/* Fails with LS_ERR_TIMEOUT, naming the ranks that have not called ls_finalize within this number of seconds. */
ls_status ls_roster_fail_staying(const ls_roster *roster, double seconds);

/* If any ranks have died, fails with LS_ERR_PEER and names them. */
ls_status ls_roster_check_deaths(const ls_roster *roster);

/* Returns the first rank that is on a different machine from `rank`, or -1 if all ranks are on one machine. */
int ls_roster_find_elsewhere(const ls_roster *world, int rank);

/* Returns true if backend shm supports these ranks: all share a machine, and there are not too many. */
bool ls_roster_can_share(const ls_roster *world);

#endif
