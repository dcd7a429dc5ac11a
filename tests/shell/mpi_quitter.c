/* Run by the tests of backend mpi: ranks make three calls, and rank 1 does something else instead of its fourth. */
#include <lockstep/comm.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static float numbers[200000];
static ls_status call(ls_comm *world, const char *name) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    if (strcmp(name, "barrier") == 0) {
        return ls_comm_barrier(world, NULL);
    }
    if (strcmp(name, "allreduce") == 0) {
        return ls_comm_allreduce(world, numbers, numbers, 200000, LS_F32, LS_SUM, NULL);
    }
    ls_work *work;
    ls_status status = ls_comm_send(world, numbers, 100000, LS_F32, (rank + 1) % size, 0, &work);
    if (status == LS_OK) {
        status = ls_comm_recv(world, numbers + 100000, 100000, LS_F32, (rank + size - 1) % size, 0, NULL);
    }
    const ls_status sent = ls_work_wait(work);
    return status == LS_OK ? sent : status;
}
int main(int argc, char **argv) { /* WHAT CALL: rank 1's action instead of its fourth call, or "backend" */
    const bool stops = argc > 1 && strcmp(argv[1], "stop") == 0;
    ls_init_options options = {.timeout = stops ? 8 : 60}; /* enough time to join on a busy machine */
    ls_comm *world = ls_init(&options);
    if (argc < 2 || world == NULL) {
        fprintf(stderr, "%s\n", ls_error_message());
        return 9;
    }
    if (strcmp(argv[1], "backend") == 0) {
        puts(ls_comm_backend(world));
        return ls_finalize() == LS_OK ? 0 : 1;
    }
    for (int i = 0; i < 3; i++) {
        if (call(world, argv[2]) != LS_OK) {
            fprintf(stderr, "%s\n", ls_error_message());
            return 9;
        }
    }
    if (ls_comm_rank(world) == 1) {
        if (strcmp(argv[1], "leave") == 0) {
            ls_comm_free(world);
            sleep(60); /* the other ranks fail, and the launcher kills this rank */
        } else if (strcmp(argv[1], "kill") == 0) {
            raise(SIGKILL);
        } else if (strcmp(argv[1], "stop") == 0) {
            raise(SIGSTOP);
        }
        exit(atoi(argv[1]));
    }
    ls_status status = call(world, argv[2]);
    if (status == LS_OK) { /* the message may have been accepted early */
        status = ls_comm_barrier(world, NULL);
    }
    printf("%d: %s: %s\n", ls_comm_rank(world), ls_status_name(status), ls_error_message());
    fflush(stdout);
    if (strcmp(argv[1], "leave") == 0) {
        sleep(1); /* the launcher kills all ranks if one fails: this gives the others time to print their errors */
    }
    return status == LS_OK ? 0 : 1;
}
