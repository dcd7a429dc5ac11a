# Backend mpi: the end of jobs in which a rank ends, leaves or is stopped while others wait for it.
. "$LS_SOURCE/tests/support/mpi.sh"
. "$LS_SOURCE/tests/support/endings.sh"

# check_quitter FLAVOUR BACKEND RANKS CALL WHAT: rank 1's action.
check_quitter() {
    local flavour=$1 carrier=$2 ranks=$3 call=$4 what=$5
    export LOCKSTEP_BACKEND=$carrier
    mpi "$flavour" $ranks "$scratch/quitter" $what $call
    check "$flavour, $carrier, $ranks ranks, $call, rank 1: $what: the launcher fails" test "$status" != 0
    check "$flavour, $carrier, $ranks ranks, $call, rank 1: $what: in time" test "$status" != 124
    check "$flavour, $carrier, $ranks ranks, $call, rank 1: $what: nothing is left" nobody_soon
    case $what in
    leave) # in a send, the other ranks wait for each other, and the launcher terminates them
        [ $call = send ] || check "$flavour, $carrier, $ranks ranks, $call: who left is named" \
            says out "^[02-7]: LS_ERR_PEER: ls_comm_$call #4: rank 1 .*left without making this call$"
        ;;
    stop) # the first rank that gives up notifies the other ranks
        check "$flavour, $carrier, $ranks ranks, $call: who is silent is named" \
            says out "^[02-7]: LS_ERR_TIMEOUT: ls_comm_[a-z]* #[0-9]*: \(rank [02-7] gave up: \)\?rank 1 .*\(did not .*\|sent nothing .*\) within 8 s"
        ;;
    esac
}

# The fourth message of a series, which the other rank expects.
check_row() {
    local flavour=$1
    mpi "$flavour" 2 "$scratch/quitter" leave send
    check "$flavour, send, who left in a row is named" \
        says out "^0: LS_ERR_PEER: ls_comm_recv #8: rank 1 left without making this call$"
}

# check_finalizer FLAVOUR BACKEND: rank 1 calls MPI_Finalize without ls_comm_free.
check_finalizer() {
    local flavour=$1 carrier=$2
    unset LOCKSTEP_BACKEND
    mpi "$flavour" 3 "$scratch/finalizer_$flavour" "$carrier"
    check "$flavour, $carrier, MPI_Finalize without ls_comm_free: the job ends well, in time" is "$status" 0
    check "$flavour, $carrier, MPI_Finalize without ls_comm_free: the other ranks name the rank" \
        is "$(grep -c '^[02]: LS_ERR_PEER: ls_comm_barrier #.*: rank 1 .*called MPI_Finalize' out)" 4
    check "$flavour, $carrier, MPI_Finalize without ls_comm_free: later calls of the rank fail" \
        is "$(grep -c '^1: LS_ERR_STATE: .*MPI_Finalize' out)" 2
}

check_flavour() {
    local flavour=$1 carrier call what
    mpi_builds "$flavour" "$LS_SOURCE/tests/shell/mpi_finalizer.c" "finalizer_$flavour" || exit 1
    beside check_finalizer "$flavour" mpi
    beside check_finalizer "$flavour" shm
    for what in stop leave 0 3 kill; do # the longest first
        for call in barrier allreduce send; do
            beside check_quitter "$flavour" mpi 3 $call $what
        done
        beside check_quitter "$flavour" mpi 8 allreduce $what # along wide trees, where cores are fewer
        beside check_quitter "$flavour" shm 3 allreduce $what # tests of shm itself have the rest
    done
    beside check_row "$flavour"
    mpi_here() {
        mpi "$flavour" "$@"
    }
    check_endings "$flavour, mpi" mpi_here
}

cp "$LS_SOURCE/tests/shell/mpi_quitter.c" quitter.c
build quitter
each_flavour "$@"
finish_flavours
