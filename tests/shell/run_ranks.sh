# `lockstep run`: the environment of ranks at the start, and their output.
. "$LS_SOURCE/tests/support/checks.sh"

# ---- environment ----
unset OMP_NUM_THREADS OPENBLAS_NUM_THREADS
launch run -n 3 bash -c 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $LOCKSTEP_RESTART_COUNT"' </dev/null
check "three ranks end well" is "$status" 0
sort -o out out
printf '%s\n' "0 3 0 3 127.0.0.1 0" "1 3 1 3 127.0.0.1 0" "2 3 2 3 127.0.0.1 0" >wanted
check "each rank knows its place" cmp -s out wanted
launch run /bin/echo alone </dev/null
check "one rank without -n" is "$(cat out)" alone

launch run -n 2 bash -c 'echo $LOCKSTEP_KEY $MASTER_PORT' </dev/null
check "ranks share key and port" is "$(sort -u out | wc -l)" 1
check "the key is 64 hexadecimal digits" says out '^[0-9a-f]\{64\} [0-9]*$'
first=$(sort -u out)
launch run -n 2 bash -c 'echo $LOCKSTEP_KEY $MASTER_PORT' </dev/null
check "the next job has another key" test "${first%% *}" != "$(sort -u out | cut -d' ' -f1)"
launch run -n 2 bash -c 'tr "\0" " " <"/proc/$PPID/cmdline" | grep -c "$LOCKSTEP_KEY"; true' </dev/null
check "the key is on no command line" is "$(sort -u out)" 0

(ulimit -Sn 60 && launch run -n 20 bash -c 'ulimit -Sn' </dev/null && exit "$status")
check "more descriptors than the usual limit: the launcher takes them, ranks keep their limit" is "$? $(sort out | uniq -c | tr -s ' ')" "0  20 60"

# The port as /proc/net/tcp writes it, listening (0A).
launch run -n 2 bash -c 'echo "$RANK $(readlink /proc/$$/fd/$LOCKSTEP_STORE_FD)" \
    "$(grep -c "0100007F:$(printf %04X $MASTER_PORT) 00000000:0000 0A" /proc/net/tcp)"' </dev/null
check "rank 0 inherits a socket that listens on MASTER_PORT" says out '^0 socket:.* 1$'
check "rank 1 does not" says out '^1  [01]$'
LOCKSTEP_STORE_FD=7 launch run -n 2 bash -c 'echo $RANK ${LOCKSTEP_STORE_FD:-none}' </dev/null
check "an outer job's socket is not handed on" says out '^1 none'
launch run -n 2 bash -c 'ls /proc/self/fd | wc -l' </dev/null
check "rank 0 holds one descriptor more than rank 1" \
    is "$(sort -n out | tail -1)" "$(($(sort -n out | head -1) + 1))"

LOCKSTEP_LOG=$(printf 'lo\033[31md') launch run -n 2 "$LS_BUILD/examples/send_recv" </dev/null
check "a LOCKSTEP_LOG that there is not: one sentence, which names those that there are" is "$status $(cat err)" \
    "0 lockstep warning (rank 0): LOCKSTEP_LOG: unknown level 'lo?[31md'; available: debug, info, warning, error, off; using warning"
LOCKSTEP_LOG=WARNING launch run -n 2 "$LS_BUILD/examples/send_recv" </dev/null
check "one that there is: nothing" is "$status $(cat err)" "0 "

# ---- GPUs ----
# gpus WANTED ARGUMENTS...: CUDA_VISIBLE_DEVICES of each rank.
gpus() {
    local wanted=$1
    shift
    launch run "$@" sh -c 'echo $RANK:${CUDA_VISIBLE_DEVICES-unset}' </dev/null
    is "$status $(sort out | tr '\n' ' ')" "0 $wanted "
}
export CUDA_VISIBLE_DEVICES=4,GPU-7
check "each rank gets a GPU of the list, in turn" gpus "0:4 1:GPU-7 2:4" -n 3
check "--gpus each: the same" gpus "0:4 1:GPU-7" -n 2 --gpus each
check "--gpus none: all of them" gpus "0:4,GPU-7 1:4,GPU-7" -n 2 --gpus none
check "one rank has them all" gpus "0:4,GPU-7" -n 1
CUDA_VISIBLE_DEVICES=
check "none are none" gpus "0: 1:" -n 2
CUDA_VISIBLE_DEVICES=3
check "one is everyone's" gpus "0:3 1:3" -n 2
unset CUDA_VISIBLE_DEVICES
check "--gpus none without a list: nothing is set" gpus "0:unset 1:unset" -n 2 --gpus none
case $(ls /dev | grep -c '^nvidia[0-9]*$') in
0 | 1) check "without a list and several GPUs: nothing is set" gpus "0:unset 1:unset" -n 2 ;;
*) check "without a list: GPUs by number" gpus "0:0 1:1" -n 2 ;;
esac

