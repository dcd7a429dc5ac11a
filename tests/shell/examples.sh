# The examples: their output on one rank and on several, that ranks and runs agree bit by bit, that they learn, and
# their options.
. "$LS_SOURCE/tests/support/checks.sh"
. "$LS_SOURCE/tests/support/idx.sh"
examples=$LS_BUILD/examples
python=$(command -v python3 || true)

# alone PROGRAM ARGUMENTS...: without the launcher.
alone() {
    LS_TEST_MARK=$mark "$@" >out 2>err </dev/null
    status=$?
}
hashes() {
    sed -n 's/^rank [0-9]* parameters \([0-9a-f]\{16\}\)\r*$/\1/p' "${1:-out}" | sort -u
}
# number NAME: the number that the line "NAME: ..." shows.
number() {
    sed -n "s/^$1: \([-+.0-9e]*\).*/\1/p" out | tail -1
}
holds() {
    awk "BEGIN { exit !($1) }"
}
# one_model RANKS: every rank printed its line, and all lines show one model.
one_model() {
    is "$(sed -n 's/^rank \([0-9]*\) parameters .*/\1/p' out | sort -n | tr '\n' ' ')" "$(seq -s ' ' 0 $(($1 - 1))) " &&
        is "$(hashes | wc -l)" 1
}
differs() { # FILE FILE
    ! cmp -s "$1" "$2"
}
only() { # PATTERN: there is no line but such
    is "$(grep -vE "$1" out)" ""
}

# Removes ls_autocast's warning on processors without instructions for bf16.
slower_in_bf16() {
    grep -v '^lockstep warning (rank [0-9]*): ls_autocast: on device cpu, matrix products in bf16 are not faster than in f32$'
}

# ---- options ----
for name in fashion_mnist cnn resnet perceptron mnist_by_hand; do
    program=$examples/$name
    alone "$program" --help
    check "$name --help succeeds" is "$status" 0
    for option in --epochs --seed --max-steps --quiet; do
        check "$name --help tells of $option" says out "^  $option "
    done
    cp out help
    alone "$program" -h
    check "$name -h: the same" is "$status $(cmp out help)" "0 "
    alone "$program" --epoch 3
    check "$name, an unknown option: 2" is "$status" 2
    check "$name, an unknown option: named" says err "unknown option --epoch: --help lists"
    for wrong in "--epochs many" "--epochs -1" "--epochs 1.5" "--epochs 99999999999999999999" "--max-steps 3x" "--seed"; do
        alone "$program" $wrong
        check "$name $wrong: 2" is "$status" 2
        check "$name $wrong: one sentence" lines err 1
        check "$name $wrong: says what it takes" says err "$wrong.*: expected a whole number from 0"
    done
done
for wrong in "fashion_mnist --batch-size 0" "fashion_mnist --hidden 0" "cnn --channels 0" "perceptron --samples 0" "perceptron --batch-size 0"; do
    alone "$examples/"$wrong
    check "$wrong: refused" is "$status $(grep -c 'a whole number from 1' err)" "2 1"
done
for wrong in 0 -1 nan inf fast; do
    alone "$examples/perceptron" --lr $wrong
    check "perceptron --lr $wrong: refused" is "$status $(grep -c 'a number above 0' err)" "2 1"
done

LS_TEST_MARK=$mark "$examples/perceptron" --max-steps 5 >/dev/full 2>err </dev/null
check "results to a full disk: 1" is $? 1
check "results to a full disk: one sentence" is "$(cat err)" \
    "$examples/perceptron: cannot write to standard output: No space left on device"

# ---- sends and receives ----
for name in send_recv ring all_reduce_by_hand sync_parameters linear_regression isend_recv_wait heat own_operation pipeline callbacks forecast; do
    alone "$examples/$name" --help
    check "$name --help succeeds" is "$status $(head -1 out)" "0 Usage: $examples/$name [OPTIONS]"
    alone "$examples/$name" --frobnicate
    check "$name, an unknown option: 2, in a sentence" is "$status $(grep -c 'unknown option --frobnicate' err)" "2 1"
done
alone "$examples/send_recv"
check "send_recv alone: says that it takes two" is "$status $(grep -c '^send_recv: exactly two ranks are needed: lockstep run -n 2' err)" "2 1"
alone "$examples/mnist_by_hand" --rank 1
check "mnist_by_hand --rank without --world-size: refused" is "$status $(grep -c 'rank 1 needs --world-size' err)" "2 1"
alone "$examples/mnist_by_hand" --world-size 2 --rank 2
check "mnist_by_hand, a rank too high: refused" is "$status $(grep -c 'rank is 2, but must be from 0 to 1' err)" "1 1"
for count in 0 -3 many; do
    alone "$examples/all_reduce_by_hand" --count $count
    check "all_reduce_by_hand --count $count: refused" is "$status $(grep -c 'a whole number from 1' err)" "2 1"
