# The library exports what its public headers declare, and nothing else.
. "$LS_SOURCE/tests/support/checks.sh"
command -v nm >/dev/null || {
    echo "SKIPPED there is no nm (Debian: binutils)"
    exit 77
}
echo '#include <lockstep/lockstep.h>' | cc -E -I"$LS_SOURCE/include" -x c - -o declared || exit 1
cat "$LS_SOURCE/include/lockstep/mpi.h" >>declared # needs an <mpi.h>
grep -o '[A-Za-z0-9_]*' declared | sort -u >names
# The linker adds these names to some libraries.
linker='^(_init|_fini|_end|_edata|__bss_start)$'
nm -D --defined-only "$LS_BUILD/lib/liblockstep.so" | sed 's/.* //; s/@.*//' | grep -vE "$linker" | sort -u >exported
check "the library exports functions" grep -q '^ls_init$' exported
check "every exported name is declared in a public header" is "$(comm -23 exported names)" ""
finish