# ---- cores ----
unset OMP_NUM_THREADS OMP_THREAD_LIMIT OPENBLAS_NUM_THREADS # nproc believes them
cores=$(nproc)
launch run -n 1 bash -c 'echo $OMP_NUM_THREADS $OPENBLAS_NUM_THREADS' </dev/null
check "one rank has at least one thread" test "$(cut -d' ' -f1 out)" -ge 1
check "and no more than processors" test "$(cut -d' ' -f1 out)" -le "$cores"
check "OpenBLAS the same" is "$(cut -d' ' -f1 out)" "$(cut -d' ' -f2 out)"
OMP_NUM_THREADS=17 launch run -n 2 bash -c 'echo $OMP_NUM_THREADS ${OPENBLAS_NUM_THREADS:-none}' </dev/null
check "OMP_NUM_THREADS of the user stays" is "$(sort -u out)" "17 none"
for threads in abc 0 -2 2x 4,; do
    OMP_NUM_THREADS=$threads launch run -n 2 bash -c 'echo $OMP_NUM_THREADS' </dev/null
    check "OMP_NUM_THREADS=$threads is not taken: ranks share the cores" test "$(sort -u out)" -ge 1
    check "OMP_NUM_THREADS=$threads is reported" says err "OMP_NUM_THREADS=$threads is not a number of threads"
    check "OMP_NUM_THREADS=$threads is reported once" lines err 1
done
OMP_NUM_THREADS=3,2 launch run -n 2 bash -c 'echo $OMP_NUM_THREADS' </dev/null
check "a list of numbers of threads stays" is "$(sort -u out)$(cat err)" "3,2"
OPENBLAS_NUM_THREADS=5 launch run -n 2 bash -c 'echo $OPENBLAS_NUM_THREADS' </dev/null
check "OPENBLAS_NUM_THREADS of the user stays" is "$(sort -u out)" 5
launch run -n $((2 * cores + 1)) bash -c 'echo $OMP_NUM_THREADS $(nproc --all)' </dev/null
check "more ranks than cores: all run" lines out $((2 * cores + 1))
check "more ranks than cores: one thread each" is "$(cut -d' ' -f1 out | sort -u)" 1
mine=$(grep Cpus_allowed_list /proc/self/status)
launch run -n $((2 * cores + 1)) grep Cpus_allowed_list /proc/self/status </dev/null
check "more ranks than cores, not evenly: nobody is bound" is "$(sort -u out)" "$mine"
if [ "$cores" -ge 2 ]; then
    launch run -n $((2 * cores)) grep Cpus_allowed_list /proc/self/status </dev/null
    check "twice as many ranks as cores: two to a core" is "$(sort out | uniq -c | awk '{print $1}' | tr '\n' ' ')" \
        "$(yes 2 | head -n "$cores" | tr '\n' ' ')"
    launch run -n 2 grep Cpus_allowed_list /proc/self/status </dev/null
    check "two ranks have different cores" is "$(sort -u out | wc -l)" 2
    launch run -n 2 --no-bind grep Cpus_allowed_list /proc/self/status </dev/null
    check "--no-bind leaves them all" is "$(sort -u out)" "$mine"
    one=$(sed 's/.*[^0-9,-]//; s/[-,].*//' <<<"$mine")
    LS_TEST_MARK=$mark taskset -c "$one" "$lockstep" run -n 2 nproc >out 2>err </dev/null
    check "a launcher bound to one core stays there" is "$(sort -u out)" 1
fi

TORCHELASTIC_USE_AGENT_STORE=True launch run -n 1 bash -c 'echo "<$TORCHELASTIC_USE_AGENT_STORE>"' </dev/null
check "what torchrun says of its own port is not for these ranks" is "$(cat out)" "<>"

