# Backend mpi: the rank programs, the same model as on shared memory, and programs with their own communicators.
. "$LS_SOURCE/tests/support/mpi.sh"

hashes() {
    sed -n 's/^rank [0-9]* parameters \([0-9a-f]\{16\}\)\r*$/\1/p' out | sort -u
}

# check_program FLAVOUR RANKS NAME: a rank program. Other tests cover the cases and programs that are skipped on this
# transport.
check_program() {
    local flavour=$1 ranks=$2 name=$3
    # Open MPI: limit of the eager protocol, which determines the algorithms of calls.
    export OMPI_MCA_btl_vader_eager_limit=$((ranks == 2 ? 4096 : 32768))
    mpi "$flavour" $ranks env LOCKSTEP_TEST_CASES=600 LOCKSTEP_TEST_PROGRAMS=20 LOCKSTEP_TEST_ONE_IN=8 "$programs/ranks_$name"
    check "$flavour, $ranks ranks: $name" is "$status" 0
    check "$flavour, $ranks ranks: $name reports no failure" is "$(complaints err | grep -av '^seed')" ""
}

check_transport() {
    local flavour=$1 ranks=$2
    mpi "$flavour" $ranks "$programs/transport_$flavour"
    check "$flavour, $ranks ranks: the transport" \
        is "$status $(complaints out err | grep -v 'ls_work_wait: MPI still uses buffers of a call that not all ranks made')" "0 "
}

# UCX, which this MPICH uses, finds nothing faster than TCP between machines.
check_straggler() {
    local flavour=$1
    mpi "$flavour" 3 env UCX_TLS=tcp,self "$scratch/straggler_$flavour"
    check "$flavour: a rank comes to its end after the others: ends well" is "$status" 0
    check "$flavour: a rank comes to its end after the others: all say so" is "$(sort out | tr -d '\r\n')" 012
}

check_never_made() {
    local flavour=$1 what=$2 said=$3
    mpi "$flavour" 2 "$scratch/never_made_$flavour" $what
    check "$flavour: MPI never makes a $what: fails" test "$status" != 0 -a "$status" != 124
    check "$flavour: MPI never makes a $what: says so" says out "^[01]: LS_ERR_TIMEOUT: $said"
    check "$flavour: MPI never makes a $what: is not finalized beside that" is "$(grep -c MPI_Finalize out)" 0
}

check_no_thread() {
    local flavour=$1
    mpi "$flavour" 2 "$scratch/never_made_$flavour" thread
    check "$flavour: no thread for a part: the others are told, and the job goes on" is "$status" 0
    check "$flavour: no thread for a part: says so" says out \
        "^1: LS_ERR_MEMORY: ls_comm_split: in the new communicator: a thread for MPI: out of memory"
    check "$flavour: no thread for a part: the other says who" says out \
        "^0: LS_ERR_PEER: ls_comm_split: in the new communicator: ls_comm_open: rank 1 cannot take part"
    check "$flavour: no thread for a part: the parent goes on" is "$(grep -c '^[01]: then LS_OK, LS_OK' out)" 2
    check "$flavour: errors of MPI are returned" is "$(grep -c '^[01]: MPI returns errors' out)" 2
}

check_process_state() {
    local flavour=$1
    mpi "$flavour" 2 env -u OMP_NUM_THREADS "$programs/unit_process_state"
    check "$flavour: ls_init changes nothing in the process" is "$status $(complaints out err)" "0 "
}

check_untaken() {
    local flavour=$1
    mpi "$flavour" 2 "$scratch/untaken"
    check "$flavour: large messages that nobody took: ends well" is "$status" 0
    check "$flavour: large messages that nobody took: at most a warning about their buffers" \
        is "$(complaints out err | grep -v 'MPI still uses buffers of a call that not all ranks made')" ""
}

check_freed_amid_sends() {
    local flavour=$1
    mpi "$flavour" 2 "$scratch/freed_amid_sends"
    check "$flavour: a buffer that is unmapped after ls_comm_free and ls_work_wait: MPI has finished with it" is "$status $(complaints out err)" "0 "
}

