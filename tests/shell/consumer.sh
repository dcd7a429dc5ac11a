#!/usr/bin/env bash
# README's first program, exactly as shown, built against an installed tree: in C and in C++, with pkg-config and with CMake;
# the layer of docs/howto/port-a-pytorch-script.md, and a C++ program with callbacks. And every other snippet of the
# documentation compiles.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

check() { # NAME COMMAND...
    local name=$1
    shift
    if "$@" >"$work/out" 2>&1; then
        echo "ok: $name"
        passed=$((passed + 1))
    else
        echo "FAILED: $name"
        cat "$work/out"
        failed=$((failed + 1))
    fi
}

not() {
    ! "$@"
}

is_empty() { # FILE
    cat "$1" && [ ! -s "$1" ]
}

shown() { # NAME PAGE: the program that the page shows behind <!-- NAME -->
    awk -v mark="<!-- $1 -->" '$0 == mark {wanted = 1} wanted && /^```$/ {exit} inside {print} wanted && /^```c$/ {inside = 1}' \
        "$LS_SOURCE/$2" >"$work/$1"
}
shown first.c README.md
check "README shows a first program" test -s "$work/first.c"
cp "$work/first.c" "$work/first.cpp"
check "install" cmake --install "$LS_BUILD" --prefix "$work/prefix"
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name lockstep.pc)")
export PKG_CONFIG_PATH
read -r -a flags <<<"$(pkg-config --cflags --libs lockstep)"

strict=(-Wall -Wpedantic -Werror)
check "C with pkg-config" cc -std=c17 "${strict[@]}" "$work/first.c" "${flags[@]}" -o "$work/first-c"
check "C++ with pkg-config" c++ -std=c++20 "${strict[@]}" "$work/first.cpp" "${flags[@]}" -o "$work/first-cpp"

cat >"$work/metrics.cpp" <<'CPP'
#include <cstdio>
#include <lockstep/lockstep.h>
static ls_status count(const ls_trial_state *state, void *, double *sum, double *weight) {
    *sum = static_cast<double>(state->count);
    *weight = 1;
    return LS_OK;
}
int main() {
    ls_module *model = ls_nn_linear(2, 1);
    ls_scope *scope = ls_scope_begin();
    ls_dataset *set = ls_tensor_dataset(ls_ones(LS_SHAPE(6, 2), LS_F32), ls_zeros(LS_SHAPE(6, 1), LS_F32));
    if (ls_scope_end(scope) != LS_OK) {
        return 1;
    }
    ls_loader_options loading = {};
    loading.batch_size = 2;
    ls_loader *loader = ls_loader_new(set, &loading);
    ls_metric_functions own = {};
    own.name = "own";
    own.mean = count;
    const ls_trial_options options = {.model = model,
                                      .criterion = ls_criterion_mse,
                                      .metrics = LS_METRICS("loss", "mae"),
                                      LS_CUSTOM_METRICS(ls_metric_named("mse"), ls_metric_new(&own, nullptr)),
                                      .quiet = true};
    ls_trial *trial = ls_trial_new(&options);
    const bool measured = trial != nullptr && ls_trial_evaluate(trial, loader, "test") == LS_OK;
    std::printf("%s\n", measured ? "" : ls_error_message());
    const bool right = measured && ls_trial_metric(trial, "test_own") == 2 && ls_trial_metric(trial, "test_mae") > 0;
    ls_trial_free(trial);
    const ls_trial_options wrong = {.model = model, .criterion = ls_criterion_mse, LS_CUSTOM_METRICS(ls_metric_lr(-1))};
    const bool refused = ls_trial_new(&wrong) == nullptr;
    std::printf("%s\n", ls_error_message());
    ls_loader_free(loader);
    ls_module_free(model);
    return right && refused ? 0 : 1;
}
CPP
check "lists of metrics in C++" c++ -std=c++20 "${strict[@]}" "$work/metrics.cpp" "${flags[@]}" -o "$work/metrics"
says_why() {
    "$work/metrics" >"$work/run" && grep -q 'ls_metric_lr: the optimizer has no group -1' "$work/run"
}
check "metrics of a C++ program" says_why

runs_on_two() {
    "$work/prefix/bin/lockstep" run -n 2 "$1" >"$work/run" || return 1
    cat "$work/run"
    grep -q 'rank 0 step 500 loss 0.0' "$work/run" && grep -q 'rank 1 step 500 loss 0.0' "$work/run"
}
check "C program learns on two ranks" runs_on_two "$work/first-c"
check "C++ program learns on two ranks" runs_on_two "$work/first-cpp"
check "C program learns alone" "$work/first-c"

shown layer.c docs/howto/port-a-pytorch-script.md
layer_learns() {
    "$work/prefix/bin/lockstep" run -n 2 "$work/layer" >"$work/run" || return 1
    cat "$work/run"
    is_learned='loss 0.00[0-9]*, 0.scale$'
    grep -q "rank 0 $is_learned" "$work/run" && grep -q "rank 1 $is_learned" "$work/run"
}
check "docs/howto/port-a-pytorch-script.md shows a layer" test -s "$work/layer.c"
check "the layer builds" cc -std=c17 "${strict[@]}" "$work/layer.c" "${flags[@]}" -o "$work/layer"
check "the layer learns on two ranks" layer_learns

