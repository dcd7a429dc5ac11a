# Examples with --shards end with the same parameters on any number of ranks, backend and number of threads, and after a
# kill also on another number of ranks. The long list has the combinations that the ordinary list leaves out.
. "$LS_SOURCE/tests/support/mpi.sh"
. "$LS_SOURCE/tests/support/idx.sh"
unset LOCKSTEP_BACKEND
export OMP_WAIT_POLICY=passive # there are more ranks and threads than cores
examples=$LS_BUILD/examples
programs="fashion_mnist gpt charlstm perceptron cnn resnet"
backends="shm tcp"
shards=8
long=${LOCKSTEP_TEST_LONG:+yes}

yes 'to be, or not to be: ' | head -400 >text
mnist_folder pictures 300

# command_of NAME: a short training in the array `command`. The sizes of global batches leave slices of different sizes,
# and one slice empty.
command_of() {
    local text=(--file "$scratch/text" --layers 2 --width 48 --context 20 --global-batch-size 21 --steps 5 --sample 0)
    local pictures=(--data "$scratch/pictures" --global-batch-size 67 --epochs 1)
    case $1 in
    fashion_mnist) command=(fashion_mnist "${pictures[@]}" --hidden 96 --save saved) ;;
    gpt) command=(gpt "${text[@]}" --heads 2 --dropout 0.1) ;;
    charlstm) command=(charlstm "${text[@]}") ;;
    perceptron) command=(perceptron --samples 1000 --global-batch-size 7 --max-steps 40) ;;
    cnn) command=(cnn "${pictures[@]}" --channels 4) ;;
    resnet) command=(resnet "${pictures[@]}" --width 4) ;;
    esac
    command=("$examples/${command[0]}" "${command[@]:1}" --quiet)
}

# hashes RANKS: prints the hashes of all ranks, without repetition. Complains if a rank printed no hash, or several.
hashes() {
    [ "$(sed -n 's/^rank \([0-9]*\) parameters [0-9a-f]\{16\}\r*$/\1/p' out | sort -n | tr '\n' ' ')" = \
        "$(seq -s ' ' 0 $(($1 - 1))) " ] || echo "not all ranks"
    sed -n 's/^rank [0-9]* parameters \([0-9a-f]\{16\}\)\r*$/\1/p' out | sort -u
}

# run_on BACKEND RANKS ARGUMENTS...: trains `command`.
run_on() {
    local backend=$1 ranks=$2
    shift 2
    case $backend in
    openmpi | mpich) LOCKSTEP_BACKEND=mpi mpi "$backend" "$ranks" "${command[@]}" "$@" ;;
    *) LOCKSTEP_BACKEND=$backend launch run -n "$ranks" "${command[@]}" "$@" </dev/null ;;
    esac
}

# hash_on BACKEND RANKS ARGUMENTS...: prints the hash of a training that ends well.
hash_on() {
    run_on "$@"
    [ "$status $(complaints err)" = "0 " ] && hashes "$2"
}

# other HASH HASH: both are hashes, and they differ.
other() {
    [ "${#1} ${#2}" = "16 16" ] && [ "$1" != "$2" ] || {
        echo "        '$1' and '$2' should be different hashes"
        return 1
    }
}

# ---- backends and numbers of ranks ----
flavours=
for flavour in openmpi mpich; do
    if command -v mpirun.$flavour >/dev/null && [ -e "$LS_BUILD/lib/lockstep-mpi_$flavour.so" ]; then
        flavours="$flavours $flavour"
    else
        echo "SKIPPED mpi with $flavour: it is not installed, or this build has no lockstep-mpi_$flavour.so"
    fi
done

# selected BACKEND RANKS NAME: whether this list has the combination.
selected() {
    local ordinary=
    case $1-$2-$3 in
    shm-* | tcp-3-* | openmpi-2-gpt | openmpi-3-perceptron | mpich-2-perceptron | mpich-3-charlstm) ordinary=yes ;;
    esac
    [ "$ordinary" != "$long" ]
}

check_program() {
    local backend ranks name=$1 command wanted
    command_of "$name"
    wanted=$(hash_on shm 1 --shards $shards)
    check "$name: a hash" is "${#wanted}" 16
    for backend in $backends $flavours; do
        for ranks in 1 2 3 5 8; do
            ! selected "$backend" $ranks "$name" || check "$name on $ranks ranks, $backend: the same bits" \
                is "$(hash_on "$backend" $ranks --shards $shards)" "$wanted"
        done
    done
    [ -z "$long" ] || return 0
    check "$name, another seed: other bits" other "$(hash_on shm 2 --shards $shards --seed 2)" "$wanted"
    check "$name, another number of shards: other bits" other "$(hash_on shm 2 --shards 9)" "$wanted"
    check "$name without --shards: other bits on 3 ranks than on 1" other "$(hash_on shm 1)" "$(hash_on shm 3)"
    check "$name without --shards: the bits of $shards ranks" is "$(hash_on shm $shards)" "$wanted"
}

# ---- numbers of threads ----
check_threads() {
    local name=$1 command wanted threads ranks ordinary
    local -a sizes=(--global-batch-size 192)
    case $name in
    fashion_mnist) sizes+=(--hidden 384) ;;
    cnn | resnet) sizes+=(--limit 192) ;;
    gpt | charlstm) sizes+=(--width 128 --context 40 --steps 2) ;;
    esac
    command_of "$name"
    command+=("${sizes[@]}")
    wanted=$(OMP_NUM_THREADS=1 hash_on shm 1 --shards $shards)
    check "$name, larger: a hash" is "${#wanted}" 16
    for threads in 2 3 4; do
        for ranks in 1 2 3; do
            ordinary=$([ $ranks != $((threads % 2 + 1)) ] || echo yes)
            [ "$ordinary" = "$long" ] ||
                check "$name, larger, $threads threads on $ranks ranks: the same bits" \
                    is "$(OMP_NUM_THREADS=$threads hash_on shm $ranks --shards $shards)" "$wanted"
        done
    done
}

