#include "tests/support/forks.h"

#include <dirent.h>
#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "comm/comm.h"

bool ls_forks_hold_memory(void) {
    bool found = false;
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry = NULL; folder != NULL && (entry = readdir(folder)) != NULL;) {
        char target[256] = "";
        found = (readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1) > 0 &&
                 strstr(target, "memfd:lockstep") != NULL) ||
                found;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        found = found || strstr(line, "memfd:lockstep") != NULL;
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return found;
}

/* Returns the backend named by LOCKSTEP_TEST_BACKEND; the default is shm. */
static const ls_backend *chosen_backend(void) {
    const char *name = getenv("LOCKSTEP_TEST_BACKEND");
    return ls_backend_find(name != NULL ? name : "shm");
}

static const char *run_rank(int rank, const void *what) {
    const ls_forks *forks = what;
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    char url[128];
    snprintf(url, sizeof url, "file://%s", forks->folder);
    ls_store *store = ls_store_open(url, &(ls_store_options){.serve = rank == 0, .timeout = forks->timeout});
    LS_MUST(store != NULL);
    const ls_join_context join = {.rank = rank,
                                  .size = forks->size,
                                  .local_rank = rank,
                                  .local_size = forks->size,
                                  .store = store,
                                  .prefix = "test/",
                                  .timeout = forks->timeout};
    const ls_backend *backend = chosen_backend();
    LS_MUST(backend != NULL);
    ls_comm *world = ls_comm_open(backend, &join);
    const char *failure = forks->function(world, rank, forks->argument);
    ls_comm_free(world);
    ls_store_close(store);
    return failure == NULL && ls_forks_hold_memory() ? "shared memory is left behind" : failure;
}

void ls_forks_start_late(ls_forks *forks, int rank) {
    forks->processes[rank] = process_start(run_rank, rank, forks);
}

void ls_forks_start(ls_forks *forks, int size, unsigned absent, double timeout, ls_fork_function *function,
                    const void *argument) {
    *forks = (ls_forks){.size = size,
                        .timeout = timeout,
                        .function = function,
                        .argument = argument,
                        .folder = "/tmp/lockstep-test-XXXXXX"};
    if (mkdtemp(forks->folder) == NULL) {
        abort();
    }
    for (int rank = 0; rank < size; rank++) {
        if ((absent >> rank & 1) == 0) {
            ls_forks_start_late(forks, rank);
        }
    }
}

int ls_forks_wait(ls_forks *forks, int rank) {
    const pid_t process = forks->processes[rank];
    forks->processes[rank] = 0;
    return process_wait(process);
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where) {
    (void)status;
    (void)kind;
    (void)where;
    return remove(path);
}

void ls_forks_end(ls_forks *forks) {
    for (int rank = 0; rank < forks->size; rank++) {
        if (forks->processes[rank] > 0) {
            kill(forks->processes[rank], SIGKILL);
            (void)ls_forks_wait(forks, rank);
        }
    }
    (void)nftw(forks->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

bool ls_forks_run(int size, double timeout, ls_fork_function *function, const void *argument) {
    ls_forks forks;
    bool good = true;
    ls_forks_start(&forks, size, 0, timeout, function, argument);
    for (int rank = 0; rank < size; rank++) {
        good = ls_forks_wait(&forks, rank) == 0 && good;
    }
    ls_forks_end(&forks);
    return good;
}
