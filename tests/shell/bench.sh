# `lockstep bench`: its output, its check of results, and that wrong arguments give one clear message.
. "$LS_SOURCE/tests/support/checks.sh"
export LOCKSTEP_TIMEOUT=60
unset RANK WORLD_SIZE

is_json_lines() {
    command -v python3 >/dev/null || {
        [ "$(grep -c '^{".*}$' "$1")" = "$(wc -l <"$1")" ]
        return
    }
    while read -r line; do
        python3 -m json.tool >/dev/null <<<"$line" || return 1
    done <"$1"
}

# key KEY: its values, one line each.
key() {
    sed 's/.*"'"$1"'": "\{0,1\}\([^",}]*\).*/\1/' out
}

# bus COLLECTIVE RANKS FACTOR: busbw is algbw times the factor.
bus() {
    launch bench "$1" -n "$2" --sizes 1M --iterations 2 --json </dev/null
    sed 's/.*"algbw_gbps": \([0-9.]*\), "busbw_gbps": \([0-9.]*\).*/\1 \2/' out |
        awk -v factor="$3" '{ d = $1 * factor - $2; found = $1 > 0 && d < 1e-5 && d > -1e-5 } END { exit !found }'
}

# ---- every collective it knows ----
launch bench </dev/null
known=$(sed 's/.*available: //; s/,//g' err)
for collective in $known; do
    sizes="--sizes 1,1K,100001"
    wanted=3
    [ "$collective" != barrier ] || { sizes="" wanted=1; }
    for ranks in 1 2 3; do
        launch bench "$collective" -n "$ranks" $sizes --iterations 3 --json </dev/null
        check "$collective, $ranks ranks: ends well" is "$status" 0
        check "$collective, $ranks ranks: one line per size" lines out "$wanted"
        check "$collective, $ranks ranks: JSON" is_json_lines out
        check "$collective, $ranks ranks: correct" is "$(key correct | sort -u)" true
        check "$collective, $ranks ranks: says its name" is "$(key collective | sort -u)" "$collective"
        check "$collective, $ranks ranks: says how many" is "$(key ranks | sort -u)" "$ranks"
        check "$collective, $ranks ranks: as many iterations as asked for" is "$(key iterations | sort -u)" 3
    done
done

# ---- what is printed ----
keys="collective backend ranks bytes iterations median_us p10_us p90_us algbw_gbps busbw_gbps compute_ms messages sent_bytes correct algorithm"
launch bench allreduce --json --sizes 4,1K,1M --iterations 4 </dev/null
check "two ranks without -n" is "$(key ranks | sort -u)" 2
check "the backend is named" is "$(key backend | sort -u)" shm
check "bytes are those asked for" is "$(key bytes | tr '\n' ' ')" "4 1024 1048576 "
check "keys are those promised" is "$(head -1 out | grep -o '"[a-z0-9_]*":' | tr -d '":' | tr '\n' ' ')" "$keys "
check "times are ordered" awk -F'[:,]' '{ if (!($14 <= $12 && $12 <= $16 && $14 > 0)) exit 1 }' out
check "all-reduce over 2 ranks: bus bandwidth is 1 times" bus allreduce 2 1
check "all-reduce over 3 ranks: bus bandwidth is 4/3 times" bus allreduce 3 1.333333333
for collective in broadcast pingpong reduce sendrecv; do
    check "$collective: bus bandwidth is 1 times" bus "$collective" 3 1
done
for collective in allgather alltoall gather reduce_scatter scatter; do
    check "$collective over 3 ranks: bus bandwidth is 2/3 times" bus "$collective" 3 0.666666667
done
check "shared memory counts no messages" is "$(key messages | sort -u) $(key sent_bytes | sort -u)" "null null"
launch bench reduce-scatter -n 3 --sizes 100 --json --iterations 1 </dev/null
check "bytes are cut in whole elements for each rank" is "$(key bytes)" 108
launch bench allreduce --sizes 4,64K </dev/null
check "a table: two lines of heading, one per size" lines out 4
check "a table: what was measured" says out "^# allreduce, 2 ranks, backend shm, f32, sum, ordinary memory"
check "a table: results are correct" is "$(grep -c ' yes$' out)" 2
check "a table: iterations chosen by time" test "$(awk 'END { print $2 }' out)" -ge 10

