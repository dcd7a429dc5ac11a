# Backend mpi with MPI's own collectives for all calls that they support: the rank programs, and jobs in which a rank
# ends, is stopped or fails during a collective.
. "$LS_SOURCE/tests/support/mpi.sh"
export LOCKSTEP_ALGORITHM=all:native

# check_program FLAVOUR RANKS NAME ORDER: a rank program; ORDER is "any" if reductions may have any order, else "one". A
# communicator that is freed early may leave MPI with the buffers of a call that another rank had not begun.
check_program() {
    local flavour=$1 ranks=$2 name=$3 order=$4
    [ $order = one ] || export LOCKSTEP_TEST_ANY_ORDER=1
    mpi "$flavour" $ranks env LOCKSTEP_TEST_CASES=600 LOCKSTEP_TEST_PROGRAMS=20 LOCKSTEP_TEST_ONE_IN=8 "$programs/ranks_$name"
    check "$flavour, $ranks ranks: $name, $order order" is "$status" 0
    check "$flavour, $ranks ranks: $name, $order order, reports no failure" \
        is "$(complaints err | grep -av -e '^seed' -e 'MPI still uses buffers of a call that not all ranks made')" ""
}

# check_ending FLAVOUR CALL WHAT SECONDS: rank 1's action during its fourth call.
check_ending() {
    local flavour=$1 call=$2 what=$3 seconds=$4
    mpi "$flavour" 3 "$scratch/inside_$flavour" $call $what $seconds
    check "$flavour, $call, rank 1: $what: the launcher fails" test "$status" != 0
    check "$flavour, $call, rank 1: $what: in time" test "$status" != 124
    check "$flavour, $call, rank 1: $what: nothing is left" nobody_soon
    case $what in
    stop)
        check "$flavour, $call: who is stopped is named" says out \
            "^[02]: LS_ERR_TIMEOUT: ls_comm_$call #[0-9]*: rank 1 did not proceed with this call within $seconds s"
        ;;
    fail)
        check "$flavour, $call: whose MPI fails gets its error" says out \
            "^1: LS_ERR_IO: ls_comm_$call #[0-9]*: a collective of MPI: "
        check "$flavour, $call: whose MPI fails is named" says out \
            "^[02]: LS_ERR_PEER: ls_comm_[a-z]* #[0-9]*: rank 1 gave up: a collective of MPI: "
        ;;
    never)
        check "$flavour, $call: that never ends, though all ranks are there: ends" says out \
            "^[0-2]: LS_ERR_TIMEOUT: ls_comm_[a-z]* #[0-9]*: .*the network's collective did not finish within"
        ;;
    esac
}

# The launcher sees a shell that continues when rank 1 dies, and does not end the others: each detects the death itself.
check_survivors() {
    local flavour=$1 call=$2
    mpi "$flavour" 3 sh -c '"$@"; [ $? != 137 ] || exec sleep 20' sh "$scratch/inside_$flavour" $call kill 8
    check "$flavour, $call, rank 1 is killed, the others are not: in time" test "$status" != 124
    check "$flavour, $call, rank 1 is killed, the others are not: nothing is left" nobody_soon
    check "$flavour, $call, rank 1 is killed, the others are not: both name it" \
        is "$(grep -ac "^[02]: LS_ERR_\(TIMEOUT\|PEER\): ls_comm_[a-z]* #[0-9]*: rank 1 did not " out)" 2
}

check_differing() {
    local flavour=$1
    mpi "$flavour" 2 sh -c 'LOCKSTEP_ALGORITHM=$(case ${PMI_RANK-$OMPI_COMM_WORLD_RANK} in 0) echo all:native;; *) echo all:^native;; esac) exec "$1"' \
        sh "$programs/ranks_any_order"
    check "$flavour: ranks that differ in LOCKSTEP_ALGORITHM: refused" test "$status" != 0 -a "$status" != 124
    check "$flavour: ranks that differ in LOCKSTEP_ALGORITHM: said" says err \
        "the ranks made different calls (LOCKSTEP_ALGORITHM must be the same on all ranks): rank 0 called .*, algorithm native (#1); rank 1 called .*, not algorithm native"
    mpi "$flavour" 2 env LOCKSTEP_ALGORITHM=all:mpi "$programs/ranks_any_order"
    check "$flavour: no algorithm: said" says err "LOCKSTEP_ALGORITHM: backend .* has no algorithm 'mpi' for all; available: "
}

# MPI libraries compute some reductions wrongly. These reductions never use MPI, neither on request nor by default.
check_values() {
    local flavour=$1 ranks=$2 choice=$3
    if [ "$choice" = default ]; then unset LOCKSTEP_ALGORITHM; fi
    mpi "$flavour" $ranks "$programs/ranks_any_order_values"
    check "$flavour, $ranks ranks, $choice: every reduction in any order has the promised values" \
        is "$status $(complaints out err)" "0 "
}

check_programs() {
    local flavour=$1 counts=$2 orders=$3 ranks name order
    for ranks in $counts; do
        for name in conformance random_programs collectives; do
            for order in $orders; do
                beside check_program "$flavour" $ranks $name $order
            done
        done
        for name in any_order points_and_groups several_communicators disagreement messages freed_early; do
            beside check_program "$flavour" $ranks $name any
        done
    done
}

check_flavour() {
    local flavour=$1 call ranks choice
    if [ -n "${LOCKSTEP_TEST_LONG:-}" ]; then # the rest is in the other list
        check_programs "$flavour" "4 3 2" "one any"
        return
    fi
    check "$flavour: a program that ends inside MPI's collectives builds" \
        mpi_builds "$flavour" "$LS_SOURCE/tests/shell/mpi_inside.c" inside_$flavour -rdynamic
    beside check_ending "$flavour" allreduce never 4 # the longest first; a broadcast may end without rank 1
    for call in allreduce broadcast; do
        beside check_survivors "$flavour" $call
        beside check_ending "$flavour" $call stop 8
        beside check_ending "$flavour" $call kill 60
        beside check_ending "$flavour" $call fail 60
    done
    beside check_differing "$flavour"
    for ranks in 2 3 4; do
        for choice in default all:native; do
            beside check_values "$flavour" $ranks $choice
        done
    done
    check_programs "$flavour" "3" any
}

each_flavour "$@"
finish_flavours
