# Training with wrong input, and training that is interrupted: one clear message with the cause and its location, the
# right exit status, and no leftovers: no process, shared memory, temporary file or partial result.
. "$LS_SOURCE/tests/support/checks.sh"
. "$LS_SOURCE/tests/support/idx.sh"
train=$LS_BUILD/examples/fashion_mnist
mkdir tmp
mnist_folder good 40
export TMPDIR=$scratch/tmp
shared_before=$(ls /dev/shm | grep -i lockstep)

nothing_left() { # NAME
    check "$1: no process is left" nobody_soon
    check "$1: no shared memory is left" is "$(ls /dev/shm | grep -i lockstep)" "$shared_before"
    check "$1: no temporary file is left" is "$(ls -A tmp)" ""
    check "$1: no result is left" test ! -e saved/weights.safetensors
}
# A damaged copy of the good data; the caller adds further damage.
damaged() {
    rm -rf bad
    cp -r good bad
}
# refuses NAME SENTENCE ARGUMENTS...: on two ranks and alone. Both ranks have the error, and it is printed once.
refuses() {
    local name=$1 sentence=$2
    shift 2
    launch run -n 2 "$train" --epochs 1 --save saved "$@" </dev/null
    check "$name: exit status 1" is "$status" 1
    check "$name: it says so, and who" says err "^fashion_mnist: .*$sentence.* (rank [01], exit status 1)$"
    check "$name: in one line, and nothing else" lines err 1
    check "$name: nothing on standard output" is "$(cat out)" ""
    LS_TEST_MARK=$mark "$train" --epochs 1 --save saved "$@" >out 2>err </dev/null
    check "$name, alone: exit status 1" is $? 1
    check "$name, alone: one sentence" lines err 1
    check "$name, alone: this one" says err "^fashion_mnist: .*$sentence"
    nothing_left "$name"
}

launch run -n 2 "$train" --epochs 1 --save here --data good --quiet </dev/null
check "the data is good before it is damaged" is "$status $(cat err)" "0 "

refuses "a folder that is not there" "there is no folder \"absent/folder\": name the folder that holds" --data absent/folder
refuses "a file for a folder" "there is no folder \"good/train-images-idx3-ubyte\"" --data good/train-images-idx3-ubyte
damaged && rm bad/t10k-labels-idx1-ubyte.gz
refuses "a file that is missing" "there is no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz in bad" --data bad
damaged && gzip bad/train-images-idx3-ubyte && truncate -s 9000 bad/train-images-idx3-ubyte.gz
refuses "a gzip file cut short" "bad/train-images-idx3-ubyte.gz is a truncated gzip file" --data bad
damaged && gzip bad/train-images-idx3-ubyte &&
    bytes 255 255 255 255 | dd of=bad/train-images-idx3-ubyte.gz bs=1 seek=9000 conv=notrunc status=none
refuses "a gzip file with wrong bytes" "bad/train-images-idx3-ubyte.gz is a damaged gzip file" --data bad
damaged && truncate -s 9000 bad/train-images-idx3-ubyte
refuses "a file cut short" "bad/train-images-idx3-ubyte" --data bad
damaged && bytes 1 2 3 4 | dd of=bad/train-labels-idx1-ubyte bs=1 conv=notrunc status=none
refuses "a wrong magic number" "bad/train-labels-idx1-ubyte .*IDX" --data bad
damaged && : >bad/train-labels-idx1-ubyte
refuses "an empty file" "bad/train-labels-idx1-ubyte" --data bad
damaged && labels 39 7 >bad/train-labels-idx1-ubyte
refuses "fewer labels than images" \
    "bad/train-images-idx3-ubyte has 40 samples, but bad/train-labels-idx1-ubyte has 39: the files do not belong together" --data bad
damaged && mv bad/train-labels-idx1-ubyte bad/train-images-idx3-ubyte && labels 40 7 >bad/train-labels-idx1-ubyte
refuses "labels where images should be" "bad/train-images-idx3-ubyte has 1 axes, but must have 3: .* not hold images" --data bad
damaged && mv bad/train-images-idx3-ubyte bad/train-labels-idx1-ubyte && images 40 28 28 >bad/train-images-idx3-ubyte
refuses "images where labels should be" "bad/train-labels-idx1-ubyte has 3 axes, but must have 1: .* not hold labels" --data bad
damaged && images 40 20 20 >bad/train-images-idx3-ubyte
refuses "images of another size" "400.*784" --data bad
damaged && labels 40 10 >bad/train-labels-idx1-ubyte
refuses "a label that is no class" "target.* is 10, but there are 10 classes" --data bad
refuses "a folder that cannot be made" "--save: cannot create the folder /proc/no: " --data good --save /proc/no
refuses "a file where results should go" "--save: cannot write to the folder /dev/null: " --data good --save /dev/null

