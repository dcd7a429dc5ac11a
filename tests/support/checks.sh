# What the scripts in tests/shell include: checks that print one line each, a scratch folder, and a look for processes
# that were left behind. A script ends with `finish`.
set -u
passed=0
failed=0
scratch=$(mktemp -d)
mark=lockstep-test-$$-$RANDOM$RANDOM # in the environment of everything that `launch` starts, and of nothing else
lockstep=$LS_BUILD/bin/lockstep
# Not in what was just forked and dies before it is another program.
trap '[ "$BASHPID" != $$ ] || clean_up' EXIT
trap 'exit 143' TERM INT HUP # so that a test runner's time limit cleans up too
cd "$scratch" || exit 1

# The process ids of what runs with the mark in its environment; zombies have none.
marked() {
    grep -alsz "^LS_TEST_MARK=$mark\$" /proc/[0-9]*/environ | sed 's|/proc/\([0-9]*\)/environ|\1|'
}

end_marked() {
    local pids
    pids=$(marked)
    [ -z "$pids" ] || kill -9 $pids 2>/dev/null
}

# A script with more to clean away redefines this.
clean_up() {
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

# await COMMAND...: until it succeeds, for at most 20 s; fails then.
await() {
    local i
    for i in $(seq 400); do
        "$@" && return 0
        sleep 0.05
    done
    return 1
}

# Programs tell that they run by making the file up.RANK: `up N` waits for N of them, `down` forgets all.
up() {
    await bash -c "[ \$(ls up.* 2>/dev/null | wc -l) -ge $1 ]"
}
down() {
    rm -f up.* new.* got.*
}

# A rank that tells so and is then to be ended.
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

# A killed process takes a moment to be gone.
nobody_soon() {
    await nobody
}

# launch ARGUMENTS...: lockstep, with its output in files out and err and its exit status in $status. Standard input is
# that of the caller.
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

is() {
    [ "$1" = "$2" ] || {
        echo "        '$1' is not '$2'"
        return 1
    }
}

# complaints FILES...: what they hold, without the log's lines of calls that wait long, as on a machine that is busy.
complaints() {
    cat "$@" | grep -av '^lockstep warning (rank [0-9]*): \(ls_comm_[a-z_]* #[0-9]*\|ls_finalize\) has waited [0-9]* s for '
}

says() {
    grep -q -- "$2" "$1"
}

lines() {
    [ "$(wc -l <"$1")" = "$2" ]
}

finish() {
    check "nothing is left running" nobody_soon
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
    exit
}
