# The library exports what its public headers declare, and nothing else. Each macro, inline function and variadic function of
# the headers has a plain function as an alternative, which docs/reference/bindings.md lists.
. "$LS_SOURCE/tests/support/checks.sh"
command -v nm >/dev/null || {
    echo "SKIPPED there is no nm (Debian: binutils)"
    exit 77
}

# Any <mpi.h> will do to read lockstep/mpi.h.
printf '#define OMPI_MAJOR_VERSION 4\ntypedef void *MPI_Comm;\n' >mpi.h
printf '#include <lockstep/%s.h>\n' lockstep mpi >all.h
preprocess() { # LANGUAGE FLAGS...: all public headers
    local language=$1
    shift
    cc -E -I. -I"$LS_SOURCE/include" -x "$language" "$@" all.h
}
{ preprocess c -std=c17 -P >c && preprocess c++ -std=c++20 -P >c++; } || exit 1

# ---- exported names ----
# declared FILE: the functions that a preprocessed file declares as LS_API, one line each: NAME REST.
declared() {
    tr '\n' ' ' <"$1" | sed 's/;/;\n/g' | sed -n 's/.*visibility("default"))) [^(]*[ *]\(ls_[a-z0-9_]*\)(/\1 (/p'
}
# The linker adds these names to some libraries.
linker='^(_init|_fini|_end|_edata|__bss_start)$'
nm -D --defined-only "$LS_BUILD/lib/liblockstep.so" | sed 's/.* //; s/@.*//' | grep -vE "$linker" | sort -u >exported
declared c >functions
cut -d ' ' -f 1 functions | sort -u >names
check "the library exports functions" grep -q '^ls_init$' exported
check "every exported name is declared in a public header" is "$(comm -23 exported names)" ""
check "every declared function is exported" is "$(comm -13 exported names)" ""

# ---- names without a symbol of their own ----
for language in c c++; do
    preprocess $language -dM | sed -n 's/^#define \(\(LS\|ls\)_[A-Za-z0-9_]*\).*/\1/p'
    tr '\n' ' ' <$language | grep -o '\binline [^;{()]*[ *]ls_[a-z0-9_]*(' | sed 's/.*[ *]\(ls_[a-z0-9_]*\)($/\1/'
    declared $language | sed -n 's/ .*\.\.\.).*//p'
done | grep -vE '^LS_(API|WARN_UNUSED|PRINTF)$' | sort -u >bare
preprocess c -P | tr '\n' ' ' | grep -o '\binline [^;{()]*[ *]ls_[a-z0-9_]*(' | sed 's/.*[ *]\(ls_[a-z0-9_]*\)($/\1/' | sort -u >inline
check "C has one inline function, whose argument differs between MPI libraries" is "$(cat inline)" ls_comm_from_mpi
check "macros and inline functions are found" test "$(grep -cE '^(LS_SHAPE|ls_add|ls_error_set|ls_shape_of_list|ls_comm_from_mpi)$' bare)" = 5

# The table, one line for each pair: NAME ALTERNATIVE.
awk -F '|' '
    function names(cell, found, n) {
        n = 0
        while (match(cell, /`[.A-Za-z0-9_]+`/)) {
            found[++n] = substr(cell, RSTART + 1, RLENGTH - 2)
            cell = substr(cell, RSTART + RLENGTH)
        }
        return n
    }
    /^\| `/ {
        count = names($2, left)
        others = names($3, right)
        for (i = 1; i <= count; i++) {
            for (k = 1; k <= others; k++) {
                alternative = right[k]
                sub(/^NAME/, left[i], alternative)
                print left[i], alternative
            }
        }
    }' "$LS_SOURCE/docs/reference/bindings.md" >table
check "every macro, inline and variadic function is in the table of docs/reference/bindings.md" \
    is "$(comm -23 bare <(cut -d ' ' -f 1 table | sort -u))" ""
check "the table has no name that the headers do not have" is "$(comm -13 bare <(cut -d ' ' -f 1 table | sort -u))" ""
grep ' ls_' table | cut -d ' ' -f 2 | sort -u >alternatives
check "every alternative is an exported function" is "$(comm -23 alternatives exported)" ""
check "no alternative is variadic" is "$(grep '\.\.\.)' functions | cut -d ' ' -f 1 | sort -u | comm -12 - alternatives)" ""
for field in $(grep ' \.' table | cut -d ' ' -f 2); do
    check "$field is a field" grep -q "[ *]${field#.};" c
done
finish
