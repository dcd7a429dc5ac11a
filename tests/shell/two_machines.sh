# Two machines, simulated by network namespaces joined by a cable that can be cut: launchers and ranks that find each
# other by IPv4 and IPv6, failures that are reported on both, a cut, delay and loss. Needs permission to make
# namespaces.
. "$LS_SOURCE/tests/support/checks.sh"
. "$LS_SOURCE/tests/support/machines.sh"
meet=10.77.0.1:29500
(umask 077 && echo "a secret of this test" >key)

# on SPACE COMMAND...
on() {
    local space=$1
    shift
    LS_TEST_MARK=$mark ip netns exec "$space" "$@"
}
# machine K OPTIONS... PROGRAM...: starts its launcher in the background, with output in out.K and err.K.
machine() {
    local k=$1 space=$a
    shift
    [ "$k" = 0 ] || space=$b
    on "$space" "$lockstep" run --nnodes 2 --node-rank "$k" --rendezvous "$meet" --key-file key "$@" \
        >out.$k 2>err.$k </dev/null &
    nodes[$k]=$!
}

# ---- launchers ----
for meet in 10.77.0.1:29500 "[fd00:77::1]:29500" 0.0.0.0:29500; do
    where=$meet
    machine 0 -n 2 bash -c 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCKSTEP_INTERFACE"'
    [ "$meet" != 0.0.0.0:29500 ] || meet=10.77.0.1:29500
    machine 1 -n 1 bash -c 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCKSTEP_INTERFACE"'
    ends 0 1
    net=$([ "${meet#[}" = "$meet" ] && echo 10.77.0. || echo fd00:77::)
    check "$where: ranks know their place and the cable's address" is "$statuses $(cat out.0 out.1 | sort | tr '\n' ,)" \
        "0 0 0 3 0 ${net}1,1 3 1 ${net}1,2 3 0 ${net}2,"
done
meet=10.77.0.1:29500
down
machine 0 -n 1 bash sleeper
machine 1 -n 1 bash sleeper
up 2
kill -9 "$(cat up.1)"
ends 0 1
check "kill -9 on a rank of the other machine" is "$statuses" "137 137"
check "it is named here" says err.0 "^lockstep: rank 1 (pid [0-9]* on .*) $killed; 1 rank here was terminated$"
check "and there" says err.1 "^lockstep: rank 1 (pid [0-9]*) $killed$"

# ---- ranks that meet through a store ----
train=("$LS_BUILD/examples/perceptron" --seed 3 --quiet)
models() {
    sed -n 's/^rank . parameters //p' "$@" | sort | uniq -c | awk '{ print $1, $2 }'
}
launch run -n 4 "${train[@]}" --max-steps 60 </dev/null
wanted=$(models out)
check "four ranks on one machine: one model" is "${wanted% *}" 4
machine 0 -n 1 "$lockstep" bench barrier --backend shm --iterations 1
machine 1 -n 1 "$lockstep" bench barrier --backend shm --iterations 1
ends 0 1
check "backend shm is refused across machines" says <(cat err.0 err.1) "which do not share memory"
machine 0 -n 2 "${train[@]}" --max-steps 60
machine 1 -n 2 "${train[@]}" --max-steps 60
ends 0 1
check "two machines: they end well" is "$statuses $(cat err.0 err.1)" "0 0 "
check "two machines: the model of one" is "$(models out.0 out.1)" "$wanted"

# LOCKSTEP_WIRE: all calls in each mode. What the cable carries is checked by unit/transport_tcp_wire.
for mode in authenticated encrypted; do
    export LOCKSTEP_WIRE=$mode
    for k in 0 1; do
        machine $k -n 2 "$LS_BUILD/tests/ranks_conformance"
    done
    ends 0 1
    check "LOCKSTEP_WIRE=$mode: conformance" is "$statuses" "0 0"
    machine 0 -n 2 "${train[@]}" --max-steps 60
    machine 1 -n 2 "${train[@]}" --max-steps 60
    ends 0 1
    check "LOCKSTEP_WIRE=$mode: the model of one machine" is "$statuses $(models out.0 out.1)" "0 0 $wanted"