# ---- messages of a call ----
# at_most COLLECTIVE RANKS MESSAGES: limit for a small call, on the rank that sends most
at_most() {
    local sizes="--sizes 4"
    [ "$1" != barrier ] || sizes=""
    launch bench "$1" -n "$2" $sizes --backend tcp --iterations 3 --json </dev/null
    check "$1, $2 ranks of tcp: messages are at most $3" test "$(key messages)" -ge 1 -a "$(key messages)" -le "$3"
    check "$1, $2 ranks of tcp: so are bytes" test "$(key sent_bytes)" -ge 1 -a "$(key sent_bytes)" -le $((1000 * $3))
}
for collective in barrier allreduce; do
    at_most $collective 2 2
    at_most $collective 3 4
    at_most $collective 4 4
done
launch bench allreduce -n 2 --sizes 4M --backend tcp --iterations 3 --json </dev/null
check "a large all-reduce sends its buffer once over 2 ranks" \
    test "$(key sent_bytes)" -ge 4194304 -a "$(key sent_bytes)" -le 4200000
launch bench barrier -n 2 --backend tcp --iterations 3 </dev/null
check "a table: messages and bytes" is "$(awk '!/^#/ { print $8, ($9 > 0) }' out)" "1 1"

# ---- options ----
launch bench allreduce --sizes 3 --dtype f64 --json --iterations 1 </dev/null
check "sizes become whole elements" is "$(key bytes)" 8
launch bench all-reduce --registered --sizes 1K,1M --iterations 2 </dev/null
check "registered memory" is "$status $(grep -c ' yes$' out)" "0 2"
check "registered memory is named" says out "registered memory"
for words in "--in-place" "--fresh" "--in-place --fresh" "--in-place --fresh --registered -n 3 --op max"; do
    launch bench allreduce $words --sizes 1,1K,1M --iterations 3 </dev/null
    check "allreduce $words is correct" is "$status $(grep -c ' yes$' out)" "0 3"
done
check "buffers in place and fresh are named" says out "registered memory, in place, freshly written"
for progress in 0 1; do
    LOCKSTEP_PROGRESS_THREAD=$progress launch bench allreduce -n 2 --backend tcp --compute 3 --sizes 1,1M --iterations 3 --json </dev/null
    check "allreduce --compute, progress thread $progress: correct" is "$status $(key correct | sort -u) $(key compute_ms | sort -u)" \
        "0 true 3"
done
launch bench pingpong --compute 3 </dev/null
check "pingpong --compute: refused" is "$status $(cat err)" \
    "2 lockstep bench: --compute cannot be combined with messages between two ranks"
LOCKSTEP_PROGRESS_THREAD=yes launch bench barrier --iterations 1 </dev/null
check "a wrong LOCKSTEP_PROGRESS_THREAD: said" says err "LOCKSTEP_PROGRESS_THREAD is yes, but must be 0 or 1"
launch bench alltoall -n 3 --fresh --sizes 1K --iterations 2 </dev/null
check "alltoall --fresh is correct" is "$status $(grep -c ' yes$' out)" "0 1"
launch bench allreduce -n 1 --backend self --json --sizes 1K --iterations 1 </dev/null
check "one rank on backend self" is "$(key backend) $(key correct)" "self true"
for pair in "bf16 avg" "f16 sum" "f64 prod" "i64 min" "i32 maxloc" "f32 minloc" "u8 bxor" "bool lxor"; do
    launch bench allreduce -n 3 --dtype "${pair% *}" --op "${pair#* }" --sizes 1,5000 --iterations 1 </dev/null
    check "$pair is correct" is "$status $(grep -c ' yes$' out)" "0 2"
