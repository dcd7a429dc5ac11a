#include <lockstep/comm.h>
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    ls_comm *world = ls_init(NULL);
    printf("%s\n", world != NULL ? "0 of 1" : ls_error_message());
    const int size = ls_comm_size(world);
    ls_status status = ls_finalize();
    MPI_Finalize();
    return status == LS_OK && size == 1 ? 0 : 1;
}
