# NumPy and Lockstep read each other's .npy and .npz files.
. "$LS_SOURCE/tests/support/checks.sh"

python=
for each in python3 /usr/bin/python3; do
    [ -n "$python" ] || ! "$each" -c 'import numpy' 2>/dev/null || python=$each
done
if [ -z "$python" ]; then
    echo "SKIPPED python3 has no numpy (apt-get install python3-numpy)"
    exit 77
fi
library=$LS_BUILD/lib/liblockstep.so
if nm -D "$library" | grep -q -e __asan_init -e __tsan_init; then
    echo "SKIPPED python3 cannot open a library under a sanitizer"
    exit 77
fi

for kind in savez savez_compressed fortran big_endian version_2; do
    "$python" "$LS_SOURCE/tests/shell/numpy_reads.py" "$library" "$kind" >out 2>err
    check "NumPy's $kind, and ours read by NumPy" is "$? $(cat out)" "0 8 arrays, 8 files"
done
finish