# Open MPI sets PMIx's variables in a process that mpirun did not start.
check_single() {
    local flavour=$1
    check "$flavour: MPI_Init without mpirun: builds" mpi_builds "$flavour" "$scratch/single.c" single
    env -u LOCKSTEP_BACKEND ./single >out 2>err
    check "$flavour: MPI_Init without mpirun: ls_init has one rank" is "$? $(cat out)" "0 0 of 1"
    env -u LOCKSTEP_BACKEND LOCKSTEP_LAUNCH=1 RANK=0 WORLD_SIZE=2 ./single adopt >out 2>err
    check "$flavour: ls_comm_from_mpi in the wrong launcher: has one rank" is "$?" 1
    check "$flavour: ls_comm_from_mpi in the wrong launcher: warns" \
        says err '`lockstep run` started 2 processes, but MPI connects only this one'
    env -u LOCKSTEP_BACKEND OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 ./single adopt >out 2>err
    check "$flavour: ls_comm_from_mpi under the mpirun of another library: warns" \
        says err 'mpirun of Open MPI started 2 processes, but MPI connects only this one'
    env -u LOCKSTEP_BACKEND ./single adopt >out 2>err
    check "$flavour: ls_comm_from_mpi without a launcher: does not warn" is "$? $(complaints out err)" "1 "
}

check_parts() {
    local flavour=$1
    mpi "$flavour" 2 "$scratch/parts"
    check "$flavour, many communicators: ends well" is "$status" 0
    check "$flavour, many communicators: little is kept of each" is "$(complaints out err)" ""
}

check_choice() {
    local flavour=$1 choice=$2
    mpi "$flavour" 2 env LOCKSTEP_BACKEND=$choice "$scratch/quitter" backend
    check "$flavour, ${choice:-no} backend asked for: ends well" is "$status" 0
    check "$flavour, ${choice:-no} backend asked for: which it is" \
        is "$(tr -d '\r\n' <out)" "${choice:-shm}${choice:-shm}" # launchers break lines as they like
}

check_bits() {
    local flavour=$1 first
    LOCKSTEP_BACKEND= launch run -n 2 "$LS_BUILD/examples/fashion_mnist" --max-steps 20 --limit 2000 --quiet </dev/null
    first=$(hashes)
    mpi "$flavour" 2 "$LS_BUILD/examples/fashion_mnist" --max-steps 20 --limit 2000 --quiet
    check "$flavour: fashion_mnist ends well" is "$status" 0
    check "$flavour: both ranks print" is "$(grep -c '^rank [01] parameters' out)" 2
    check "$flavour: the bits of shared memory" is "$(hashes)" "$first"
}

check_no_module() {
    local flavour=$1
    mpi "$flavour" 2 env LOCKSTEP_MODULE_PATH="$scratch/absent" "$scratch/copy/bin/sync"
    check "$flavour, no module: fails" test "$status" != 0
    check "$flavour, no module: says what makes it" \
        says err "no backend \"mpi\".*lockstep-mpi_$flavour.so.*scripts/install-deps --mpi"
    mpi "$flavour" 2 env LOCKSTEP_MODULE_PATH="$scratch/absent" LD_LIBRARY_PATH="$scratch/copy/lib" "$scratch/program_$flavour"
    check "$flavour, a program's own communicator without a module: says what makes it" \
        says out "ls_comm_from_mpi: there is no backend \"mpi\".*lockstep-mpi_$flavour.so.*scripts/install-deps --mpi"
}

check_own_communicators() {
    local flavour=$1 ranks=$2 choice=$3
    mpi "$flavour" $ranks env LOCKSTEP_BACKEND=$choice "$scratch/program_$flavour"
    check "$flavour, $ranks ranks, ${choice:-no} backend asked for: the program's own communicators" is "$status" 0
    check "$flavour, $ranks ranks, ${choice:-no} backend asked for: the program's own communicators, silent" \
        is "$(complaints out err)" ""
}

