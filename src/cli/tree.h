/* Every process below this one, whatever groups and sessions they have made. */
#ifndef LS_CLI_TREE_H
#define LS_CLI_TREE_H

#include <lockstep/base.h>
#include <sys/types.h>

/* Children that this process had before it started any: a script that `exec`s the launcher leaves its own to it. */
typedef struct ls_tree {
    pid_t guard; /* spared too; 0: none */
    pid_t *spared;
    size_t spared_count;
} ls_tree;

/* Remembers which children are there already. */
ls_status ls_tree_open(ls_tree *tree);

/*
 * Sends `signal` (0: none) to every descendant of this process but the spared, and, where skip_group is not 0, not to
 * those in that process group. Returns how many there were; -1 when /proc does not tell. Those that start meanwhile may
 * be missed.
 */
int ls_tree_signal(const ls_tree *tree, int signal, pid_t skip_group);

void ls_tree_close(ls_tree *tree);

#endif