# ---- input ----
printf 'to rank 0 only\n' >input
launch run -n 3 bash -c 'while read -r line; do echo "$RANK: $line"; done' <input
check "standard input goes to rank 0 only" is "$(cat out)" "0: to rank 0 only"

# ---- output ----
launch run -n 2 --prefix bash -c 'echo out; echo err >&2' </dev/null
check "--prefix names the rank on standard output" is "$(sort out | tr '\n' ,)" "[rank 0] out,[rank 1] out,"
check "--prefix names the rank on standard error" is "$(sort err | tr '\n' ,)" "[rank 0] err,[rank 1] err,"
launch run -n 2 --prefix bash -c 'printf "no end $RANK"' </dev/null
check "--prefix ends a last line that has no end" is "$(sort out | tr '\n' ,)" "[rank 0] no end 0,[rank 1] no end 1,"
launch run -n 2 bash -c '[ $RANK = 0 ] || printf "no end"' </dev/null
check "without --prefix nothing is added" is "$(od -An -c out | tr -d ' \n')" "noend"
launch run -n 2 bash -c 'printf "no end $RANK"' </dev/null
check "what two ranks say without an end does not mix" is "$(sort out | tr '\n' ,)" "no end 0,no end 1,"

# Four ranks write lines in pieces, with flushes between the pieces.
pieces='for i in $(seq 500); do printf "$RANK-"; printf "$i-"; printf "%s\n" $RANK; done'
launch run -n 4 bash -c "$pieces" </dev/null
check "lines written in pieces arrive whole" is "$(grep -cvE '^([0-3])-[0-9]+-\1$' out)" 0
check "and all of them" lines out 2000
for rank in 0 3; do
    check "and those of rank $rank in order" is "$(grep "^$rank-" out | cut -d- -f2 | tr '\n' ' ')" "$(seq -s ' ' 500) "
done
launch run -n 4 --prefix bash -c "$pieces" </dev/null
check "prefixed too" is "$(grep -cvE '^\[rank ([0-3])\] \1-[0-9]+-\1$' out)" 0
check "prefixed too, and all of them" lines out 2000

# 300,000 bytes per line: more than any pipe or buffer in between.
launch run -n 3 --prefix bash -c 'line=$(head -c 300000 /dev/zero | tr "\0" $RANK); for i in 1 2 3; do echo $line; done' </dev/null
check "long lines: nine of them" lines out 9
check "long lines: each whole" is "$(awk 'length($0) != 300009' out | wc -l)" 0
check "long lines: not mixed" is "$(tr -s 012 <out | sort -u | tr '\n' ,)" "[rank 0] 0,[rank 1] 1,[rank 2] 2,"
# A longer line arrives in pieces, each marked.
launch run -n 2 --prefix bash -c 'head -c 3000000 /dev/zero | tr "\0" $RANK' </dev/null
for rank in 0 1; do
    check "endless line: all bytes of rank $rank" \
        is "$(grep "^\[rank $rank\] " out | sed 's/^\[rank .\] //' | tr -d '\n' | wc -c)" 3000000
done
check "endless lines: not mixed" is "$(tr -s 01 <out | sort -u | tr '\n' ,)" "[rank 0] 0,[rank 1] 1,"

head -c 1000000 /dev/urandom >binary
launch run -n 2 bash -c '[ $RANK = 0 ] || cat binary' </dev/null
check "binary output of rank 1 passes unchanged" cmp -s binary out
launch run -n 2 bash -c '[ $RANK = 1 ] || cat' <binary
check "binary input and output of rank 0 pass unchanged" cmp -s binary out
launch run -n 2 bash -c '[ $RANK = 0 ] || cat binary >&2' </dev/null
check "standard error too" cmp -s binary err

mkfifo slow
LS_TEST_MARK=$mark "$lockstep" run -n 2 bash -c 'echo first; exec sleep 60' >slow 2>err </dev/null &
launcher=$!
exec 9<slow
read -r line <&9
check "a line arrives while its rank still runs" is "$line" first
kill -TERM "$launcher"
ended
exec 9<&-

# A reader that exits ends the ranks as it would without a launcher.
LS_TEST_MARK=$mark "$lockstep" run -n 2 bash -c 'while :; do echo more; done' 2>err </dev/null | head -3 >out
check "a reader that goes away: the job ends" lines out 3
check "a reader that goes away: nothing is left" nobody_soon

