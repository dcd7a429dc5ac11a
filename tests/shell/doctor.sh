# `lockstep doctor`: finds the installed features, detects faults, does not reveal the key, and writes JSON.
. "$LS_SOURCE/tests/support/checks.sh"
for name in $(env | grep -o '^\(LOCKSTEP\|OMPI\|PMI\|SLURM\)_[A-Z_]*'); do unset "$name"; done
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT

is_json() {
    if command -v python3 >/dev/null; then
        python3 -m json.tool out >/dev/null
    else
        [ "$(head -1 out)$(tail -1 out)" = "{}" ]
    fi
}

# ---- for people ----
launch doctor </dev/null
check "ends well here" is "$status" 0
check "says so" says out "^everything required works"
check "nothing on standard error" is "$(wc -c <err)" 0
for section in backends devices cores memory limits network libraries environment; do
    check "tells of $section" says out "^$section\$"
done
check "the version comes first" is "$(head -1 out)" "$("$lockstep" --version)"
check "backend self works" says out "^  self  *works: 1 rank computed and checked"
check "backend shm works" says out "^  shm  *works: 2 ranks computed and checked"
check "backend tcp works" says out "^  tcp  *works: 2 ranks computed and checked"
for backend in mpi gloo; do
    check "$backend works, or it says why not" says out "^  $backend  *\(works\|not here\): ..."
done
check "nccl is here, or it says why not" says out "^  nccl  *\(here, not tested: its collectives\|not here: ...\)"
if [ -e "$LS_BUILD/lib/lockstep-nccl.so" ] && [ ! -e /dev/nvidiactl ]; then
    check "nccl without a GPU: so it says" says out "^  nccl  *not here: \(there is no NVIDIA driver\|this process has no GPU\)"
fi
if compgen -G "$LS_BUILD/lib/lockstep-mpi_*.so" >/dev/null; then
    check "mpi: two ranks under mpirun" says out "^  mpi  *works: 2 ranks computed and checked an all-reduce; .*MPI* [0-9]"
    OMPI_COMM_WORLD_RANK=0 launch doctor </dev/null
    check "mpi within an MPI job: not tested" says out "^  mpi  *here, not tested: .*within an MPI job"
    check "mpi within an MPI job: no problem" is "$status" 0
    PATH=$scratch/absent launch doctor </dev/null
    check "mpi without mpirun: not tested" says out "^  mpi  *here, not tested: .*neither mpirun.* is in PATH"
    launch doctor </dev/null
else
    echo "SKIPPED the self-test of backend mpi: this build has no module for it (scripts/install-deps --mpi)"
fi
allowed() { sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status; }
one=$(allowed | grep -o '^[0-9]*')
LS_TEST_MARK=$mark taskset -c "$one" "$lockstep" doctor >bound 2>err </dev/null
check "the cores it may use are counted" says bound "^  usable  *1: $one\$"
check "and named" says out "^  usable  *[0-9]*: $(allowed)\$"
check "open files are those of ulimit" says out "^  open files  *$(ulimit -n)\$"
check "values are aligned" is "$(grep '^  [a-z]' out | grep -vc '^  [a-zA-Z0-9: ]\{22\} [^ ]')" 0
check "plain text in a pipe" is "$(LC_ALL=C tr -d '\n -~\200-\377' <out | wc -c)" 0

# ---- OpenBLAS ----
if grep -q '^  openblas .* DYNAMIC_ARCH' out && grep -q '^flags.* fma ' /proc/cpuinfo; then
    OPENBLAS_CORETYPE=Prescott launch doctor </dev/null
    check "OpenBLAS with old code: a note" says out "note: .*OpenBLAS uses its code for Prescott.*OPENBLAS_CORETYPE=[SH]"
    check "it is not a problem" is "$status" 0
    check "the variable is listed" says out "^  OPENBLAS_CORETYPE  *Prescott\$"
    OPENBLAS_CORETYPE=Haswell launch doctor </dev/null
    check "OpenBLAS with FMA: no note" is "$(grep -c 'OpenBLAS uses its code' out)" 0
else
    echo "SKIPPED the note about OpenBLAS: it has one kind of code, or the processor has no FMA"
fi

