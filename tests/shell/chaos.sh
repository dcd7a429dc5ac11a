# Trainings whose ranks are killed, stopped for a while or slowed down at random moments, on every backend, end with the
# bits of an undisturbed training; after a kill, another job resumes from the newest checkpoint. LOCKSTEP_TEST_RUNS is
# the number of runs for each backend and kind of disturbance (1). LOCKSTEP_TEST_SEED="SEED ..." repeats seeds.
. "$LS_SOURCE/tests/support/mpi.sh"
. "$LS_SOURCE/tests/support/idx.sh"
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1
ranks=3
program=$LS_BUILD/examples/fashion_mnist
mnist_folder pictures 400
command=("$program" --data "$scratch/pictures" --epochs 30 --hidden 48 --batch-size 16 --quiet --checkpoint 3)

# begin BACKEND ARGUMENTS...: starts a training in the background.
begin() {
    local backend=$1 options=()
    shift
    case $backend in
    openmpi | mpich)
        [ $backend = mpich ] || options=(--allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1
            --mca odls_base_sigkill_timeout 0 --mca btl_vader_backing_directory "$PWD")
        TMPDIR=$PWD LS_TEST_MARK=$mark LOCKSTEP_BACKEND=mpi timeout -k 5 120 "mpirun.$backend" "${options[@]}" -np $ranks \
            "${command[@]}" "$@" >out 2>err </dev/null &
        ;;
    *) LS_TEST_MARK=$mark LOCKSTEP_BACKEND=$backend timeout -k 5 120 "$lockstep" run -n $ranks "${command[@]}" "$@" \
        >out 2>err </dev/null & ;;
    esac
    launcher=$!
}

# hashes: prints the hashes of all ranks, without repetition. Complains if a rank printed no hash, or several.
hashes() {
    [ "$(grep -c '^rank [0-9]* parameters [0-9a-f]\{16\}' out)" = $ranks ] || echo "not all ranks"
    sed -n 's/^rank [0-9]* parameters \([0-9a-f]\{16\}\)\r*$/\1/p' out | sort -u
}

# ranks_of_job: the processes of the ranks.
ranks_of_job() {
    local pid
    for pid in $(marked); do
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != fashion_mnist ] || echo "$pid"
    done
}

started() {
    [ "$(ranks_of_job | wc -l)" = $ranks ]
}

has_checkpoint() {
    ls saved/checkpoints/epoch-* >/dev/null 2>&1
}

nap() { # MILLISECONDS
    sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"
}

# disturb KIND: a rank of the running job, chosen by the seed.
disturb() {
    local victims victim i
    victims=($(ranks_of_job))
    [ ${#victims[@]} -gt 0 ] || return 0
    victim=${victims[$((RANDOM % ${#victims[@]}))]}
    case $1 in
    kill) kill -9 "$victim" ;;
    stop) kill -STOP "$victim" && nap $((RANDOM % 2000)) && kill -CONT "$victim" ;;
    slow)
        for i in $(seq $((10 + RANDOM % 30))); do
            kill -STOP "$victim" && sleep 0.04 && kill -CONT "$victim" && sleep 0.01 || break
        done
        ;;
    esac 2>/dev/null
    disturbed=$((disturbed + 1))
}

# check_run BACKEND KIND SEED
check_run() {
    local backend=$1 kind=$2 seed=$3 name="$1, $2, seed $3" disturbed=0
    RANDOM=$seed
    rm -rf saved
    begin "$backend" --save saved
    await started
    [ $((RANDOM % 4)) = 0 ] || await has_checkpoint # otherwise the disturbance may come before the first checkpoint
    nap $((RANDOM % ${rest_ms[$backend]}))
    disturb "$kind"
    ended
    check "$name: nothing is left" nobody_soon
    if [ "$kind" = kill ] && [ "$status" != 0 ]; then
        check "$name: the job fails before its time limit" test "$status" != 124
        begin "$backend" --save saved --resume
        ended
    fi
    check "$name: the bits of an undisturbed training" is "$status $(hashes)" "0 $wanted"
    echo "$disturbed" >>"$scratch/disturbed"
}

declare -A rest_ms
check_backend() {
    local backend=$1 kind seed began
    began=$(date +%s%N)
    begin "$backend" --save undisturbed
    ended
    rest_ms[$backend]=$((($(date +%s%N) - began) / 1400000 + 1))
    check "$backend: the same bits without disturbance" is "$status $(hashes)" "0 $wanted"
    for kind in kill stop slow; do
        for seed in ${LOCKSTEP_TEST_SEED:-$(shuf -i 1-32767 -n "${LOCKSTEP_TEST_RUNS:-1}")}; do
            check_run "$backend" $kind "$seed"
        done
    done
}

begin shm --save first
ended
wanted=$(hashes)
check "an undisturbed training" is "$status ${#wanted}" "0 16"
at_once=1
for backend in shm tcp gloo openmpi mpich; do
    case $backend in
    gloo) [ -e "$LS_BUILD/lib/lockstep-gloo.so" ] ;;
    openmpi | mpich) command -v mpirun.$backend >/dev/null && [ -e "$LS_BUILD/lib/lockstep-mpi_$backend.so" ] ;;
    esac || {
        missing+=("$backend is not installed, or this build has no plug-in for it")
        continue
    }
    beside check_backend $backend
    together
done
check "trainings were disturbed" grep -q '[1-9]' "$scratch/disturbed"
finish_flavours
