# Backend mpi under the MPI libraries that the arguments name (openmpi, mpich), as far as they are installed: the rank
# programs, the same model as on shared memory, and how jobs end that go wrong.
. "$LS_SOURCE/tests/support/checks.sh"
. "$LS_SOURCE/tests/support/endings.sh"
export LOCKSTEP_TIMEOUT=60
programs=$LS_BUILD/tests
export LOCKSTEP_BACKEND=mpi # ranks of one machine would use shared memory
unset RANK WORLD_SIZE LOCKSTEP_MODULE_PATH

# mpi FLAVOUR RANKS PROGRAM ARGUMENTS...: with output in files out and err and the exit status in $status.
mpi() {
    local flavour=$1 ranks=$2 options=()
    shift 2
    # Open MPI starts nothing as root, and no more ranks than cores, unless told; it keeps its own files in TMPDIR.
    # When a rank fails it would give the others a second to end.
    [ "$flavour" = mpich ] || options=(--allow-run-as-root --oversubscribe --mca odls_base_sigkill_timeout 0)
    TMPDIR=$scratch LS_TEST_MARK=$mark timeout -k 5 120 "mpirun.$flavour" "${options[@]}" -np "$ranks" "$@" \
        >out 2>err </dev/null
    status=$?
}

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

hashes() {
    sed -n 's/^rank [0-9]* parameters \([0-9a-f]\{16\}\)\r*$/\1/p' out | sort -u
}