check_fortran() {
    local flavour=$1 ranks=$2 choice=$3
    if ! command -v "mpifort.$flavour" >/dev/null; then
        echo "SKIPPED $flavour: communicators of a Fortran program: there is no mpifort.$flavour (Debian: gfortran)"
        return
    fi
    check "$flavour: a Fortran program builds" "mpifort.$flavour" "$LS_SOURCE/tests/shell/mpi_fortran.f90" -o program \
        -L"$LS_BUILD/lib" -llockstep -Wl,-rpath,"$LS_BUILD/lib"
    mpi "$flavour" $ranks env LOCKSTEP_BACKEND=$choice ./program
    check "$flavour, ${choice:-no} backend asked for: communicators of a Fortran program" is "$status $(complaints out err)" "0 "
}

# The complete program of docs/howto/fortran.md, and the same program with a rank that fails while the other rank waits in MPI.
check_fortran_guide() {
    local flavour=$1 shown=closure.f90 name
    if ! command -v "mpifort.$flavour" >/dev/null || ! [ -e "$LS_BUILD/lib/liblockstep-fortran.a" ]; then
        echo "SKIPPED $flavour: the program of docs/howto/fortran.md: there is no Fortran compiler (Debian: gfortran)"
        return
    fi
    sed -n '/^program closure$/,/^end program$/p' "$LS_SOURCE/docs/howto/fortran.md" >$shown
    sed "s/^  world = .*/  if (rank == 1) call ls_check(LS_ERR_STATE, 'rank 1')\n  call MPI_Barrier(MPI_COMM_WORLD)\n&/" $shown >failing.f90
    for name in closure failing; do
        check "$flavour: $name builds" "mpifort.$flavour" -std=f2008 -pedantic -Wall -Wextra -Werror $name.f90 -I"$LS_BUILD/fortran" \
            -o $name -L"$LS_BUILD/lib" -llockstep-fortran -llockstep -Wl,-rpath,"$LS_BUILD/lib"
    done
    mpi "$flavour" 2 ./closure
    check "$flavour: the program of docs/howto/fortran.md ends well" is "$status $(complaints err)" "0 "
    check "$flavour: the program of docs/howto/fortran.md prints the loss on rank 0 only" is "$(grep -ac '^step .* loss' out)" 5
    check "$flavour: the program of docs/howto/fortran.md learns" says out '^step 500 loss *[0-9.]*E-0[1-9]'
    check "$flavour: the program of docs/howto/fortran.md saves its model" test -s closure.safetensors
    mpi "$flavour" 2 ./failing
    check "$flavour: ls_check ends the job" test "$status" != 0 -a "$status" != 124
    check "$flavour: ls_check prints the message" says err '^lockstep (rank 1): rank 1: LS_ERR_STATE'
}

# A solver in C, and the same in Fortran, that trains a network on its own communicator.
check_heat() {
    local flavour=$1 ranks=$2 in_c yields=$(($2 > 2)) # with more ranks than cores, MPI_Sendrecv takes time slices
    check "$flavour: examples/heat_mpi.c builds" mpi_builds "$flavour" "$LS_SOURCE/examples/heat_mpi.c" heat_mpi -lm
    check_heat_program "$flavour" "$ranks" heat_mpi
    in_c=$(hashes_of_heat)
    if ! command -v "mpifort.$flavour" >/dev/null || ! [ -e "$LS_BUILD/lib/liblockstep-fortran.a" ]; then
        echo "SKIPPED $flavour: examples/fortran/heat.f90: there is no Fortran compiler (Debian: gfortran)"
        return
    fi
    check "$flavour: examples/fortran/heat.f90 builds" "mpifort.$flavour" -std=f2008 -pedantic -Wall -Wextra -Werror \
        "$LS_SOURCE/examples/fortran/heat.f90" -I"$LS_BUILD/fortran" -o heat -L"$LS_BUILD/lib" -llockstep-fortran -llockstep \
        -Wl,-rpath,"$LS_BUILD/lib"
    check_heat_program "$flavour" "$ranks" heat
    check "$flavour, $ranks ranks: heat has the same hash in C and in Fortran" is "$in_c" "$(hashes_of_heat)"
}
check_heat_program() {
    local flavour=$1 ranks=$2 program=$3
    mpi "$flavour" "$ranks" "./$program"
    check "$flavour, $ranks ranks: $program ends well" is "$status $(complaints err)" "0 "
    check "$flavour, $ranks ranks: $program learns the conductivity" says out "^largest error .*: *[0-5]\.[0-9]*E-03"
    check "$flavour, $ranks ranks: $program has one hash on all ranks" \
        is "$(hashes_of_heat | wc -l) $(hashes_of_heat | sort -u | wc -l)" "$ranks 1"
}
hashes_of_heat() {
    grep -ao 'parameters [0-9A-F]\{16\}' out
}