at_once=2
for name in $programs; do
    beside check_program "$name"
    if [ -e "$LS_BUILD/lib/lockstep-onednn.so" ]; then
        beside check_threads "$name"
    else
        echo "SKIPPED $name with other numbers of threads: the products of OpenBLAS depend on it"
    fi
done
together

# ---- kill -9 on four ranks, and continuation on other numbers of ranks ----
command_of fashion_mnist
command+=(--epochs 80 --hidden 32 --shards $shards)
wanted=$(hash_on shm 4)
check "fashion_mnist, 80 epochs on 4 ranks: a hash" is "${#wanted}" 16

has_checkpoint() {
    ls killed/checkpoints/epoch-* >/dev/null 2>&1
}

# begin_training: on four ranks, with checkpoints, in the background.
begin_training() {
    rm -rf killed
    LOCKSTEP_BACKEND=shm launch_in_background run -n 4 "${command[@]}" --checkpoint 2 --save killed
}

begin_training
await has_checkpoint
began=$(date +%s%N)
ended
rest_ms=$((($(date +%s%N) - began) / 1000000)) # from the first checkpoint to the end
check "fashion_mnist with checkpoints: the same bits" is "$status $(hashes 4)" "0 $wanted"

# rank_process: the process of one of the ranks, chosen by the seed.
rank_process() {
    local pid rank=$((RANDOM % 4))
    for pid in $(marked); do
        ! grep -qsz "^RANK=$rank$" "/proc/$pid/environ" || echo "$pid"
    done | head -1
}

# check_kill SEED: the seed selects the moment during the training, and whether a rank or the launcher with
# its ranks ends. LOCKSTEP_TEST_SEED="SEED ..." repeats seeds.
check_kill() {
    local seed=$1 victim ranks delay
    RANDOM=$seed
    delay=$((RANDOM % (rest_ms * 3 / 4 + 1)))
    begin_training
    [ $((RANDOM % 4)) = 0 ] || await has_checkpoint # else the kill can come before the first checkpoint
    sleep "$(printf '%d.%03d' $((delay / 1000)) $((delay % 1000)))"
    victim=$launcher
    [ $((RANDOM % 2)) = 0 ] || victim=$(rank_process)
    kill -9 "${victim:-$launcher}" 2>/dev/null
    ended
    check "kill $seed: all ranks end" nobody_soon
    if [ "$status" != 0 ] && has_checkpoint; then
        kills=$((kills + 1))
    fi
    for ranks in 1 2 3 8; do
        rm -rf resumed
        [ ! -e killed ] || cp -r killed resumed
        run_on shm $ranks --checkpoint 2 --save resumed --resume
        check "kill $seed, then $ranks ranks: the bits of an undisturbed training" is "$status $(hashes $ranks)" "0 $wanted"
    done
}

count=5
[ -z "$long" ] || count=${LOCKSTEP_TEST_KILLS:-4} # 50 take ten minutes
seeds=${LOCKSTEP_TEST_SEED:-$(shuf -i 1-32767 -n $count)}
kills=0
for seed in $seeds; do
    check_kill "$seed"
done
# If rest_ms was measured while the machine was slow, all kills may have come too late: kill right after a checkpoint.
rest_ms=0
for seed in $(shuf -i 1-32767 -n 20); do
    [ "$kills" -gt 0 ] || [ -n "${LOCKSTEP_TEST_SEED:-}" ] || check_kill "$seed"
done
[ -n "${LOCKSTEP_TEST_SEED:-}" ] ||
    check "trainings were killed between their first checkpoint and their end" test "$kills" -gt 0

[ -z "$long" ] || finish

# ---- wrong options ----
# refused RANKS STATUS SENTENCE NAME ARGUMENTS...: each rank prints this sentence and fails. The shell around a rank
# hides its status from the launcher, which would end the other ranks.
refused() {
    local ranks=$1 wanted=$2 sentence=$3 name=$4 command
    shift 4
    command_of "$name"
    launch run -n "$ranks" sh -c '"$@"; echo "status $?"' sh "${command[@]}" "$@" </dev/null
    check "$name $* on $ranks ranks: each fails" is "$status $(sort out | uniq -c | xargs)" "0 $ranks status $wanted"
    check "$name $* on $ranks ranks: each says why, in one sentence" \
        is "$(complaints err | wc -l) $(grep -c -- "$sentence" err)" "$ranks $ranks"
}
for name in $programs; do
    "$examples/$name" --help >help
    for option in --shards --global-batch-size; do
        check "$name --help tells of $option" says help "^  $option  *N  "
        for wrong in 0 -1 many 1.5; do
            refused 2 2 "$option $wrong: expected a whole number from 1" "$name" $option $wrong
        done
    done
    refused 3 1 "\.shards is 2, but must be 0 (off) or at least the number of ranks (3)" "$name" --shards 2
    refused 2 1 "\.shards is 5000, but must be 0 (off), or .* at most 4096" "$name" --shards 5000
done
refused 2 1 "cannot be combined with --outer" fashion_mnist --shards 4 --outer 2
refused 2 1 "\.shards = 4 cannot be combined with .reduce_dtype" gpt --shards 4 --wire bf16
command_of perceptron
check "a global batch of fewer samples than shards: the same bits" \
    is "$(hash_on shm 1 --shards 8 --global-batch-size 3)" "$(hash_on shm 5 --shards 8 --global-batch-size 3)"
finish