check_flavour() {
    local flavour=$1 ranks name first
    for ranks in 2 3; do
        # Of Open MPI: what goes without asking the receiver, which decides how calls travel.
        export OMPI_MCA_btl_vader_eager_limit=$((ranks == 2 ? 4096 : 32768))
        for name in conformance points_and_groups several_communicators disagreement repeats random_programs differentiable random_gradients \
            messages threads freed_early model_parallel pipeline data_parallel trial_ends lifetime; do
            # What lists of cases and programs leave out on this transport others have.
            mpi "$flavour" $ranks env LOCKSTEP_TEST_CASES=600 LOCKSTEP_TEST_PROGRAMS=20 "$programs/ranks_$name"
            check "$flavour, $ranks ranks: $name" is "$status" 0
            check "$flavour, $ranks ranks: $name reports no failure" is "$(complaints err | grep -av '^seed')" ""
        done
    done
    unset OMPI_MCA_btl_vader_eager_limit
    for ranks in 2 3; do
        mpi "$flavour" $ranks env LOCKSTEP_TEST_ONE_IN=8 "$programs/ranks_data_parallel_losses"
        check "$flavour, $ranks ranks: data_parallel_losses" is "$status" 0
    done
    # UCX, on which this MPICH stands, finds nothing faster than TCP between machines.
    check "$flavour: a program that looks at messages after its work builds" "mpicc.$flavour" -Wall -Wextra -Werror \
        straggler.c -o straggler -I"$LS_SOURCE/include" -L"$LS_BUILD/lib" -llockstep -Wl,-rpath,"$LS_BUILD/lib"
    mpi "$flavour" 3 env UCX_TLS=tcp,self ./straggler
    check "$flavour: a rank comes to its end after the others: ends well" is "$status" 0
    check "$flavour: a rank comes to its end after the others: all say so" is "$(sort out | tr -d '\r\n')" 012
    mpi "$flavour" 2 ./untaken
    check "$flavour: large messages that nobody took: ends well" is "$status" 0
    check "$flavour: large messages that nobody took: at most a warning about their buffers" \
        is "$(complaints out err | grep -v 'MPI still uses buffers of a call that not all ranks made')" ""
    mpi "$flavour" 2 ./parts
    check "$flavour, many communicators: ends well" is "$status" 0
    check "$flavour, many communicators: little is kept of each" is "$(complaints out err)" ""
    for choice in "" shm mpi; do
        mpi "$flavour" 2 env LOCKSTEP_BACKEND=$choice ./quitter backend
        check "$flavour, ${choice:-no} backend asked for: ends well" is "$status" 0
        check "$flavour, ${choice:-no} backend asked for: which it is" \
            is "$(tr -d '\r\n' <out)" "${choice:-shm}${choice:-shm}" # launchers break lines as they like
    done
    if [ -d /usr/share/datasets/fashion-mnist ]; then
        LOCKSTEP_BACKEND= launch run -n 2 "$LS_BUILD/examples/fashion_mnist" --max-steps 20 --limit 2000 --quiet </dev/null
        first=$(hashes)
        mpi "$flavour" 2 "$LS_BUILD/examples/fashion_mnist" --max-steps 20 --limit 2000 --quiet
        check "$flavour: fashion_mnist ends well" is "$status" 0
        check "$flavour: both ranks print" is "$(grep -c '^rank [01] parameters' out)" 2
        check "$flavour: the bits of shared memory" is "$(hashes)" "$first"
    fi
    mpi "$flavour" 2 env LOCKSTEP_MODULE_PATH=/nowhere "$scratch/copy/bin/sync"
    check "$flavour, no module: fails" test "$status" != 0
    check "$flavour, no module: says what makes it" \
        says err "no backend \"mpi\".*lockstep-mpi_$flavour.so.*scripts/install-deps --mpi"

    check "$flavour: a program with lockstep/mpi.h builds" "mpicc.$flavour" -Wall -Wextra -Werror \
        "$LS_SOURCE/tests/shell/mpi_program.c" -o program -I"$LS_SOURCE/include" -L"$LS_BUILD/lib" -llockstep \
        -Wl,-rpath,"$LS_BUILD/lib"
    for ranks in 1 2 3 4; do
        mpi "$flavour" $ranks ./program
        check "$flavour, $ranks ranks: communicators of the program's own" is "$status" 0
        check "$flavour, $ranks ranks: communicators of the program's own, silent" is "$(complaints out err)" ""
    done
    mpi "$flavour" 2 env LOCKSTEP_MODULE_PATH=/nowhere LD_LIBRARY_PATH="$scratch/copy/lib" ./program
    check "$flavour, a program's own communicator without a module: says what makes it" \
        says out "ls_comm_from_mpi: there is no backend \"mpi\".*lockstep-mpi_$flavour.so.*scripts/install-deps --mpi"

    local carrier call what
    for carrier in mpi shm; do
        export LOCKSTEP_BACKEND=$carrier
        for call in barrier allreduce send; do
            [ $carrier = mpi ] || [ $call = allreduce ] || continue # tests of shm itself have the rest
            for what in 0 3 kill stop leave; do
                mpi "$flavour" 3 ./quitter $what $call
                check "$flavour, $carrier, $call, rank 1: $what: the launcher fails" test "$status" != 0
                check "$flavour, $carrier, $call, rank 1: $what: in time" test "$status" != 124
                check "$flavour, $carrier, $call, rank 1: $what: nothing is left" nobody_soon
                case $what in
                leave) # in a send the others wait for each other, and are ended by the launcher
                    [ $call = send ] || check "$flavour, $carrier, $call: who left is named" \
                        says out "^[02]: LS_ERR_PEER: ls_comm_$call #4: rank 1 .*left without making this call$"
                    ;;
                stop)
                    check "$flavour, $carrier, $call: who is silent is named" \
                        says out "^[02]: LS_ERR_TIMEOUT: ls_comm_[a-z]* #[0-9]*: rank 1 .*\(did not .*\|sent nothing .*\) within 3 s"
                    ;;
                esac
            done
        done
    done
    export LOCKSTEP_BACKEND=mpi
    mpi "$flavour" 2 ./quitter leave send # the fourth of a row, which the other rank expects
    check "$flavour, send, who left in a row is named" \
        says out "^0: LS_ERR_PEER: ls_comm_recv #8: rank 1 left without making this call$"

    mpi_here() {
        mpi "$flavour" "$@"
    }
    check_endings "$flavour, mpi" mpi_here

    local where how
    check "$flavour: a program for ranks that do not come builds" "mpicc.$flavour" -Wall -Wextra -Werror missing.c \
        -o missing -I"$LS_SOURCE/include" -L"$LS_BUILD/lib" -llockstep -Wl,-rpath,"$LS_BUILD/lib"
    for where in start world part leave end finalize; do
        for how in stop sleep; do
            case $where:$how in start:sleep | finalize:sleep) continue ;; esac # takes 5 s and tells nothing new
            mpi "$flavour" 3 ./missing $where $how
            check "$flavour, rank 1 does not come to $where: $how: the launcher fails" test "$status" != 0
            check "$flavour, rank 1 does not come to $where: $how: in time" test "$status" != 124
            check "$flavour, rank 1 does not come to $where: $how: nothing is left" nobody_soon
            case $where in
            start) check "$flavour: MPI that does not start is said" says out \
                "^[02]: LS_ERR_TIMEOUT: ls_init: MPI_Init_thread did not end within 5 s: some rank" ;;
            world) check "$flavour, $how: who is missing in ls_init is named" says out \
                "^[02]: LS_ERR_TIMEOUT: ls_init: rank 1 of 3 did not come within 3 s; LS_ERR_STATE: .*earlier try" ;;
            part) check "$flavour, $how: who is missing in ls_comm_from_mpi is named" says out \
                "^[02]: LS_ERR_TIMEOUT: ls_comm_from_mpi: rank 1 of 3 did not come within 3 s" ;;
            leave) check "$flavour, $how: who does not call ls_finalize is named" says out \
                "^[02]: LS_ERR_TIMEOUT: ls_finalize: rank 1 did not call ls_finalize within 3 s" ;;
            end) check "$flavour, $how: who does not end is named" says err \
                "error: MPI could not be ended, so this process ends with status 1: rank 1 of 3 did not come within 3 s" ;;
            finalize) check "$flavour: MPI that does not end is said" says err \
                "error: MPI could not be ended, so this process ends with status 1: MPI_Finalize did not end within 5 s" ;;
            esac
            case $where in end | finalize) check "$flavour, $where, $how: what was printed is there" says out "^[02]: LS_OK" ;; esac
        done
    done
    mpi "$flavour" 3 ./missing end late
    check "$flavour, rank 1 comes to the end late: ends well" is "$status" 0
    check "$flavour, rank 1 comes to the end late: who waits says for whom" \
        says err "waiting for rank 1 of 3; ranks 0 and 2 came from "

    LS_TEST_MARK=$mark bash -c "$(declare -f mpi); scratch=$scratch mark=$mark; mpi $flavour 2 \
        $LS_BUILD/examples/perceptron --epochs 100000 --quiet; exit \$status" &
    await kill_one "$(readlink -f "$LS_BUILD/examples/perceptron")"
    wait $!
    check "$flavour, a rank is killed: the launcher fails" test $? != 0
    check "$flavour, a rank is killed: the others end" nobody_soon
}