# ---- GPUs ----
check "cuda: GPUs, or why there are none" says out "^  cuda  *\([1-9][0-9]* GPU\|not here: ...\)"
LS_GPUS=$(ls /dev | grep -c '^nvidia[0-9]*$')
[ "$LS_GPUS" -gt 0 ] || check "no GPU, no word about its like" is "$(grep -c "^  cuda:" out)" 0
# imagined N: runs lockstep doctor with a module cuda that has N GPUs.
imagined() {
    local gpus=$1
    shift
    FAKE_CUDA=$gpus LOCKSTEP_MODULE_PATH=$LS_BUILD/tests/fake_cuda launch doctor "$@" </dev/null
}
if [ -e "$LS_BUILD/tests/fake_cuda/lockstep-cuda.so" ]; then
    imagined 2
    check "two GPUs: all is well" is "$status" 0
    check "two GPUs: with the versions of what they need" says out \
        "^  cuda  *2 GPUs; driver for CUDA 13.0, CUDA 13.0, cuBLAS 13.0.2, cuDNN 9.12.0\$"
    check "two GPUs: what the first is" says out \
        "^  cuda:0  *Imagined GPU, 80.0 GiB, compute capability 9.0, 132 multiprocessors, PCI bus 0000:19:00.0\$"
    check "two GPUs: why the second does not work" says out "^  cuda:1  *cannot be used: the GPU has fallen off the bus"
    imagined 2 --json
    check "two GPUs: JSON" is_json
    for fact in '"driver": "13.0"' '"cudnn": "9.12.0"' '"memory_bytes": 85899345920' '"capability": "9.0"' \
        '"multiprocessors": 132' '"bus": "0000:19:00.0"' '"reason": "the GPU has fallen off the bus"'; do
        check "two GPUs: JSON has $fact" says out "$fact"
    done
    imagined 0
    check "a driver that does not answer: no problem" is "$status" 0
    check "a driver that does not answer: says so" says out "^  cuda  *not here: no GPU: no driver answers"
    imagined none
    check "a module without a driver: says so" says out "^  cuda  *not here: no GPU: there is no NVIDIA driver; CUDA 13.0"
    FAKE_CUDA_DIES=1 imagined 1
    check "a driver that ends its process does not end the doctor" is "$status $(grep -c '^cores' out)" "0 1"
    check "and is told of" says out "^  cuda  *not here: the search for GPUs was terminated by a signal: Aborted"
    imagined older
    check "a module of another version" says out "^  cuda  *broken: lockstep-cuda.so belongs to a different version of Lockstep"
    launch doctor </dev/null
fi

# ---- for programs ----
launch doctor --json </dev/null
check "--json ends well" is "$status" 0
check "--json is JSON" is_json
for key in version notes problems backends devices cores memory limits network libraries environment ok \
    available reason self_test model online usable physical quota virtual_machine total_bytes \
    available_bytes group_limit_bytes shm_bytes shm_free_bytes locked_memory_bytes open_files ptrace_scope \
    interfaces same_machine other_machines host addresses onednn openblas libpng libjpeg hdf5 netcdf found file; do
    check "--json has $key" says out "\"$key\": "
done
check "--json: two self-tests at least have passed" test "$(grep -c '"self_test": "pass"' out)" -ge 2
check "--json: all is well" says out '"ok": true'
LC_ALL=C launch doctor --help </dev/null
for key in $(sed -n 's/^  "\([a-z]*\)":.*/\1/p' out) backends cores memory limits network libraries environment; do
    check "--help tells of $key" says out "$key"
done

