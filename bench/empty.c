/* A training program that does nothing. */
#include <stdio.h>

#include <lockstep/comm.h>

int main(void) {
    if (ls_init(NULL) == NULL || ls_finalize() != LS_OK) {
        fprintf(stderr, "empty: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