# The launcher reports output that cannot be written, however the ranks end.
for end in 'sleep 0.2; echo more; sleep 60' true; do
    LS_TEST_MARK=$mark "$lockstep" run -n 2 bash -c "echo lost; $end" >/dev/full 2>err </dev/null
    check "a full disk, $end: exit status 1" is $? 1
    check "a full disk, $end: says so" is "$(head -1 err)" \
        "lockstep: cannot write the output of the ranks to standard output: No space left on device"
    check "a full disk, $end: nothing else" lines err 1
    check "a full disk, $end: nothing is left" nobody_soon
done
LS_TEST_MARK=$mark "$lockstep" run -n 2 --max-restarts 3 bash -c 'echo lost; sleep 0.2; echo more' >/dev/full 2>err </dev/null
check "a full disk is no reason to restart" is "$? $(grep -c restarting err)" "1 0"

# On a terminal, only rank 0 has the terminal as its input.
cat >terminal <<'END'
test -t 1 && echo "$RANK writes to it"
test -t 0 && echo "$RANK reads from it"
exit 0
END
LS_TEST_MARK=$mark script -qec "$lockstep run -n 2 bash terminal" /dev/null </dev/null >out 2>err
check "rank 0 writes to the terminal itself" says out "^0 writes"
check "rank 0 reads from the terminal itself" says out "^0 reads"
check "rank 1 does not" is "$(grep -c '^1 ' out)" 0

launch run -n 2 --output-dir logs bash -c 'echo "out of $RANK"; echo "err of $RANK" >&2' </dev/null
check "--output-dir: one file per rank" is "$(cat logs/rank-0.log logs/rank-1.log | tr '\n' ,)" \
    "out of 0,err of 0,out of 1,err of 1,"
check "--output-dir: nothing on standard output" is "$(wc -c <out)" 0
launch run -n 2 --output-dir logs bash -c '[ $RANK = 0 ]' </dev/null
check "--output-dir: a failure names the file" says err "rank 1 .* its output is in logs/rank-1.log"
launch run -n 2 --output-dir $'lo\033[2Jgs' bash -c '[ $RANK = 0 ]' </dev/null
check "--output-dir: bytes of its name that move a terminal's cursor are not passed on" says err \
    "its output is in lo?\[2Jgs/rank-1.log"
launch run -n 1 --output-dir logs /bin/echo again </dev/null
check "--output-dir: the next job starts the files anew" is "$(cat logs/rank-0.log)" again

# ---- entries of other users in the folder of --output-dir ----
as_other() { # as another user where there may be one
    if [ "$(id -u)" = 0 ]; then setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; else "$@"; fi
}
# refused WHAT: the job does not start, and nothing was written to the link's target.
refused() {
    launch run -n 1 --output-dir "${2:-planted}" /bin/echo overwritten </dev/null
    check "--output-dir: $1 is refused" says err "lockstep run: .*planted.*\( is \|Permission denied\)" # the kernel may
    check "--output-dir: $1: the job does not start" test "$status" != 0
    check "--output-dir: $1: nothing is written" is "$(cat victim)" mine
    rm -f planted/rank-0.log
}
echo mine >victim
mkdir -m 1777 planted
chmod go+x .
as_other ln -s "$PWD/victim" planted/rank-0.log
refused "a symbolic link"
ln victim planted/rank-0.log
refused "another name of a file"
mkfifo planted/rank-0.log
refused "a pipe"
mkfifo planted/rank-0.log
exec 9<>planted/rank-0.log
refused "a pipe that somebody reads"
exec 9>&-
if [ "$(id -u)" = 0 ]; then
    as_other touch planted/rank-0.log
    refused "a file of another user"
    mkdir elsewhere
    as_other ln -s "$PWD/elsewhere" planted/logs
    refused "another user's link to a folder" planted/logs
    refused "the same with a slash behind it" planted/logs/
    refused "the same with a dot behind it" planted/logs/./
    check "--output-dir: nothing is made behind it" is "$(ls elsewhere)" ""
fi
ln -s logs own
launch run -n 1 --output-dir own /bin/echo through </dev/null
check "--output-dir may be a link of one's own" is "$(cat logs/rank-0.log)" through
finish
