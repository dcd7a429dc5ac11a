# A job of several nodes: launchers that meet over TCP, here all on this machine. Tests how they find each other, which
# may join, the environment of ranks, and that a failure, a signal or a restart on one node reaches all.
. "$LS_SOURCE/tests/support/checks.sh"
port=$("$lockstep" run -n 1 bash -c 'echo $MASTER_PORT') # free a moment ago
meet=127.0.0.1:$port
(umask 077 && echo "a secret of this test" >key && echo "a different secret" >other)

# node K ARGUMENTS...: starts a launcher in the background, with its output in out.K and err.K and its process id in
# nodes[K].
node() {
    local k=$1
    shift
    LS_TEST_MARK=$mark "$lockstep" run --node-rank "$k" --rendezvous "${place:-$meet}" "$@" >out.$k 2>err.$k </dev/null &
    nodes[$k]=$!
}
cat >who <<'END'
echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $LOCKSTEP_RESTART_COUNT"
END

# ---- meeting ----
node 1 -n 1 --nnodes 3 --key-file key bash who
node 2 -n 2 --nnodes 3 --key-file key bash who
node 0 -n 2 --nnodes 3 --key-file key bash who
ends 0 1 2
check "three nodes end well" is "$statuses" "0 0 0"
check "each rank knows its place" is "$(sort out.0 out.1 out.2 | tr '\n' ,)" \
    "0 5 0 2 $meet 0,1 5 1 2 $meet 0,2 5 0 1 $meet 0,3 5 0 2 $meet 0,4 5 1 2 $meet 0,"
check "and nobody says anything" is "$(cat err.0 err.1 err.2)" ""
for i in 0 1; do
    node $i -n 1 --nnodes 2 --key-file key bash -c 'echo "$LOCKSTEP_KEY"; tr "\0" "\n" <"/proc/$PPID/cmdline" >line.$RANK'
done
ends 0 1
check "the ranks share a key" is "$(sort -u out.0 out.1 | grep -cE '^[0-9a-f]{64}$')" 1
check "it is not the secret of the file" is "$(grep -c secret out.0)" 0
check "no command line has either" is "$(cat line.* | grep -cE "secret|$(cat out.0)")" 0
key0=$(cat out.0)
LOCKSTEP_KEY="in the environment" node 0 -n 1 --nnodes 2 bash -c 'echo $LOCKSTEP_KEY'
LOCKSTEP_KEY="in the environment" node 1 -n 1 --nnodes 2 bash -c 'echo $LOCKSTEP_KEY'
ends 0 1
check "LOCKSTEP_KEY does as well" is "$statuses $(sort -u out.0 out.1 | wc -l)" "0 0 1"
check "the next job has another key" test "$key0" != "$(cat out.0)"
place="[::1]:$port"
if [ -e /proc/net/if_inet6 ] && [ -s /proc/net/if_inet6 ]; then
    node 0 -n 1 --nnodes 2 --key-file key bash who
    node 1 -n 1 --nnodes 2 --key-file key bash who
    ends 0 1
    check "IPv6" is "$statuses $(sort out.0 out.1 | tr '\n' ,)" "0 0 0 2 0 1 ::1:$port 0,1 2 0 1 ::1:$port 0,"
fi
place=localhost:$port
node 0 -n 1 --nnodes 2 --key-file key "$LS_BUILD/examples/perceptron" --max-steps 20 --quiet
node 1 -n 2 --nnodes 2 --key-file key "$LS_BUILD/examples/perceptron" --max-steps 20 --quiet
ends 0 1
check "a host name, and a program that meets" is "$statuses $(cat err.0 err.1)" "0 0 "
check "and one model everywhere" is "$(cat out.0 out.1 | sed -n 's/^rank . parameters //p' | uniq -c | awk '{ print $1 }')" 3
place=