done
if [ -e "$LS_BUILD/lib/lockstep-hdf5.so" ]; then
    for ranks in 1 2; do
        launch run -n $ranks "$examples/forecast" --file wave.h5 </dev/null
        check "forecast on $ranks: ends well" is "$status" 0
        check "forecast on $ranks: learns" sh -c 'cat out err | grep -q "loss=[0-9.]*e-0[5-9]"'
    done
fi
# printed LINE...: exactly these lines, in any order.
printed() {
    is "$(sort out)" "$(printf '%s\n' "$@" | sort)"
}
for ranks in 2 3 4; do
    launch run -n $ranks "$examples/send_recv" </dev/null
    check "send_recv on $ranks: two ranks have the numbers" printed "rank 0 has [1, -1]" "rank 1 has [1, -1]"
    check "send_recv on $ranks: ends well" is "$status $(cat err)" "0 "
done
launch run -n 1 "$examples/ring" </dev/null
check "ring on 1: its own number" is "$status $(cat out)" "0 rank 0 saw the numbers 0"
launch run -n 2 "$examples/ring" </dev/null
check "ring on 2" printed "rank 0 saw the numbers 0, 10" "rank 1 saw the numbers 10, 0"
launch run -n 4 "$examples/ring" </dev/null
check "ring on 4" printed "rank 0 saw the numbers 0, 30, 20, 10" "rank 1 saw the numbers 10, 0, 30, 20" \
    "rank 2 saw the numbers 20, 10, 0, 30" "rank 3 saw the numbers 30, 20, 10, 0"
check "ring on 4: ends well" is "$status $(cat err)" "0 "
for ranks in 1 2 3 4; do
    for count in 1 2 1000 1000003; do
        launch run -n $ranks "$examples/all_reduce_by_hand" --count $count </dev/null
        check "all_reduce_by_hand of $count on $ranks: right on all" is "$status $(grep -c ': as from ls_comm_allreduce$' out)" \
            "0 $ranks"
    done
    launch run -n $ranks "$examples/sync_parameters" </dev/null
    check "sync_parameters on $ranks: ends well" is "$status $(cat err)" "0 "
    check "sync_parameters on $ranks: models differ before" is "$(grep ' before ' out | cut -d' ' -f4 | sort -u | wc -l)" $ranks
    check "sync_parameters on $ranks: then all have rank 0's" is "$(grep ' after ' out | cut -d' ' -f5 | sort | uniq -c | xargs)" \
        "$ranks $(sed -n 's/^rank 0 before //p' out)"
done

# ---- perceptron ----
for ranks in 1 2 3; do
    launch run -n $ranks "$examples/perceptron" --epochs 4 </dev/null
    check "perceptron on $ranks: ends well" is "$status" 0
    check "perceptron on $ranks: a line per epoch" is "$(grep -cE '^Epoch: [1-4] Mean Squared Error: [0-9.]+$' out)" 4
    check "perceptron on $ranks: throughput" holds "$(number throughput) > 0"
    # 10,000 samples over 3 ranks leave a last step with one sample: two ranks have none.
    check "perceptron on $ranks: one model" one_model $ranks
    check "perceptron on $ranks: learns (error $(number 'Epoch: 4 Mean Squared Error'))" \
        holds "$(number 'Epoch: 4 Mean Squared Error') < 4"
    check "perceptron on $ranks: silent otherwise" is "$(complaints err)" ""
done
launch run -n 2 "$examples/perceptron" --max-steps 50 --quiet --seed 7 </dev/null
first=$(hashes)
check "perceptron: throughput of a run that is all warm-up" holds "$(number throughput) > 0"
check "perceptron --quiet: result lines only" only '^(rank [01] parameters|Mean Squared Error:|throughput:) '
launch run -n 2 "$examples/perceptron" --max-steps 50 --quiet --seed 7 </dev/null
check "perceptron: the same seed, the same bits" is "$(hashes)" "$first"
launch run -n 2 "$examples/perceptron" --max-steps 50 --quiet --seed 8 </dev/null
check "perceptron: another seed, another model" test "$(hashes)" != "$first"

# ---- callbacks ----
for ranks in 1 2 3; do
    launch run -n $ranks "$examples/callbacks" --log "rings$ranks.csv" </dev/null
    check "callbacks on $ranks: ends well" is "$status $(complaints err)" "0 "
    check "callbacks on $ranks: one model" one_model $ranks
    check "callbacks on $ranks: learns (accuracy $(number accuracy))" holds "$(number accuracy) > 0.85"
    check "callbacks on $ranks: stops early" says out '^epochs: [0-9]* (stopped early)$'
    epochs=$(number epochs)
    check "callbacks on $ranks: a line of training and one of validation for each epoch, of one rank" \
        is "$(grep -cE '^[0-9]+/40\([tv]\): (val_)?loss=' out)" $((2 * epochs))
    check "callbacks on $ranks: its own lines" is "$(grep -c '^gradient norms of epoch' out)" "$epochs"
    check "callbacks on $ranks: the log" is "$(wc -l <rings$ranks.csv) $(head -1 rings$ranks.csv)" \
        "$((epochs + 1)) epoch,loss,acc,sureness,val_loss,val_acc,val_sureness"
