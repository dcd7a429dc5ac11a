# Shared code of the scripts for backend mpi: jobs under the MPI libraries in the script's arguments (openmpi, mpich),
# if they are installed.
. "$LS_SOURCE/tests/support/checks.sh"
export LOCKSTEP_TIMEOUT=60
programs=$LS_BUILD/tests
export LOCKSTEP_BACKEND=mpi # ranks of one machine would use shared memory
unset RANK WORLD_SIZE LOCKSTEP_MODULE_PATH
at_once=4 # mpirun and the ranks of these tests wait most of the time
job_limit=120 # seconds after which a job counts as hanging

# For a hanging job, before it is killed: lists the programs of this script, and where their threads wait.
running() {
    local pid thread
    for pid in $(marked); do
        echo "process $pid: $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | cut -c 1-150)"
        for thread in "/proc/$pid/task/"*; do
            echo "    $(sed -n '/^State/p' "$thread/status" 2>/dev/null) in $(cat "$thread/wchan" 2>/dev/null)," \
                "$(cut -d ' ' -f 14,15 "$thread/stat" 2>/dev/null) ticks used"
        done
    done
}

# Whether a rank of the job exists: a process other than the launcher.
has_ranks() {
    local pid
    for pid in $(marked); do
        case $(cat "/proc/$pid/comm" 2>/dev/null) in
        timeout | mpirun* | mpiexec* | orte* | hydra* | '') ;;
        *) return 0 ;;
        esac
    done
    return 1
}

run_job() {
    local watcher
    rm -f hung abandoned
    (read -r -t $((job_limit - 10)) <> <(:) || { running >hung && { has_ranks || : >abandoned; }; }) &
    watcher=$!
    TMPDIR=$PWD LS_TEST_MARK=$mark timeout -k 5 "$job_limit" "$@" >out 2>err </dev/null
    status=$?
    kill "$watcher" 2>/dev/null
    wait "$watcher" 2>/dev/null
    [ "$status" != 124 ] || cat hung >>err 2>/dev/null
}

# finalize_hung FLAVOUR RANKS: succeeds if the job hung in MPI_Finalize. This is a defect of MPICH before 4.2 with UCX: a rank
# waits for the launcher, and does not answer the other ranks (MPICH pull request 6596). Every rank of the program must write
# one line before MPI_Finalize.
finalize_hung() {
    [ "$1" = mpich ] && [ "$status" = 124 ] && [ "$(wc -l <out)" -ge "$2" ] && grep -q ' in unix_stream_' hung
}

# mpi FLAVOUR RANKS PROGRAM ARGUMENTS...: with output in files out and err and the exit status in $status. About once in
# thousands, a job of Open MPI hangs silently: if it has no rank, the launcher gets a second chance.
mpi() {
    local flavour=$1 ranks=$2 options=()
    shift 2
    # Open MPI starts nothing as root, and at most as many ranks as cores, unless told otherwise; its own files are in
    # TMPDIR. By default, it gives the other ranks a second to end when one fails, and yields in each poll for messages,
    # which costs a time slice of the scheduler each time if another program is busy. A script sets yields=1 for ranks
    # that wait in calls of MPI itself and are more than the cores.
    [ "$flavour" = mpich ] ||
        options=(--allow-run-as-root --oversubscribe --mca odls_base_sigkill_timeout 0 --mca mpi_yield_when_idle "${yields:-0}")
    run_job "mpirun.$flavour" "${options[@]}" -np "$ranks" "$@"
    if [ "$status" = 124 ] && [ -e abandoned ]; then
        echo "note    mpirun.$flavour hung without a rank, and is started again:"
        cat hung
        run_job "mpirun.$flavour" "${options[@]}" -np "$ranks" "$@"
    elif hydra_crashed "$flavour"; then
        run_job "mpirun.$flavour" "${options[@]}" -np "$ranks" "$@"
    fi
}

# build NAME...: compiles programs NAME.c of this folder with the library of the build, without MPI.
build() {
    local name
    for name in "$@"; do
        cc -I"$LS_SOURCE/include" $name.c -o $name -L"$LS_BUILD/lib" -llockstep -Wl,-rpath,"$LS_BUILD/lib" || exit 1
    done
}

# mpi_builds FLAVOUR SOURCE PROGRAM OPTIONS...: the same with MPI.
mpi_builds() {
    "mpicc.$1" -Wall -Wextra -Werror "$2" -o "$3" "${@:4}" -I"$LS_SOURCE/include" -L"$LS_BUILD/lib" -llockstep \
        -Wl,-rpath,"$LS_BUILD/lib"
}

# each_flavour FLAVOUR...: calls check_flavour, which the script defines, for the installed libraries; the others are in
# $missing.
missing=()
each_flavour() {
    local flavour
    for flavour in "$@"; do
        if ! command -v "mpirun.$flavour" >/dev/null; then
            missing+=("mpirun.$flavour is not installed")
        elif [ ! -e "$LS_BUILD/lib/lockstep-mpi_$flavour.so" ]; then
            missing+=("this build has no lockstep-mpi_$flavour.so")
        else
            check_flavour "$flavour"
            together
        fi
    done
}

# Ends the script, as skipped if a flavour was missing.
finish_flavours() {
    [ ${#missing[@]} != 0 ] || finish
    printf 'SKIPPED %s (scripts/install-deps --mpi, then build again)\n' "${missing[@]}"
    check "nothing is left running" nobody_soon
    [ "$failed" = 0 ] && exit 77
    exit 1
}
