# `lockstep run` with wrong arguments: one clear message each, the right exit status, and no process started.
. "$LS_SOURCE/tests/support/checks.sh"

# refuses NAME STATUS SENTENCE ARGUMENTS...
refuses() {
    local name=$1 wanted=$2 sentence=$3
    shift 3
    launch "$@" </dev/null
    check "$name: exit status $wanted" is "$status" "$wanted"
    check "$name: says so" says err "$sentence"
    check "$name: in one line, and nothing else" lines err 1
    check "$name: nothing on standard output" is "$(wc -c <out)" 0
}

printf 'echo started >>started\n' >trainer && chmod +x trainer
echo "#!$scratch/absent" >orphan && chmod +x orphan
printf 'int main(void) { return 0; }\n' >plain.c
mkdir folder

refuses "-n 0" 2 "-n '0': N must be a whole number from 1" run -n 0 ./trainer
refuses "-n abc" 2 "-n 'abc': N must be a whole number" run -n abc ./trainer
refuses "-n -3" 2 "-n '-3': N must be a whole number" run -n -3 ./trainer
refuses "-n 2x" 2 "-n '2x': N must be a whole number" run -n 2x ./trainer
refuses "-n too many" 2 "from 1 to 4096" run -n 99999999999999999999 ./trainer
refuses "-n without its number" 2 "-n requires the argument N" run -n
refuses "--ranks 0" 2 "N must be a whole number" run --ranks 0 ./trainer
refuses "--grace of no number" 2 "--grace 'soon': SECONDS must be a number" run --grace soon ./trainer
refuses "--grace below zero" 2 "SECONDS must be a number of seconds from 0" run --grace -1 ./trainer
refuses "--grace nan" 2 "SECONDS must be a number of seconds from 0" run --grace nan ./trainer
refuses "--max-restarts below zero" 2 "K must be a whole number from 0" run --max-restarts -1 ./trainer
refuses "GPUs in a way that there is not" 2 "--gpus 'all': must be each or none" run --gpus all ./trainer
refuses "no program" 2 "no PROGRAM given" run -n 2
refuses "no program after --" 2 "no PROGRAM given" run -n 2 --
refuses "an option nearly right" 2 "unknown option --prefx; did you mean --prefix?" run --prefx ./trainer
refuses "an option cut short" 2 "unknown option --max-restart; did you mean --max-restarts?" run --max-restart 1 ./trainer
refuses "an option of the program's" 2 "unknown option --epochs; options of PROGRAM go after" run --epochs 3 ./trainer
refuses "as mpirun calls it" 2 "unknown option -np; did you mean -n?" run -np 2 ./trainer
refuses "a meeting place for one machine" 2 "--rendezvous needs --nnodes" run -n 2 --rendezvous here:29500 ./trainer
refuses "a key for one machine" 2 "--key-file needs --nnodes" run -n 2 --key-file job.key ./trainer
refuses "a folder for a key" 2 "--key-file ./folder: this is a folder" run --nnodes 2 --node-rank 0 \
    --rendezvous 127.0.0.1:1 --key-file ./folder ./trainer
(umask 077; printf 'A\0rest of the secret\n' >random; : >empty; printf '%0257d\n' 1 >long)
for key in "random: this file is not text" "empty: its first line must be" "long: its first line must be"; do
    refuses "a key file that is ${key%%:*}" 2 "--key-file $key" run --nnodes 2 --node-rank 0 --rendezvous 127.0.0.1:1 \
        --key-file "${key%%:*}" ./trainer
done
refuses "a letter that is no option" 2 "unknown option -x" run -x ./trainer
refuses "a value for a flag" 2 "--no-bind=2: this option takes no value" run --no-bind=2 ./trainer
refuses "no command" 2 "no command given"
refuses "a command nearly right" 2 "unknown command 'rnu'; did you mean 'lockstep run'?" rnu -n 2 ./trainer
refuses "a command far off" 2 "unknown command 'frobnicate'" frobnicate
refuses "an output folder that cannot be" 2 "--output-dir /proc/no: cannot create" run --output-dir /proc/no ./trainer

refuses "a program that is nowhere" 127 "no program 'no-such-program' in this folder or in PATH" run -n 2 no-such-program
refuses "a path that is nowhere" 127 "cannot find the program './no-such': No such file" run -n 2 ./no-such
refuses "a program in this folder without ./" 127 "write ./trainer" run -n 2 trainer
refuses "an empty name" 127 "name is empty" run -n 2 ""
refuses "a script whose interpreter is missing" 127 "interpreter" run -n 2 ./orphan
refuses "a file that is no program" 126 "'./plain.c' is not executable.*chmod +x" run -n 2 ./plain.c
refuses "a folder" 126 "'./folder' is a folder" run -n 2 ./folder
refuses "a script without its first line" 126 "first line like #!/bin/sh" run -n 2 ./trainer
check "none of them started anything" test ! -e started

# ---- options after the program, which belong to the program ----
# hints NAME WANTED ARGUMENTS...: the program runs, and the hint is printed or not.
hints() {
    local name=$1 wanted=$2
    shift 2
    launch run "$@" </dev/null
    check "$name: the program runs" is "$status" 0
    check "$name: $wanted hints" lines err "$wanted"
}
hints "-n after the program" 1 bash -c true -n 2
check "it says what to write" says err "only 1 rank is started, and -n 2 is passed to bash: place options of .lockstep run. before the program (lockstep run -n 2 bash"
hints "-np after the program" 1 bash -c true -np 4
hints "--ranks after the program" 1 bash -c true --ranks 2
hints "--ranks=2 after the program" 1 bash -c true --ranks=2
hints "-n2 after the program" 1 bash -c true -n2
hints "-n2 of another kind" 0 bash -c true -n2nd
hints "-n on both sides" 0 -n 1 bash -c true -n 2
hints "-n of another kind" 0 bash -c true -n name
hints "-n after --" 0 bash -c true -- -n 2
hints "-n at the end" 0 bash -c true -n

launch --help
check "--help succeeds" is "$status" 0
check "--help lists run" says out "run .*start a program"
launch run --help
check "run --help succeeds" is "$status" 0
for word in --ranks --gpus CUDA_VISIBLE_DEVICES --prefix --grace --max-restarts --no-bind --output-dir LOCKSTEP_KEY "exit status" examples; do
    check "run --help tells of $word" says out "$word"
done
for words in --help --version "run --help" "bench --help"; do
    "$lockstep" $words >/dev/full 2>err
    check "$words to a full disk: exit status 1" is $? 1
    check "$words to a full disk: one sentence" is "$(cat err)" \
        "lockstep: cannot write to standard output: No space left on device"
done
launch --version
check "--version tells the version" says out '^lockstep [0-9]*\.[0-9]*\.[0-9]*$'
finish