done
launch run -n 2 "$examples/callbacks" --epochs 3 --quiet </dev/null
check "callbacks --quiet: result lines only" only '^(rank [01] parameters|epochs:|loss:|accuracy:|sureness:) '
first=$(hashes)
launch run -n 2 "$examples/callbacks" --epochs 3 --quiet </dev/null
check "callbacks: the same seed, the same bits" is "$(hashes)" "$first"
launch run -n 2 "$examples/callbacks" --log absent/log.csv </dev/null
check "callbacks, a log that cannot be: the sentence" says err "ls_csv_log: cannot open absent/log.csv"
check "callbacks, a log that cannot be: fails" test "$status" -ne 0

# ---- tensors between ranks ----
for ranks in 1 2 3; do
    launch run -n $ranks "$examples/isend_recv_wait" </dev/null
    check "isend_recv_wait on $ranks: ends well" is "$status" 0
    check "isend_recv_wait on $ranks: the gradient is 2 everywhere" is "$(grep -c 'gradient 2$' out)" $ranks
    launch run -n $ranks "$examples/heat" --points 20 --steps 30 --iterations 30 </dev/null
    check "heat on $ranks: ends well" is "$status" 0
    check "heat on $ranks: fits" holds "$(sed -n 's/^iteration 29: error //p' out) < 0.01"
    cp out heat.$ranks
    check "heat on $ranks: as on one" cmp -s heat.1 heat.$ranks
done
launch run -n 2 "$examples/heat" --points 20 --steps 30 --iterations 30 --quiet </dev/null
check "heat --quiet: the last line only" is "$(cat out)" "$(tail -1 heat.1)"
launch run -n 3 "$examples/heat" --points 2 </dev/null
check "heat: more ranks than points" says err "2 points cannot be divided among 3 ranks"

# ---- a custom operation ----
for ranks in 1 2 3; do
    launch run -n $ranks "$examples/own_operation" --points 9 --samples 50 --batch-size 16 --epochs 30 --quiet </dev/null
    check "own_operation on $ranks: its gradients are right" is "$status $(head -1 out)" "0 gradients: match finite differences"
    check "own_operation on $ranks: finds the conductivities" holds "$(sed -n 's/^conductivity: maximum error \(.*\)$/\1/p' out) < 0.05"
    tail -1 out >own.$ranks
    check "own_operation on $ranks: as on one" cmp -s own.1 own.$ranks
done
alone "$examples/own_operation" --points 1
check "own_operation of one point: refused" is "$status $(grep -c 'must be at least 2' err)" "2 1"

# ---- a GPT ----
yes 'to be, or not to be: ' | head -400 >text
for ranks in 1 2 3; do
    launch run -n $ranks "$examples/gpt" --file text --layers 1 --heads 2 --width 32 --context 25 --batch-size $((12 / ranks)) \
        --steps 150 --lr 0.01 --sample 60 --temperature 0.1 --quiet --save gpt.$ranks </dev/null
    check "gpt on $ranks: ends well" is "$status" 0
    check "gpt on $ranks: one model" one_model $ranks
    check "gpt on $ranks: learns" holds "$(number loss) < 3 && $(number 'test loss') < 0.5"
    check "gpt on $ranks: writes what it has read" says out '^to be, or not to be: $'
    number 'test loss' >loss.$ranks
done
small=(--file text --layers 2 --heads 2 --width 32 --context 25 --batch-size 4 --steps 20 --sample 20 --quiet)
for zero in 0 1 2 3; do
    launch run -n 3 "$examples/gpt" "${small[@]}" --zero $zero --save sharded.$zero </dev/null
    check "gpt --zero $zero: ends well" is "$status $(complaints err)" "0 "
    hashes >sharded.$zero.hash
    check "gpt --zero $zero: the same bits" cmp -s sharded.0.hash sharded.$zero.hash
    check "gpt --zero $zero: the same file" cmp -s sharded.0 sharded.$zero
done
for how in "1 --dropout 0.2" 2; do # with clipped gradients and a schedule
    read -r ranks more <<<"$how"
    launch run -n $ranks "$examples/gpt" "${small[@]}" $more </dev/null
    plain="$status $(hashes)"
    check "gpt on $how: a hash" test "${plain%% *} $((${#plain} >= 18))" = "0 1"
    launch run -n $ranks "$examples/gpt" "${small[@]}" $more --capture </dev/null
    check "gpt --capture on $how: the same bits" is "$status $(hashes)" "$plain"
    check "gpt --capture on $how: silent otherwise" is "$(complaints err)" ""