callbacks_work() { # RANKS
    "$work/prefix/bin/lockstep" run -n "$1" "$work/trial" >"$work/run" || { cat "$work/run" && return 1; }
    cat "$work/run"
    grep -q "$1 ranks: right\$" "$work/run" && grep -q 'the limit -1 is not positive; ls_trial_new: callback 0 is NULL' "$work/run"
}
check "a C++ program with callbacks builds" c++ -std=c++20 "${strict[@]}" -Wextra -Wno-missing-field-initializers \
    "$LS_SOURCE/tests/shell/trial_program.cpp" "${flags[@]}" -o "$work/trial"
check "callbacks in C++: alone" callbacks_work 1
check "callbacks in C++: two ranks" callbacks_work 2

mkdir "$work/project"
cat >"$work/project/CMakeLists.txt" <<'TXT'
cmake_minimum_required(VERSION 3.22)
project(first C CXX)
set(CMAKE_CXX_STANDARD 20)
find_package(lockstep REQUIRED)
add_executable(first-c ../first.c)
add_executable(first-cpp ../first.cpp)
target_link_libraries(first-c lockstep::lockstep)
target_link_libraries(first-cpp lockstep::lockstep)
TXT
check "find_package configures" cmake -S "$work/project" -B "$work/project/build" -DCMAKE_PREFIX_PATH="$work/prefix"
check "find_package builds C and C++" cmake --build "$work/project/build"
check "find_package program learns on two ranks" runs_on_two "$work/project/build/first-c"

# ---- every snippet compiles ----
# The blocks that begin with ```c, in Markdown and in comments of headers; FILE-LINE.c each.
mkdir "$work/snippets"
(cd "$LS_SOURCE" && find README.md CONTRIBUTING.md docs include -name '*.md' -o -path '*/lockstep/*.h') | while read -r page; do
    awk -v file="$work/snippets/${page//\//_}" '
        { in_comment = sub(/^ \* ?/, "") }
        /^```/ { inside = !inside && $0 == "```c"; line = FNR; next }
        inside { print >(file "-" line ".c") }
        !inside && in_comment && /^    .*[a-z_]\(.*\);$/ { print FILENAME ":" FNR }' "$LS_SOURCE/$page"
