# Backend gloo with libgloo's own collectives for all that they can make: the rank programs, and jobs in which a rank is
# killed or stopped in the midst of one.
. "$LS_SOURCE/tests/support/checks.sh"
export LOCKSTEP_TIMEOUT=60 LOCKSTEP_BACKEND=gloo LOCKSTEP_GLOO_COLLECTIVES=gloo
programs=$LS_BUILD/tests
at_once=4 # the jobs in which a rank ends wait most of the time
unset RANK WORLD_SIZE LOCKSTEP_MODULE_PATH
if [ ! -e "$LS_BUILD/lib/lockstep-gloo.so" ]; then
    echo "SKIPPED this build has no lockstep-gloo.so (scripts/install-deps --gloo, then build again)"
    exit 77
fi
cc "$LS_SOURCE/tests/shell/gloo_inside.c" -o inside -I"$LS_SOURCE/include" -L"$LS_BUILD/lib" -llockstep \
    -Wl,-rpath,"$LS_BUILD/lib" -pthread || exit 1

# check_program RANKS NAME ORDER: a rank program; ORDER is "any" where reductions may have any, else "one".
check_program() {
    local ranks=$1 name=$2 order=$3
    [ $order = one ] || export LOCKSTEP_TEST_ANY_ORDER=1
    LOCKSTEP_TEST_CASES=600 LOCKSTEP_TEST_PROGRAMS=20 LOCKSTEP_TEST_ONE_IN=8 launch run -n "$ranks" "$programs/ranks_$name" </dev/null
    check "$ranks ranks: $name, $order order" is "$status" 0
}

# inside CALL SIGNAL MILLISECONDS TIMEOUT: the launcher sees shells that go on when ranks end, and so leaves the
# others alone: each finds out by itself.
inside() {
    launch run -n 3 sh -c '"$@"; [ $? != 137 ] || sleep 3; sleep 1; exit 1' sh "$scratch/inside" "$@" </dev/null
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

check_differing() {
    launch run -n 2 sh -c 'LOCKSTEP_GLOO_COLLECTIVES=$(case $RANK in 0) echo gloo;; *) echo engine;; esac) exec "$1"' \
        sh "$programs/ranks_any_order" </dev/null
    check "ranks that differ in LOCKSTEP_GLOO_COLLECTIVES: refused" test "$status" != 0
    check "ranks that differ in LOCKSTEP_GLOO_COLLECTIVES: said" says err \
        "LOCKSTEP_GLOO_COLLECTIVES is gloo on rank 0 and engine on rank 1: it must be the same on all"
    LOCKSTEP_GLOO_COLLECTIVES=all launch run -n 2 "$programs/ranks_any_order" </dev/null
    check "no value of LOCKSTEP_GLOO_COLLECTIVES: said" says err \
        "LOCKSTEP_GLOO_COLLECTIVES of rank 0 must be engine, auto or gloo"
}

if [ -n "${LOCKSTEP_TEST_LONG:-}" ]; then counts="4 2"; else counts=3; fi
if [ -z "${LOCKSTEP_TEST_LONG:-}" ]; then
    for call in allreduce broadcast alltoall; do
        for after in 1 7 20 55; do
            beside check_killed $call $after
        done
        beside check_stopped $call
    done
    beside check_differing
    together
fi
for ranks in $counts; do
    for name in conformance random_programs collectives; do
        for order in one any; do
            check_program $ranks $name $order
        done
    done
    for name in any_order points_and_groups several_communicators disagreement messages threads freed_early lifetime; do
        check_program $ranks $name any
    done
done
finish
