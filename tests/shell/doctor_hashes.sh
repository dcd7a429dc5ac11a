# `lockstep doctor --hashes`: the hashes depend on the instruction sets of the libraries, and on nothing that .shards
# excludes: the run, the number of threads, the environment of a job. The output names these instruction sets.
. "$LS_SOURCE/tests/support/checks.sh"
unset OMP_NUM_THREADS OPENBLAS_NUM_THREADS OPENBLAS_CORETYPE ONEDNN_MAX_CPU_ISA DNNL_MAX_CPU_ISA

# hashes FILE: the lines of the hashes.
hashes() { sed -n '/^hashes$/,/^$/p' "$1" | grep '^  '; }
libraries() { grep '^  libraries' "$1"; }
# hash FILE NAME
hash() { sed -n "s/^  $2  *\([0-9a-f]\{16\}\)\$/\1/p" "$1"; }
differs() { [ -n "$1" ] && [ -n "$2" ] && [ "$1" != "$2" ]; }

launch doctor --hashes </dev/null
cp out first
check "exit status 0" is "$status" 0
check "nothing on standard error" is "$(wc -c <err)" 0
for model in mlp convolutions attention "lstm f64"; do
    check "a hash of $model" is "$(hash first "$model" | wc -l)" 1
done
check "the models have different hashes" is "$(hashes first | sed 's/.* //' | sort -u | wc -l)" 4
check "no model has the hash of a failure" is "$(hashes first | grep -c ' 0*$')" 0
check "the processor" says first "^  processor  *[A-Za-z0-9_]* "
check "the libraries" says first \
    "^  libraries  *Lockstep $("$lockstep" --version | sed 's/.* //') (.*), .*OpenBLAS.*, glibc [0-9.]*"
check "the other checks do not run" is "$(grep -c '^\(backends\|network\)$' first)" 0

# ---- the same bits ----
launch doctor --hashes </dev/null
check "another run: the same output" cmp -s first out
RANK=1 WORLD_SIZE=2 LOCKSTEP_BACKEND=gloo LOCKSTEP_DEVICE=cuda launch doctor --hashes </dev/null
check "the environment of a job: the same output" cmp -s first out
if [ -e "$LS_BUILD/lib/lockstep-onednn.so" ]; then
    for threads in 1 2 3 4; do
        OMP_NUM_THREADS=$threads launch doctor --hashes </dev/null
        check "$threads threads: the same output" cmp -s first out
    done
fi

# ---- other bits ----
if grep -q 'oneDNN [0-9.]* avx' first; then
    ONEDNN_MAX_CPU_ISA=SSE41 launch doctor --hashes </dev/null
    check "oneDNN with SSE4.1: says so" says out "oneDNN [0-9.]* sse41, "
    for model in mlp convolutions attention; do
        check "oneDNN with SSE4.1: other bits of $model" differs "$(hash out $model)" "$(hash first $model)"
    done
    check "oneDNN with SSE4.1: same bits in f64" is "$(hash out 'lstm f64')" "$(hash first 'lstm f64')"
    launch run -n 2 sh -c '[ "$RANK" = 0 ] || export ONEDNN_MAX_CPU_ISA=SSE41; exec "$0"' "$LS_BUILD/tests/ranks_same_hosts"
    check "ranks with other instruction sets are refused" differs "$status" 0
    check "the message has both" grep -q "rank 0 has libraries .* avx.*, but rank 1 has .* sse41, " out err
else
    echo "SKIPPED other instruction sets of oneDNN: no oneDNN with AVX"
fi
if libraries first | grep -q 'DYNAMIC_ARCH' && grep -q '^  processor.* fma' first; then
    # OpenBLAS uses Prescott's code on processors that it does not know.
    if libraries first | grep -q ' Prescott '; then other=Haswell; else other=Prescott; fi
    OPENBLAS_CORETYPE=$other launch doctor --hashes </dev/null
    check "OpenBLAS for $other: says so" says out "OpenBLAS.* $other "
    check "OpenBLAS for $other: other bits in f64" differs "$(hash out 'lstm f64')" "$(hash first 'lstm f64')"
else
    echo "SKIPPED other instruction sets of OpenBLAS: it has one, or the processor has no FMA"
fi

# ---- without plug-in onednn ----
mkdir apart
cp "$lockstep" apart/lockstep
for threads in 1 2; do
    OMP_NUM_THREADS=$threads apart/lockstep doctor --hashes >"threads$threads" 2>err </dev/null
done
if libraries threads1 | grep -q ', no oneDNN, '; then
    check "no oneDNN: names the number of threads" says threads2 "OpenBLAS threads: 2\$"
    check "no oneDNN: another number, another text" differs "$(libraries threads1)" "$(libraries threads2)"
    check "no oneDNN: a note" says threads1 "note: .*the bits depend on the number of OpenBLAS threads"
else
    echo "SKIPPED a missing oneDNN: this system has a plug-in elsewhere"
fi

# ---- for programs ----
launch doctor --hashes --json </dev/null
check "--json: exit status 0" is "$status" 0
if command -v python3 >/dev/null; then
    cat >read.py <<'P'
import json
read = json.load(open("out"))
print(" ".join(read["hashes"][name] for name in ("mlp", "convolutions", "attention", "lstm_f64")))
print(len(read["arithmetic"]["processor"]) > 0, read["arithmetic"]["libraries"], read["problems"], read["ok"])
P
    python3 read.py >read 2>err
    check "--json: the same hashes" is "$(head -1 read)" "$(echo $(hashes first | sed 's/.* //'))"
    check "--json: the same libraries" is "$(tail -1 read)" \
        "True $(libraries first | sed 's/^  libraries  *//') [] True"
else
    echo "SKIPPED reading JSON: no python3"
fi
launch doctor --help </dev/null
for word in --hashes arithmetic lstm_f64; do
    check "--help describes $word" says out "$word"
done
finish
