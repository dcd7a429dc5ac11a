# Backend nccl. With the real library: the error without a GPU. With its test double (tests/nccl_double): the rank
# programs, tensors of tests/shadow whose memory it accepts, and jobs in which ranks end, stop, fail or differ during a
# collective.
. "$LS_SOURCE/tests/support/library.sh"
export LOCKSTEP_BACKEND=nccl LOCKSTEP_TEST_STREAM=1 LOCKSTEP_TEST_CASES=600 \
    LOCKSTEP_TEST_PROGRAMS=20 LOCKSTEP_TEST_ONE_IN=16
unset LOCKSTEP_DEVICE
if [ ! -e "$LS_BUILD/lib/lockstep-nccl.so" ]; then
    echo "SKIPPED this build has no lockstep-nccl.so: libnccl or CUDA's runtime was not found"
    exit 77
fi

if [ ! -e /dev/nvidiactl ]; then
    launch run -n 2 "$programs/ranks_collectives" </dev/null
    check "the real module where there is no GPU: refused" test "$status" != 0
    check "the real module where there is no GPU: said in a sentence" says err \
        "backend nccl: \(there is no NVIDIA driver, or it is too old\|this process has no GPU (.*)\): backends shm and tcp need none"
fi

mkdir -p met
export LOCKSTEP_MODULE_PATH=$programs/nccl_double LOCKSTEP_TEST_NCCL=folder=$PWD/met

# check_program RANKS NAME DEVICE
check_program() {
    local ranks=$1 name=$2 device=$3
    LOCKSTEP_DEVICE=$device launch run -n "$ranks" "$programs/ranks_$name" </dev/null
    check "$ranks ranks: $name, $device" is "$status" 0
}

# NCCL reports a failure while its call is in progress.
check_failed() {
    LOCKSTEP_TEST_NCCL=$LOCKSTEP_TEST_NCCL,fail=1 inside allreduce nothing 0 30
    check "NCCL fails on rank 1: it says why" says out \
        "1: LS_ERR_DEVICE: ls_comm_allreduce #20: NCCL: a call in progress: remote error: the double was told to fail"
    check "NCCL fails on rank 1: the others name it" \
        is "$(grep -ac "^[02]: LS_ERR_PEER: ls_comm_allreduce #20: rank 1 .*remote error" out)" 2
    check "NCCL fails on rank 1: nothing is left" nobody_soon
}

check_differing() {
    launch run -n 3 "$programs/library_inside" allreduce host 0 30 </dev/null
    check "one rank's buffers are on the host: the communicator goes on" is "$status" 0
    check "one rank's buffers are on the host: all are told" is "$(grep -ac "^[012]: LS_ERR_MISMATCH: .*ranks 0, 2 called \
allreduce of 262144 f32, sum, in memory of a device (#2); rank 1 called allreduce of 262144 f32, sum (#2)" out)" 3
}

check_one_gpu() {
    LOCKSTEP_TEST_NCCL=$LOCKSTEP_TEST_NCCL,onegpu launch run -n 3 "$programs/library_inside" allreduce nothing 0 30 </dev/null
    check "ranks on one GPU: refused" test "$status" != 0
    check "ranks on one GPU: said" says out "LS_ERR_UNSUPPORTED: ls_comm_allreduce #1: ranks 0 and 1 use the same GPU \
(.*), which NCCL does not allow: give each rank its own GPU, or use backend shm"
}

# Tensors reach NCCL.
check_reached() {
    LOCKSTEP_DEVICE=shadow:0 LOCKSTEP_TEST_NCCL=$LOCKSTEP_TEST_NCCL,fail=1 launch run -n 2 "$programs/ranks_data_parallel" \
        </dev/null
    check "gradients go over NCCL: its failure is theirs" says err "the double was told to fail"
}

if [ -n "${LOCKSTEP_TEST_LONG:-}" ]; then counts="4 2" tensor_counts=3; else counts=3 tensor_counts=2; fi
if [ -z "${LOCKSTEP_TEST_LONG:-}" ]; then
    check_endings
    beside check_failed
    beside check_differing
    beside check_one_gpu
    beside check_reached
    together
fi
for ranks in $counts; do
    for name in conformance random_programs collectives points_and_groups several_communicators disagreement messages \
        threads freed_early monitored_barrier any_source lifetime; do
        check_program $ranks $name cpu
    done
done
for ranks in $tensor_counts; do
    for name in sync data_parallel data_parallel_buffers data_parallel_halves data_parallel_tapes frozen_parameters differentiable collectives random_gradients \
        model_parallel pipeline trial checkpoints; do
        check_program $ranks $name shadow:0
    done
done
finish
