# The Fortran module: its source matches the headers, has every public function, and compiles without a
# warning. Fortran programs give the results of the same programs in C, with the installed module.
. "$LS_SOURCE/tests/support/checks.sh"
for tool in python3 cc; do
    command -v $tool >/dev/null || {
        echo "SKIPPED there is no $tool"
        exit 77
    }
done

# ---- the source ----
check "bindings/fortran/lockstep.f90 matches the headers" "$LS_SOURCE/scripts/fortran" --check
"$LS_SOURCE/scripts/fortran" --coverage >coverage
check "the module has every public function" is "$(cat coverage)" \
    "$(sed 's/^\([0-9]*\) .*/\1/;q' coverage) of $(sed 's/^\([0-9]*\) .*/\1/;q' coverage) public functions"
check "public functions are found" test "$(cut -d ' ' -f 3 coverage)" -gt 600
if command -v nm >/dev/null; then
    nm -D --defined-only "$LS_BUILD/lib/liblockstep.so" | sed 's/.* //; s/@.*//' | grep '^ls_' | sort -u >exported
    sed 's/\&$//' "$LS_SOURCE/bindings/fortran/lockstep.f90" | tr -s '\n ' ' ' | grep -o 'bind(c, name="ls_[a-z0-9_]*")' |
        cut -d '"' -f 2 | sort -u >bound
    check "the module lacks only the exported functions that are variadic" is "$(comm -23 exported bound | tr '\n' ' ')" \
        "ls_error_set ls_log_write "
    check "the module has no other names" is "$(comm -13 exported bound)" ""
fi

# A copy of the project's files that scripts/fortran reads, with planted differences.
mkdir -p copy/scripts && cp "$LS_SOURCE/scripts/fortran" "$LS_SOURCE/scripts/headers.py" "$LS_SOURCE/scripts/abi" copy/scripts
cp -r "$LS_SOURCE/include" "$LS_SOURCE/bindings" copy
sed -i '/ls_zero_grad/s/.*/LS_API void ls_other_function(ls_tensor *tensor);/' copy/include/lockstep/autograd.h
! copy/scripts/fortran --check >out 2>err
check "a changed header: refused" says err 'does not match the headers: run scripts/fortran$'
copy/scripts/fortran --coverage >out
check "a function without an interface: reported" says out '^missing: ls_other_function$'
check "a new module has the function" sh -c "copy/scripts/fortran && copy/scripts/fortran --check && copy/scripts/fortran --coverage"
sed -i 's/^LS_API void ls_other_function.*/LS_API void ls_other_function(long number);/' copy/include/lockstep/autograd.h
! copy/scripts/fortran --check >out 2>err
check "an unknown C type: refused" says err '^fortran: unknown C type: long number$'

if ! [ -e "$LS_BUILD/lib/liblockstep-fortran.a" ]; then
    echo "SKIPPED Fortran programs: this build has no Fortran module (Debian: gfortran)"
    finish
fi

# ---- the installed module ----
check "install" cmake --install "$LS_BUILD" --prefix "$scratch/prefix" >log
PKG_CONFIG_PATH=$(dirname "$(find prefix -name lockstep-fortran.pc)")
export PKG_CONFIG_PATH=$scratch/$PKG_CONFIG_PATH
read -r -a flags <<<"$(pkg-config --cflags --libs lockstep-fortran)"
strict=(-std=f2008 -pedantic -Wall -Wextra -Werror)
check "the installed source compiles" gfortran "${strict[@]}" -O1 -c prefix/share/lockstep/lockstep.f90 -o module.o

mkdir project
cat >project/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.22)
project(program C Fortran)
find_package(lockstep REQUIRED)
add_executable(program ${SOURCE})
target_link_libraries(program lockstep::fortran)
END
builds_with_cmake() {
    cmake -S project -B project/build -DCMAKE_PREFIX_PATH="$scratch/prefix" -DSOURCE="$LS_SOURCE/tests/shell/fortran_program.f90" >log &&
        cmake --build project/build >>log
}
check "find_package builds a Fortran program" builds_with_cmake