done
launch run -n 3 "$examples/gpt" "${small[@]}" --recompute </dev/null
check "gpt --recompute: the same bits" is "$status $(hashes)" "0 $(cat sharded.0.hash)"
gzip -k text
alone "$examples/gpt" --file text.gz --layers 1 --heads 2 --width 32 --context 25 --steps 0 --sample 0 --quiet --load gpt.1
check "gpt --load, of a gzipped file: what was saved" is "$status $(number 'test loss')" "0 $(cat loss.1)"
check "gpt --steps 0: result lines of what was loaded only" only '^(rank 0 parameters|parameters:|test loss:) '
launch run -n 2 "$examples/gpt" --file text --layers 1 --heads 2 --width 32 --context 25 --steps 3 --learned --sample 0 --quiet </dev/null
check "gpt with learned positions" is "$status $(grep -c '^loss: ' out)" "0 1"
for name in gpt charlstm; do # trained in bf16: near what it is in f32, and not the same
    for bf16 in "" --bf16; do
        launch run -n 2 "$examples/$name" --file text --layers 1 --width 32 --context 25 --batch-size 6 --steps 60 \
            --lr 0.01 --sample 0 --quiet $bf16 </dev/null
        check "$name $bf16: ends well" is "$status $(complaints err | slower_in_bf16)" "0 "
        check "$name $bf16: one model" one_model 2
        number 'test loss' >"loss$bf16"
        hashes >"model$bf16"
    done
    check "$name --bf16: loss $(cat loss--bf16) near $(cat loss)" holds "($(cat loss--bf16) - $(cat loss)) ^ 2 < 0.01"
    check "$name --bf16: another model" differs model model--bf16
done
alone "$examples/gpt" --file text --width 30
check "gpt, heads that do not fit: refused" is "$status $(grep -c 'width 30 cannot be divided into 4 heads' err)" "1 1"
alone "$examples/gpt" --file text --context 100000
check "gpt, a file that is too short: refused" is "$status $(grep -c 'text has 8800 bytes' err)" "1 1"

# ---- an LSTM ----
for ranks in 1 2 3; do
    launch run -n $ranks "$examples/charlstm" --file text --layers 1 --width 48 --context 25 --batch-size $((12 / ranks)) \
        --steps 300 --lr 0.03 --sample 60 --temperature 0.1 --quiet </dev/null
    check "charlstm on $ranks: ends well" is "$status" 0
    check "charlstm on $ranks: one model" one_model $ranks
    check "charlstm on $ranks: learns" holds "$(number loss) < 1 && $(number 'test loss') < 0.3"
    check "charlstm on $ranks: writes what it has read" says out "^to be, or not to be: $"
    launch run -n $ranks "$examples/charlstm" --file text --layers 2 --width 32 --context 25 --batch-size $((12 / ranks)) \
        --steps 30 --lr 0.02 --sample 0 --quiet </dev/null
    number loss >lstm.$ranks
    check "charlstm of two layers on $ranks: as on one" holds "($(cat lstm.1) - $(cat lstm.$ranks)) ^ 2 < 1e-6"
done
alone "$examples/charlstm" --help
check "charlstm --help tells of --layers" says out "^  --layers "
alone "$examples/charlstm" --file text --layers 65
check "charlstm of 65 layers: refused" is "$status $(grep -c '65 layers: must be from 1 to 64' err)" "1 1"

# ---- a ResNet ----
mnist_folder pictures 50
mkdir cifar
for file in data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch; do
    for i in 1 2 3 4 5 6 7 8; do
        bytes $i
        head -c 3072 /dev/urandom
    done >cifar/$file.bin
done
for ranks in 1 2 3; do
    launch run -n $ranks "$examples/resnet" --data pictures --epochs 2 --batch-size 6 --width 4 --quiet </dev/null
    check "resnet on $ranks: ends well" is "$status $(complaints err)" "0 "
    check "resnet on $ranks: one model" one_model $ranks
    check "resnet on $ranks --quiet: result lines only" only '^(rank [012] parameters|throughput:|test accuracy:) '
done
before=$(hashes)
launch run -n 3 "$examples/resnet" --data pictures --epochs 2 --batch-size 6 --width 4 --quiet --threads 2 </dev/null
check "resnet: the same model with threads" is "$status $(hashes)" "0 $before"
launch run -n 2 "$examples/resnet" --cifar cifar --batch-size 6 --width 4 --depth 2 --epochs 1 --quiet </dev/null
check "resnet on CIFAR-10 files: ends well" is "$status $(complaints err)" "0 "
alone "$examples/resnet" --cifar pictures
check "resnet, no CIFAR-10 there: says which file is missing" is "$status $(grep -c 'pictures/data_batch_1.bin' err)" "1 1"
alone "$examples/resnet" --data pictures --depth 101
check "resnet --depth 101: refused" is "$status $(grep -c '101 blocks exceed the limit of 100' err)" "1 1"