# ---- the environment ----
# misread VARIABLE=VALUE SENTENCE
misread() {
    LS_TEST_MARK=$mark env "$1" "$lockstep" run -n 2 "$LS_BUILD/examples/ring" >out 2>err </dev/null
    check "$1: exit status 1" is $? 1
    check "$1: one sentence" is "$(sed 's/ (rank [01], exit status 1)$//' err)" "ring: ls_init: $2"
    check "$1: no results" is "$(cat out)" ""
}
misread LOCKSTEP_TIMEOUT=soon "LOCKSTEP_TIMEOUT=soon is not a positive number of seconds"
misread LOCKSTEP_BACKEND=../shm '"../shm" is not the name of a backend'
misread LOCKSTEP_BACKEND=self 'backend "self" supports one rank only, but this job has 2 ranks'
misread LOCKSTEP_ALGORITHM=shm:whole=1T \
    "LOCKSTEP_ALGORITHM: whole: '1T' is not a size; expected a number of bytes such as 0, 4096 or 64K"
nothing_left "the environment"

# ---- the launcher ----
launch run -n 0 "$train" </dev/null
check "-n 0: exit status 2 and one sentence" is "$status $(cat err)" \
    "2 lockstep run: -n '0': N must be a whole number from 1 to 4096"
launch run -n 2 ./no-such-program </dev/null
check "a program that is not there: exit status 127" is "$status" 127
check "a program that is not there: one sentence" lines err 1
check "a program that is not there: it is named" says err "cannot find the program './no-such-program'"
launch run -n 2 bash -c '[ $RANK = 1 ] && exit 3; exec sleep 300' </dev/null
check "a rank that exits 3: so does the job" is "$status" 3
check "a rank that exits 3: one sentence" lines err 1
check "a rank that exits 3: it is named" says err '^lockstep: rank 1 (pid [0-9]*) exited with status 3; the other rank was terminated$'
nothing_left "the launcher"

# ---- training that is interrupted ----
# Starts it, waits until two epochs are done and finds the ranks' process ids.
start_training() {
    : >out
    launch_in_background run -n 2 "$train" --data good --epochs 100000000 --hidden 64 --save saved
    check "$1: training runs" await says out '^1/100000000(v)'
    mapfile -t pids < <(pgrep -P "$launcher" -x fashion_mnist | sort -n)
    check "$1: as two ranks" is "${#pids[@]}" 2
}
for rank in 0 1; do
    start_training "kill -9 on rank $rank"
    kill -9 "${pids[$rank]}"
    ended
    check "kill -9 on rank $rank: exit status 137" is "$status" 137
    check "kill -9 on rank $rank: the launcher says which" \
        says err "^lockstep: rank $rank (pid ${pids[$rank]}) $killed; the other rank was terminated$"
    check "kill -9 on rank $rank: one sentence" lines err 1
    nothing_left "kill -9 on rank $rank"
done

start_training "Ctrl-C"
kill -INT "$launcher"
ended
check "Ctrl-C: exit status 130" is "$status" 130
check "Ctrl-C: one sentence" lines err 1
check "Ctrl-C: what happens" says err '^lockstep: SIGINT was passed on to 2 ranks; '
nothing_left "Ctrl-C"

# As a terminal sends it: to the launcher and to rank 0 at once.
mkfifo keys
: >out
LS_TEST_MARK=$mark script -qec "$lockstep run -n 2 $train --data good --epochs 100000000 --save saved" /dev/null \
    <keys >out 2>err &
launcher=$!
exec 8>keys
check "Ctrl-C on a terminal: training runs" await says out '1/100000000(v)'
printf '\003' >&8
ended
exec 8>&-
check "Ctrl-C on a terminal: exit status 130" is "$status" 130
check "Ctrl-C on a terminal: no rank is blamed" is "$(grep -c 'rank [01] (pid' out)" 0
nothing_left "Ctrl-C on a terminal"

# A rank that was not started by the launcher learns of a death from Lockstep itself.
port=$("$lockstep" run -n 1 bash -c 'echo $MASTER_PORT')
: >out.0
for rank in 0 1; do
    LS_TEST_MARK=$mark RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
        MASTER_PORT=$port "$train" --data good --epochs 100000000 --save saved >out.$rank 2>err.$rank </dev/null &
    pids[$rank]=$!
done
check "without the launcher: training runs" await says out.0 '^1/100000000(v)'
kill -9 "${pids[1]}"
wait "${pids[0]}" 2>/dev/null
check "without the launcher: the survivor fails" is $? 1
wait 2>/dev/null
check "without the launcher: one sentence" lines err.0 1
check "without the launcher: it names the dead rank and the call" says err.0 '^fashion_mnist: .*ls_comm_.*rank 1 .*'
nothing_left "without the launcher"
finish
