# Ranks that end, or send another message, while others wait for them: on shared memory, over TCP and over Gloo.
# mpi_endings.sh tests MPI.
. "$LS_SOURCE/tests/support/checks.sh"
. "$LS_SOURCE/tests/support/endings.sh"
unset RANK WORLD_SIZE LOCKSTEP_MODULE_PATH LOCKSTEP_BACKEND
at_once=3

ranks() {
    local count=$1
    shift
    launch run -n "$count" "$@" </dev/null
}

check_endings shm ranks
ranks 2 "$LS_BUILD/tests/ending_program" killed now
check "what a rank printed before it was killed is there" says out '^rank 1 was here$'
export LOCKSTEP_BACKEND=tcp
check_endings tcp ranks
if [ -e "$LS_BUILD/lib/lockstep-gloo.so" ]; then
    export LOCKSTEP_BACKEND=gloo
    check_endings gloo ranks
else
    echo "SKIPPED this build has no lockstep-gloo.so"
fi
finish