# ---- weights exchanged with PyTorch, in both directions ----
fixtures=$LS_SOURCE/tests/fixtures
small=("$examples/gpt" --file text --layers 2 --heads 2 --width 8 --context 12 --steps 0 --sample 0 --quiet)
alone "${small[@]}" --learned --load "$fixtures/pytorch_gpt.safetensors" --save gpt.back
check "gpt takes PyTorch's weights" is "$status $(complaints err)" "0 "
alone "${small[@]}" --load "$fixtures/pytorch_gpt.safetensors"
check "gpt, weights of another model: says what differs" is \
    "$status $(grep -c 'has a tensor positions.weight that the model does not have' err)" "1 1"
alone "$examples/resnet" --data pictures --depth 2 --width 3 --epochs 0 --quiet --load "$fixtures/pytorch_resnet.safetensors" \
    --save resnet.back
check "resnet takes PyTorch's weights" is "$status $(complaints err)" "0 "
check_weights_back() {
    local torch
    for torch in python3 /usr/bin/python3 ''; do
        [ -n "$torch" ] && "$torch" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))' 2>/dev/null && break
    done
    if [ -n "$torch" ]; then
        check "PyTorch takes them back" is \
            "$("$torch" -B "$fixtures/make_examples.py" gpt "$scratch/gpt.back" resnet "$scratch/resnet.back" | xargs)" \
            "gpt has the same outputs resnet has the same outputs"
    else
        echo "SKIPPED PyTorch takes them back: there is no Python with torch here (Debian: python3-torch)"
    fi
}
beside check_weights_back

# ---- examples on Fashion-MNIST ----
if [ ! -d /usr/share/datasets/fashion-mnist ]; then
    echo "SKIPPED fashion_mnist, cnn and mnist_by_hand: no Fashion-MNIST here (Debian: dataset-fashion-mnist)"
    together
    check "nothing is left running" nobody_soon
    [ "$failed" = 0 ] && exit 77
    exit 1
fi

for ranks in 1 2 3; do
    launch run -n $ranks "$examples/fashion_mnist" --max-steps 3 --limit 600 --hidden 32 --save saved$ranks </dev/null
    check "fashion_mnist on $ranks: ends well" is "$status" 0
    check "fashion_mnist on $ranks: one model" one_model $ranks
    check "fashion_mnist on $ranks: throughput, of a run that is all warm-up too" holds "$(number throughput) > 0"
    grep -v '^rank [0-9]* parameters' out >last # other ranks may be later than rank 0
    check "fashion_mnist on $ranks: where things are" is "$(tail -1 last)" \
        "saved saved$ranks/weights.safetensors and saved$ranks/log.csv"
    check "fashion_mnist on $ranks: the accuracy before it" says <(tail -2 last) '^test accuracy: 0\.[0-9]\{4\}$'
    check "fashion_mnist on $ranks: a line for each pass" is "$(grep -cE '^(0/10\([tv]\)|test): .*%\|' out)" 3
    check "fashion_mnist on $ranks: no escape codes in a file" is "$(grep -c $'[\033\r]' out)" 0
    check "fashion_mnist on $ranks: the log has its line" is "$(wc -l <saved$ranks/log.csv)" 2
    check "fashion_mnist on $ranks: nothing else is written" is "$(ls saved$ranks | tr '\n' ' ')" \
        "log.csv weights.safetensors "
    check "fashion_mnist on $ranks: silent otherwise" is "$(complaints err)" ""
done
quick=("$examples/fashion_mnist" --max-steps 3 --limit 600 --hidden 32 --save again --quiet)
before=$(hashes)
several=(--epochs 2 --limit 650 --hidden 32 --save captured --quiet) # an epoch ends with a batch of 10 samples
launch run -n 1 "$examples/fashion_mnist" "${several[@]}" </dev/null
plain=$(hashes)
launch run -n 1 "$examples/fashion_mnist" "${several[@]}" --capture </dev/null
check "fashion_mnist --capture: the same bits" is "$(hashes)" "$plain"
check "fashion_mnist --capture: silent otherwise" is "$(complaints err)" ""
launch run -n 3 "${quick[@]}" </dev/null
check "fashion_mnist: the same seed, the same bits" is "$(hashes)" "$before"
check "fashion_mnist: and the same file" cmp -s saved3/weights.safetensors again/weights.safetensors
check "fashion_mnist --quiet: result lines only" only '^(rank [012] parameters|throughput:|test accuracy:) '
for how in "--bucket-bytes 2000" --no-overlap "--zero 1" "--zero 2" "--zero 3" --recompute "--recompute --zero 2"; do
    launch run -n 3 "${quick[@]}" $how </dev/null
    check "fashion_mnist $how: the same bits" is "$(hashes)" "$before"