done
machine 0 -n 2 "${train[@]}" --max-steps 60
LOCKSTEP_WIRE=plain machine 1 -n 2 "${train[@]}" --max-steps 60
ends 0 1
check "LOCKSTEP_WIRE differs: refused" test "$statuses" != "0 0"
check "LOCKSTEP_WIRE differs: the error says where" says <(cat err.0 err.1) \
    "LOCKSTEP_WIRE is [a-z]* for rank [0-3] and [a-z]* for rank [0-3]: set it to the same value for all ranks"
machine 0 -n 1 "$lockstep" bench barrier --backend gloo --iterations 1
machine 1 -n 1 "$lockstep" bench barrier --backend gloo --iterations 1
ends 0 1
check "LOCKSTEP_WIRE and libgloo: refused" says <(cat err.0 err.1) \
    "LOCKSTEP_WIRE=encrypted does not protect backend gloo, .*: use backend tcp, or unset LOCKSTEP_WIRE"
unset LOCKSTEP_WIRE

for rank in 1 2; do
    down
    for k in 0 1; do
        machine $k -n 2 bash -c 'echo $$ >new.$RANK; mv new.$RANK up.$RANK; exec "$@"' - "${train[@]}" --epochs 1000000
    done
    up 4
    sleep 0.5
    kill -9 "$(cat up.$rank)"
    ends 0 1
    check "kill -9 on rank $rank in training: the same status on both" is "$statuses" "137 137"
    cat err.0 err.1 >err
    check "kill -9 on rank $rank in training: each launcher names it in one sentence" is \
        "$(grep -c '^lockstep: ' err) $(grep -c "^lockstep: rank $rank (pid [0-9]*.*) $killed; [12] ranks* here w[a-z]* terminated$" err)" "2 2"
    # On a busy machine, a rank may report the death before its launcher terminates it.
    check "kill -9 on rank $rank in training: no line names another cause" is "$(grep -vc "rank $rank " err)" 0
done

# ---- several ranks on each ----
# carried ITERATIONS: bytes sent over the cable from here, and statuses, for this number of all-reduces and a few more
# calls.
carried() {
    local before=$(ip -n "$a" -s -j link show cable | sed 's/.*"tx":{"bytes":\([0-9]*\).*/\1/')
    machine 0 -n 4 "$lockstep" bench allreduce --sizes 4M --iterations "$1"
    machine 1 -n 4 "$lockstep" bench allreduce --sizes 4M --iterations "$1"
    ends 0 1
    echo $(($(ip -n "$a" -s -j link show cable | sed 's/.*"tx":{"bytes":\([0-9]*\).*/\1/') - before))
}
some=$(carried 2)
more=$(carried 12)
check "two machines of four ranks: sums are right" says out.0 " yes$"
check "the cable carries 4 MiB once, however many ranks there are" \
    test $((more - some)) -gt $((10 * 4000000)) -a $((more - some)) -lt $((12 * 4194304))

# Ranks started by hand: beyond loopback a key is required, and a wrong key is refused.
by_hand() { # RANK [KEY]
    local space=$([ "$1" = 0 ] && echo "$a" || echo "$b")
    RANK=$1 WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29501 LOCKSTEP_TIMEOUT=${limit:-20} ${2:+env "LOCKSTEP_KEY=$2"} \
        ip netns exec "$space" env LS_TEST_MARK=$mark "${train[@]}" --max-steps 5 >out.$1 2>err.$1 </dev/null
}
by_hand 0
check "by hand without a key: refused" says err.0 "10.77.0.1 is reachable from other machines, so the job needs a key"
limit=2 by_hand 0 "one key for this test" &
zero=$!
limit=10 by_hand 1 "another key"
check "by hand with another key: who came is told" says err.1 "this process has a different key than the job"
wait "$zero"
check "by hand with another key: who waits is told" says err.0 "rank 1 of 2 did not join within 2 s (refused because of a wrong or missing key: 1)"
by_hand 0 "one key for this test" &
zero=$!
by_hand 1 "one key for this test"
check "by hand with the key" is "$? $(cat err.1)" "0 "
wait "$zero"

# Ranks that meet in a folder. These machines have no default route, but a cable.
LOCKSTEP_TIMEOUT=60 on "$a" "$LS_BUILD/tests/folder_program" "file://$PWD/meet" 0 >out.0 2>err.0 </dev/null &
zero=$!
LOCKSTEP_TIMEOUT=60 on "$b" "$LS_BUILD/tests/folder_program" "file://$PWD/meet" 1 >out.1 2>err.1 </dev/null
check "without a default route: ranks meet in a folder" is "$? $(cat out.1 err.1)" "0 3"
wait "$zero"
check "without a default route: so does rank 0" is "$? $(cat out.0 err.0)" "0 3"