done
launch run -n 2 "$lockstep" bench allreduce --sizes 1K --json --iterations 1 </dev/null
check "inside a job it is one of its ranks" is "$(key ranks) $(key correct)" "2 true"
OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 LOCKSTEP_BACKEND=gloo launch bench allreduce --sizes 4 </dev/null
check "a rank that cannot join its job starts none of its own" is "$status $(wc -c <out)" "2 0"
check "a rank that cannot join its job says why" says err 'backend "mpi" or, on one machine, "shm", not "gloo"'

# ---- a cluster that is a model ----
cluster="--latency 2us --bandwidth 12GB/s"
launch bench allreduce --simulate 64 $cluster --sizes 4,64K,1M --json </dev/null
check "simulated: ends well" is "$status" 0
check "simulated: JSON" is_json_lines out
keys="collective ranks bytes us messages sent_bytes textbook textbook_us textbook_messages textbook_sent_bytes"
check "simulated: keys are those promised" is "$(head -1 out | grep -o '"[a-z0-9_]*":' | tr -d '":' | tr '\n' ' ')" "$keys "
check "simulated: as many ranks as asked for" is "$(key ranks | sort -u)" 64
check "simulated: a small call of 64 ranks is 6 messages, one after the other" is "$(key messages | head -1)" 6
check "simulated: each takes latency and twice the overhead" awk -v us="$(key us | head -1)" 'BEGIN { exit !(us >= 15.6 && us < 15.8) }'
check "simulated: so does recursive doubling" is "$(key textbook_us | head -1) $(key textbook | head -1)" "15.602 recursive doubling"
check "simulated: a large one sends its buffer twice" \
    test "$(key sent_bytes | tail -1)" -ge 2064384 -a "$(key sent_bytes | tail -1)" -le 2070000
check "simulated: by halves" is "$(key messages | tail -1)" 18
cp out before
launch bench allreduce --simulate 64 $cluster --sizes 4,64K,1M --json </dev/null
check "simulated: twice is the same" cmp before out
launch bench allreduce --simulate 64 --latency 4us --bandwidth 100Gbit/s --overhead 0.3us --eager 8K --sizes 4 --json </dev/null
check "simulated: the latency counts" awk -v us="$(key us)" 'BEGIN { exit !(us >= 27.6 && us < 27.8) }'
for collective in allgather alltoall barrier broadcast gather reduce reduce-scatter scatter; do
    sizes="--sizes 4,256K"
    wanted=4
    [ "$collective" != barrier ] || { sizes="" wanted=3; }
    launch bench "$collective" --simulate 12 $cluster $sizes </dev/null
    check "simulated $collective: a table" is "$status $(wc -l <out)" "0 $wanted"
done
# sends COLLECTIVE RANKS SIZE MESSAGES: the largest number of messages of a rank; large vectors use the algorithm of 256
# KiB
sends() {
    launch bench "$1" --simulate "$2" $cluster --sizes "$3" --json </dev/null
    check "simulated $1 of $3 on $2 ranks: messages" is "$(key messages)" "$4"
}
sends allreduce 16 256K 12
sends allreduce 16 64M 12
sends allreduce 48 1M 19
sends broadcast 64 64K 18
sends allgather 64 1M 17
sends reduce 16 256K 9
sends reduce-scatter 16 16M 8
launch bench --simulate 12 $cluster --sizes 4 --json </dev/null
check "simulated: all-reduce, where no collective is named" is "$status $(grep -c '"allreduce"' out)" "0 1"
launch bench allreduce --simulate 1 $cluster --sizes 4 --json </dev/null
check "simulated: one rank sends nothing" is "$status $(key messages) $(key textbook)" "0 0 nothing"

# ---- wrong words ----
# refuses NAME SENTENCE ARGUMENTS...
refuses() {
    local name=$1 sentence=$2
    shift 2
    launch bench "$@" </dev/null
    check "$name: exit status 2" is "$status" 2
    check "$name: says so" says err "$sentence"
    check "$name: in one line" lines err 1
    check "$name: nothing on standard output" is "$(wc -c <out)" 0
}
refuses "no collective" "no COLLECTIVE given; available: .*allreduce"
refuses "an unknown collective" "unknown collective 'allredcue'; available: .*allreduce.*broadcast" allredcue
refuses "two collectives" "unexpected argument 'broadcast'" allreduce broadcast
refuses "-n 0" "-n '0': N must be a whole number from 1" allreduce -n 0
refuses "-n of no number" "-n 'two': N must be" allreduce -n two
refuses "--iterations 0" "--iterations '0': K must be a whole number from 1" allreduce --iterations 0
for sizes in 0 "" , 4, 4,,8 4X 4KK -4 K 0x10 99999999999999999999 17179869184G 2000G; do
    refuses "--sizes '$sizes'" "--sizes: '.*' is not a size; expected a number of bytes such as" allreduce --sizes "$sizes"