done
launch run -n 3 "${quick[@]}" --wire bf16 </dev/null
check "fashion_mnist --wire bf16: one model" one_model 3
check "fashion_mnist --wire bf16: rounded gradients" test "$(hashes)" != "$before"
rounded=$(hashes)
for zero in 1 2 3; do
    launch run -n 3 "${quick[@]}" --wire bf16 --zero $zero </dev/null
    check "fashion_mnist --wire bf16 --zero $zero: the same bits" is "$(hashes)" "$rounded"
done
launch run -n 3 "${quick[@]}" --wire powersgd </dev/null
check "fashion_mnist --wire powersgd: one model" one_model 3
check "fashion_mnist --wire powersgd: approximate gradients" test "$(hashes)" != "$before"
launch run -n 2 "${quick[@]}" --wire f8 </dev/null
check "fashion_mnist --wire f8: refused" is "$status $(grep -c 'unknown format "f8"; available: f32, bf16, f16, powersgd' err)" "1 1"
launch run -n 2 "${quick[@]}" --zero 9 </dev/null
check "fashion_mnist --zero 9: refused" is "$status $(grep -c '.zero is 9, but must be from 0 to 3' err)" "1 1"
launch run -n 2 "${quick[@]}" --wire bf16 --outer 2 </dev/null
check "fashion_mnist --wire with --outer: refused" is "$status $(grep -c 'cannot be combined with --outer' err)" "1 1"
rm -f again/weights.safetensors
launch run -n 3 "${quick[@]}" --outer 2 </dev/null
check "fashion_mnist --outer 2: ends well" is "$status" 0
check "fashion_mnist --outer 2: the weights are there" test -s again/weights.safetensors
check "fashion_mnist --outer 2: one model" one_model 3
check "fashion_mnist --outer 2: a model other than with averaged gradients" test "$(hashes)" != "$before"
check "fashion_mnist --outer 2: result lines only" only '^(rank [012] parameters|throughput:|test accuracy:) '
launch run -n 3 "${quick[@]}" --seed 2 </dev/null
check "fashion_mnist: another seed, another model" test "$(hashes)" != "$before"

long=("$examples/fashion_mnist" --limit 600 --hidden 32 --epochs 2 --quiet)
launch run -n 2 "${long[@]}" --save whole </dev/null
launch run -n 2 "${long[@]}" --save part --max-steps 3 --checkpoint 2 --tensorboard board </dev/null
check "fashion_mnist --checkpoint: ends well" is "$status" 0
check "fashion_mnist --tensorboard: rank 0's events are there" is "$(ls board | grep -c '^events\.out\.tfevents')" 1
launch run -n 2 "${long[@]}" --save part --checkpoint 2 </dev/null
check "fashion_mnist: no second history beside the first" says err 'is further along than this trial: resume from it'
LOCKSTEP_LOG=info launch run -n 2 "${long[@]}" --save part --checkpoint 2 --resume </dev/null
check "fashion_mnist --resume: ends well" is "$status" 0
check "fashion_mnist --resume --quiet: the log says where it resumes" is \
    "$(grep -c '^lockstep info (rank 0): resumed from part/checkpoints/epoch-.*: step' err) $(grep -c 'resumed from' err out)" \
    "1 err:1
out:0"
check "fashion_mnist --resume: bit-identical to an uninterrupted run" cmp -s part/weights.safetensors whole/weights.safetensors
launch run -n 2 "${long[@]::7}" --save part --checkpoint 2 --resume </dev/null
check "fashion_mnist --resume of a complete training: ends well" is "$status" 0
check "fashion_mnist --resume: says where it resumes" says out "resumed from part/checkpoints/epoch-.*: step"
launch run -n 2 "${long[@]::7}" --save part --checkpoint 2 --resume --batch-size 32 </dev/null
check "fashion_mnist --resume with another global batch: ends well" is "$status" 0
check "fashion_mnist --resume: warns about another global batch" \
    says err "was trained with global batches of .* samples, and this run has"
launch run -n 2 "${long[@]::7}" --save new --checkpoint 2 --resume </dev/null
check "fashion_mnist --resume without a checkpoint: ends well" is "$status" 0
check "fashion_mnist --resume: says that there is no checkpoint" says out "no checkpoint in new/checkpoints yet: training starts from the"
launch run -n 2 "${long[@]}" --save rare --outer 2 --checkpoint 2 </dev/null
check "fashion_mnist --outer with checkpoints: ends well" is "$status" 0
check "fashion_mnist --outer with checkpoints: the weights are there" test -s rare/weights.safetensors
check "fashion_mnist --outer with checkpoints: each rank's optimizer is there" is \
    "$(ls rare/checkpoints/epoch-000002-*/ | tr '\n' ' ')" "manifest.json model.safetensors optimizer-0000.safetensors \
optimizer-0001.safetensors outer.safetensors rank-0000.safetensors rank-0001.safetensors "

