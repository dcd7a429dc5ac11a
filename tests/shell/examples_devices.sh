# Examples on the devices of tests/shadow, whose memory the host cannot read. With --device, they print the same on
# shadow:0, which computes like the CPU, as on cpu. With LOCKSTEP_DEVICE, they run on shadow:1, with CUDA's kernels.
. "$LS_SOURCE/tests/support/checks.sh"
unset LOCKSTEP_DEVICE

# on DEVICE RANKS NAME ARGUMENTS...: writes its output, without times, to out.DEVICE.
on() {
    local device=$1 ranks=$2 program=$LS_BUILD/tests/shadow_$3
    shift 3
    launch run -n "$ranks" "$program" --device "$device" "$@" </dev/null
    grep -v '^throughput' out | sort >"out.$device"
}
models() { # FILE: how many there are
    sed -n 's/^rank [0-9]* \(parameters\|after\) *//p' "$1" | sort -u | wc -l
}

# alike NAME ARGUMENTS...
alike() {
    local ranks
    for ranks in 1 2; do
        on cpu $ranks "$@"
        check "$1 on $ranks: on the CPU" is "$status" 0
        on shadow:0 $ranks "$@"
        check "$1 on $ranks: on a device" is "$status $(complaints err)" "0 "
        check "$1 on $ranks: the same numbers" cmp out.cpu out.shadow:0
        if [ -n "$cuda" ]; then
            LOCKSTEP_DEVICE=shadow:1 launch run -n $ranks "$LS_BUILD/tests/shadow_$1" "${@:2}" </dev/null
            check "$1 on $ranks: with CUDA's kernels" is "$status $(complaints err)" "0 "
            check "$1 on $ranks: one model" is "$(models out)" "$(models out.cpu)"
        fi
    done
}

LOCKSTEP_DEVICE=shadow:1 launch run "$LS_BUILD/tests/shadow_sync_parameters" </dev/null
cuda=$(says err 'no device "shadow:1"' || echo yes)
[ -n "$cuda" ] || echo "SKIPPED examples with CUDA's kernels: this build of the tests does not have them for the host"
alike callbacks --epochs 3 --quiet
alike heat --points 20 --steps 10 --iterations 10
alike linear_regression
alike own_operation --points 9 --samples 50 --batch-size 16 --epochs 3 --quiet
alike perceptron --max-steps 30 --quiet
alike sync_parameters

# ---- --device ----
# refuses NAME SENTENCE ARGUMENTS...
refuses() {
    local name=$1 sentence=$2
    shift 2
    LS_TEST_MARK=$mark "$LS_BUILD/examples/perceptron" --max-steps 2 --quiet "$@" >out 2>err </dev/null
    check "$name: fails" test $? -ne 0
    check "$name: says so" says err "$sentence"
    check "$name: in one line, with no results" is "$(wc -l <err) $(wc -l <out)" "1 0"
}
refuses "a device that is none" 'there is no device "nowhere"; available: cpu' --device nowhere
refuses "a GPU that is none" '"cuda:x" is not a device: GPUs are "cuda:0"' --device cuda:x
refuses "--device without its name" "--device (nothing): expected a string" --device
refuses "--device of nothing" "--device '': expected a string" --device ""
export LOCKSTEP_MODULE_PATH=$LS_BUILD/tests/fake_cuda
FAKE_CUDA=0 refuses "no driver" 'no device "cuda:0": no driver answers' --device cuda:0
FAKE_CUDA=1 refuses "a GPU too many" 'this process has one GPU, "cuda:0"' --device cuda:5
unset LOCKSTEP_MODULE_PATH
LS_TEST_MARK=$mark LOCKSTEP_DEVICE=nowhere "$LS_BUILD/examples/perceptron" --max-steps 2 --quiet --device cpu \
    >out 2>err </dev/null
check "--device comes before LOCKSTEP_DEVICE" is "$? $(cat err)" "0 "
launch run -n 1 "$LS_BUILD/examples/perceptron" --help </dev/null
check "--help tells of it" says out "^  --device  *TEXT  *compute device: cpu, or a GPU such as cuda:0"
finish