done
refuses "too many sizes" "more than 64 sizes" allreduce --sizes "$(seq -s, 65)"
refuses "an unknown dtype" "unknown dtype 'f33'; available: f32" allreduce --dtype f33
refuses "an unknown reduction" "unknown reduction 'mean'; available: sum, avg" allreduce --op mean
refuses "bits of floats" "band is not defined for --dtype f32" allreduce --op band
refuses "a mean of bool" "avg is not defined for --dtype bool" allreduce --op avg --dtype bool
refuses "a reduction where nothing is reduced" "--op sum: broadcast is not a reduction" broadcast --op sum
refuses "a barrier with sizes" "barrier moves no data, so --sizes cannot be used" barrier --sizes 4
refuses "a barrier with a dtype" "barrier moves no data, so --dtype cannot be used" barrier --dtype f32
refuses "a barrier with values" "barrier moves no data, so --fresh cannot be used" barrier --fresh
refuses "in place where there are two buffers" "--in-place is supported for allreduce only; alltoall needs two" alltoall --in-place
refuses "in place where there is one buffer" "broadcast always has one buffer" broadcast --in-place
refuses "in place where there is none" "barrier has no buffer" barrier --in-place
refuses "an unknown backend" "no backend \"smh\"" allreduce --backend smh
if [ -e "$LS_BUILD/lib/lockstep-mpi_openmpi.so" ]; then
    refuses "backend mpi without mpirun" "started: mpirun -np 3 lockstep bench alltoall --backend mpi" alltoall -n 3 --backend mpi
fi
refuses "--simulate without a network" "needs --latency and --bandwidth, as in --simulate 8 --latency 2us --bandwidth 12GB/s" \
    allreduce --simulate 8
refuses "--simulate 0" "--simulate '0': P must be a whole number from 1" allreduce --simulate 0
refuses "a network without --simulate" "--latency is for --simulate P" allreduce --latency 2us
refuses "--simulate with ranks" "--ranks cannot be combined with --simulate" allreduce --simulate 8 $cluster -n 2
refuses "--simulate with a backend" "--backend cannot be combined with --simulate" allreduce --simulate 8 $cluster --backend tcp
refuses "single messages, simulated" "supports collectives only; pingpong sends single messages" pingpong --simulate 8 $cluster
for time in 2 us -2us 2parsecs 0x2us 11s 2us4 nan ""; do
    refuses "--latency '$time'" "--latency '$time' is not a time; expected a time such as 300ns, 2us" allreduce --simulate 8 --latency "$time" --bandwidth 12GB/s
done
for rate in 12 GB/s 0GB/s 12GB 12Gb/s 99TB/s; do
    refuses "--bandwidth '$rate'" "--bandwidth '$rate' is not a bandwidth; expected a bandwidth such as 500MB/s" \
        allreduce --simulate 8 --latency 2us --bandwidth "$rate"
done
refuses "--overhead of no time" "--overhead 'x' is not a time" allreduce --simulate 8 $cluster --overhead x
refuses "--eager of no size" "--eager: 'x' is not a size" allreduce --simulate 8 $cluster --eager x
refuses "--eager too small" "--eager 64: must be at least 3840 bytes" allreduce --simulate 8 $cluster --eager 64
refuses "backend self for two ranks" "self supports one rank only" allreduce --backend self -n 2
refuses "an option nearly right" "unknown option --size; did you mean --sizes?" allreduce --size 4
refuses "a letter that is no option, which half of --op is" "unknown option -o (see lockstep bench --help)" allreduce -o sum
refuses "an option far off" "unknown option --frobnicate (see lockstep bench --help)" allreduce --frobnicate