if [ -n "$python" ]; then
    # Format and hash as documented, read without Lockstep: 8 bytes of length, a JSON header, the tensors' bytes.
    cat >read.py <<'END'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
size, = struct.unpack("<Q", data[:8])
header = json.loads(data[8:8 + size])
header.pop("__metadata__", None)
digest = 0xcbf29ce484222325
for byte in data[8 + size:]:
    digest = (digest ^ byte) * 0x100000001b3 % 2**64
print(*(f"{name}{entry['shape']}" for name, entry in header.items()), f"{digest:016x}")
END
    check "the weights are those whose hash was printed" is "$("$python" read.py saved3/weights.safetensors)" \
        "0.weight[32, 784] 0.bias[32] 2.weight[32, 32] 2.bias[32] 4.weight[10, 32] 4.bias[10] $before"
fi
if [ -n "$python" ] && "$python" -c 'import numpy, safetensors' 2>/dev/null; then
    check "Python's safetensors reads the weights" is "$("$python" -c '
from safetensors.numpy import load_file
print(*sorted((name, tensor.shape) for name, tensor in load_file("saved3/weights.safetensors").items()))')" \
        "('0.bias', (32,)) ('0.weight', (32, 784)) ('2.bias', (32,)) ('2.weight', (32, 32)) ('4.bias', (10,)) ('4.weight', (10, 32))"
else
    echo "SKIPPED Python's safetensors reads the weights: it is not installed"
fi

check_learning() {
    launch run -n 2 "$examples/fashion_mnist" --epochs 3 --save trained </dev/null
    check "fashion_mnist, 3 epochs on 2 ranks: ends well" is "$status" 0
    check "fashion_mnist, 3 epochs on 2 ranks: accuracy $(number 'test accuracy') is at least 0.86" \
        holds "$(number 'test accuracy') >= 0.86"
    check "fashion_mnist, 3 epochs on 2 ranks: throughput" holds "$(number throughput) > 0"
    check "fashion_mnist, 3 epochs on 2 ranks: one model" one_model 2
    check "fashion_mnist, 3 epochs on 2 ranks: a line per pass" is "$(grep -c '%|' out)" 7
}
beside check_learning

for ranks in 1 2 3; do
    launch run -n $ranks "$examples/cnn" --max-steps 3 --limit 300 --channels 4 --quiet </dev/null
    check "cnn on $ranks: ends well" is "$status $(complaints err)" "0 "
    check "cnn on $ranks: one model" one_model $ranks
    check "cnn on $ranks --quiet: result lines only" only '^(rank [012] parameters|throughput:|test accuracy:) '
done
for threads in 0 2; do
    launch run -n 2 "$examples/cnn" --max-steps 3 --limit 300 --channels 4 --quiet --augment --threads $threads </dev/null
    check "cnn --augment, $threads threads: ends well" is "$status $(complaints err)" "0 "
    grep parameters out | sort >augmented$threads
done
check "cnn --augment: the same model with threads" cmp augmented0 augmented2
for name in cnn resnet; do
    for bf16 in "" --bf16; do
        launch run -n 2 "$examples/$name" --max-steps 3 --limit 300 --quiet $bf16 </dev/null
        check "$name $bf16: ends well" is "$status $(complaints err | slower_in_bf16)" "0 "
        check "$name $bf16: one model" one_model 2
        hashes >"model$bf16"
    done
    check "$name --bf16: another model" differs model model--bf16
    launch run -n 2 "$examples/$name" --max-steps 3 --limit 300 --quiet --recompute </dev/null # all but the norms
    check "$name --recompute: the same bits" is "$status $(complaints err) $(hashes)" "0  $(cat model)"
done
launch run -n 2 "$examples/cnn" --deep --epochs 2 --limit 300 --channels 4 --quiet </dev/null # to the end of its cycle
check "cnn --deep: ends well" is "$status $(complaints err)" "0 "
check "cnn --deep: one model" one_model 2
launch run -n 2 "$examples/cnn" --epochs 2 --limit 2000 --channels 8 --quiet </dev/null
check "cnn, 2 epochs of 2,000 samples: accuracy $(number 'test accuracy') is at least 0.7" \
    holds "$(number 'test accuracy') >= 0.7"
launch run -n 2 "$examples/resnet" --epochs 2 --limit 2000 --width 8 --batch-size 16 --quiet </dev/null
check "resnet, 2 epochs of 2,000 samples: accuracy $(number 'test accuracy') is at least 0.6" \
    holds "$(number 'test accuracy') >= 0.6"

