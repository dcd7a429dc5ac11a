# Trainings that are killed or stopped, and resume from their checkpoints: they end with the same bits as an undisturbed
# training.
. "$LS_SOURCE/tests/support/checks.sh"
. "$LS_SOURCE/tests/support/flips.sh"

program=$LS_BUILD/tests/checkpoint_program
kills=10
[ -z "${LOCKSTEP_TEST_LONG:-}${LOCKSTEP_TEST_FULL:-}" ] || kills=50

# The results of all ranks in one line.
result() {
    cat result.* 2>/dev/null | tr '\n' ,
}

fresh() {
    rm -rf run result.* up.* new.*
}

whole() {
    "$lockstep" checkpoint verify run >verified && ! grep -v '  whole$' verified
}

# No unfinished folder, except the folder of a killed writer.
tidy() {
    is "$(ls -A run | grep -v '^epoch-[0-9]*-step-[0-9]*$')" best
}

for ranks in 1 2 3; do
    fresh
    launch run -n $ranks "$program" </dev/null
    check "$ranks ranks: a training ends well" is "$status" 0
    wanted[ranks]=$(result)
    check "$ranks ranks: it leaves the newest and the best" whole
    launch run -n $ranks "$program" </dev/null
    check "$ranks ranks: started again there is nothing left to do" is "$status $(result)" "0 ${wanted[ranks]}"
    # The state after a kill between renaming the best checkpoint and renaming the link to it, and before both.
    best=$(readlink run/best)
    mv run/best "run/.new-0000000000000001-$best.link"
    ln -s epoch-000000-step-9999999999 run/.new-0000000000000002-epoch-000000-step-9999999999.link
    launch run -n $ranks "$program" </dev/null
    check "$ranks ranks: a link to the best that was not renamed is" is "$status $(readlink run/best)" "0 $best"
    check "$ranks ranks: and nothing else is left" tidy
done
check "a training has a result" is "$(cat result.* | wc -l)" 21

# ---- kill -9 of a rank ----
for ranks in 2 3; do
    fresh
    seed=$RANDOM
    KILLS=$kills SEED=$seed launch run -n $ranks --max-restarts "$kills" "$program" </dev/null
    check "$ranks ranks, $kills kills (SEED=$seed): the training ends well" is "$status" 0
    check "$ranks ranks, $kills kills (SEED=$seed): it was started so often" is "$(grep -c 'restarting the job' err)" "$kills"
    check "$ranks ranks, $kills kills (SEED=$seed): the same bits" is "$(result)" "${wanted[ranks]}"
    check "$ranks ranks, $kills kills (SEED=$seed): all checkpoints are whole" whole
    check "$ranks ranks, $kills kills (SEED=$seed): nothing else is left" tidy
    check "$ranks ranks, $kills kills (SEED=$seed): none was damaged" is "$(grep -c damaged err)" 0
done

# ---- kill -9 of the launcher and all its processes ----
fresh
for i in 1 2 3 4; do
    launch_in_background run -n 2 "$program"
    sleep 0.0$((RANDOM % 9 + 1))
    kill -9 "$launcher" 2>/dev/null
    ended
    check "the launcher is killed ($i): all ranks end" nobody_soon
done
launch run -n 2 "$program" </dev/null
check "after four dead launchers: the same bits" is "$status $(result)" "0 ${wanted[2]}"
check "after four dead launchers: nothing else is left" tidy

# ---- signals ----
# stop_by SIGNAL STATUS: the launcher gets the signal while both ranks are in step 20.
stop_by() {
    fresh
    HOLD=20 launch_in_background run -n 2 --max-restarts 5 --grace 60 "$program"
    check "$1: ranks are up" up 2
    kill -"$1" "$launcher"
    ended
    check "$1 at the launcher: its exit status" is "$status" "$2"
    check "$1 at the launcher: ranks say where they can go on" says err "stopped by SIG$1 after step 20: resume from run/epoch-000000-step-0000000020"
    check "$1 at the launcher: nothing is started again" is "$(grep -c 'restarting the job' err)" 0
    launch run -n 2 "$program" </dev/null
    check "$1 at the launcher: started again, the same bits" is "$status $(result)" "0 ${wanted[2]}"
}
stop_by USR1 75
stop_by TERM 143

