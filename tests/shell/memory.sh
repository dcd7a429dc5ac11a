# The examples under valgrind, on two ranks: no error and no leak, in successful and in failing runs.
if ! valgrind --version >/dev/null 2>&1; then
    echo "SKIPPED: no valgrind here"
    exit 77
fi
. "$LS_SOURCE/tests/support/checks.sh"
. "$LS_SOURCE/tests/support/idx.sh"
mnist_folder data 300
cp -r data bad
labels 39 7 >bad/train-labels-idx1-ubyte

# From AVX2 on, oneDNN's matrix products read a few bytes past its own buffers, which is valid, but unknown to valgrind.
export ONEDNN_MAX_CPU_ISA=AVX DNNL_MAX_CPU_ISA=AVX
watch=(valgrind -q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite)

# clean NAME STATUS ARGUMENTS...: the example ends with this status, and valgrind reports nothing.
clean() {
    local name=$1 wanted=$2
    shift 2
    launch run -n 2 "${watch[@]}" "$LS_BUILD/examples/"$name "$@" </dev/null
    check "$name $*: exit status $wanted" is "$status" "$wanted"
    check "$name $*: valgrind is silent" is "$(grep -c '^==' err)" 0
}

printf 'int main(void) { char *volatile lost = __builtin_malloc(7); lost[7] = 1; lost = 0; return 0; }\n' >lost.c
if cc -O0 -o lost lost.c 2>/dev/null; then
    launch run -n 2 "${watch[@]}" ./lost </dev/null
    check "valgrind sees what is wrong" is "$status" 99
fi
clean fashion_mnist 0 --data data --max-steps 3 --hidden 32 --batch-size 8 --save saved
check "fashion_mnist: one model" is "$(sed -n 's/^rank [01] parameters //p' out | sort -u | wc -l)" 1
clean fashion_mnist 1 --data bad --save saved
clean cnn 0 --data data --max-steps 2 --channels 2 --batch-size 8
clean perceptron 0 --max-steps 8 --samples 5
clean mnist_by_hand 0 --data data --epochs 1
check "mnist_by_hand: it took its step" says out "0/1(t): 100%|##########| 1/1"
finish