LOCKSTEP_ALGORITHM=allreduce:native launch bench allreduce --sizes 4 --iterations 2 --backend tcp </dev/null
check "a native collective on backend tcp: fails" test "$status" != 0
check "a native collective on backend tcp: is refused" says err "backend tcp has no algorithm 'native' for allreduce; available: "
LOCKSTEP_ALGORITHM=all:^native launch bench allreduce --sizes 4 --iterations 2 --backend tcp </dev/null
check "backend tcp without native collectives: runs" is "$status" 0

# ---- how it travels ----
ways() { # COLLECTIVE SIZES WORDS [OPTION]...: the algorithm column
    local what=$1 sizes=$2 words=$3
    shift 3
    launch bench "$what" --sizes "$sizes" --iterations 2 "$@" </dev/null
    check "$what of $sizes ${LOCKSTEP_ALGORITHM-} $*: goes as it should" is \
        "$(awk '!/^#/ { printf "%s%s", n++ ? " " : "", $(NF - 1) }' out)" "$words"
}
LOCKSTEP_ALGORITHM=shm:past=never ways allreduce 4,1K,1M "cells whole chunks"
LOCKSTEP_ALGORITHM=shm:past=64K ways allreduce 4,1K,1M "cells whole whole" # as between cores that are far from each other
LOCKSTEP_ALGORITHM=shm:past=0 ways allreduce 1K,1M "whole chunks" -n 3
ways allreduce 4,64K "cells direct" --registered --in-place
ways alltoall 4,16K,1M "cells slots slots"
ways allgather 4,1M "cells direct" --registered
ways pingpong 4,64K "packet stream"
export LOCKSTEP_ALGORITHM=shm:cells=0,shm:whole=0,shm:chunk=4K,shm:direct=never,shm:read=16K
ways allreduce 4,1K,1M "chunks chunks chunks"
ways allreduce 64K chunks --registered --in-place
ways allgather 8,32K,64K "slots slots read"
ways pingpong 4,16K,64K "packet stream read"
ways alltoall 4M read
LOCKSTEP_ALGORITHM=shm:read=never
ways alltoall 4M slots
ways broadcast 4M direct --registered
LOCKSTEP_ALGORITHM=shm:reed=never
launch bench barrier </dev/null
check "no setting of LOCKSTEP_ALGORITHM: exit status 2" is "$status" 2
check "no setting of LOCKSTEP_ALGORITHM: says so" says err "LOCKSTEP_ALGORITHM: 'shm:reed=never' is not a size setting of backend shm; available: cells="
LOCKSTEP_ALGORITHM=allreduce:chunks,alltoall:read
ways allreduce 1K chunks
ways alltoall 1K read
ways allgather 8 cells
LOCKSTEP_ALGORITHM=allreduce:rabenseifner
ways allreduce 4,1K "rabenseifner rabenseifner" --backend tcp -n 3
ways broadcast 4 tree --backend tcp -n 3
LOCKSTEP_ALGORITHM=all:direct
ways allreduce 4 direct --backend tcp
ways broadcast 1K direct --backend tcp -n 3
unset LOCKSTEP_ALGORITHM
launch run -n 2 sh -c 'LOCKSTEP_ALGORITHM=shm:cells=$RANK exec "$0" bench barrier' "$lockstep" </dev/null
check "ranks that chose differently: exit status" test "$status" -ne 0
check "ranks that chose differently: says so" says err "ranks 0 and 1 have different LOCKSTEP_ALGORITHM"

launch bench allreduce --sizes 1000G </dev/null
check "more memory than there is: exit status 1" is "$status" 1
check "more memory than there is: says so" says err "memory"
launch bench --help
check "--help succeeds" is "$status" 0
for word in COLLECTIVE --backend --sizes --dtype --op --iterations --registered --in-place --fresh --json --simulate --latency --bandwidth busbw_gbps compute_ms messages sent_bytes allreduce "exit status"; do
    check "--help tells of $word" says out "$word"
done
finish
