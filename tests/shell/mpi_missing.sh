# Backend mpi: ranks that are missing at the start, in the creation of a communicator or at the end, and a killed rank.
. "$LS_SOURCE/tests/support/mpi.sh"

# kill_one PROGRAM: ends one of its processes that this script started.
kill_one() {
    local victim
    for victim in $(marked); do
        if [ "$(readlink "/proc/$victim/exe")" = "$1" ]; then
            kill -9 "$victim"
            return
        fi
    done
    return 1
}

# check_missing FLAVOUR WHERE HOW: the point that rank 1 does not reach.
check_missing() {
    local flavour=$1 where=$2 how=$3 ranks=3
    # If two ranks fail at once, Open MPI's mpirun sometimes crashes, hangs or loses their output.
    case $where in end | finalize) ranks=2 ;; esac
    mpi "$flavour" $ranks "$scratch/missing_$flavour" $where $how
    check "$flavour, rank 1 does not come to $where: $how: the launcher fails" test "$status" != 0
    check "$flavour, rank 1 does not come to $where: $how: in time" test "$status" != 124
    check "$flavour, rank 1 does not come to $where: $how: nothing is left" nobody_soon
    case $where in
    start) check "$flavour: MPI that does not start is said" says out \
        "^[02]: LS_ERR_TIMEOUT: ls_init: MPI_Init_thread did not finish within 5 s: a rank" ;;
    world) check "$flavour, $how: who is missing in ls_init is named" says out \
        "^[02]: LS_ERR_TIMEOUT: ls_init: rank 1 of 3 did not join within 3 s; LS_ERR_STATE: .*earlier attempt" ;;
    part) check "$flavour, $how: who is missing in ls_comm_from_mpi is named" says out \
        "^[02]: LS_ERR_TIMEOUT: ls_comm_from_mpi: rank 1 of 3 did not join within 3 s" ;;
    leave) check "$flavour, $how: who does not call ls_finalize is named" says out \
        "^[02]: LS_ERR_TIMEOUT: ls_finalize: rank 1 did not call ls_finalize within 3 s" ;;
    end) check "$flavour, $how: who does not end is named" says err \
        "error: MPI could not be finalized, so this process exits with status 1: rank 1 of 2 did not join within 3 s" ;;
    finalize) check "$flavour: MPI that does not end is said" says err \
        "error: MPI could not be finalized, so this process exits with status 1: MPI_Finalize did not finish within 5 s" ;;
    esac
    case $where in end | finalize) check "$flavour, $where, $how: what was printed is there" says out "^[02]: LS_OK" ;; esac
}

check_late() {
    local flavour=$1
    mpi "$flavour" 3 "$scratch/missing_$flavour" end late
    check "$flavour, rank 1 comes to the end late: ends well" is "$status" 0
    check "$flavour, rank 1 comes to the end late: who waits says for whom" \
        says err "waiting for rank 1 of 3; ranks 0 and 2 joined from "
}

check_killed() {
    local flavour=$1 program=$LS_BUILD/examples/perceptron
    {
        mpi "$flavour" 2 "$program" --epochs 100000 --quiet
        exit $status
    } &
    await kill_one "$(readlink -f "$program")"
    wait $!
    check "$flavour, a rank is killed: the launcher fails" test $? != 0
    check "$flavour, a rank is killed: the others end" nobody_soon
}

check_flavour() {
    local flavour=$1 where how
    check "$flavour: a program for ranks that do not come builds" mpi_builds "$flavour" missing.c missing_$flavour
    beside check_late "$flavour"
    for where in leave finalize start end part world; do # the longest first
        for how in stop sleep; do
            case $where:$how in start:sleep | finalize:sleep) continue ;; esac # takes 5 s and tells nothing new
            beside check_missing "$flavour" $where $how
        done
    done
    beside check_killed "$flavour"
}

cat >missing.c <<'END'
#include <lockstep/mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int rank;
static void stay_away(const char *how) { /* what rank 1 does instead */
    if (rank == 1 && strcmp(how, "stop") == 0) {
        raise(SIGSTOP);
    } else if (rank == 1) {
        sleep(strcmp(how, "late") == 0 ? 6 : 60);
    }
}
static char line[4096]; /* written at once: launchers do not keep the lines of ranks apart */
static void tell(const char *before, ls_comm *comm) {
    const size_t length = strlen(line);
    snprintf(line + length, sizeof line - length, "%s%s%s%s", before,
             ls_status_name(comm == NULL ? ls_error_status() : LS_OK), comm == NULL ? ": " : "",
             comm == NULL ? ls_error_message() : "");
}
static char **arguments; /* WHERE HOW: to what rank 1 does not come */
int MPI_Finalize(void) { /* Lockstep calls this one */
    if (strcmp(arguments[1], "finalize") == 0) {
        stay_away(arguments[2]);
    }
    return PMPI_Finalize();
}
static int end(const ls_init_options *options) {
    ls_comm *comm = ls_init(options);
    ls_status status = comm == NULL ? ls_error_status() : ls_comm_barrier(comm, NULL);
    if (status == LS_OK && strcmp(arguments[1], "leave") == 0) {
        stay_away(arguments[2]);
    }
    status = status == LS_OK ? ls_finalize() : status;
    printf("%d: %s%s%s\n", rank, ls_status_name(status), status == LS_OK ? "" : ": ",
           status == LS_OK ? "" : ls_error_message()); /* in a buffer until the end */
    if (strcmp(arguments[1], "end") == 0) {
        stay_away(arguments[2]);
    }
    return status == LS_OK ? 0 : 1;
}
int main(int argc, char **argv) {
    const char *number = getenv("OMPI_COMM_WORLD_RANK");
    const ls_init_options options = {.timeout = strcmp(argv[2], "late") == 0 ? 30 : 3};
    ls_comm *comm = NULL;
    arguments = argv;
    rank = atoi(number != NULL ? number : getenv("PMI_RANK"));
    if (strcmp(argv[1], "leave") == 0 || strcmp(argv[1], "end") == 0 || strcmp(argv[1], "finalize") == 0) {
        return end(&options);
    }
    if (strcmp(argv[1], "start") != 0) {
        MPI_Init(&argc, &argv);
    }
    stay_away(argv[2]);
    comm = strcmp(argv[1], "part") == 0 ? ls_comm_from_mpi(MPI_COMM_WORLD, &options) : ls_init(&options);
    snprintf(line, sizeof line, "%d: ", rank);
    tell("", comm);
    if (strcmp(argv[1], "world") == 0) {
        tell("; ", ls_init(&options));
    }
    fputs(strcat(line, "\n"), stdout);
    fflush(stdout);
    return comm == NULL ? 1 : 0;
}
END
each_flavour "$@"
finish_flavours
