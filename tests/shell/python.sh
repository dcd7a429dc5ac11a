# The Python package: its declarations match the headers, pip installs it from the source tree, its tests pass on 1, 2 and 3 ranks, its
# examples end with the results of the C programs, and the snippets of its page run.
. "$LS_SOURCE/tests/support/checks.sh"
. "$LS_SOURCE/tests/support/idx.sh"

python=
for each in python3 /usr/bin/python3; do
    [ -n "$python" ] || ! "$each" -c 'import cffi, numpy' 2>/dev/null || python=$each
done
if [ -z "$python" ]; then
    echo "SKIPPED python3 has no cffi or no numpy (apt-get install python3-cffi python3-numpy)"
    exit 77
fi
export LOCKSTEP_LIBRARY=$LS_BUILD/lib/liblockstep.so PYTHONDONTWRITEBYTECODE=1
if nm -D "$LOCKSTEP_LIBRARY" | grep -q -e __asan_init -e __tsan_init; then
    echo "SKIPPED python3 cannot open a library under a sanitizer"
    exit 77
fi

# ---- the declarations ----
check "the declarations match the headers" "$LS_SOURCE/scripts/python" --check
mkdir -p copy/scripts && cp "$LS_SOURCE"/scripts/{python,headers.py,abi} copy/scripts
cp -r "$LS_SOURCE/include" "$LS_SOURCE/bindings" copy
sed -i '/ls_zero_grad/s/.*/LS_API void ls_other_function(ls_tensor *tensor);/' copy/include/lockstep/autograd.h
! copy/scripts/python --check >out 2>err
check "a changed header: refused" says err 'does not match the headers: run scripts/python$'
check "new declarations have the function" sh -c "copy/scripts/python && grep -q ls_other_function copy/bindings/python/lockstep/_declarations.py"

# ---- the installed package ----
cp -r "$LS_SOURCE/bindings/python" package && rm -rf package/build # pip writes into the folder
installs() {
    "$python" -m venv --system-site-packages --without-pip environment &&
        "$python" -m pip --python environment/bin/python install --no-build-isolation --no-index --quiet ./package
}
if "$python" -c 'import setuptools, wheel, venv, pip' 2>/dev/null; then
    check "pip installs the package" installs >log 2>err
    check "with the parsed declarations" test -e environment/lib/python3*/site-packages/lockstep/_abi.py
    python=$scratch/environment/bin/python
else
    echo "SKIPPED pip: $python has no pip, setuptools, wheel or venv (apt-get install python3-pip python3-wheel python3-venv)"
    export PYTHONPATH=$scratch/package
fi
"$python" -c 'import lockstep; print(lockstep.__version__, lockstep._library.PATH)' >out 2>err
check "the package opens the library" is "$(cat out)" "$(sed -n 's/^#define LS_VERSION  *"\(.*\)"/\1/p' "$LS_SOURCE/include/lockstep/base.h") $LOCKSTEP_LIBRARY"

# refuses_library NAME PATH WORDS: importing the package with this library fails with one sentence.
refuses_library() {
    LOCKSTEP_LIBRARY=$2 "$python" -c 'import lockstep' 2>err
    check "$1: refused" says err "^ImportError: lockstep: .*$3"
}
refuses_library "a library that is not there" ./absent.so 'cannot open ./absent.so (looked for in: LOCKSTEP_LIBRARY).*build or install Lockstep'
refuses_library "a folder without the library" . 'cannot open . .*or its folder, or PKG_CONFIG_PATH'
for folder in "$LS_BUILD" "$LS_BUILD/lib"; do
    LOCKSTEP_LIBRARY=$folder "$python" -c 'import lockstep; print(lockstep._library.PATH)' >out 2>err
    check "LOCKSTEP_LIBRARY may be a folder" says out "^$LS_BUILD/lib/liblockstep.so"
done
printf 'int nothing;\n' >other.c && cc -shared -fPIC other.c -o other.so
refuses_library "another library" ./other.so 'other.so is not liblockstep'
printf 'const char *ls_version(void) { return "7.0.0"; }\n' >old.c && cc -shared -fPIC old.c -o old.so
refuses_library "a library of another version" ./old.so 'is version 7.0.0, but this package is for version'
check "install the library" cmake --install "$LS_BUILD" --prefix "$scratch/prefix" >log
PKG_CONFIG_PATH=$scratch/$(dirname "$(find prefix -name lockstep.pc)") LOCKSTEP_LIBRARY= \
    "$python" -c 'import lockstep; print(lockstep._library.PATH)' >out 2>err
check "pkg-config finds the library" says out "^$scratch/prefix/.*/liblockstep.so"

# ---- the tests ----
for test in tensors training; do
    "$python" "$LS_SOURCE/tests/python/$test.py" >out 2>err
    check "tests/python/$test.py" is "$? $(tail -1 out)" "0 right"
    grep SKIPPED out
