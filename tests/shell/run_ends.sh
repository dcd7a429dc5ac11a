# `lockstep run`: the end of jobs, intended or not, and that nothing is left over.
. "$LS_SOURCE/tests/support/checks.sh"

pid_of() {
    cat "up.$1"
}
cat >stubborn <<'END'
trap "" INT TERM HUP
echo $$ >new.$RANK && mv new.$RANK up.$RANK
while :; do sleep 300; done
END
cat >polite <<'END'
for signal in INT TERM HUP; do trap "echo $signal >>got.$RANK" $signal; done
trap 'echo end >>got.$RANK; exit 0' USR1
echo $$ >new.$RANK && mv new.$RANK up.$RANK
while :; do read -rt 0.05 <>nothing; done
END
cat >parent <<'END'
bash -c 'trap "" TERM; echo $$ >new.child$RANK && mv new.child$RANK up.child$RANK; exec sleep 300' &
setsid sleep 300 &
echo $$ >new.$RANK && mv new.$RANK up.$RANK
wait 2>/dev/null
END
mkfifo nothing
# tell STATUS RANK SENTENCE: as the library reports a failure; 8 is LS_ERR_PEER.
cat >tell <<'END'
socket=${LOCKSTEP_REPORT%%:*}
tell() {
    printf 'lockstep-failure 1 %d %d %d %d %s' "$1" "$RANK" "$2" $$ "$3" >&"$socket"
}
END

# ---- a rank fails ----
launch run -n 2 bash -c '[ $RANK = 0 ] || exit 3; exec sleep 300' </dev/null
check "a rank exits 3: so does the launcher" is "$status" 3
check "a rank exits 3: it is named" says err '^lockstep: rank 1 (pid [0-9]*) exited with status 3; the other rank was terminated$'
check "a rank exits 3: nothing is left" nobody_soon
launch run -n 2 --max-restarts 3 bash -c '[ $RANK = 0 ] || exit 75; exec sleep 300' </dev/null
check "a rank stops to go on later: the launcher says so, with that status" is "$status" 75
check "a rank stops to go on later: it is told" says err '^lockstep: rank 1 (pid [0-9]*) has stopped in order to resume later: it exited with status 75; the other rank was terminated$'
check "a rank stops to go on later: nothing is started again" is "$(grep -c restarting err)" 0
launch run -n 3 bash -c '[ $RANK = 2 ] || exec sleep 300; echo "no such file: weights" >&2; exit 9' </dev/null
check "a failed rank that said why: one line" is "$(cat err)" "no such file: weights (rank 2, exit status 9)"
launch run -n 2 bash -c '[ $RANK = 1 ] || exec sleep 300; echo " " >&2; exit 9' </dev/null
check "a failed rank that said nothing but a blank line: the launcher says it" says err '^lockstep: rank 1 .* status 9; the'
launch run -n 3 bash -c '[ $RANK = 2 ] || exec sleep 300; echo "no such file" >&2; echo "weights" >&2; exit 9' </dev/null
check "its last words are still in sight: said once" is "$(grep -c 'no such file' err) $(grep -c 'last lines' err)" "1 0"
check "how many others were terminated" says err "rank 2 .* status 9; the other 2 ranks were terminated"
launch run -n 2 bash -c 'if [ $RANK = 1 ]; then for i in $(seq 20); do echo "line $i" >&2; done; : >spoke
        until [ -e went.on ]; do :; done; exit 4; fi
    until [ -e spoke ]; do :; done; sleep 0.2; for i in $(seq 99); do echo "rank 0 goes on and on, $i" >&2; done
    : >went.on; exec sleep 300' </dev/null
check "its last words are out of sight: the last lines again" is "$(sed '1,/the last lines/d' err | tr '\n' ,)" \
    "line 13,line 14,line 15,line 16,line 17,line 18,line 19,line 20,"
launch run -n 4 true </dev/null
check "all end well: 0 and silence" is "$status $(cat out err | wc -c)" "0 0"
launch run -n 2 bash -c '[ $RANK = 0 ] || sleep 0.3' </dev/null
check "a rank that ends well early is no failure" is "$status" 0
launch run -n 1 bash -c 'kill -SEGV $$' </dev/null
check "a rank alone is killed by SIGSEGV" is "$status" 139
check "and that is said" says err 'rank 0 (pid [0-9]*) was killed by SIGSEGV'
launch run -n 1 bash -c 'kill -40 $$' </dev/null
check "a signal without a name has its number" says err 'was killed by signal 40$'
launch run -n 2 bash -c '[ $RANK = 0 ] || kill -9 $$; exec sleep 300' </dev/null
check "kill -9 on a rank: 137" is "$status" 137
check "kill -9 on a rank: it is named" says err "rank 1 (pid [0-9]*) $killed; the other rank was terminated"
check "kill -9 on a rank: nothing is left" nobody_soon

