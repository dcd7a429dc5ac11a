/*
 * One of two ranks that find each other through a folder: folder_program file://PATH RANK. Prints the sum of the two
 * rank numbers plus one.
 */
#include <stdio.h>
#include <stdlib.h>

#include <lockstep/comm.h>

int main(int argc, char **argv) {
    int32_t sum = 0;
    if (argc != 3) {
        return 2;
    }
    ls_comm *world = ls_init(&(ls_init_options){.init = argv[1], .rank = atoi(argv[2]), .world_size = 2});
    const int32_t own = 1 + ls_comm_rank(world);
    if (world == NULL || ls_comm_allreduce(world, &own, &sum, 1, LS_I32, LS_SUM, NULL) != LS_OK) {
        fprintf(stderr, "%s\n", ls_error_message());
        return 1;
    }
    printf("%d\n", (int)sum);
    return ls_finalize() == LS_OK ? 0 : 1;
}