# ---- programs that go wrong ----
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
cat >quitter.c <<'END'
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
int main(int argc, char **argv) { /* WHAT CALL: what rank 1 does instead of its fourth call; or "backend" */
    ls_init_options options = {.timeout = 3}; /* enough to come, on a busy machine */
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
            sleep(60); /* the others hear of it, fail, and the launcher ends this one */
        } else if (strcmp(argv[1], "kill") == 0) {
            raise(SIGKILL);
        } else if (strcmp(argv[1], "stop") == 0) {
            raise(SIGSTOP);
        }
        exit(atoi(argv[1]));
    }
    ls_status status = call(world, argv[2]);
    if (status == LS_OK) { /* what was sent may have been taken early */
        status = ls_comm_barrier(world, NULL);
    }
    printf("%d: %s: %s\n", ls_comm_rank(world), ls_status_name(status), ls_error_message());
    fflush(stdout);
    if (strcmp(argv[1], "leave") == 0) {
        sleep(1); /* the launcher ends all when one fails: who saw it first says so, too */
    }
    return status == LS_OK ? 0 : 1;
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
for name in alone quitter untaken parts; do
    cc -I"$LS_SOURCE/include" $name.c -o $name -L"$LS_BUILD/lib" -llockstep -Wl,-rpath,"$LS_BUILD/lib" || exit 1
done

missing=()
mkdir -p copy/bin copy/lib
cp -P "$LS_BUILD"/lib/liblockstep.so* copy/lib
cp "$programs/ranks_sync" copy/bin/sync # a program of its own, with no module beside it
for flavour in "$@"; do
    if ! command -v "mpirun.$flavour" >/dev/null; then
        missing+=("mpirun.$flavour is not installed")
    elif [ ! -e "$LS_BUILD/lib/lockstep-mpi_$flavour.so" ]; then
        missing+=("this build has no lockstep-mpi_$flavour.so")
    else
        check_flavour $flavour
    fi
done

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
    lines=$(grep -vc '^\[warn\] Epoll' err) # which libevent, under Open MPI, may say while a process ends
    check "backend mpi under another launcher: says so, once" is "$said $lines" "1 1"
fi

if [ ${#missing[@]} != 0 ]; then
    printf 'SKIPPED %s (scripts/install-deps --mpi, then build again)\n' "${missing[@]}"
    check "nothing is left running" nobody_soon
    [ "$failed" = 0 ] && exit 77
    exit 1
fi
finish