fresh
HOLD=27 HOLD_RANK=1 launch_in_background run -n 2 --max-restarts 5 "$program"
check "TERM: rank 1 is up" up 1
kill -TERM "$(cat up.1)"
ended
check "TERM at one rank: the launcher stops" is "$status $(grep -c 'restarting the job' err)" "75 0"
check "TERM at one rank: there is a checkpoint" whole
launch run -n 2 "$program" </dev/null
check "TERM at one rank: started again, the same bits" is "$status $(result)" "0 ${wanted[2]}"

# ---- sharded state ----
for ranks in 2 3; do
    for zero in 1 2 3; do
        fresh
        ZERO=$zero launch run -n $ranks "$program" </dev/null
        check "$ranks ranks, .zero = $zero: the same bits" is "$status $(result)" "0 ${wanted[ranks]}"
        fresh
        seed=$RANDOM
        KILLS=3 SEED=$seed ZERO=$zero launch run -n $ranks --max-restarts 3 "$program" </dev/null
        check "$ranks ranks, .zero = $zero, 3 kills (SEED=$seed): the same bits" is "$status $(result)" "0 ${wanted[ranks]}"
        check "$ranks ranks, .zero = $zero, 3 kills (SEED=$seed): all checkpoints are whole" whole
    done
done
# moved ZERO ZERO: step 20 on two ranks, the rest on three, each with this .zero. Prints the files and the result.
moved() {
    fresh
    ZERO=$1 HOLD=20 launch_in_background run -n 2 --grace 60 "$program"
    up 2 && kill -TERM "$launcher"
    ended
    (cd run/epoch-*-step-0000000020 && sha256sum model.safetensors optimizer.safetensors)
    ZERO=$2 launch run -n 3 "$program" </dev/null
    echo "$status $(result)"
}
moved 0 0 >moved
check "from two ranks to three: step 20 has two files" is "$(grep -c '^[0-9a-f]\{64\}  [a-z]*\.safetensors$' moved)" 2
check "from two ranks to three: the training goes on" says moved '^0 .*model'
for how in "1 1" "1 0" "0 1" "3 3" "3 0" "1 3"; do
    moved $how >sharded
    check "from two ranks to three, .zero from ${how% *} to ${how#* }: the same files and bits" cmp moved sharded
done

# A model of which each of four ranks has a part, in stage 3: the finished training is loaded on other numbers of ranks, and
# the weights alone from the exported file.
export WIDTH=2048
fresh
ZERO=3 launch run -n 4 "$program" </dev/null
check "stage 3 on 4 ranks: a training ends well" is "$status" 0
written=$(sort -u result.*)
check "stage 3 on 4 ranks: all ranks have one result" is "$(wc -l <<<"$written") $(grep -c model <<<"$written")" "7 1"
for ranks in 1 2 3 8; do
    for zero in 0 1 2 3; do
        rm -f result.*
        ZERO=$zero launch run -n $ranks "$program" </dev/null
        check "from stage 3 on 4 ranks to stage $zero on $ranks: the same bits" is "$status $(sort -u result.*)" "0 $written"
    done
done
check "stage 3 on 4 ranks: loading it leaves it whole" whole
launch checkpoint export run exported.safetensors
check "stage 3 on 4 ranks: export" is "$status $(cat out err)" "0 "
EXPORTED=exported.safetensors launch run -n 1 "$program" </dev/null
check "stage 3 on 4 ranks: the exported file has the same bits" is "$status $(cat out)" \
    "0 $(grep -o '^model [0-9a-f]*' <<<"$written")"
flips_are_found run/epoch-000006-step-0000000126 7

finish