if script --version >/dev/null 2>&1; then
    LS_TEST_MARK=$mark script -qec "$lockstep run -n 2 $examples/fashion_mnist --epochs 1 --max-steps 200 --save seen" \
        /dev/null >out 2>err </dev/null
    check "on a terminal: ends well" is $? 0
    check "on a terminal: the bar is drawn over itself" test "$(grep -o $'\r0/1(t): ' out | wc -l)" -ge 2
    check "on a terminal: what is left of a longer bar is wiped away" says out $']\033\\[K'
    check "on a terminal: the result lines stand alone" says out $'^test accuracy: 0[.0-9]*\r*$'
    LS_TEST_MARK=$mark script -qec "stty cols 50; $lockstep run -n 2 $examples/fashion_mnist --epochs 1 --max-steps 200 --save seen" \
        /dev/null >out 2>err </dev/null
    check "on a narrow terminal: what is redrawn keeps to its row" \
        is "$(grep -aoP '\r[^\r\n]*\x1b\[K(?=\r.)' out | awk '{ print (length() > 49 + 4) }' | sort -u)" 0
    LS_TEST_MARK=$mark script -qec "$lockstep run -n 2 ${quick[*]}" /dev/null >out 2>err </dev/null
    check "on a terminal, --quiet: no bar" is "$(grep -c '%|' out)" 0
else
    echo "SKIPPED progress on a terminal: no script here (Debian: bsdutils)"
fi

# ---- a model in stages ----
for ranks in 1 2 3; do
    launch run -n $ranks "$examples/pipeline" --max-steps 5 --layers 2 --hidden 32 </dev/null
    check "pipeline on $ranks: ends well" is "$status" 0
    check "pipeline on $ranks: a stage on each rank" is "$(grep -c '^rank [0-2] stage of [0-9]* parameters$' out)" $ranks
    check "pipeline on $ranks: throughput" holds "$(number throughput) > 0"
    check "pipeline on $ranks: learns (accuracy $(number 'test accuracy'))" holds "$(number 'test accuracy') > 0.2"
done
launch run -n 2 "$examples/pipeline" --max-steps 5 --layers 2 --hidden 32 --gpipe </dev/null
check "pipeline: GPipe ends well" is "$status" 0

launch run -n 2 "$examples/pipeline" --trace absent/steps.json </dev/null
check "pipeline: a time line that cannot be written is told before the training" is "$status $(cat out)" "1 "
check "pipeline: once" is "$(sed 's/ (rank ., exit status 1)$//' err)" \
    "pipeline: --trace: cannot write absent/steps.json: No such file or directory"
launch run -n 2 "$examples/pipeline" --hidden 2147483647 </dev/null
check "a pipeline of which no model can be made says why" says err "^pipeline: ls_empty: out of memory: could not allocate .* bytes"
launch run -n 2 "$examples/pipeline" --layers 101 </dev/null
check "pipeline --layers 101: refused" is "$status $(grep -c 'layers 101: must be a whole number from 1 to 100' err)" "2 1"

# ---- by hand: two processes that know only an address ----
port=$("$lockstep" run -n 1 bash -c 'echo $MASTER_PORT')
by_hand() { # RANK
    LS_TEST_MARK=$mark "$examples/mnist_by_hand" --world-size 2 --rank "$1" --host 127.0.0.1 --port "$port" --epochs 1 \
        --max-steps 20 >"out.$1" 2>"err.$1" </dev/null
}
by_hand 1 &
other=$!
by_hand 0
check "mnist_by_hand: rank 0 ends well" is $? 0
wait $other
check "mnist_by_hand: rank 1 ends well" is $? 0
check "mnist_by_hand: rank 0 reports" is "$(grep -cE '^(test accuracy: 0\.[0-9]{4}|throughput: [0-9]+ samples/s)$' out.0)" 2
check "mnist_by_hand: rank 1 only shows its model" is "$(grep -cv '^rank 1 parameters' out.1)" 0
check "mnist_by_hand: one model" is "$(hashes out.0)" "$(hashes out.1)"
check "mnist_by_hand: silent otherwise" is "$(complaints err.0 err.1)" ""
launch run -n 2 "$examples/mnist_by_hand" --epochs 1 --max-steps 20 --quiet </dev/null
check "mnist_by_hand under the launcher: the same model" is "$(hashes)" "$(hashes out.0)"
check "mnist_by_hand --quiet: result lines only" only '^(rank [01] parameters|throughput:|test accuracy:) '
undisturbed=$(hashes)
launch run -n 2 "$examples/mnist_by_hand" --epochs 1 --max-steps 8 --quiet --save by_hand --checkpoint 6 </dev/null
launch run -n 2 "$examples/mnist_by_hand" --epochs 1 --max-steps 20 --quiet --save by_hand --checkpoint 6 --resume \
    </dev/null
check "mnist_by_hand --resume: goes on to the same model" is "$status $(hashes)" "0 $undisturbed"
alone "$examples/mnist_by_hand" --max-steps 20 --quiet
check "mnist_by_hand alone: ends well" is "$status" 0
check "mnist_by_hand alone: one model" one_model 1
finish