# ---- the environment ----
secret=correct-horse-battery-staple
LOCKSTEP_KEY=$secret LOCKSTEP_TIMEOUT=7 LOCKSTEP_ALGORITHM=allreduce:chunks LOCKSTEP_BACKEND=gloo RANK=1 WORLD_SIZE=2 launch doctor </dev/null
check "variables are shown" says out "^  LOCKSTEP_TIMEOUT  *7\$"
check "the key is said to be set" says out "^  LOCKSTEP_KEY  *(set, not shown)\$"
check "and not shown" is "$(cat out err | grep -c "$secret")" 0
check "half an environment of a job is noted" says out "note: .*cannot join its job: MASTER_ADDR is not set"
check "which breaks nothing" is "$status" 0
LOCKSTEP_ALGORITHM=allreduce:nosuch LOCKSTEP_DEVICE=nosuch launch doctor </dev/null
check "an algorithm that no backend has is noted" says out "note: .*cannot join its job: .*'nosuch' for allreduce"
check "a device that does not exist is noted" says out 'note: .*cannot create tensors: .*no device "nosuch"'
LOCKSTEP_ALGORITHM=allreduce:nosuch WORLD_SIZE=2 RANK=0 launch doctor </dev/null
check "an algorithm is noted after another mistake, too" is "$(grep -c 'cannot join its job: ' out)" 2
LOCKSTEP_ALGORITHM=allreduce:nosuch LOCKSTEP_BACKEND=self launch doctor </dev/null
check "backend self reads no algorithms" is "$(grep -c 'cannot join' out)" 0
LOCKSTEP_ALGORITHM=allreduce:native LOCKSTEP_BACKEND=shm launch doctor </dev/null
check "an algorithm that the chosen backend lacks is noted" says out "note: .*cannot join its job: .*shm has no algorithm"
LOCKSTEP_BACKEND=nosuch launch doctor </dev/null
check "a backend that does not exist is noted" says out 'note: .*cannot join its job: there is no backend "nosuch"'
LOCKSTEP_ALGORITHM=allreduce:chunks LOCKSTEP_INTERFACE=lo launch doctor </dev/null
check "an algorithm that only shm has is not noted" is "$(grep -c 'cannot join' out)" 0
check "LOCKSTEP_INTERFACE counts" says out "^  other machines  *lo (127.0.0.1), as LOCKSTEP_INTERFACE says\$"
LOCKSTEP_INTERFACE=nosuch0 launch doctor </dev/null
check "a LOCKSTEP_INTERFACE that is not there: 1" is "$status" 1
check "a LOCKSTEP_INTERFACE that is not there: says so" says out "PROBLEM: .*LOCKSTEP_INTERFACE: 'nosuch0' is neither"
LOCKSTEP_KEY=$secret launch doctor --json </dev/null
check "--json does not show it either" is "$(cat out err | grep -c "$secret")" 0
env "LOCKSTEP_LOG=$(printf '\377\033[31m')" "$lockstep" doctor --json >out 2>err </dev/null
check "bytes that are no text: still JSON" is_json
env "LOCKSTEP_LOG=$(printf '\033[31m')" "$lockstep" doctor >out 2>err </dev/null
check "bytes that move a terminal's cursor are not passed on" is "$(tr -dc '\033' <out | wc -c)" 0
env "LOCKSTEP_LOG=$(printf '\302\23331m')" "$lockstep" doctor >out 2>err </dev/null
check "nor are those of the second set of controls" is "$(tr -dc '\233' <out | wc -c)" 0
env "LOCKSTEP_LOG=$(printf '\302\23331m')" "$lockstep" doctor --json >out 2>err </dev/null
check "nor with --json" is "$(tr -dc '\233' <out | wc -c)" 0

# ---- faults ----
limited() {
    LS_TEST_MARK=$mark bash -c 'ulimit -n 8; "$@"; echo "status $?"' bash "$lockstep" "$@" 2>err </dev/null | cat >out
    status=$(sed -n 's/^status //p' out)
}
limited doctor
check "too few open files: exit status 1" is "$status" 1
check "too few open files: backend shm fails" says out "^  shm  *FAILS: .*open files"
check "too few open files: a problem where it is found" says out "^  PROBLEM: *backend shm does not work"
check "too few open files: and at the end" says out "^[0-9]* problems\{0,1\}:\$"
limited doctor --json
check "too few open files: --json exits with 1 too" is "$status" 1
check "too few open files: --json says so" says out '"ok": false'
check "too few open files: --json has a failed test" says out '"self_test": "fail"'

# ---- wrong words ----
# refuses NAME SENTENCE ARGUMENTS...
refuses() {
    local name=$1 sentence=$2
    shift 2
    launch "$@" </dev/null
    check "$name: exit status 2" is "$status" 2
    check "$name: says so" says err "$sentence"
    check "$name: in one line" lines err 1
    check "$name: nothing on standard output" is "$(wc -c <out)" 0
}
refuses "a word too many" "unexpected argument 'shm'" doctor shm
refuses "an option nearly right" "unknown option --jsn; did you mean --json?" doctor --jsn
refuses "a value for a flag" "takes no value" doctor --json=1
refuses "the command nearly right" "did you mean 'lockstep doctor'?" docter
"$lockstep" doctor >/dev/full 2>err </dev/null
check "a full disk is an error" is "$?" 1
check "a full disk: says so" says err "cannot write to standard output"
finish