check_heat_refusal() {
    local flavour=$1 yields=1
    check "$flavour: examples/heat_mpi.c builds" mpi_builds "$flavour" "$LS_SOURCE/examples/heat_mpi.c" heat_mpi -lm
    mpi "$flavour" 5 ./heat_mpi
    check "$flavour: heat_mpi on 5 ranks: refused" is "$status" 1
    check "$flavour: heat_mpi on 5 ranks: one rank prints the reason" \
        is "$(cat out err | grep -c 'heat_mpi: 5 ranks do not divide 96 points')" 1
}

check_early_end() {
    local flavour=$1
    mpi "$flavour" 2 "$scratch/program_$flavour" early
    check "$flavour, MPI_Finalize before ls_finalize: said, and no crash" is "$status" 0
    mpi "$flavour" 2 "$scratch/program_$flavour" early-shm
    check "$flavour, MPI_Finalize before ls_finalize, on shared memory: said, and no crash" is "$status" 0
    mpi "$flavour" 1 "$scratch/program_$flavour" early-alone
    check "$flavour, MPI_Finalize before ls_finalize, one rank: said, and no crash" is "$status" 0
}

# check_level FLAVOUR LEVEL: calls that MPI's thread level forbids.
check_level() {
    local flavour=$1 level=$2
    mpi "$flavour" 2 "$scratch/program_$flavour" $level
    check "$flavour, MPI_THREAD_${level^^}: calls that it forbids are refused" is "$status $(complaints out err)" "0 "
}

check_programs() {
    local flavour=$1 ranks=$2 name
    for name in conformance points_and_groups several_communicators disagreement repeats random_programs differentiable random_gradients \
        messages begun_collectives early_messages threads freed_early objects monitored_barrier any_source model_parallel pipeline data_parallel data_parallel_losses \
        data_parallel_overlap zero trial_ends lifetime; do
        # Both libraries use the same engine: the ordinary list runs all programs with one of them.
        case $flavour-${LOCKSTEP_TEST_LONG:-short}-$name in
        mpich-short-conformance | mpich-short-random_programs | mpich-short-messages | mpich-short-early_messages) ;;
        mpich-short-*) continue ;;
        esac
        beside check_program "$flavour" $ranks $name
    done
    for name in progress_thread freed_early; do
        LOCKSTEP_PROGRESS_THREAD=1 beside check_program "$flavour" $ranks $name
    done
}