# ---- launchers that may not join ----
node 0 -n 1 --nnodes 2 --key-file key bash who
node 1 -n 1 --nnodes 2 --key-file other bash who
ends 1
check "a wrong key: exit status 1" is "$statuses" 1
check "a wrong key: the one who came is told" says err.1 "the launcher at $meet: this process has a different key than the job"
check "a wrong key: in one line" lines err.1 1
check "a wrong key: the one who waits is told" says err.0 "refused a launcher at 127.0.0.1 port [0-9]*: this process has a different key"
node 1 -n 1 --nnodes 2 bash who
ends 1
check "no key: the one who came is told" says err.1 "the job has a key, but this process was given none"
node 1 -n 1 --nnodes 3 --key-file key bash who
ends 1
check "another number of nodes" says err.1 "node 0 at $meet refused this node: .* was started with --nnodes 3, node 0 with --nnodes 2"
node 1 -n 1 --nnodes 2 --key-file key bash who
ends 0 1
check "the right one still comes" is "$statuses" "0 0"
LOCKSTEP_TIMEOUT=1 node 0 -n 1 --nnodes 3 --key-file key bash who
LOCKSTEP_TIMEOUT=1 node 2 -n 1 --nnodes 3 --key-file key bash who
ends 0 2
check "a node that does not come" is "$statuses" "1 1"
check "it is named, and who is here" says err.0 "node 1 of 3 (here: node 2 on $(hostname)) did not connect to $meet within 1 s"
LOCKSTEP_TIMEOUT=1 node 0 -n 1 --nnodes 2 --key-file key bash who
ends 0
check "it is named where nobody else is here" says err.0 "node 1 of 2 did not connect to $meet within 1 s"
check "the one that came is told" says err.2 "node 0 at $meet has ended"
LOCKSTEP_TIMEOUT=1 node 1 -n 1 --nnodes 2 --key-file key bash who
ends 1
check "a node 0 that does not come" says err.1 "node 0 of 2 did not answer within 1 s (cannot connect to $meet: Connection refused); check --rendezvous, the firewall"
LOCKSTEP_TIMEOUT=12 node 1 -n 1 --nnodes 2 --key-file key bash who
ends 1
check "meanwhile it says every five seconds what to check" is "$(head -n 2 err.1 | sort -u)" \
    "lockstep: waiting for node 0 of 2: cannot connect to $meet: Connection refused; check --rendezvous, the firewall, and that the command runs on node 0"
check "twice in 12 s" lines err.1 3
LS_TEST_MARK=$mark "$lockstep" run -n 1 --nnodes 1 --node-rank 0 --rendezvous "$meet" true 2>err.0 </dev/null
check "one machine: a warning that it meets nobody" is "$? $(cat err.0)" \
    "0 lockstep: --nnodes 1: the job runs on this machine only, and --rendezvous $meet is ignored; for a job on several machines, set --nnodes to their number"
place=0.0.0.0:$port node 0 -n 1 --nnodes 2 bash who
ends 0
check "listening for others without a key is refused" says err.0 "0.0.0.0 is reachable from other machines, so the job needs a key"

node 0 -n 1 --nnodes 2 --key-file key bash who
await bash -c "exec 3<>/dev/tcp/127.0.0.1/$port" 2>/dev/null
for i in $(seq 150); do # more than there are places for; some say nothing, some nonsense, some half of something
    { exec 5<>/dev/tcp/127.0.0.1/$port && case $((i % 3)) in
        1) head -c $((i * 7)) /dev/urandom >&5 ;;
        2) printf 'LOCKSTEP\1\0\1\0' >&5 ;;
    esac; } 2>/dev/null
    eval "exec $((10 + i))<&5 5<&-"
done
node 1 -n 1 --nnodes 2 --key-file key bash who
ends 0 1
for i in $(seq 150); do eval "exec $((10 + i))<&-"; done
check "connections that say nothing or nonsense keep nobody out" is "$statuses $(cat err.1)" "0 0 "
check "nor do they come in" is "$(cat out.0 out.1 | wc -l)" 2

