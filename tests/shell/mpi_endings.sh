# Backend mpi: how jobs end in which a rank ends, leaves or is stopped while others wait for it.
. "$LS_SOURCE/tests/support/mpi.sh"
. "$LS_SOURCE/tests/support/endings.sh"

check_flavour() {
    local flavour=$1 ranks carrier call what
    for carrier in mpi shm; do
        export LOCKSTEP_BACKEND=$carrier
        for call in barrier allreduce send; do
            [ $carrier = mpi ] || [ $call = allreduce ] || continue # tests of shm itself have the rest
            for what in 0 3 kill stop leave; do
                mpi "$flavour" 3 ./quitter $what $call
                check "$flavour, $carrier, $call, rank 1: $what: the launcher fails" test "$status" != 0
                check "$flavour, $carrier, $call, rank 1: $what: in time" test "$status" != 124
                check "$flavour, $carrier, $call, rank 1: $what: nothing is left" nobody_soon
                case $what in
                leave) # in a send the others wait for each other, and are ended by the launcher
                    [ $call = send ] || check "$flavour, $carrier, $call: who left is named" \
                        says out "^[02]: LS_ERR_PEER: ls_comm_$call #4: rank 1 .*left without making this call$"
                    ;;
                stop)
                    check "$flavour, $carrier, $call: who is silent is named" \
                        says out "^[02]: LS_ERR_TIMEOUT: ls_comm_[a-z]* #[0-9]*: rank 1 .*\(did not .*\|sent nothing .*\) within 3 s"
                    ;;
                esac
            done
        done
    done
    export LOCKSTEP_BACKEND=mpi
    mpi "$flavour" 2 ./quitter leave send # the fourth of a row, which the other rank expects
    check "$flavour, send, who left in a row is named" \
        says out "^0: LS_ERR_PEER: ls_comm_recv #8: rank 1 left without making this call$"

    mpi_here() {
        mpi "$flavour" "$@"
    }
    check_endings "$flavour, mpi" mpi_here
}

cp "$LS_SOURCE/tests/shell/mpi_quitter.c" quitter.c
build quitter
each_flavour "$@"
finish_flavours