check_flavour() {
    local flavour=$1 ranks name choice level
    if [ -n "${LOCKSTEP_TEST_LONG:-}" ]; then # the rest is in the ordinary list
        check_programs "$flavour" 2
        for name in disagreement several_communicators; do
            beside check_program "$flavour" 8 $name
        done
        [ "$flavour" = openmpi ] || check_programs "$flavour" 3
        return
    fi
    check "$flavour: a program that looks at messages after its work builds" \
        mpi_builds "$flavour" straggler.c straggler_$flavour
    check "$flavour: a program whose MPI fails builds" \
        mpi_builds "$flavour" never_made.c never_made_$flavour -rdynamic
    check "$flavour: a program with lockstep/mpi.h builds" \
        mpi_builds "$flavour" "$LS_SOURCE/tests/shell/mpi_program.c" program_$flavour
    beside check_never_made "$flavour" part \
        "ls_comm_split: in the new communicator: MPI_Comm_create_group did not finish within 10 s"
    check_programs "$flavour" 3
    beside check_program "$flavour" 8 conformance # along wide trees, where cores are fewer
    beside check_transport "$flavour" 3
    beside check_transport "$flavour" 2
    beside check_straggler "$flavour"
    beside check_never_made "$flavour" copy "ls_comm_from_mpi: all ranks joined, but MPI_Comm_idup did not finish within 10 s"
    beside check_no_thread "$flavour"
    beside check_process_state "$flavour"
    beside check_untaken "$flavour"
    beside check_freed_amid_sends "$flavour"
    beside check_single "$flavour"
    beside check_parts "$flavour"
    for choice in "" shm mpi; do
        beside check_choice "$flavour" "$choice"
    done
    if [ -d /usr/share/datasets/fashion-mnist ]; then
        beside check_bits "$flavour"
    fi
    beside check_no_module "$flavour"
    for ranks in 1 2 4; do
        for choice in "" mpi tcp; do
            beside check_own_communicators "$flavour" $ranks "$choice"
        done
    done
    beside check_fortran "$flavour" 3 ""
    beside check_fortran "$flavour" 2 mpi
    beside check_fortran_guide "$flavour"
    for ranks in 1 2 $([ "$flavour" = mpich ] || echo 3); do # MPICH does not yield
        beside check_heat "$flavour" $ranks
    done
    beside check_heat_refusal "$flavour"
    beside check_early_end "$flavour"
    for level in single funneled serialized; do
        beside check_level "$flavour" $level
    done
}