# An error that several ranks print as the job fails is shown once; nothing else is lost.
alike='[ $RANK = 0 ] || until [ -e said.0 ]; do :; done; printf "both\nown $RANK\nboth\n" >&2; : >said.$RANK
    until [ -e said.1 ]; do :; done;'
fails='[ $RANK = 1 ] || exec sleep 300; exit 3' # the launcher terminates rank 0
rm -f said.*
launch run -n 2 bash -c "$alike $fails" </dev/null
check "alike as the job fails: once, with all that differs" is "$(head -4 err | sort | tr '\n' ,)" "both,both,own 0,own 1,"
check "and the launcher's line" says err '^lockstep: rank 1 (pid [0-9]*) exited with status 3'
rm -f said.*
launch run -n 2 bash -c "$alike exit 0" </dev/null
check "alike in a job that ends well: as often as it was said" is "$(sort err | tr '\n' ,)" "both,both,both,both,own 0,own 1,"
rm -f said.*
launch run -n 2 --prefix bash -c "$alike $fails" </dev/null
check "--prefix: each with its rank" is "$(grep -c '^\[rank [01]\] both' err)" 4
launch run -n 2 bash -c '. ./tell; if [ $RANK = 1 ]; then echo $$ >new.pid; mv new.pid pid; exec sleep 300; fi
    until [ -e pid ]; do :; done; trap "" TERM; kill -9 $(cat pid)
    tell 8 1 "ls_comm_barrier #3: rank 1 (process $(cat pid)) died"
    echo "me: ls_comm_barrier #3: rank 1 (process $(cat pid)) died" >&2; echo "rank 1 (process 1) died" >&2' </dev/null
check "a death that the launcher tells of is told once" is "$(grep -c 'rank 1 (p' err)" 2
check "another one is not it" says err "^rank 1 (process 1) died"
# The launcher reads two pipes: it knows the order only of lines that it had time to read one by one.
LS_TEST_MARK=$mark "$lockstep" run -n 2 bash -c 'for i in 1 2; do echo "$RANK err $i" >&2; sleep 0.15; echo "$RANK out $i"; sleep 0.15; done' \
    >out 2>&1 </dev/null
check "what one rank says to both outputs stays in order" is "$(grep ^1 out | tr '\n' ,)" "1 err 1,1 out 1,1 err 2,1 out 2,"

# A rank that reports the death of another rank did not fail first, even if its report arrives first.
why="ls_comm_barrier #3: rank 1 is gone: it closed its connection"
blame='. ./tell; if [ $RANK = 0 ]; then until [ -e ready ]; do :; done
    tell 8 1 "'$why'"; echo "me: '$why'" >&2; exit 1; fi; trap "" TERM; : >ready;'
for how in --prefix "--output-dir logs"; do
    rm -f ready
    launch run -n 2 $how bash -c "$blame"' sleep 0.2; kill -9 $$' </dev/null
    check "a rank that blames another is not the first, $how" is "$status" 137
    check "the other one is named, $how" says err "^lockstep: rank 1 (pid [0-9]*) $killed; the other rank was terminated"
    rm -f ready
    launch run -n 2 $how bash -c "$blame"' trap - TERM; exec sleep 300' </dev/null
    check "unless that one was well, $how" is "$status" 1
    check "then it is named, and why, $how" says err "^lockstep: rank 0 (pid [0-9]*) exited with status 1; the other rank was terminated.*; its last error: $why\$"
done
rm -f ready
launch run -n 2 bash -c "$blame"' sleep 0.2; kill -9 $$' </dev/null
check "a rank that blames another is not the first" is "$status" 137
check "it is not even shown" is "$(cat err)" "$(sed -n "/^lockstep: rank 1 (pid [0-9]*) $killed; the other rank was terminated$/p" err | head -1)"
rm -f ready
launch run -n 2 bash -c "$blame"' trap - TERM; exec sleep 300' </dev/null
check "unless that one was well" is "$status $(sed 's/.*(/(/' err)" "1 (rank 0, exit status 1)"

