# Checkpoints of models that are sharded over ranks: the same bits on another number of ranks, and one file for all.
. "$LS_SOURCE/tests/support/checks.sh"
. "$LS_SOURCE/tests/support/flips.sh"

program=$LS_BUILD/tests/split_program
run() { # RANKS WAY LOAD SAVE
    launch run -n "$1" "$program" "$2" "$3" "$4" </dev/null
    check "$2 on $1 ranks: $3 to $4" is "$status $(cat err)" "0 "
}
same() { # FOLDER FOLDER: two checkpoints of models that are not sharded have equal bits
    check "$2: the weights of $1" cmp "$1/model.safetensors" "$2/model.safetensors"
    check "$2: the optimizer of $1" cmp "$1/optimizer.safetensors" "$2/optimizer.safetensors"
}

for way in tensor stages; do
    # trained on 2 ranks, then passed on from one number of ranks to another, without a step
    run 2 $way - $way.2
    run 4 $way $way.2 $way.4
    run 3 $way $way.4 $way.3
    run 1 $way $way.3 $way.1
    for ranks in 1 2 3 4; do
        run 1 unsplit $way.$ranks $way.whole.$ranks
        same $way.whole.1 $way.whole.$ranks
        launch checkpoint export $way.$ranks $way.$ranks.file
        check "export of $way on $ranks ranks" is "$status $(cat out err)" "0 "
        check "export of $way on $ranks ranks: the file of a model that is not sharded" \
            cmp $way.$ranks.file $way.whole.1/model.safetensors
        launch checkpoint verify $way.$ranks
        check "verify of $way on $ranks ranks" is "$status" 0
    done
    run 3 $way $way.whole.1 $way.back # and from a model that is not sharded
    run 1 unsplit $way.back $way.whole.back
    same $way.whole.1 $way.whole.back
done
run 2 stages tensor.3 crossed
run 1 unsplit crossed crossed.whole
same tensor.whole.1 crossed.whole
if [ -e "$LS_BUILD/lib/lockstep-hdf5.so" ]; then
    launch checkpoint export tensor.3 joined.h5 --hdf5
    check "export --hdf5 of a sharded model" is "$status $(cat out err)" "0 "
    if /usr/bin/python3 -c 'import h5py' 2>/dev/null; then
        check "export --hdf5 of a sharded model: h5py reads the tensors" /usr/bin/python3 \
            "$LS_SOURCE/tests/shell/h5py_reads.py" joined.h5 tensor.whole.1/model.safetensors
    fi
fi

# Checkpoints of different shardings have no comparable files.
sentence="the models are sharded in different ways: \`lockstep checkpoint export\` of both makes files that can be compared"
for pair in "tensor.2 tensor.3" "tensor.2 stages.2" "tensor.whole.1 tensor.2" "stages.2 stages.whole.1"; do
    launch checkpoint diff $pair
    check "diff of $pair" is "$status $(cat out err)" "1 $sentence"
done
launch checkpoint diff --json tensor.2 tensor.3
check "diff --json of two shardings" is "$status $(python3 -c 'import json; o=json.load(open("out"))
print(o["same"], o["reason"], o["tensors"])')" "1 False $sentence []"
cp -r tensor.2 tensor.2.copy
launch checkpoint diff tensor.2 tensor.2.copy
check "diff of one sharding" is "$status $(cat out err)" "0 "

# Each file of a sharded model has its own metadata.
launch checkpoint show tensor.2
check "show of a sharded model: metadata" is "$status $(grep ^metadata out | tr '\n' ' ')" \
    "0 metadata of model-0000.safetensors metadata of model-0001.safetensors "
launch checkpoint show --json tensor.2
check "show --json of a sharded model: metadata" is "$(python3 -c 'import json; print(list(json.load(open("out"))["metadata"]))')" \
    "['model-0000.safetensors', 'model-0001.safetensors']"

# An inverted byte in any file of any rank is found, and the message names the file.
flips_are_found tensor.4 13
flips_are_found stages.4 13
for file in $(ls -A tensor.4); do
    flip "flipped/$file" 60
    launch run -n 2 "$program" stages flipped never </dev/null
    check "a damaged $file of 4 stages: refused" is "$status $(grep -o -m 1 "$file is damaged: " err)" "1 $file is damaged: "
    flip "flipped/$file" 60
done

# A lost file is found before anything is loaded, and the message names it.
cp -r tensor.3 lost
rm lost/model-0001.safetensors
launch run -n 2 "$program" tensor lost never </dev/null
check "a lost file: refused" is "$status $(grep -o -m 1 'model-0001.safetensors is missing' err)" "1 model-0001.safetensors is missing"
launch checkpoint export lost never
check "export with a lost file" is "$status $(cat err)" "1 lockstep checkpoint: lost/model-0001.safetensors is missing"
check "a lost file: nothing is left" is "$(ls -d never* 2>/dev/null)" ""
launch checkpoint export "$LS_SOURCE/tests/fixtures/checkpoint_sharded" never
check "export of an older checkpoint" is "$status $(grep -c 'the manifest does not list the parts' err)" "1 1"

finish