cat >alone.c <<'END'
#include <lockstep/comm.h>
#include <stdio.h>
int main(int argc, char **argv) {
    ls_init_options options = {.init = "mpi://", .backend = argc > 1 ? argv[1] : NULL};
    if (ls_init(&options) == NULL) {
        printf("%s\n", ls_error_message());
        return 1;
    }
    return 0;
}
END
cat >single.c <<'END'
#include <lockstep/mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc > 1) {
        ls_comm *mine = ls_comm_from_mpi(MPI_COMM_WORLD, NULL);
        const int ranks = ls_comm_size(mine);
        ls_comm_free(mine);
        MPI_Finalize();
        return ranks;
    }
    ls_comm *world = ls_init(NULL);
    printf("%s\n", world != NULL ? "0 of 1" : ls_error_message());
    const int size = ls_comm_size(world);
    ls_status status = ls_finalize();
    MPI_Finalize();
    return status == LS_OK && size == 1 ? 0 : 1;
}
END
cat >untaken.c <<'END'
#include <lockstep/comm.h>
#include <stdio.h>
static float numbers[1000000];
int main(void) { /* rank 0 begins messages and a call that rank 1 does not take part in */
    ls_comm *world = ls_init(NULL), *part = NULL;
    ls_work *work[3];
    ls_status status = ls_comm_split(world, 0, 0, &part);
    static int looks_like_leave_notices[600];
    for (int i = 0; i < 600; i++) {
        looks_like_leave_notices[i] = 18; /* LS_OP_COUNT */
    }
    for (int i = 0; i < 2 && status == LS_OK && ls_comm_rank(world) == 0; i++) {
        status = ls_comm_send(world, numbers, i == 0 ? 100 : 1000000, LS_F32, 1, 3, &work[i]);
    }
    for (int i = 0; i < 8 && status == LS_OK && ls_comm_rank(world) == 0; i++) {
        status = ls_comm_send(part, looks_like_leave_notices, 600, LS_I32, 1, 3, &work[2]);
    }
    if (status == LS_OK && ls_comm_rank(world) == 0) {
        status = ls_comm_allreduce(part, numbers, numbers, 1000000, LS_F32, LS_SUM, &work[2]);
    }
    status = status == LS_OK ? ls_comm_barrier(world, NULL) : status;
    ls_comm_free(part);
    status = status == LS_OK ? ls_finalize() : status;
    return status == LS_OK ? 0 : (fprintf(stderr, "%s\n", ls_error_message()), 1);
}
END
cat >freed_amid_sends.c <<'END'
#define _GNU_SOURCE
#include <lockstep/comm.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
enum { MESSAGES = 2000, BYTES = 6000 };
int main(void) { /* rank 0 frees more small sends than MPI buffers, while rank 1 makes no call */
    ls_comm *world = ls_init(NULL), *part = NULL;
    static ls_work *works[MESSAGES];
    ls_status status = ls_comm_split(world, 0, 0, &part);
    const int rank = ls_comm_rank(world);
    void *buffer = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < MESSAGES && status == LS_OK && rank == 0; i++) {
        status = ls_comm_send(part, buffer, BYTES, LS_U8, 1, 3, &works[i]);
    }
    usleep(rank == 1 ? 500000 : 0);
    ls_comm_free(part);
    for (int i = 0; i < MESSAGES; i++) {
        const ls_status sent = ls_work_wait(works[i]);
        status = sent == LS_OK || sent == LS_ERR_STATE ? status : sent;
    }
    munmap(buffer, BYTES); /* MPI would crash if it still read from this buffer */
    status = status == LS_OK ? ls_comm_barrier(world, NULL) : status;
    status = status == LS_OK ? ls_finalize() : status;
    return status == LS_OK ? 0 : (fprintf(stderr, "%s\n", ls_error_message()), 1);
}
END
cat >parts.c <<'END'
#include <lockstep/comm.h>
#include <stdio.h>
static char data[3000];
static long kibibytes(void) {
    long all = 0, here = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    const int found = fscanf(file, "%ld %ld", &all, &here);
    fclose(file);
    return found == 2 ? here * 4 : 0;
}
int main(void) { /* communicators that end right after messages that are alike: MPI keeps little of each */
    ls_comm *world = ls_init(NULL);
    const int rank = ls_comm_rank(world);
    ls_status status = LS_OK;
    long first = 0;
    for (int i = 0; i < 1000 && status == LS_OK; i++) {
        ls_comm *part = NULL;
        first = i == 200 ? kibibytes() : first;
        status = ls_comm_split(world, 0, 0, &part);
        for (int k = 0; k < 2 && status == LS_OK; k++) {
            status = rank == 0 ? ls_comm_send(part, data, sizeof data, LS_U8, 1, 0, NULL)
                               : ls_comm_recv(part, data, sizeof data, LS_U8, 0, 0, NULL);
        }
        ls_comm_free(part);
    }
    const long grown = kibibytes() - first;
    status = status == LS_OK ? ls_finalize() : status;
    if (status != LS_OK || grown > 8192) {
        fprintf(stderr, "800 communicators took %ld KiB; %s\n", grown, ls_error_message());
    }
    return status != LS_OK || grown > 8192;
}
END
cat >never_made.c <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <lockstep/mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static int rank;
static _Bool has_no_threads, never_ends;
/* The module calls these functions instead of the libraries' functions. */
int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *made) {
    while (never_ends) {
        pause();
    }
    return PMPI_Comm_create_group(comm, group, tag, made);
}
int MPI_Comm_idup(MPI_Comm comm, MPI_Comm *made, MPI_Request *request) {
    static int none;
    return never_ends ? MPI_Irecv(&none, 1, MPI_INT, 0, 77, MPI_COMM_SELF, request) : PMPI_Comm_idup(comm, made, request);
}
int MPI_Finalize(void) {
    printf("%d: MPI_Finalize\n", rank);
    return PMPI_Finalize();
}
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
    return has_no_threads ? EAGAIN : create(thread, attributes, run, argument);
}
int main(int argc, char **argv) { /* part, copy or thread: what there is not on rank 1 */
    const _Bool thread = argc > 1 && strcmp(argv[1], "thread") == 0;
    const ls_init_options options = {.timeout = thread ? 60 : 10};
    ls_comm *world = ls_init(&options), *made = NULL;
    MPI_Errhandler handler;
    rank = ls_comm_rank(world);
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
    printf("%d: %s\n", rank, handler == MPI_ERRORS_RETURN ? "MPI returns errors" : "MPI ends at errors");
    has_no_threads = rank == 1 && thread;
    never_ends = rank == 1 && !thread;
    if (strcmp(argv[1], "copy") == 0) {
        made = ls_comm_from_mpi(MPI_COMM_WORLD, &options);
    } else {
        made = ls_comm_split(world, 0, 0, &made) == LS_OK ? made : NULL;
    }
    has_no_threads = 0;
    printf("%d: %s: %s\n", rank, ls_status_name(ls_error_status()), made == NULL ? ls_error_message() : "made");
    const ls_status goes_on = thread ? ls_comm_barrier(world, NULL) : LS_OK;
    const ls_status end = ls_finalize();
    printf("%d: then %s, %s\n", rank, ls_status_name(goes_on), ls_status_name(end));
    fflush(stdout);
    return !thread;
}
END
cat >straggler.c <<'END'
#include <lockstep/comm.h>
#include <mpi.h>
#include <stdio.h>
int main(void) { /* rank 0 has MPI move on for half a second before it comes to its end */
    float number = 1;
    ls_comm *world = ls_init(NULL);
    const int rank = ls_comm_rank(world);
    if (ls_comm_allreduce(world, &number, &number, 1, LS_F32, LS_SUM, NULL) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "%s\n", ls_error_message());
        return 1;
    }
    for (const double start = MPI_Wtime(); rank == 0 && MPI_Wtime() < start + 0.5;) {
        int there = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
    }
    printf("%d\n", rank);
    return 0;
}
END
cp "$LS_SOURCE/tests/shell/mpi_quitter.c" quitter.c
build alone quitter untaken freed_amid_sends parts
mkdir -p copy/bin copy/lib
cp -P "$LS_BUILD"/lib/liblockstep.so* copy/lib
cp "$programs/ranks_sync" copy/bin/sync # a program of its own, with no module beside it
each_flavour "$@"