# A rank's report is shown if the rank has not printed it itself. An invalid report is ignored.
silent="$LS_BUILD/tests/ending_program"
for how in "" --prefix "--output-dir logs"; do
    launch run -n 2 $how "$silent" silent x </dev/null
    check "a rank that does not say why: the launcher does, ${how:-plain}" says err \
        '^lockstep: rank 1 (pid [0-9]*) exited with status 4; .*; its last error: ls_comm_send: .*-7'
done
launch run -n 2 "$silent" silent child </dev/null
check "its children have no descriptor for reports" is "$(grep -c 'socket:\[' descriptors)" 0
launch run -n 2 "$silent" silent closed </dev/null
check "a program that has closed its descriptors: nothing is reported" is "$status $(grep -c 'exited with status 4' err) $(grep -c 'last error' err)" "4 1 0"
check "and nothing is written where it was" is "$(stat -c %s own)" 0
launch run -n 2 bash -c 'unset LOCKSTEP_REPORT; exec "$0" silent x' "$silent" </dev/null
check "a rank without LOCKSTEP_REPORT" is "$status $(grep -c 'exited with status 4' err) $(grep -c 'last error' err)" "4 1 0"
launch run -n 2 bash -c '. ./tell; [ $RANK = 1 ] || exec sleep 300
    { head -c 3000 /dev/urandom; echo lockstep-failure 1 99 1 0 1 no; for i in $(seq 2000); do echo; done; cat /dev/zero; } >&$socket 2>/dev/null
    exit 5' </dev/null