# ---- the layout of types and the values of constants, in C and in Fortran ----
module=$LS_SOURCE/bindings/fortran/lockstep.f90
{
    echo '#include <lockstep/lockstep.h>' && echo '#include <stdio.h>' && echo 'int main(void) {'
    sed -n 's/^  type, bind(c) :: \(.*\)/\1/p' "$module" | while read -r type; do
        grep -q "typedef struct $type $type;" <(cat "$LS_SOURCE"/include/lockstep/*.h) && ! grep -q "^} $type;\|^struct $type {" \
            "$LS_SOURCE"/include/lockstep/*.h && type="$type *" # an object is a pointer
        echo "printf(\"${type% \*} %d\\n\", (int)sizeof($type));"
    done
    constants='^  integer(c_int), parameter :: \(\w*\) = [0-9]*' # a comment has the name in C, if it differs
    sed -n "s/$constants ! \(.*\)/\1 \2/p; s/$constants\$/\1 \1/p" "$module" | while read -r name name_in_c; do
        echo "printf(\"$name %d\\n\", (int)$name_in_c);"
    done
    echo 'return 0; }'
} >layout.c
{
    echo 'program layout' && echo 'use lockstep' && echo 'implicit none'
    sed -n 's/^  type, bind(c) :: \(.*\)/type(\1) :: v_\1/p' "$module"
    sed -n 's/^  type, bind(c) :: \(.*\)/print "(a,i0)", "\1 ", c_sizeof(v_\1)/p' "$module"
    sed -n 's/^  integer(c_int), parameter :: \(\w*\) = .*/print "(a,i0)", "\1 ", \1/p' "$module"
    echo 'end program'
} >layout.f90
check "a list of types and constants in C builds" cc layout.c "${flags[@]}" -o layout_c
check "the same list in Fortran builds" gfortran -std=f2008 layout.f90 "${flags[@]}" -o layout_fortran
./layout_c >expected
./layout_fortran >found
check "types have the sizes of C, and constants the values" is "$(diff expected found)" ""
check "types and constants are found" test "$(grep -c '^ls_' found)" -gt 120 -a "$(grep -c '^LS_' found)" -gt 100

# ---- results ----
check "fortran_program builds" gfortran "${strict[@]}" -g "$LS_SOURCE/tests/shell/fortran_program.f90" "${flags[@]}" -o program
examples=prefix/share/lockstep/examples
check "the examples of the guides are installed" is "$(ls $examples)" "$(printf '%s\n' heat.f90 heat_mpi.c perceptron.f90)"
check "perceptron builds" gfortran "${strict[@]}" $examples/perceptron.f90 "${flags[@]}" -o perceptron
hashes() {
    sed -n 's/^\(rank [0-9]*\) parameters \([0-9A-Fa-f]\{16\}\)$/\1 \2/p' out | tr A-F a-f | sort
}
for ranks in 1 2 3; do
    launch run -n $ranks ./program </dev/null
    check "$ranks ranks: the program's results are right" is "$status $(sort -u out) $(wc -l <out)" "0 right $ranks"
    launch run -n $ranks "$LS_BUILD/examples/perceptron" --samples 601 --epochs 2 --quiet </dev/null
    hashes >expected
    launch run -n $ranks ./perceptron 601 2 </dev/null
    check "$ranks ranks: perceptron ends well" is "$status" 0
    check "$ranks ranks: perceptron has the hash of the C program on every rank" is "$(hashes)" "$(cat expected)"
    check "$ranks ranks: every rank prints a hash" is "$(wc -l <expected)" $ranks
done
check "the program built by CMake" is "$(project/build/program)" right

# ---- the snippets of the page ----
page=$LS_SOURCE/docs/howto/fortran.md
awk '/^```/ { inside = $0 == "```fortran"; if (inside) count++; next } inside { print >("snippet" count) }' "$page"
for snippet in snippet?; do
    if grep -q '^ *use mpi' "$snippet"; then # shell/mpi_programs builds and runs it
        rm "$snippet"
        continue
    fi
    if ! grep -q '^\(program\|module\) ' $snippet; then # statements, with these declarations around them
        {
            printf '%s\n' 'subroutine snippet(world, model, x, y, u)' 'use lockstep' 'use own_callbacks' 'implicit none' \
                'type(ls_comm), intent(inout) :: world' 'type(ls_module), intent(inout) :: model' \
                'type(ls_tensor), intent(inout) :: x, y' 'real(c_double), intent(in) :: u(:, :)' block
            cat $snippet
            printf '%s\n' 'end block' 'end subroutine'
        } >wrapped && mv wrapped $snippet
    fi
done
snippet_compiles() {
    cp "$1" snippet.f90 && gfortran "${strict[@]}" -Wno-unused -Wno-unused-dummy-argument -c snippet.f90 "${flags[@]}"
}
for snippet in $(grep -l '^module' snippet?) $(grep -L '^module' snippet?); do
    check "$snippet of docs/howto/fortran.md compiles" snippet_compiles "$snippet"
done
check "snippets are found" test "$(ls snippet? | wc -l)" -ge 7
cp "$(grep -l '^program first' snippet?)" first.f90
check "the page's first program builds" gfortran "${strict[@]}" first.f90 "${flags[@]}" -o first
launch run -n 2 ./first </dev/null
check "the page's first program learns on two ranks" is "$status $(grep -c 'step 500 loss *0\?\.0' out)" "0 2"

# ---- mistakes ----
cat >mistake.f90 <<'END'
program mistake
  use lockstep
  type(ls_module) :: model
  model = ls_nn_linear(-2, 1)
  call ls_check(model)
  print '(a)', 'not reached'
end program
END
check "a program with a mistake builds" gfortran mistake.f90 "${flags[@]}" -o mistake
cp mistake program_of_mpi
launch run -n 2 ./mistake </dev/null
check "ls_check ends the program" test "$status" != 0 -a ! -s out
check "ls_check prints the message" says err '^lockstep: ls_nn_linear: .*-2'
sed -i 's/^  model = /  if (command_argument_count() == 1) call ls_check(LS_ERR_STATE)\n&/; s/^  type(ls_module) :: model$/&\n  type(ls_comm) :: world\n  world = ls_init()/' mistake.f90
check "a program with a world and a mistake builds" gfortran mistake.f90 "${flags[@]}" -o mistake
launch run -n 1 ./mistake </dev/null
check "ls_check prints the rank" says err '^lockstep (rank 0): ls_nn_linear: .*-2'
check "ls_check prints one line" is "$(grep -c STOP err)" 0
launch run -n 1 ./mistake status </dev/null
check "ls_check of a status without a message prints its name" says err '^lockstep (rank 0): LS_ERR_STATE$'
sed 's/ls_check(model)/ls_check(model, "make the model  ")/; s/ls_check(LS_ERR_STATE)/ls_check(LS_ERR_STATE, "step")/' mistake.f90 >where.f90
check "ls_check with a text builds" gfortran where.f90 "${flags[@]}" -o where
launch run -n 1 ./where </dev/null
check "ls_check of an object prints the text first" says err '^lockstep (rank 0): make the model: ls_nn_linear: .*-2'
launch run -n 1 ./where status </dev/null
check "ls_check of a status prints the text first" says err '^lockstep (rank 0): step: LS_ERR_STATE$'
sed 's/ls_check(model)/ls_check(model, "  ")/; s/ls_check(LS_ERR_STATE)/ls_check(LS_ERR_STATE, "")/' mistake.f90 >blank.f90
check "ls_check with a blank text builds" gfortran blank.f90 "${flags[@]}" -o blank
launch run -n 1 ./blank </dev/null
check "ls_check of an object omits a blank text" says err '^lockstep (rank 0): ls_nn_linear: .*-2'
launch run -n 1 ./blank status </dev/null
check "ls_check of a status omits an empty text" says err '^lockstep (rank 0): LS_ERR_STATE$'
sed 's/^  model = .*/  model = ls_data_parallel(ls_nn_linear(2, 1), ls_comm())/' mistake.f90 >absent.f90
check "a program without a communicator builds" gfortran absent.f90 "${flags[@]}" -o absent
./absent >out 2>err
check "ls_data_parallel without a communicator says what to do" \
    says err 'ls_data_parallel: the communicator is NULL; create it with ls_init or ls_comm_from_mpi$'
env OMPI_COMM_WORLD_RANK=1 ./program_of_mpi >out 2>err
check "ls_check prints the rank of the MPI launcher" says err '^lockstep (rank 1): ls_nn_linear: .*-2'

# refused NAME STATEMENT WORDS: the compiler refuses the statement.
refused() {
    printf 'use lockstep\ntype(ls_tensor) :: x\ntype(ls_module) :: m\n%s\nend\n' "$2" >refused.f90
    ! gfortran -c refused.f90 "${flags[@]}" >out 2>err
    check "$1: refused by the compiler" says err "$3"
}
refused "a module in place of a tensor" "x = ls_square(m)" "Type mismatch in argument .x. at (1); passed TYPE(ls_module) to TYPE(ls_tensor)"
refused "a view of an array without target" "real(c_float) :: a(3, 2)
x = ls_view(a)" "no specific function for the generic .ls_view."
refused "a view of an expression" "real(c_double), target :: a(3, 2)
x = ls_view(real(a, c_float))" "no specific function for the generic .ls_view."
refused "a shape of nine numbers" "x = ls_zeros(ls_shape(1, 2, 3, 4, 5, 6, 7, 8, 9), LS_F32)" "Too many components in structure constructor"
refused "an ignored status" "call ls_backward(x)" "ls_backward. .*has a type, which is not consistent with the CALL"
finish
