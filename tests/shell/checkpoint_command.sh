# `lockstep checkpoint`: its output for valid, damaged and different checkpoints, and for other folders.
. "$LS_SOURCE/tests/support/checks.sh"

program=$LS_BUILD/tests/checkpoint_program
launch run -n 2 "$program" </dev/null
check "there is something to look at" is "$status" 0
newest=run/epoch-000006-step-0000000126

# wrong STATUS SENTENCE ARGUMENTS...: one message on standard error, and no other output.
wrong() {
    local wanted=$1 sentence=$2
    shift 2
    launch checkpoint "$@"
    check "checkpoint $*: exit status" is "$status" "$wanted"
    check "checkpoint $*: one sentence" is "$(cat err)" "$sentence"
    check "checkpoint $*: nothing else" is "$(wc -c <out)" 0
}

launch checkpoint --help
check "--help" is "$status $(wc -c <err)" "0 0"
check "--help tells the actions" says out "^  verify PATH"
launch checkpoint ls --help
check "ls --help" says out "^usage: lockstep checkpoint ACTION PATH"

# ---- ls ----
launch checkpoint ls run
check "ls: a line for each checkpoint" is "$status $(wc -l <out)" "0 $(ls run | grep -c epoch-)"
check "ls: the newest is the last" says <(tail -1 out) '^epoch-000006-step-0000000126    2 ranks .* KiB'
check "ls: one is the best" is "$(grep -c '  best' out)" 1
launch checkpoint ls --json run
check "ls --json" is "$(python3 -c 'import json,sys; l=[json.loads(x) for x in open("out")]
print(len(l), l[-1]["step"], l[-1]["epochs_run"], l[-1]["world_size"], l[-1]["readable"], sum(x["best"] for x in l))')" \
    "$(ls run | grep -c epoch-) 126 6 2 True 1"
mkdir empty
wrong 1 "lockstep checkpoint: empty contains no checkpoints" ls empty
wrong 1 "lockstep checkpoint: $newest contains no checkpoints: it is a checkpoint; use \`lockstep checkpoint show\`" ls $newest
wrong 1 "lockstep checkpoint: cannot read nowhere: No such file or directory" ls nowhere

cp -r run unreadable
echo nothing >"unreadable/${newest#run/}/manifest.json"
launch checkpoint ls unreadable
check "ls: one cannot be read, all are listed" is "$status $(wc -l <out) $(wc -l <err)" "1 $(ls run | grep -c epoch-) 0"
check "ls: it is named" says out "^${newest#run/}  checkpoint: unreadable/${newest#run/}/manifest.json is damaged: "
check "ls: the others are as they were" is "$(grep -c ' ranks ' out)" "$(($(ls run | grep -c epoch-) - 1))"
launch checkpoint ls --json unreadable
check "ls --json: one cannot be read" is "$status $(grep -c '"readable":false' out)" "1 1"
rm -r unreadable
cp -r run unreadable
rm "unreadable/${newest#run/}/model.safetensors"
launch checkpoint ls unreadable
check "ls: a missing file is named" says out "^${newest#run/}  checkpoint: unreadable/${newest#run/}/model.safetensors is missing"
check "ls: with a missing file, the exit status is 1" is "$status" 1
printf x >"unreadable/${newest#run/}/model.safetensors"
launch checkpoint ls unreadable
check "ls: a truncated file is named" says out "/model.safetensors is damaged: it has 1 bytes, but"

# ---- show ----
launch checkpoint show run
check "show: of a folder the newest" is "$status $(head -1 out)" "0 $newest"
check "show: where training stood" says out '^epochs run     6$'
check "show: results" says out '^  val_loss  *[0-9.]*$'
check "show: tensors" says out '^  0.weight  *f32  *\[16, 8\]  *model.safetensors$'
launch checkpoint show $newest --json
check "show --json" is "$(python3 -c 'import json; o=json.load(open("out"))
print(o["step"], o["epochs"], o["world_size"], o["continues"], o["stopped"], len(o["files"]), len(o["tensors"]))')" "126 6 2 False False 4 8"
wrong 1 "lockstep checkpoint: empty is not a checkpoint and contains no complete checkpoint" show empty

