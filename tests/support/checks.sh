# Included by the scripts in tests/shell: checks that print one line each, a scratch folder, and a search for leftover
# processes. A script ends with `finish`.
set -u
passed=0
failed=0
scratch=$(mktemp -d)
mark=lockstep-test-$$-$RANDOM$RANDOM # in the environment of everything that `launch` starts, and of nothing else
lockstep=$LS_BUILD/bin/lockstep
# A pattern for the launcher's line about kill -9: meanwhile another test may cause an out-of-memory kill, as
# run_ends.sh does.
killed='was killed by SIGKILL\( (out of memory? [^)]*)\)\?'
# Does not match a process that was forked and dies before it executes another program.
trap '[ "$BASHPID" != $$ ] || clean_up' EXIT
trap 'exit 143' TERM INT HUP # so that a test runner's time limit cleans up too
cd "$scratch" || exit 1

# The process ids of programs with the mark, or a mark derived from it, in their environment. Zombies have no
# environment.
marked() {
    grep -alsz "^LS_TEST_MARK=$mark" /proc/[0-9]*/environ | sed 's|/proc/\([0-9]*\)/environ|\1|'
}

end_marked() {
    local pids
    pids=$(marked)
    [ -z "$pids" ] || kill -9 $pids 2>/dev/null
}

# Scripts with more to clean up redefine this.
clean_up() {
    [ ${#beside[@]} = 0 ] || kill "${beside[@]}" 2>/dev/null
    end_marked
    rm -rf "$scratch"
}

# check NAME COMMAND...: the check passes when the command succeeds.
check() {
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
        echo "ok      $name"
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        echo "        tried: $*"
        [ ! -s err ] || sed 's/^/        stderr: /' err | head -20
    fi
}

# hydra_crashed FLAVOUR: whether the job in $status ended because Hydra, the launcher of MPICH, died. If ranks end while
# Hydra starts others, Hydra may die of SIGPIPE, in about 1 of 200 such jobs, and then loses the output.
hydra_crashed() {
    [ "$1" = mpich ] && [ "$status" = 141 ] && echo "note    mpirun.mpich died of SIGPIPE, and is started again"
}

# await COMMAND...: repeats it until it succeeds, for at most 20 s; then fails.
await() {
    local i
    for i in $(seq 400); do
        "$@" && return 0
        sleep 0.05
    done
    return 1
}

# Programs announce themselves by making the file up.RANK: `up N` waits for N of them, `down` removes all.
up() {
    await bash -c "[ \$(ls up.* 2>/dev/null | wc -l) -ge $1 ]"
}
down() {
    rm -f up.* new.* got.*
}

# A rank that announces itself and will be killed.
cat >sleeper <<'END'
echo $$ >new.$RANK && mv new.$RANK up.$RANK
exec sleep 300
END

# ends K...: waits for the launchers nodes[K]; their exit statuses in $statuses.
ends() {
    local k
    statuses=
    for k in "$@"; do
        wait "${nodes[$k]}" 2>/dev/null
        statuses="$statuses${statuses:+ }$?"
    done
}

nobody() {
    [ -z "$(marked)" ]
}

# A killed process takes a moment to disappear.
nobody_soon() {
    await nobody
}

# launch ARGUMENTS...: runs lockstep, with its output in files out and err and its exit status in $status. Standard
# input comes from the caller.
launch() {
    LS_TEST_MARK=$mark "$lockstep" "$@" >out 2>err
    status=$?
}

# launch_in_background ARGUMENTS...: the same in the background, with its process id in $launcher; `ended` waits for it.
launch_in_background() {
    LS_TEST_MARK=$mark "$lockstep" "$@" >out 2>err </dev/null &
    launcher=$!
}

ended() {
    wait "$launcher" 2>/dev/null
    status=$?
}

# beside COMMAND...: runs a command with checks in its own folder and with its own mark, while the script continues.
# at_once is the number of simultaneous commands, for commands that mostly wait; with 1, each ends before the next.
# `together` waits for all, and prints and counts their checks in order.
at_once=1
beside=()
beside() {
    local folder=$scratch/beside.${#beside[@]} own
    while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do
        wait -n
    done
    (
        mark=$mark.${#beside[@]}. # so that none begins with another
        passed=0 failed=0 beside=()
        mkdir "$folder" && cd "$folder" || exit 1
        "$@" >checks 2>&1
        echo "$passed $failed" >counts
    ) &
    beside+=($!)
}
together() {
    local k own_passed own_failed
    for k in "${!beside[@]}"; do
        wait "${beside[$k]}"
        cat "$scratch/beside.$k/checks"
        read -r own_passed own_failed <"$scratch/beside.$k/counts" || own_passed=0 own_failed=1
        passed=$((passed + own_passed))
        failed=$((failed + own_failed))
        rm -rf "$scratch/beside.$k"
    done
    beside=()
}

is() {
    [ "$1" = "$2" ] || {
        echo "        '$1' is not '$2'"
        return 1
    }
}

# complaints FILES...: their contents without the log's lines about long waits, which occur on a busy machine.
complaints() {
    cat "$@" | grep -av -e '^lockstep warning (rank [0-9]*): \(ls_comm_[a-z_]* #[0-9]*\|ls_finalize\) has waited [0-9]* s for ' \
        -e '^lockstep warning.*: still waiting in MPI_Init_thread after [0-9]* s: '
}

says() {
    grep -q -- "$2" "$1"
}

lines() {
    [ "$(wc -l <"$1")" = "$2" ]
}

finish() {
    together
    check "nothing is left running" nobody_soon
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
    exit
}
