# The expected errors of ranks while they wait for a rank that ends or sends another message. See ending_program.c.
#
# check_endings NAME RUN: RUN is a function that gets a number of ranks, a program and its arguments, writes the output
# to files out and err, and stores the exit status in $status. Under mpirun, a failing rank ends the others, sometimes
# before they have printed their errors: NAME is then the MPI library's, and one rank is enough.
check_endings() {
    local name=$1 run=$2 ranks call
    for ranks in 2 3; do
        for call in allreduce large barrier broadcast recv send part scope; do
            beside check_finalize $ranks $call
        done
        for call in barrier recv part; do
            beside check_exit $ranks $call
        done
        beside check_success $ranks eager "what was sent before ls_finalize arrives"
        # MPI continues to send after ls_finalize.
        case $name in shm | tcp | gloo) beside check_sending $ranks ;; esac
        beside check_success $ranks go_on "ls_finalize waits for ranks that go on"
        for call in allreduce recv; do
            beside check_late $ranks $call
        done
        for call in 2 2000000; do
            beside check_tag $ranks $call
        done
    done
    together
}

check_finalize() {
    local ranks=$1 call=$2 text="ls_comm_[a-z]* #[19]: rank 1 called ls_finalize\$"
    "$run" $ranks "$LS_BUILD/tests/ending_program" finalize $call
    case $call in
    part) text="ls_comm_allreduce #1: rank $((ranks - 2)) called ls_finalize (this communicator's ranks 0 to " ;;
    scope) text="ls_irecv from rank 1 with tag 9, which the program never waited for: ls_comm_recv #[12]: rank 1 called" ;; # of ls_scope_end
    esac
    check "$name, $ranks ranks, rank 1 calls ls_finalize, $call: it is named at once" \
        tells $ranks "[02]: LS_ERR_PEER: $text"
}

check_exit() {
    local ranks=$1 call=$2
    "$run" $ranks "$LS_BUILD/tests/ending_program" exit $call
    check "$name, $ranks ranks, rank 1 exits, $call: the others say so" \
        tells $ranks "[02]: LS_ERR_PEER: ls_comm_.* ended without calling ls_finalize"
    check "$name, $ranks ranks, rank 1 exits, $call: so does it" \
        says err "^lockstep warning (rank 1): rank 1 ended without ls_finalize: "
}

check_success() {
    local ranks=$1 what=$2 text=$3
    "$run" $ranks "$LS_BUILD/tests/ending_program" $what x
    check "$name, $ranks ranks: $text" is "$status $(all_well)" "0 $((2 * ranks))"
}

check_sending() {
    local ranks=$1
    "$run" $ranks "$LS_BUILD/tests/ending_program" sending x 10
    check "$name, $ranks ranks, rank 1 calls ls_finalize with a large message under way: the message arrives" \
        grep -Eq "^0: LS_OK: " out
    check "$name, $ranks ranks, a large message under way: nothing that was written afterwards" \
        bash -c '! grep -q "wrong data" out'
    rm -f overwritten
    "$run" $ranks "$LS_BUILD/tests/ending_program" sending late 5
    check "$name, $ranks ranks, a large message that is received after the timeout of ls_finalize: fails" \
        grep -Eq "^0: LS_ERR_(PEER|TIMEOUT): .*rank 1 " out
}

check_late() {
    local ranks=$1 call=$2
    "$run" $ranks "$LS_BUILD/tests/ending_program" late $call
    check "$name, $ranks ranks, rank 1 is late, $call: the log says who waits" says err \
        "^0 logs: ls_comm_$call #[13] has waited [0-9.]* s for ranks\? 1.* last call was ls_comm_barrier #2"
    check "$name, $ranks ranks, rank 1 is late, $call: all ends well" is "$status $(all_well)" "0 $((2 * ranks))"
}

check_tag() {
    local ranks=$1 count=$2
    "$run" $ranks "$LS_BUILD/tests/ending_program" tag $count 2
    check "$name, $ranks ranks, $count numbers with another tag: both ranks, and tags, are named" tells_of_tags
}

# tells RANKS TEXT: each rank except 1 prints only this text; under MPI, at least some of them do.
tells() {
    local found
    found=$(grep -c "^$2" out)
    ! grep '^[02]: LS_' out | grep -qv "^$2" || return 1
    case $name in *mpi*) [ "$found" -ge 1 ] ;; *) is "$found" $(($1 - 1)) ;; esac
}

all_well() {
    tr -d '\r' <out | grep -c '^[012]: \(finalize \)\?LS_OK: $'
}

# The receiver knows the tags of waiting messages. If content also waits for its receiver, the sender may fail first.
tells_of_tags() {
    grep -q "^0: LS_ERR_TIMEOUT: ls_comm_recv #1: rank 1 sent nothing with tag 5 within 2 s; .* tags\? 4.* from it wait" out ||
        grep -q "^[01]: .*ls_comm_send #1: rank 0 did not receive the message with tag 4 within 2 s" out || {
        sed 's/^/        out: /' out # what it was instead
        false
    }
}