# Ranks that alternate between the machines.
for rank in 1 2 3; do
    RANK=$rank WORLD_SIZE=4 MASTER_ADDR=10.77.0.1 MASTER_PORT=29502 LOCKSTEP_KEY="one key for this test" LS_TEST_MARK=$mark \
        ip netns exec $([ $rank = 2 ] && echo "$a" || echo "$b") \
        "$lockstep" bench allreduce --sizes 64,100K,3M --iterations 3 >out.$rank 2>err.$rank </dev/null &
    turns[$rank]=$!
done
RANK=0 WORLD_SIZE=4 MASTER_ADDR=10.77.0.1 MASTER_PORT=29502 LOCKSTEP_KEY="one key for this test" LS_TEST_MARK=$mark \
    ip netns exec "$a" "$lockstep" bench allreduce --sizes 64,100K,3M --iterations 3 >out.0 2>err.0 </dev/null
check "ranks in turns on two machines: sums are right" is "$? $(grep -c ' yes$' out.0) $(cat err.?)" "0 3 "
wait "${turns[@]}"

# ---- the cable is cut ----
export LOCKSTEP_TIMEOUT=4
machine 0 -n 1 bash -c ': >up.$RANK; exec "$@"' - "${train[@]}" --epochs 1000000
machine 1 -n 1 bash -c ': >up.$RANK; exec "$@"' - "${train[@]}" --epochs 1000000
up 2
sleep 1
check "before the cut: training runs" is "$(cat err.0 err.1; kill -0 "${nodes[@]}" && echo yes)" yes
ip -n "$a" link set cable down
cut=$SECONDS
ends 0 1
unset LOCKSTEP_TIMEOUT
check "a cut cable ends both sides with a failure" is "$([ "${statuses% *}" != 0 ] && [ "${statuses#* }" != 0 ] && echo yes)" yes
check "not long after the timeout" test $((SECONDS - cut)) -le 20
for k in 0 1; do
    check "machine $k says why" says err.$k "rank $((1 - k)) .*within 4 s\|cannot be reached any more"
done
check "nothing is left" nobody_soon
mend

# ---- a slow cable with losses ----
slow=$meet
if tc -n "$a" qdisc add dev cable root netem delay 5ms loss 2% 2>netem &&
    tc -n "$b" qdisc add dev cable root netem delay 5ms loss 2%; then
    echo "delay and loss by netem"
elif cc -D_GNU_SOURCE -std=gnu17 -O1 -o slow_link "$LS_SOURCE/tests/tools/slow_link.c"; then
    echo "this kernel has no netem ($(head -1 netem)): delay and loss by a cable of our own"
    mkfifo hold
    LS_TEST_MARK=$mark ./slow_link "$a" "$b" slow 5 2 <hold >ready 2>err &
    exec 8>hold
    await says ready ready
    address "$a" slow 1 78
    address "$b" slow 2 78
    slow=10.78.0.1:29500
else
    slow=
    echo "SKIPPED delay and loss: neither netem nor a compiler is here"
fi
if [ -n "$slow" ]; then
    meet=$slow
    machine 0 -n 2 "${train[@]}" --max-steps 60
    machine 1 -n 2 "${train[@]}" --max-steps 60
    ends 0 1
    check "delay and loss: they end well" is "$statuses $(cat err.0 err.1)" "0 0 "
    check "delay and loss: the same model" is "$(models out.0 out.1)" "$wanted"
    exec 8>&-
fi

# ---- the same over Gloo ----
if [ -e "$LS_BUILD/lib/lockstep-gloo.so" ]; then
    export LOCKSTEP_BACKEND=gloo
    meet=10.77.0.1:29500
    machine 0 -n 2 "${train[@]}" --max-steps 60
    machine 1 -n 2 "${train[@]}" --max-steps 60
    ends 0 1
    check "gloo: they end well" is "$statuses $(cat err.0 err.1)" "0 0 "
    check "gloo: the model of one" is "$(models out.0 out.1)" "$wanted"
else
    echo "SKIPPED ranks on two machines over Gloo: this build has no lockstep-gloo.so"
fi
finish