# ---- verify ----
launch checkpoint verify run
check "verify: all are whole" is "$status $(grep -c '  whole$' out)" "0 $(ls run | grep -c epoch-)"
cp -r run harmed
printf x | dd of=harmed/${newest#run/}/model.safetensors bs=1 seek=200 conv=notrunc status=none
launch checkpoint verify harmed
check "verify: one is damaged" is "$status $(grep -vc '  whole$' out)" "1 1"
check "verify: and named" says out "^harmed/${newest#run/}  checkpoint: harmed/${newest#run/}/model.safetensors is damaged: its checksum"
launch checkpoint verify --json harmed/${newest#run/}
check "verify --json" is "$status $(python3 -c 'import json; o=json.load(open("out")); print(o["whole"], "model.safetensors is damaged" in o["reason"])')" \
    "1 False True"
wrong 2 "lockstep checkpoint: err is a file: a checkpoint is a folder" verify err
wrong 1 "lockstep checkpoint: harmed/${newest#run/}/model.safetensors is damaged: its checksum differs from the checksum of the written file" \
    show harmed/${newest#run/}
launch checkpoint show harmed
check "a damaged one is passed over, and named" is "$status $(head -1 out | grep -c epoch-000006) $(grep -c 'model.safetensors is damaged.*the previous checkpoint is tried' err)" "0 0 1"

# ---- diff ----
launch checkpoint diff run $newest
check "diff: the same" is "$status $(cat out err | wc -c)" "0 0"
first=run/$(ls run | grep epoch- | head -1)
launch checkpoint diff "$first" $newest
check "diff: others" is "$status" 1
check "diff: by how much" says out '^model.safetensors: 0.weight: [0-9]* of 128 elements differ, by [0-9.e-]* at most$'
check "diff: of the optimizer, too" says out '^optimizer.safetensors: 0.weight.exp_avg: '
launch checkpoint diff "$first" $newest --json
check "diff --json" is "$(python3 -c 'import json; o=json.load(open("out")); print(o["same"], o["reason"], min(t["elements"] for t in o["tensors"]) > 0)')" "False None True"

# ---- export ----
launch checkpoint export run/best weights.safetensors
check "export" is "$status $(cat out err | wc -c)" "0 0"
check "export: the model's file" cmp weights.safetensors run/best/model.safetensors
launch checkpoint show weights.safetensors
check "show: a file of weights" is "$status $(cat err | wc -c) $(wc -l <out)" "0 0 $(launch checkpoint show run/best; sed '1,/^parameters/d' out | wc -l)"
launch checkpoint show weights.safetensors
check "show: its shapes" says out '^  0.weight  *f32  *\['
launch checkpoint show weights.safetensors --json
check "show --json: a file of weights" is "$(python3 -c 'import json; o=json.load(open("out")); print(sorted(o), o["tensors"][0]["dtype"])')" \
    "['metadata', 'path', 'tensors'] f32"
python3 - weights.safetensors named.safetensors <<'PY'
import json, sys
data = open(sys.argv[1], "rb").read()
length = int.from_bytes(data[:8], "little")
header = json.loads(data[8:8 + length])
header["__metadata__"] = {"class 0": "adelie", "class 1": "gentoo"}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(sys.argv[2], "wb").write(len(text).to_bytes(8, "little") + text + data[8 + length:])
PY
launch checkpoint show named.safetensors
check "show: the metadata of a file" is "$status $(tail -3 out | tr -s ' \n' ' ')" "0 metadata class 0 adelie class 1 gentoo "
launch checkpoint show named.safetensors --json
check "show --json: the metadata of a file" is "$(python3 -c 'import json; print(json.load(open("out"))["metadata"]["class 1"])')" gentoo
mkdir aliased
(cd aliased && ALIASED=1 launch run -n 2 "$program" </dev/null)
launch checkpoint show aliased/run
check "show: the metadata of a checkpoint" is "$status $(tail -2 out | tr -s ' \n' ' ')" "0 metadata 4.first 0.weight "
launch checkpoint show aliased/run --json
check "show --json: the metadata of a checkpoint" is "$(python3 -c 'import json; print(json.load(open("out"))["metadata"])')" \
    "{'4.first': '0.weight'}"
launch checkpoint diff weights.safetensors run/best/model.safetensors
check "diff: equal files" is "$status $(cat out err | wc -c)" "0 0"
launch checkpoint diff "$first/model.safetensors" "$newest/model.safetensors"
check "diff: files that differ" is "$status" 1
check "diff: files, by how much" says out "^$first/model.safetensors: 0.weight: [0-9]* of 128 elements differ, by "
kinds="is a checkpoint: compare the file with the weights that \`lockstep checkpoint export $newest FILE\` writes"
wrong 2 "lockstep checkpoint: diff: weights.safetensors is a file, but $newest $kinds" diff weights.safetensors run
wrong 2 "lockstep checkpoint: diff: weights.safetensors is a file, but $newest $kinds" diff $newest weights.safetensors
wrong 1 "lockstep checkpoint: cannot read nothing: No such file or directory" diff weights.safetensors nothing
head -c 100 weights.safetensors >short.safetensors
launch checkpoint show short.safetensors
check "show: a damaged file" is "$status $(wc -l <err)" "1 1"
if [ -e "$LS_BUILD/lib/lockstep-hdf5.so" ]; then
    launch checkpoint export run/best weights.h5 --hdf5
    check "export --hdf5" is "$status $(cat out err | wc -c)" "0 0"
    if /usr/bin/python3 -c 'import h5py' 2>/dev/null; then
        check "export --hdf5: h5py reads the tensors" /usr/bin/python3 "$LS_SOURCE/tests/shell/h5py_reads.py" weights.h5 \
            run/best/model.safetensors
    else
        echo "SKIPPED reading the HDF5 file: h5py is not installed (Debian: python3-h5py)"
    fi
    wrong 1 "lockstep checkpoint: cannot write nowhere/x: No such file or directory" export --hdf5 run nowhere/x
    check "export --hdf5: nothing is left" is "$(ls -A | grep -c weights.h5)" 1
else
    echo "SKIPPED export --hdf5: plug-in hdf5 is not built"
fi
wrong 2 "lockstep checkpoint: ls: --hdf5 is an option of export only" ls run --hdf5
wrong 1 "lockstep checkpoint: cannot write nowhere/x: No such file or directory" export run nowhere/x
for target in $newest/model.safetensors $newest/../$(basename $newest)/manifest.json; do
    wrong 2 "lockstep checkpoint: export: $target is in the checkpoint: choose a file outside of it" export $newest $target
done
message=$(cd $newest && LS_TEST_MARK=$mark "$lockstep" checkpoint export . model.safetensors 2>&1; echo "status $?")
check "export: refused within the checkpoint, too" is "$(echo "$message" | grep -cx -e 'status 2' -e '.*: model.safetensors is in the checkpoint: .*')" 2
launch checkpoint verify run
check "export: no checkpoint has changed" is "$status $(grep -c '  whole$' out)" "0 $(ls run | grep -c epoch-)"

# ---- what cannot be meant ----
wrong 2 "lockstep checkpoint: no action given (usage: lockstep checkpoint ACTION PATH [PATH] [--json] [--hdf5])"
wrong 2 "lockstep checkpoint: unknown action 'verfy'; did you mean 'verify'?" verfy run
wrong 2 "lockstep checkpoint: unknown action 'what'; available: ls, show, verify, diff and export" what
wrong 2 "lockstep checkpoint: diff: 1 path given (usage: lockstep checkpoint diff PATH PATH)" diff run
wrong 2 "lockstep checkpoint: unexpected argument 'c' (usage: lockstep checkpoint ACTION PATH [PATH] [--json] [--hdf5])" diff a b c
wrong 2 "lockstep checkpoint: unknown option --jsn; did you mean --json?" ls run --jsn

finish
