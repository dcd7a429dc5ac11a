# Beginners' mistakes: each program in tests/mistakes makes one and must get the message that its first comment gives,
# at once and not after a timeout, on every available backend, without a crash, silence or a wrong rank. Arguments name
# programs; without arguments, all are run.
. "$LS_SOURCE/tests/support/checks.sh"
unset RANK WORLD_SIZE LOCKSTEP_BACKEND LOCKSTEP_LAUNCH
export LOCKSTEP_TIMEOUT=300 # far beyond what any of them may take
limit=${LS_LIMIT:-60}

# told KEY FILE: the values of this key in the file's first comment, one per line. A value may span several lines there;
# they are joined by spaces.
told() {
    awk -v key="$1" '
        function finish() { if (value != "") print value; value = "" }
        /\*\// { exit }
        /^ \* [a-z]+:/ {
            finish()
            if (index($0, " * " key ":") == 1) { value = $0; sub(/^ \* [a-z]+: */, "", value) }
            next
        }
        value != "" { sub(/^ \*/, ""); value = value $0 }
        END { finish() }' "$2"
}

# carriers: the available backends, mpi once for each library.
carriers() {
    echo shm
    echo tcp
    [ ! -e "$LS_BUILD/lib/lockstep-gloo.so" ] || echo gloo
    local flavour
    for flavour in openmpi mpich; do
        [ ! -e "$LS_BUILD/lib/lockstep-mpi_$flavour.so" ] || ! command -v "mpirun.$flavour" >/dev/null || echo "$flavour"
    done
}

# run CARRIER RANKS PROGRAM VARIABLES: both outputs in the file err, because some launchers mix them; the exit status in
# $status.
run() {
    local carrier=$1 ranks=$2 variables=$4 command
    local program=(env $variables "$3")
    case $carrier in
    alone) command=("${program[@]}") ;;
    openmpi) command=(env LOCKSTEP_BACKEND=mpi TMPDIR="$scratch" mpirun.openmpi --allow-run-as-root --oversubscribe -np "$ranks" "${program[@]}") ;;
    mpich) command=(env LOCKSTEP_BACKEND=mpi mpirun.mpich -np "$ranks" "${program[@]}") ;;
    *) command=(env LOCKSTEP_BACKEND="$carrier" "$lockstep" run -n "$ranks" "${program[@]}") ;;
    esac
    for _ in 1 2; do
        LS_TEST_MARK=$mark timeout -k 5 $limit "${command[@]}" >err 2>&1 </dev/null
        status=$?
        hydra_crashed "$carrier" || break
    done
}

# judge CARRIER NAME SOURCE
judge() {
    local carrier=$1 name=$2 source=$3 sentence wanted
    wanted=$(told status "$source")
    wanted=${wanted:-1}
    # Launchers have their own statuses for failed jobs. They must not be a signal's or a time limit's.
    case $carrier in openmpi | mpich) [ "$wanted" != 0 ] && [ "$status" -lt 124 ] && [ "$status" != 0 ] && wanted=$status ;; esac
    check "$name: exit status" is "$status" "$wanted"
    while read -r sentence; do
        check "$name: told why" grep -Eq -- "$sentence" err
        [ "$wanted" != 0 ] || check "$name: told once" is "$(grep -Ec -- "$sentence" err)" 1
    done < <(told says "$source")
    while read -r sentence; do
        check "$name: nothing wrong told" bash -c '! grep -Eq -- "$1" err' _ "$sentence"
    done < <(told silent "$source")
}

check_mistake() {
    run "$1" "$2" "$LS_BUILD/tests/mistake_$3" "$(told environment "$4")"
    judge "$1" "$3 on $1, $2 ranks" "$4"
}

# chosen RANKS SOURCE: the carriers for this program.
chosen() {
    local on carrier
    on=$(told on "$2")
    if [ "$1" = 1 ]; then
        echo alone
        return
    fi
    for carrier in $(carriers); do
        [ -n "$on" ] && [[ " $on " != *" $carrier "* ]] || echo "$carrier"
    done
}

at_once=3
for source in "$LS_SOURCE"/tests/mistakes/*.c; do
    name=$(basename "$source" .c)
    [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
    for ranks in $(told ranks "$source"); do
        for carrier in $(chosen "$ranks" "$source"); do
            beside check_mistake "$carrier" "$ranks" "$name" "$source"
        done
    done
done
finish
