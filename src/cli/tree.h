/* All descendants of this process, in any process group and session. */
#ifndef LS_CLI_TREE_H
#define LS_CLI_TREE_H

#include <lockstep/base.h>
#include <sys/types.h>

/*
 * The children that this process already had when it started: a script that `exec`s the launcher leaves its children to
 * it.
 */
typedef struct ls_tree {
    pid_t guard; /* not signaled either; 0 means none */
    pid_t *spared;
    size_t spared_count;
} ls_tree;

/* Notes the existing children. */
ls_status ls_tree_open(ls_tree *tree);

/*
 * Sends `signal` (0 sends none) to every descendant of this process, except the recorded children, the guard, and the
 * processes of group skip_group if skip_group is not 0. Returns the number of descendants, or -1 if /proc is not
 * readable. May miss processes that start in the meantime.
 */
int ls_tree_signal(const ls_tree *tree, int signal, pid_t skip_group);

void ls_tree_close(ls_tree *tree);

#endif
