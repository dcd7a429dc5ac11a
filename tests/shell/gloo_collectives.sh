# Backend gloo with libgloo's own collectives for all calls that they support: the rank programs, and jobs in which a
# rank is killed or stopped during a collective.
. "$LS_SOURCE/tests/support/library.sh"
export LOCKSTEP_BACKEND=gloo LOCKSTEP_GLOO_COLLECTIVES=gloo
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
    for name in any_order any_order_values points_and_groups several_communicators disagreement messages threads freed_early lifetime; do
        check_program $ranks $name any
    done
done
finish