done >"$work/outside"
check "no snippet is outside such a block" is_empty "$work/outside"
# A snippet is a program, a function, or statements of one.
wrapped() {
    if grep -q '^int main' "$1"; then
        cat "$1"
    elif grep -q '^static ' "$1"; then
        echo '#include "snippet.h"' && cat "$1"
    else
        echo '#include "snippet.h"' && echo 'int snippet(void);' && echo 'int snippet(void) {' && cat "$1" && echo 'return 0; }'
    fi
}
# snippet_compiles LANGUAGE FILE FLAGS...: unused declarations are allowed.
snippet_compiles() {
    local language=$1 file=$2
    shift 2
    wrapped "$file" >"$work/wrapped"
    cc -x "${language%=*}" -std="${language#*=}" "${strict[@]}" -Wextra -Wno-unused -Werror=unused-result \
        -Wno-missing-field-initializers -I"$LS_SOURCE/tests/shell" "${flags[@]}" "$@" -c "$work/wrapped" -o "$work/object"
}
mpi=$(pkg-config --cflags-only-I ompi-c 2>/dev/null || pkg-config --cflags-only-I mpich 2>/dev/null)
for file in "$work"/snippets/*; do
    name=$(basename "$file" .c) own=()
    if grep -q '<lockstep/mpi.h>' "$file"; then
        [ -n "$mpi" ] || { echo "SKIPPED $name: no MPI is installed" && continue; }
        read -r -a own <<<"${mpi//-I/-isystem }"
    fi
    check "$name in C" snippet_compiles c=c17 "$file" "${own[@]}"
    if ! grep -q '&(ls_[a-z_]*){' "$file"; then # which C++ does not have
        check "$name in C++" snippet_compiles c++=c++20 "$file" "${own[@]}"
    fi
done
check "snippets of pages and of headers are found" test "$(ls "$work/snippets" | grep -c '^docs')" -gt 9 -a \
    "$(ls "$work/snippets" | grep -c '^include')" -gt 4

# The module of the installed tree is found from there.
if [ -e "$LS_BUILD/lib/lockstep-onednn.so" ]; then
    check "the installed command finds module onednn" sh -c \
        "'$work/prefix/bin/lockstep' doctor 2>&1 | grep -q '^  onednn  *[0-9][0-9.]* ('"
fi

# The library is opened at run time: by a program that is not linked with it, and by Python's ctypes.
library=$(find "$work/prefix" -name liblockstep.so)
check "a program that opens the library builds" cc -std=gnu17 "${strict[@]}" -I"$work/prefix/include" \
    "$LS_SOURCE/tests/shell/dlopen_program.c" -ldl -pthread -o "$work/dlopen"
says_ranks() { # LINE BACKEND COMMAND...: two ranks of the command, of which one says the line
    local line=$1 backend=$2
    shift 2
    LOCKSTEP_BACKEND=$backend "$work/prefix/bin/lockstep" run -n 2 "$@" >"$work/run" 2>&1 || { cat "$work/run"; return 1; }
    grep -q "^$line" "$work/run"
}
check "dlopen: alone" "$work/dlopen" "$library"
check "dlopen: two ranks" says_ranks "2 ranks" shm "$work/dlopen" "$library"
python=false
if command -v python3 >/dev/null && python3 -c "import ctypes" 2>/dev/null; then
    python=true
    check "ctypes: alone" python3 "$LS_SOURCE/tests/shell/dlopen_program.py" "$library"
    for backend in shm gloo; do
        if [ $backend = shm ] || [ -e "$LS_BUILD/lib/lockstep-$backend.so" ]; then
            check "ctypes: two ranks of $backend" says_ranks "2 ranks of $backend" $backend \
                python3 "$LS_SOURCE/tests/shell/dlopen_program.py" "$library"
        else
            echo "SKIPPED ctypes: two ranks of $backend: this build has no module for it"
        fi
    done
else
    echo "SKIPPED the library opened by Python's ctypes: there is no python3 that has it"
fi

# Python trains over cffi, with the declarations of the headers.
cffi=
for candidate in python3 /usr/bin/python3; do
    [ -n "$cffi" ] || ! "$candidate" -c "import cffi" 2>/dev/null || cffi=$candidate
done
if [ -z "$cffi" ]; then
    echo "SKIPPED training from Python: there is no python3 with cffi (Debian: python3-cffi)"
else
    trains=("$cffi" "$LS_SOURCE/tests/shell/trial_program.py" "$library" "$work/prefix/include")
    check "cffi: alone" "${trains[@]}"
    check "cffi: two ranks" says_ranks "2 ranks: right" shm "${trains[@]}"
fi

# alone HEADER SAYING FLAGS...: a public header compiles without other headers, in C17 and in C++20.
alone() {
    local name=$1 saying=$2 language
    shift 2
    for language in c=c17 c++=c++20; do
        check "lockstep/$name alone in ${language#*=}$saying" sh -c \
            "echo '#include <lockstep/$name>' | cc -x ${language%=*} -std=${language#*=} -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I'$work/prefix/include' $* -fsyntax-only -"
    done
}
for header in $(cd "$work/prefix/include/lockstep" && find . -name '*.h' ! -name mpi.h | sed 's|^./||' | sort); do
    alone "$header" ""
done
check "headers are found" test "$(ls "$work/prefix/include/lockstep" | grep -c '\.h$')" -gt 17 -a \
    -e "$work/prefix/include/lockstep/sys/module.h"
# includes HEADER: the public headers that it reaches.
includes() {
    echo "#include <lockstep/$1.h>" | cc -x c -I"$work/prefix/include" -M - | grep -o 'lockstep/[a-z0-9/]*\.h' | sort -u
}
check "autograd.h includes no attention, convolution and loss" not grep -qE '(attention|convolution|loss)\.h' <(includes autograd)
check "optim.h includes no formats" not grep -q 'formats\.h' <(includes optim)
check "formats.h includes no communication" not grep -q 'comm\.h' <(includes formats)
check "lockstep.h includes every header" test "$(includes lockstep | wc -l)" = \
    "$(ls "$work/prefix/include/lockstep" | grep -c '\.h$' | awk '{ print $1 - 1 }')"

# With each MPI library: a program that initializes MPI itself finds the module of the installed tree.
for flavour in openmpi mpich; do
    package=${flavour/openmpi/ompi-c}
    if [ ! -e "$LS_BUILD/lib/lockstep-mpi_$flavour.so" ] || ! command -v "mpicc.$flavour" >/dev/null; then
        echo "SKIPPED lockstep/mpi.h on $flavour: it is not installed, or this build has no module for it"
        continue
    fi
    alone mpi.h " on $flavour" "$(pkg-config --cflags-only-I "$package" | sed 's/-I/-isystem /g')"
    check "$flavour: a program of MPI's builds" "mpicc.$flavour" "$LS_SOURCE/tests/shell/mpi_program.c" "${flags[@]}" \
        -o "$work/mpi"
    options=()
    [ "$flavour" = mpich ] || options=(--allow-run-as-root --oversubscribe)
    check "$flavour: it runs on two ranks" env TMPDIR="$work" timeout -k 5 120 "mpirun.$flavour" "${options[@]}" -np 2 "$work/mpi"
    if $python; then
        check "$flavour: ctypes on two ranks" env TMPDIR="$work" timeout -k 5 120 "mpirun.$flavour" "${options[@]}" -np 2 \
            python3 "$LS_SOURCE/tests/shell/dlopen_program.py" "$library"
    fi
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
