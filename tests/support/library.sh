# Shared code of the scripts for backends gloo and nccl: ranks that end during a collective. See library_inside.c.
. "$LS_SOURCE/tests/support/checks.sh"
export LOCKSTEP_TIMEOUT=60
programs=$LS_BUILD/tests
at_once=4 # the jobs in which a rank ends wait most of the time
unset RANK WORLD_SIZE LOCKSTEP_MODULE_PATH

# inside CALL WHAT MILLISECONDS TIMEOUT: the launcher sees shells that continue when ranks end, and does not end the
# others: each detects the death itself.
inside() {
    launch run -n 3 sh -c '"$@"; [ $? != 137 ] || sleep 3; sleep 1; exit 1' sh "$programs/library_inside" "$@" </dev/null
}

check_killed() {
    local call=$1 after=$2
    inside $call 9 $after 30
    check "$call, rank 1 is killed after $after ms: both name it" \
        is "$(grep -ac "^[02]: LS_ERR_PEER: ls_comm_$call #[0-9]*: rank 1 " out)" 2
    check "$call, rank 1 is killed after $after ms: nothing is left" nobody_soon
}

check_stopped() {
    local call=$1
    inside $call 19 40 4
    check "$call, rank 1 is stopped: both name it" \
        is "$(grep -ac "^[02]: LS_ERR_\(TIMEOUT\|PEER\): ls_comm_$call #[0-9]*: rank 1 did not " out)" 2
    check "$call, rank 1 is stopped: nothing is left" nobody_soon
}

# check_endings: all calls, in parallel.
check_endings() {
    local call after
    for call in allreduce broadcast alltoall; do
        for after in 1 7 20 55; do
            beside check_killed $call $after
        done
        beside check_stopped $call
    done
}
