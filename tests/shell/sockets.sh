# Backend tcp or gloo (the argument): the rank programs, ranks that die or are stopped, the same model as on shared
# memory, and jobs that fail. Other tests cover two machines.
. "$LS_SOURCE/tests/support/checks.sh"
export LOCKSTEP_TIMEOUT=60
programs=$LS_BUILD/tests
unset RANK WORLD_SIZE LOCKSTEP_MODULE_PATH

backend=$1
if [ "$backend" = gloo ] && [ ! -e "$LS_BUILD/lib/lockstep-gloo.so" ]; then
    echo "SKIPPED this build has no lockstep-gloo.so (scripts/install-deps --gloo, then build again)"
    exit 77
fi

# job RANKS PROGRAM ARGUMENTS...
job() {
    local ranks=$1
    shift
    LOCKSTEP_BACKEND=$backend launch run -n "$ranks" "$@" </dev/null
}

hashes() {
    sed -n 's/^rank [0-9]* parameters \([0-9a-f]\{16\}\)\r*$/\1/p' out | sort -u
}

for name in differentiable random_gradients messages begun_collectives lifetime; do
    job 1 "$programs/ranks_$name"
    check "a world of one: $name" is "$status" 0
done
if [ -n "${LOCKSTEP_TEST_LONG:-}" ]; then counts="2 4"; else counts=3; fi
for ranks in $counts; do
    for name in messages begun_collectives early_messages model_parallel pipeline descriptors threads two_threads freed_early objects \
        monitored_barrier any_source zero trial_ends lifetime; do
        # Both backends use the same engine: the ordinary list runs these programs with one of them.
        case $backend-${LOCKSTEP_TEST_LONG:-short}-$name in
        gloo-short-messages | gloo-short-begun_collectives | gloo-short-descriptors | gloo-short-lifetime) ;;
        gloo-short-*) continue ;;
        esac
        job $ranks "$programs/ranks_$name"
        check "$ranks ranks: $name" is "$status" 0
    done
    for name in progress_thread messages begun_collectives freed_early two_threads trial_ends; do
        LOCKSTEP_PROGRESS_THREAD=1 job $ranks "$programs/ranks_$name"
        check "$ranks ranks with a progress thread: $name" is "$status" 0
    done
    for name in collectives points_and_groups several_communicators disagreement data_parallel; do
        job $ranks "$programs/ranks_$name"
        check "$ranks ranks: $name" is "$status" 0
        check "$ranks ranks: $name is silent" is "$(complaints out err)" ""
    done
    for name in differentiable random_gradients; do
        [ $ranks != 4 ] || continue # many small calls
        job $ranks "$programs/ranks_$name"
        check "$ranks ranks: $name" is "$status" 0
    done
    LOCKSTEP_TEST_ONE_IN=8 job $ranks "$programs/ranks_data_parallel_losses"
    check "$ranks ranks: data_parallel_losses" is "$status" 0
    for name in conformance random_programs; do
        LOCKSTEP_TEST_CASES=400 LOCKSTEP_TEST_PROGRAMS=20 job $ranks "$programs/ranks_$name"
        check "$ranks ranks: $name" is "$status" 0
    done
done
[ -z "${LOCKSTEP_TEST_LONG:-}" ] || finish # the rest is in the ordinary list

if [ "$backend" = tcp ]; then # libgloo connects every rank to every other
    job 32 "$programs/ranks_connections"
    check "32 ranks: a rank has about 4 log2 P descriptors after a step of data parallelism" is "$status" 0
fi

LOCKSTEP_TEST_ONE_IN=4 LOCKSTEP_TEST_BACKEND=$backend LS_TEST_MARK=$mark "$programs/unit_comm_faults" >out 2>err
check "ranks that are killed, crash, exit, leave or are stopped in any call" is "$?" 0
grep -a 'slowest error' out
LOCKSTEP_TEST_BACKEND=$backend LS_TEST_MARK=$mark "$programs/unit_comm_faults_special" >out 2>err
check "what else ranks meet: silence, children, no memory, work" is "$?" 0
grep -a '^SKIPPED' out
LOCKSTEP_TEST_BACKEND=$backend LS_TEST_MARK=$mark "$programs/unit_comm_monitored" >out 2>err
check "ranks that end, leave or stop in a monitored barrier" is "$?" 0
LOCKSTEP_TEST_BACKEND=$backend LS_TEST_MARK=$mark "$programs/unit_comm_any_source" >out 2>err
check "ranks that end, leave or are silent while another rank receives from any rank" is "$?" 0
LOCKSTEP_TEST_BACKEND=$backend LS_TEST_MARK=$mark "$programs/unit_comm_stopped" >out 2>err
check "a job that is stopped as a whole goes on" is "$?" 0

if [ -d /usr/share/datasets/fashion-mnist ]; then
    launch run -n 2 "$LS_BUILD/examples/fashion_mnist" --max-steps 20 --limit 2000 --quiet </dev/null
    first=$(hashes)
    job 2 "$LS_BUILD/examples/fashion_mnist" --max-steps 20 --limit 2000 --quiet
    check "fashion_mnist ends well" is "$status" 0
    check "both ranks print" is "$(grep -c '^rank [01] parameters' out)" 2
    check "the bits of shared memory" is "$(hashes)" "$first"
fi
job 2 "$LS_BUILD/examples/perceptron" --epochs 2 --quiet
check "perceptron ends well" is "$status" 0

launch bench allreduce -n 2 --backend $backend --sizes 4,64K,1M --iterations 3 --json </dev/null
check "bench: three sizes, all correct" is "$(grep -c "\"backend\": \"$backend\".*\"correct\": true" out)" 3

# ---- failures ----
LOCKSTEP_INTERFACE=nowhere0 job 2 "$programs/ranks_sync"
check "an interface that is not there: fails" test "$status" != 0
check "an interface that is not there: is named" says err "nowhere0"
LOCKSTEP_INTERFACE=lo job 2 "$programs/ranks_sync"
check "an interface by name" is "$status" 0
[ "$backend" = gloo ] || finish # tcp is no module
mkdir -p copy/bin
cp "$programs/ranks_sync" copy/bin/sync # a program of its own, with no module beside it
LOCKSTEP_MODULE_PATH=$scratch/absent job 2 "$scratch/copy/bin/sync"
check "no module: fails" test "$status" != 0
check "no module: says what makes it" says err 'no backend "gloo".*lockstep-gloo.so.*scripts/install-deps --gloo'
finish