done
for ranks in 1 2 3; do
    launch run -n $ranks "$python" "$LS_SOURCE/tests/python/ranks.py" </dev/null
    check "$ranks ranks: tests/python/ranks.py" says out "^right $ranks "
    check "$ranks ranks: the loss does not depend on the number of ranks" is "$(cut -d ' ' -f 3 out)" "${loss:=$(cut -d ' ' -f 3 out)}"
done
launch run -n 2 "$python" "$LS_SOURCE/tests/python/ranks.py" fail </dev/null
check "an exception in a callback of rank 1 ends both ranks" test "$status" != 0 -a ! -s out
check "rank 1 prints its exception" says err '^ValueError: the callback of rank 1$'
check "with its traceback" says err 'line [0-9]*, in fail$'
check "the launcher names rank 1, although rank 0 ended first" says err '^lockstep: rank 1 (pid [0-9]*) exited with status 1; .*rank 1 failed'
if "$python" -c 'import mpi4py' 2>/dev/null && command -v mpirun.openmpi >/dev/null && [ -e "$LS_BUILD/lib/lockstep-mpi_openmpi.so" ]; then
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LS_TEST_MARK=$mark \
        mpirun.openmpi --oversubscribe -n 2 "$python" "$LS_SOURCE/tests/python/with_mpi.py" >out 2>err </dev/null
    check "a communicator from mpi4py" is "$? $(cat out)" "0 right 2"
else
    echo "SKIPPED mpi4py: it is not installed (apt-get install python3-mpi4py), or this build has no plug-in for Open MPI"
fi

# ---- python -m lockstep.run ----
printf 'import sys\nprint(sys.argv[1:])\n' >shown.py
"$python" -m lockstep.run -n 2 shown.py --epochs 3 >out 2>err </dev/null
check "lockstep.run starts a script with its arguments" is "$(cat out)" "$(printf "['--epochs', '3']\n['--epochs', '3']")"
"$python" -m lockstep.run -n 0 shown.py >out 2>err </dev/null
check "lockstep.run has the messages of the command" is "$? $(cat err)" "2 $("$lockstep" run -n 0 shown.py 2>&1 </dev/null)"

# ---- the examples ----
examples=$LS_SOURCE/bindings/python/examples
hashes() {
    grep -E '^(rank [0-9]+ parameters [0-9a-f]{16}|Final parameters)' "$1" | sort
}
# numbers FILE: the final parameters, as Python writes them.
numbers() {
    "$python" -c 'import re, sys; print([float(x) for x in re.findall(r"[-\d.e]+", sys.stdin.read().split("Final parameters:")[1])])' <"$1"
}
mnist_folder data 300
for ranks in 1 2 3; do
    launch run -n $ranks "$LS_BUILD/examples/perceptron" --samples 601 --epochs 2 --quiet </dev/null && mv out expected
    launch run -n $ranks "$python" "$examples/perceptron.py" --samples 601 --epochs 2 </dev/null
    check "$ranks ranks: perceptron.py has the parameters of the C program" is "$(hashes out)" "$(hashes expected)"
    check "$ranks ranks: every rank prints a hash" is "$(hashes out | wc -l)" $ranks
    [ $ranks != 1 ] || awk '/^throughput/ { printf "        perceptron on 1 rank, time per step: C %.2f us, Python %s us\n", 1e6 / $2, python }
        /^time per step/ { python = $4 }' out expected
    launch run -n $ranks "$LS_BUILD/examples/linear_regression" --quiet </dev/null && mv out expected
    launch run -n $ranks "$python" "$examples/linear_regression.py" </dev/null
    check "$ranks ranks: linear_regression.py has the parameters of the C program" is "$(numbers out)" "$(numbers expected)"
    launch run -n $ranks "$LS_BUILD/examples/fashion_mnist" --data data --epochs 1 --quiet --save saved </dev/null && mv out expected
    launch run -n $ranks "$python" "$examples/mnist.py" --data data --epochs 1 --quiet --data-parallel </dev/null
    check "$ranks ranks: mnist.py --data-parallel has the parameters of the C program" is "$(hashes out)" "$(hashes expected)"
    launch run -n $ranks "$python" "$examples/mnist.py" --data data --epochs 1 --quiet </dev/null
    check "$ranks ranks: mnist.py has the same parameters on every rank" is "$(hashes out | cut -d ' ' -f 4 | sort -u | wc -l) $(hashes out | wc -l)" "1 $ranks"
done

# ---- the snippets of the page: each runs after the snippets before it ----
awk '/^```/ { inside = $0 == "```python"; next } inside' "$LS_SOURCE/docs/howto/python.md" >page.py
check "the page has snippets" test "$(wc -l <page.py)" -gt 60
for ranks in 1 2; do
    launch run -n $ranks "$python" page.py </dev/null
    check "$ranks ranks: the snippets of docs/howto/python.md run" test "$status" = 0
done
finish