check "garbage is no report" is "$status $(sed 's/pid [0-9]*/pid/' err)" "5 lockstep: rank 1 (pid) exited with status 5; the other rank was terminated"
launch run -n 2 bash -c '. ./tell; [ $RANK = 1 ] || exec sleep 300; head -c 3000 /dev/urandom >&$socket
    tell 4 -1 "$(printf "one \\033[2J two%4000s")"; exit 5' </dev/null
check "a report after garbage, long and not for a terminal" says err 'status 5; the other rank was terminated; its last error: one ?\[2J two *$'

# The first failure is reported, although the other ranks also fail as soon as they see it.
for i in 1 2 3 4 5; do
    launch run -n 3 bash -c 'if [ $RANK = 1 ]; then exec 3<>nothing; exit 5; fi; trap "exit 6" TERM; while :; do read -rt 0.01 <>nothing; done' </dev/null
    check "the first failure counts ($i)" is "$status" 5
done

down
launch_in_background run -n 2 --grace 0.3 bash stubborn
check "stubborn ranks are up" up 2
kill -9 "$(pid_of 0)"
ended
check "a rank that ignores SIGTERM is killed after the grace time" is "$status" 137
check "and that is said" says err "1 rank did not end within 0.3 s and will be killed"
check "it left nothing" nobody_soon

down
launch_in_background run -n 2 --grace 60 bash sleeper
check "ranks are up" up 2
kill -STOP "$(pid_of 1)"
kill -9 "$(pid_of 0)"
ended
check "a stopped rank is woken to end, without the grace time" is "$status" 137
check "a stopped rank leaves nothing" nobody_soon

# ---- out of memory ----
# Needs permission to make a memory cgroup of version 1 or 2.
group=/sys/fs/cgroup/memory
limit=memory.limit_in_bytes
[ -e $group ] || { group=/sys/fs/cgroup && limit=memory.max; }
group=$group/$mark
if mkdir "$group" 2>/dev/null && echo 64M 2>/dev/null >"$group/$limit"; then
    launch run -n 2 bash -c '[ $RANK = 1 ] || exec sleep 300; echo $$ >"$1/cgroup.procs" || exit 9
        x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done' - "$group" </dev/null
    check "a rank that the kernel ends for want of memory" is "$status" 137
    check "the report asks about that" says err '^lockstep: rank 1 (pid [0-9]*) was killed by SIGKILL (out of memory? the OOM killer has killed [0-9]* process[es]* on this machine since the job started); the other rank was terminated$'
else
    echo "SKIPPED out of memory: no memory group may be made here"
fi
[ ! -d "$group" ] || await rmdir "$group"

# ---- processes that ranks leave behind ----
launch run -n 2 --grace 0.2 bash -c 'setsid sleep 300 & (trap "" TERM; exec sleep 300) & true' </dev/null
check "ranks that end well and leave processes: 0" is "$status" 0
check "what they left is ended" nobody
down
launch_in_background run -n 2 --grace 0.2 bash parent
check "ranks with children are up" up 4
kill -9 "$(pid_of 1)"
ended
check "a killed rank's children are terminated too" nobody
check "its status" is "$status" 137
sleep 300 &
bystander=$!
(
    sleep 300 &
    echo $! >bystander
    LS_TEST_MARK=$mark exec "$lockstep" run -n 2 true >out 2>err </dev/null
)
check "what a script started before it execs the launcher is none of its business" kill -0 "$(cat bystander)"
kill "$bystander" "$(cat bystander)"

# ---- signals to the launcher ----
for signal in INT TERM; do
    down
    launch_in_background run -n 2 bash polite
    check "SIG$signal: ranks are up" up 2
    kill -$signal "$launcher"
    check "SIG$signal: reaches rank 0" await test -s got.0
    check "SIG$signal: reaches rank 1" await test -s got.1
    sleep 0.2
    kill -USR1 "$(pid_of 0)" "$(pid_of 1)"
    ended
    check "SIG$signal: exit status" is "$status" $([ $signal = INT ] && echo 130 || echo 143)
    check "SIG$signal: each rank had it once" is "$(cat got.0 got.1 | tr '\n' ' ')" "$signal end $signal end "
    check "SIG$signal: one sentence" says err "^lockstep: SIG$signal was passed on to 2 ranks"
    check "SIG$signal: no rank is blamed" lines err 1
    check "SIG$signal: nothing is left" nobody
done

cat >told <<'END'
trap 'touch got.$RANK' USR2
trap 'exit 0' USR1
echo $$ >new.$RANK && mv new.$RANK up.$RANK
while :; do sleep 0.05; done
END
down
launch_in_background run -n 2 bash told
up 2
kill -USR2 "$launcher"
check "SIGUSR2: every rank is told" await test -e got.0 -a -e got.1
kill -USR1 "$launcher"
ended
check "SIGUSR1 and SIGUSR2: the job goes on and ends as its ranks do" is "$status $(cat err)" "0 "
check "SIGUSR1 and SIGUSR2: nothing is left" nobody

down
launch_in_background run -n 3 --grace 0.3 bash stubborn
up 3
kill -INT "$launcher"
ended
check "Ctrl-C and ranks that ignore it: 130" is "$status" 130
check "Ctrl-C and ranks that ignore it: killed after the grace time" says err "3 ranks did not end within 0.3 s"
check "Ctrl-C and ranks that ignore it: nothing is left" nobody

down
launch_in_background run -n 2 --grace 300 bash stubborn
up 2
kill -INT "$launcher"
await says err "passed on"
kill -INT "$launcher"
ended
check "a second Ctrl-C kills at once" is "$status" 130
check "a second Ctrl-C leaves nothing" nobody

down
launch_in_background run -n 2 --grace 300 bash parent
up 4
kill -STOP "$(pid_of 0)" "$(pid_of child1)"
kill -INT "$launcher"
await says err "passed on"
kill -INT "$launcher"
ended
check "stopped ranks and their children end too" nobody

# Ctrl-C as a terminal sends it: rank 0 is in the foreground group, rank 1 is not; each gets it once.
down
mkfifo keys
LS_TEST_MARK=$mark script -qec "$lockstep run -n 2 bash polite" /dev/null <keys >out 2>err &
launcher=$!
exec 8>keys
check "a terminal: ranks are up" up 2
printf '\003' >&8
await test -s got.0
await test -s got.1
sleep 0.2
kill -USR1 "$(pid_of 0)" "$(pid_of 1)"
ended
exec 8>&-
check "Ctrl-C on a terminal: 130" is "$status" 130
check "Ctrl-C on a terminal: each rank had it once" is "$(cat got.0 got.1 | tr '\n' ' ')" "INT end INT end "
check "Ctrl-C on a terminal: nothing is left" nobody_soon

# Ctrl-C that kills ranks: rank 0 dies before the launcher gets the signal, and is not reported as failed.
for i in 1 2 3; do
    down
    LS_TEST_MARK=$mark script -qec "$lockstep run -n 2 bash sleeper" /dev/null <keys >out 2>err &
    launcher=$!
    exec 8>keys
    up 2
    printf '\003' >&8
    ended
    exec 8>&-
    check "Ctrl-C that kills ($i): 130" is "$status" 130
    check "Ctrl-C that kills ($i): no rank is blamed" is "$(grep -c 'rank . (pid' out)" 0
done

# Ctrl-Z stops the whole job, including ranks outside the terminal's group, and continuing the launcher continues it.
stopped() {
    [ "$(cut -d' ' -f3 "/proc/$1/stat")" = T ]
}
awake() {
    ! stopped "$1"
}
down
LS_TEST_MARK=$mark setsid "$lockstep" run -n 2 bash sleeper >out 2>err </dev/null &
up 2
launcher=$(cut -d' ' -f4 "/proc/$(pid_of 0)/stat")
kill -TSTP "$launcher"
check "Ctrl-Z stops rank 0" await stopped "$(pid_of 0)"
check "Ctrl-Z stops rank 1" await stopped "$(pid_of 1)"
check "Ctrl-Z stops the launcher" await stopped "$launcher"
kill -CONT "$launcher"
check "fg wakes rank 1" await awake "$(pid_of 1)"
kill -INT -- "-$launcher"
check "a signal to the launcher's group ends the job" nobody_soon
wait 2>/dev/null

# A reader that no longer reads does not prevent the end of the job.
down
mkfifo full
LS_TEST_MARK=$mark "$lockstep" run -n 2 --grace 0.2 bash -c 'echo $$ >new.$RANK; mv new.$RANK up.$RANK; yes' >full 2>err </dev/null &
launcher=$!
exec 7<full
up 2
sleep 0.5
kill -INT "$launcher"
ended
exec 7<&-
check "Ctrl-C while nobody reads the output: 130" is "$status" 130
check "Ctrl-C while nobody reads the output: nothing is left" nobody

# ---- kill -9 on the launcher ----
for program in sleeper stubborn parent; do
    down
    launch_in_background run -n 3 bash $program
    up $([ $program = parent ] && echo 6 || echo 3)
    check "kill -9 on the launcher of $program: it ran" test -n "$(marked)"
    kill -9 "$launcher"
    ended
    check "kill -9 on the launcher of $program: nothing is left" nobody_soon
done
down
LS_TEST_MARK=$mark setsid "$lockstep" run -n 2 bash parent >out 2>err </dev/null &
up 4
launcher=$(cut -d' ' -f4 "/proc/$(pid_of 0)/stat")
kill -9 -- "-$launcher"
wait 2>/dev/null
check "kill -9 on its process group: nothing is left" nobody_soon
down
launch_in_background run -n 2 bash sleeper
up 2
kill -9 $(pgrep -P "$launcher" lockstep-guard) "$launcher"
ended
check "kill -9 on launcher and guard: no rank is left" nobody_soon
down
launch_in_background run -n 2 bash sleeper
up 2
guard=$(pgrep -P "$launcher" lockstep-guard)
kill -9 "$guard"
guarded() {
    pgrep -P "$launcher" lockstep-guard >/dev/null
}
check "a guard that is killed is replaced" await guarded
kill -TERM "$launcher"
ended
check "and the job goes on until it is ended" is "$status" 143

# ---- restarts ----
cat >again <<'END'
echo "$RANK $LOCKSTEP_RESTART_COUNT $LOCKSTEP_KEY $MASTER_PORT" >>starts
[ $LOCKSTEP_RESTART_COUNT = 2 ] && exit 0
[ $RANK = 1 ] || exec sleep 300
until [ "$(grep -c "^. $LOCKSTEP_RESTART_COUNT " starts)" = 2 ]; do sleep 0.01; done
exit 4
END
launch run -n 2 --max-restarts 3 bash again </dev/null
check "restarts until it works" is "$status" 0
check "every rank was started three times" is "$(cut -d' ' -f1,2 starts | sort | tr '\n' ,)" "0 0,0 1,0 2,1 0,1 1,1 2,"
check "with a fresh key each time" is "$(cut -d' ' -f3 starts | sort -u | wc -l)" 3
check "each failure is told" is "$(grep -c 'rank 1 .* exited with status 4' err)" 2
check "each restart is told" is "$(grep -c 'restarting the job (restart [12] of 3)' err)" 2
rm -f starts
launch run -n 2 --max-restarts 1 bash again </dev/null
check "restarts run out: the status of the last failure" is "$status" 4
check "restarts run out: two starts" is "$(grep -c '^1 ' starts)" 2
down
launch_in_background run -n 2 --max-restarts 5 bash sleeper
up 2
kill -INT "$launcher"
ended
check "Ctrl-C is no reason to restart" is "$status $(grep -c restarting err)" "130 0"
finish