# ---- failures ----
node 0 -n 1 --nnodes 2 --key-file key bash -c 'exec sleep 300'
node 1 -n 2 --nnodes 2 --key-file key bash -c '[ $RANK = 1 ] || exit 7; exec sleep 300'
ends 0 1
check "a rank fails on one node: its status on all" is "$statuses" "7 7"
check "there: it is named" says err.1 '^lockstep: rank 2 (pid [0-9]*) exited with status 7; 1 rank here was terminated$'
check "elsewhere: it is named, and its machine" says err.0 "^lockstep: rank 2 (pid [0-9]* on $(hostname)) exited with status 7; 1 rank here was terminated$"
check "one line each" is "$(cat err.0 err.1 | wc -l)" 2
down
node 0 -n 1 --nnodes 2 --key-file key bash sleeper
node 1 -n 1 --nnodes 2 --key-file key bash sleeper
up 2
kill -9 "$(cat up.0)"
ends 0 1
check "kill -9 on rank 0" is "$statuses" "137 137"
check "kill -9 on rank 0: named elsewhere" says err.1 "^lockstep: rank 0 (pid [0-9]* on $(hostname)) $killed; 1 rank here was terminated$"
why="ls_comm_barrier #3: rank 1 is gone: it closed its connection"
blames="printf 'lockstep-failure 1 8 0 1 %d $why' \$\$ >&\${LOCKSTEP_REPORT%%:*}; exit 1"
node 0 -n 1 --nnodes 2 --key-file key bash -c "until [ -e ready ]; do :; done; $blames"
node 1 -n 1 --nnodes 2 --key-file key bash -c ': >ready; sleep 0.3; kill -9 $$'
ends 0 1
check "a rank that blames another is not the first" is "$statuses" "137 137"
check "the other one is named" says err.0 "^lockstep: rank 1 (pid [0-9]* on $(hostname)) $killed$"
node 0 -n 1 --nnodes 2 --key-file key bash -c "$blames"
node 1 -n 1 --nnodes 2 --key-file key bash -c 'exec sleep 300'
ends 0 1
check "unless nothing is heard of that one" is "$statuses" "1 1"
check "then it is named" says err.1 "^lockstep: rank 0 (pid [0-9]* on $(hostname)) exited with status 1; 1 rank here was terminated; its last error: $why$"
node 0 -n 1 --nnodes 2 --key-file key ./no-such-program
LOCKSTEP_TIMEOUT=1 node 1 -n 1 --nnodes 2 --key-file key bash -c 'exec sleep 300'
ends 0 1
check "a program that is not there: its node does not come" is "$statuses" "127 1"
echo "#!$scratch/absent" >orphan && chmod +x orphan
node 0 -n 1 --nnodes 2 --key-file key bash -c 'exec sleep 300'
node 1 -n 1 --nnodes 2 --key-file key ./orphan
ends 0 1
check "a program that cannot start on one node" is "$statuses" "1 127"
check "the others are told which and why" says err.0 "^lockstep: $(hostname): lockstep run: cannot start './orphan' as rank 1"
for victim in 0 1; do
    down
    node 0 -n 1 --nnodes 2 --key-file key bash sleeper
    node 1 -n 1 --nnodes 2 --key-file key bash sleeper
    up 2
    kill -9 "${nodes[$victim]}"
    ends $((1 - victim))
    check "kill -9 on the launcher of node $victim: the other ends too" is "$statuses" 1
    check "kill -9 on the launcher of node $victim: and says why" says err.$((1 - victim)) "the launcher of node $victim, on .*, cannot be reached any more: "
    check "kill -9 on the launcher of node $victim: nothing is left" nobody_soon
done

# The wait for a stopped launcher is limited.
for stopped in 0 1; do
    other=$((1 - stopped))
    down
    for k in 0 1; do
        LOCKSTEP_TIMEOUT=1 node $k -n 1 --nnodes 2 --key-file key --grace 0.5 bash sleeper
    done
    up 2
    kill -STOP "${nodes[$stopped]}"
    kill -9 "$(cat up.$other)"
    ends $other
    check "a job fails while the launcher of node $stopped is stopped: the other ends" is "$statuses" 137
    check "it says for whom it waited" says err.$other "^lockstep: no longer waiting for node $stopped on .*: it has sent nothing for 1.5 s since"
    check "and what failed" says err.$other "^lockstep: rank $other (pid [0-9]*) $killed"
    kill -CONT "${nodes[$stopped]}"
    ends $stopped
    check "the stopped one ends when it goes on" is "$statuses" 137
done

# This also holds if all ranks end successfully; a launcher that is not stopped has time.
cat >sleeper_of_its_own <<'END'
touch up.$RANK
until [ -e let.$RANK ]; do sleep 0.05; done
END
for stopped in 0 1; do
    other=$((1 - stopped))
    down
    rm -f let.*
    for k in 0 1; do
        LOCKSTEP_TIMEOUT=1 node $k -n 1 --nnodes 2 --key-file key bash sleeper_of_its_own
    done
    up 2
    touch let.$other
    sleep 2.5
    check "node $stopped goes on alone: the other waits" kill -0 "${nodes[$other]}"
    kill -STOP "${nodes[$stopped]}"
    touch let.$stopped
    ends $other
    check "a job ends well while the launcher of node $stopped is stopped: the other ends" is "$statuses" 1
    check "it says for whom it waited" says err.$other "^lockstep: no longer waiting for node $stopped on .*: it has not answered for 1 s"
    kill -CONT "${nodes[$stopped]}"
    ends $stopped
    # At this point node 0 knows that all ranks ended successfully; node 1 only knows that node 0 has closed the
    # connection.
    check "the stopped one ends when it goes on" is "$statuses" $stopped
