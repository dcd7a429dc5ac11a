# The public headers keep the ABI of the last release, and the comparison detects changes that would break programs.
. "$LS_SOURCE/tests/support/checks.sh"
for program in abidiff readelf; do
    command -v $program >/dev/null || {
        echo "SKIPPED there is no $program (Debian: abigail-tools, binutils)"
        exit 77
    }
done
baseline=$LS_SOURCE/tests/fixtures/abi.txt

# compared NAME STATUS SED-COMMAND: scripts/abi with a changed baseline.
compared() {
    sed "$3" "$baseline" >changed.txt
    cmp -s changed.txt "$baseline" && check "$1: the baseline has it" false
    "$LS_SOURCE/scripts/abi" "$PWD/changed.txt" >out 2>err
    check "$1" is "$?" "$2"
}

"$LS_SOURCE/scripts/abi" >out 2>err
status=$?
[ $status = 0 ] || cat out
check "the ABI is that of $baseline" is "$status" 0
check "the library has the soname of the headers" says "$baseline" \
    "^/[*] $(readelf -d "$LS_BUILD/lib/liblockstep.so" | sed -n 's/.*soname: \[\(.*\)\]/\1/p') [*]/"
compared "a function more than in the release is compatible" 0 '/ls_idx_write/d'
compared "a function less is not" 1 's/ls_idx_write/ls_idx_rewrite/'
compared "another type of a parameter is not" 1 's/ls_npy_read(const char \*path)/ls_npy_read(char path)/'
compared "another type of a field is not" 1 's/int64_t size\[LS_MAX_DIMS\]/int32_t size[LS_MAX_DIMS]/'
compared "another value of a constant is not" 1 's/LS_ERR_SHAPE,/LS_ERR_SHAPE = 7,/'
compared "another soname needs a new baseline" 1 '1s/0[.]/9./'
check "another soname: says so" says err 'run scripts/abi --update'
finish
