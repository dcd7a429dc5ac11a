# The example linear_regression finds the curve on any number of ranks. If the shares are equal and their number is a
# power of two, every intermediate number has the same bits.
. "$LS_SOURCE/tests/support/checks.sh"
program=$LS_BUILD/examples/linear_regression

holds() {
    awk "BEGIN { exit !($1) }"
}
# parameters FILE: the three parameters in its last line.
parameters() {
    sed -n '$s/^Final parameters: \[\(.*\), \(.*\), \(.*\)\]$/\1 \2 \3/p' "$1"
}
# within TOLERANCE A B C D E F: |A - D|, |B - E| and |C - F| are at most TOLERANCE.
within() {
    awk -v t="$1" -v a="$2 $3 $4" -v b="$5 $6 $7" 'BEGIN {
        if (split(a, x) != 3 || split(b, y) != 3) exit 1
        for (i = 1; i <= 3; i++) { d = x[i] - y[i]; if (d > t || -d > t) exit 1 }
    }'
}

for ranks in 1 2 3 4 7; do
    launch run -n $ranks "$program" </dev/null
    check "$ranks ranks: ends well" is "$status" 0
    cp out out.$ranks
    check "$ranks ranks: parameters and loss of each evaluation, then the result" \
        says <(sed 's/: .*//' out | tr '\n' ';') '^\(Params;Loss;\)\{10,20\}Final parameters;$'
    check "$ranks ranks: begins at 0, 1, 2" is "$(head -1 out)" "Params: [0, 1, 2]"
    check "$ranks ranks: within 1e-10 of the truth" within 1e-10 $(parameters out) 0.1 1 -2
    check "$ranks ranks: within 1e-12 of one rank" within 1e-12 $(parameters out) $(parameters out.1)
    check "$ranks ranks: silent otherwise" is "$(complaints err)" ""
done
check "2 equal shares: the bits of one" cmp out.1 out.2
check "4 equal shares: the bits of one" cmp out.1 out.4

launch run -n 2 "$program" --quiet --fits 20 --points 10001 --seed 3 </dev/null
check "--quiet --fits 20: the result lines only" is "$(sed 's/: .*//' out | tr '\n' ';')" "Final parameters;throughput;"
check "--quiet --fits 20: how fast" holds "$(sed -n 's/^throughput: \(.*\) fits\/s$/\1/p' out) > 0"
launch run -n 4 "$program" --quiet --points 3 </dev/null
check "a rank without points: within 1e-10 of the truth" within 1e-10 $(parameters out) 0.1 1 -2
launch run -n 1 "$program" --fits 0 </dev/null
check "--fits 0: refused" says err "linear_regression: --fits 0: expected a whole number from 1"
finish
