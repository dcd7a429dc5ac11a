#include "tests/support/forks.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm.h"

static int run_rank(const ls_forks *forks, int rank, ls_fork_function *function, const void *argument) {
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    char url[128];
    snprintf(url, sizeof url, "file://%s", forks->folder);
    ls_store *store = ls_store_open(url, &(ls_store_options){.timeout = forks->timeout});
    const ls_join join = {.rank = rank,
                          .size = forks->size,
                          .local_rank = rank,
                          .local_size = forks->size,
                          .store = store,
                          .prefix = "test/",
                          .timeout = forks->timeout};
    ls_comm *world = store == NULL ? NULL : ls_comm_open(&ls_backend_shm, &join);
    const int result = function(world, rank, argument);
    ls_comm_free(world);
    ls_store_close(store);
    return result;
}

void ls_forks_start_some(ls_forks *forks, int size, unsigned absent, double timeout, ls_fork_function *function,
                         const void *argument) {
    *forks = (ls_forks){.size = size, .timeout = timeout, .folder = "/tmp/lockstep-test-XXXXXX"};
    if (mkdtemp(forks->folder) == NULL) {
        abort();
    }
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        if ((absent >> rank & 1) != 0) {
            continue;
        }
        forks->processes[rank] = fork();
        if (forks->processes[rank] == 0) {
            const int result = run_rank(forks, rank, function, argument);
            fflush(NULL);
            _exit(result);
        }
    }
}

void ls_forks_start(ls_forks *forks, int size, double timeout, ls_fork_function *function, const void *argument) {
    ls_forks_start_some(forks, size, 0, timeout, function, argument);
}

int ls_forks_wait(ls_forks *forks, int rank) {
    int status = -1;
    if (forks->processes[rank] > 0) {
        waitpid(forks->processes[rank], &status, 0);
        forks->processes[rank] = 0;
    }
    return status;
}

/* Removes the store's folder: files and folders of files. */
static void remove_tree(const char *path) {
    DIR *folder = opendir(path);
    struct dirent *entry = NULL;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        char name[512];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (unlink(name) != 0) {
            remove_tree(name);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    rmdir(path);
}

void ls_forks_end(ls_forks *forks) {
    for (int rank = 0; rank < forks->size; rank++) {
        if (forks->processes[rank] > 0) {
            kill(forks->processes[rank], SIGKILL);
            (void)ls_forks_wait(forks, rank);
        }
    }
    remove_tree(forks->folder);
}