done

# ---- signals ----
for pressed in 0 1; do
    down
    node 0 -n 1 --nnodes 2 --key-file key bash sleeper
    node 1 -n 2 --nnodes 2 --key-file key bash sleeper
    up 3
    kill -INT "${nodes[$pressed]}"
    ends 0 1
    check "Ctrl-C on node $pressed: 130 on both" is "$statuses" "130 130"
    check "Ctrl-C on node $pressed: said there" says err.$pressed "^lockstep: SIGINT was passed on to [12] rank"
    check "Ctrl-C on node $pressed: said elsewhere" says err.$((1 - pressed)) "^lockstep: SIGINT from node $pressed was passed on to [12] rank"
    check "Ctrl-C on node $pressed: nothing else is said" is "$(cat err.0 err.1 | wc -l)" 2
done

# ---- restarts ----
cat >again <<'END'
echo "$RANK $LOCKSTEP_RESTART_COUNT $LOCKSTEP_KEY" >>starts
[ $LOCKSTEP_RESTART_COUNT = 2 ] && exit 0
[ $RANK = $((1 + LOCKSTEP_RESTART_COUNT)) ] || exec sleep 300
until [ $(grep -c " $LOCKSTEP_RESTART_COUNT " starts) = 3 ]; do sleep 0.01; done
exit 4
END
node 0 -n 2 --nnodes 2 --key-file key --max-restarts 3 bash again
node 1 -n 1 --nnodes 2 --key-file key bash again
ends 0 1
check "restarts: node 0's word counts" is "$statuses" "0 0"
check "restarts: every rank was started three times" is "$(cut -d' ' -f1,2 starts | sort | tr '\n' ,)" \
    "0 0,0 1,0 2,1 0,1 1,1 2,2 0,2 1,2 2,"
check "restarts: with a fresh key each time" is "$(cut -d' ' -f3 starts | sort -u | wc -l)" 3
check "restarts: both say so" is "$(cat err.0 err.1 | grep -c 'restarting the job')" 4

# Node 0 has ended successfully when the other one fails.
node 0 -n 1 --nnodes 2 --key-file key --max-restarts 1 true
node 1 -n 1 --nnodes 2 --key-file key bash -c '[ $LOCKSTEP_RESTART_COUNT = 1 ] || { sleep 0.5; exit 3; }'
ends 0 1
check "a restart after node 0 has ended: it counts" is "$statuses" "0 0"
check "a restart after node 0 has ended: both say so" is "$(cat err.0 err.1 | grep -c 'restarting the job')" 2

# ---- wrong arguments ----
refuses() { # NAME STATUS SENTENCE ARGUMENTS...
    local name=$1 wanted=$2 sentence=$3
    shift 3
    launch run "$@" bash who </dev/null
    check "$name: exit status $wanted" is "$status" "$wanted"
    check "$name: says so" says err "$sentence"
    check "$name: in one line" lines err 1
}
refuses "no --node-rank" 2 "--nnodes 2 needs --node-rank, a number from 0 to 1" --nnodes 2 --rendezvous $meet
refuses "a --node-rank too high" 2 "--nnodes 2 needs --node-rank, a number from 0 to 1" --nnodes 2 --node-rank 2 --rendezvous $meet
refuses "no --rendezvous" 2 "needs --rendezvous HOST:PORT" --nnodes 2 --node-rank 0
refuses "a --rendezvous without a port" 2 "--rendezvous here: must be HOST:PORT" --nnodes 2 --node-rank 0 --rendezvous here
refuses "a --node-rank alone" 2 "--node-rank needs --nnodes" --node-rank 1
refuses "an --interface that is not there" 2 "--interface: 'nosuch0' is neither" --interface nosuch0
refuses "a key file that is not there" 2 "--key-file nokey: cannot read it" --nnodes 2 --node-rank 0 --rendezvous $meet --key-file nokey
chmod 644 other
refuses "a key file that others can read" 1 "chmod 600 other" --nnodes 2 --node-rank 0 --rendezvous $meet --key-file other
refuses "an address of another machine" 1 "cannot listen on 192.0.2.1:$port: this is not an address of this machine" \
    --nnodes 2 --node-rank 0 --rendezvous 192.0.2.1:$port --key-file key
finish
