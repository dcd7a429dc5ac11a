# Backend gloo with libgloo's own collectives for all calls that they support: the rank programs, and jobs in which a
# rank is killed or stopped during a collective.
. "$LS_SOURCE/tests/support/library.sh"
export LOCKSTEP_BACKEND=gloo LOCKSTEP_ALGORITHM=all:native
if [ ! -e "$LS_BUILD/lib/lockstep-gloo.so" ]; then
    echo "SKIPPED this build has no lockstep-gloo.so (scripts/install-deps --gloo, then build again)"
    exit 77
fi

# check_program RANKS NAME ORDER: a rank program; ORDER is "any" if reductions may have any order, else "one".
check_program() {
    local ranks=$1 name=$2 order=$3
    [ $order = one ] || export LOCKSTEP_TEST_ANY_ORDER=1
    LOCKSTEP_TEST_CASES=600 LOCKSTEP_TEST_PROGRAMS=20 LOCKSTEP_TEST_ONE_IN=8 launch run -n "$ranks" "$programs/ranks_$name" </dev/null
    check "$ranks ranks: $name, $order order" is "$status" 0
}

check_differing() {
    launch run -n 2 sh -c 'LOCKSTEP_ALGORITHM=$(case $RANK in 0) echo all:native;; *) echo all:^native;; esac) exec "$1"' \
        sh "$programs/ranks_any_order" </dev/null
    check "ranks that differ in LOCKSTEP_ALGORITHM: refused" test "$status" != 0
    check "ranks that differ in LOCKSTEP_ALGORITHM: said" says err \
        "the ranks made different calls (LOCKSTEP_ALGORITHM must be the same on all ranks): rank 0 called .*, algorithm native (#1); rank 1 called .*, not algorithm native"
    LOCKSTEP_ALGORITHM=all:gloo launch run -n 2 "$programs/ranks_any_order" </dev/null
    check "no algorithm: said" says err "LOCKSTEP_ALGORITHM: backend .* has no algorithm 'gloo' for all; available: "
}

if [ -n "${LOCKSTEP_TEST_LONG:-}" ]; then counts="4 2"; else counts=3; fi
if [ -z "${LOCKSTEP_TEST_LONG:-}" ]; then
    check_endings
    beside check_differing
    together
fi
for ranks in $counts; do
    for name in conformance random_programs collectives; do
        for order in one any; do
            check_program $ranks $name $order
        done
    done
    for name in any_order any_order_values points_and_groups several_communicators disagreement messages threads freed_early objects \
        monitored_barrier any_source lifetime; do
        check_program $ranks $name any
    done
done
finish
