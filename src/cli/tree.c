#include "cli/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"

typedef struct process {
    pid_t pid;
    pid_t parent;
    pid_t group;
    bool below; /* a descendant of this process */
} process;

typedef struct process_list {
    process *items;
    size_t count;
} process_list;

static bool append(process_list *list, process item) {
    process *items = ls_grow(list->items, list->count, sizeof *items);
    if (items == NULL) {
        return false;
    }
    list->items = items;
    list->items[list->count++] = item;
    return true;
}

/* Parses /proc/PID/stat: "pid (name) state parent group ...". The name may contain any character. */
static bool read_process(const char *pid, process *item) {
    char path[64];
    char text[1024];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    const ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0) {
        return false;
    }
    text[size] = '\0';
    const char *after = strrchr(text, ')');
    int parent = 0;
    int group = 0;
    if (after == NULL || sscanf(after + 1, " %*c %d %d", &parent, &group) != 2) {
        return false;
    }
    *item = (process){.pid = atoi(pid), .parent = parent, .group = group};
    return true;
}

static bool list_processes(process_list *list) {
    DIR *folder = opendir("/proc");
    if (folder == NULL) {
        return false;
    }
    bool complete = true;
    for (struct dirent *entry = readdir(folder); entry != NULL && complete; entry = readdir(folder)) {
        process item;
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && read_process(entry->d_name, &item)) {
            complete = append(list, item);
        }
    }
    closedir(folder);
    return complete && list->count > 0;
}

static int by_pid(const void *left, const void *right) {
    const pid_t a = ((const process *)left)->pid;
    const pid_t b = ((const process *)right)->pid;
    return (a > b) - (a < b);
}

static bool is_spared(const ls_tree *tree, pid_t pid) {
    for (size_t i = 0; i < tree->spared_count; i++) {
        if (tree->spared[i] == pid) {
            return true;
        }
    }
    return pid == tree->guard;
}

/*
 * Marks all descendants. A child may precede its parent in the list, because process ids wrap around, so the function
 * repeats until a pass finds no new descendant.
 */
static void mark_descendants(const ls_tree *tree, process_list *list) {
    const pid_t self = getpid();
    qsort(list->items, list->count, sizeof *list->items, by_pid);
    bool found = true;
    while (found) {
        found = false;
        for (size_t i = 0; i < list->count; i++) {
            process *item = &list->items[i];
            const process key = {.pid = item->parent};
            const process *parent = bsearch(&key, list->items, list->count, sizeof key, by_pid);
            if (!item->below && (item->parent == self || (parent != NULL && parent->below)) &&
                !is_spared(tree, item->pid)) {
                item->below = true;
                found = true;
            }
        }
    }
}

ls_status ls_tree_open(ls_tree *tree) {
    *tree = (ls_tree){0};
    if (waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD) {
        return LS_OK;
    }
    process_list list = {0};
    const pid_t self = getpid();
    bool enough = list_processes(&list);
    tree->spared = ls_allocate(list.count * sizeof *tree->spared);
    enough = enough && tree->spared != NULL;
    for (size_t i = 0; enough && i < list.count; i++) {
        if (list.items[i].parent == self) {
            tree->spared[tree->spared_count++] = list.items[i].pid;
        }
    }
    ls_free(list.items);
    return enough ? LS_OK : ls_fail(LS_ERR_IO, "lockstep run: cannot list this process's children in /proc");
}

int ls_tree_signal(const ls_tree *tree, int signal, pid_t skip_group) {
    process_list list = {0};
    int count = -1;
    if (list_processes(&list)) {
        mark_descendants(tree, &list);
        count = 0;
    }
    for (size_t i = 0; count >= 0 && i < list.count; i++) {
        const process *item = &list.items[i];
        if (item->below && (skip_group == 0 || item->group != skip_group)) {
            kill(item->pid, signal);
            count++;
        }
    }
    ls_free(list.items);
    return count;
}

void ls_tree_close(ls_tree *tree) {
    ls_free(tree->spared);
    *tree = (ls_tree){0};
}