# ---- without a launcher ----
./alone >out 2>err
check "mpi:// without mpirun: an error" is "$?" 1
check "mpi:// without mpirun: says so" says out "^ls_init: init is mpi://, but no MPI launcher started this process"
PMI_RANK=0 PMI_SIZE=2 ./alone gloo >out 2>err
check "mpi:// with a backend that it has not: refused" says out 'backend "mpi" or, on one machine, "shm", not "gloo"'
PMI_RANK=2 PMI_SIZE=2 ./alone >out 2>err
check "a rank outside its world: refused" says out "PMI_RANK=2 must be from 0 to 1"

if [ -e "$LS_BUILD/lib/lockstep-mpi_openmpi.so" ]; then
    launch run -n 2 "$LS_BUILD/examples/ring" </dev/null
    check "backend mpi under another launcher: refused" is "$status" 1
    said=$(grep -c 'ring: ls_init: .*MPI says that this process is alone, but the job has 2 ranks' err)
    # Ignores what Open MPI ([host:1], forwarded signals) and libevent ([warn]) may print while a process ends, warnings
    # that MPI takes long, and the launcher's lines about the other rank if it ended first.
    lines=$(grep -vc '^\[\|: Forwarding signal [0-9]* to job$\|^lockstep warning: still waiting in MPI_Init\|^lockstep: rank .*MPI says that this process is alone' err)
    check "backend mpi under another launcher: says so, once" is "$said $lines" "1 1"
fi

finish_flavours
