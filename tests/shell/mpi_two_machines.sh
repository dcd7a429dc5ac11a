# Backend mpi between two machines, simulated by network namespaces joined by a cable that can be cut, with the MPI
# libraries in the arguments (openmpi, mpich), if they are installed. A script that enters the other namespace replaces
# ssh. Needs permission to make namespaces.
. "$LS_SOURCE/tests/support/mpi.sh"
unset LOCKSTEP_BACKEND # ranks of two machines have no other choice
. "$LS_SOURCE/tests/support/machines.sh"

# The replacement for ssh in both launchers: gets a host, possibly after options, and a command. The machines need
# different names, because Open MPI distinguishes them by name.
cat >agent <<END
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
shift
exec ip netns exec $b unshare --uts sh -c "hostname machine-b; \$*"
END
chmod +x agent
unshare --uts true 2>err || skip "host names of their own are not permitted here: $(head -1 err)"

# mpi FLAVOUR RANKS PROGRAM...: on machine a and, for the second half of the ranks, on b; as in support/mpi.sh. UCX,
# which this MPICH uses, would see one kernel and use shared memory.
mpi() {
    local flavour=$1 each=$(($2 / 2)) command
    shift 2
    if [ "$flavour" = openmpi ]; then
        command="mpirun.openmpi --allow-run-as-root --oversubscribe -H 10.77.0.1:$each,10.77.0.2:$each --prefix /usr
            --mca plm_rsh_agent $scratch/agent --mca oob_tcp_if_include cable --mca pml ob1 --mca btl self,vader,tcp
            --mca btl_tcp_if_include cable -x LOCKSTEP_TIMEOUT -x LS_TEST_MARK -np $((2 * each))"
    else
        command="env UCX_TLS=tcp,self UCX_NET_DEVICES=cable mpirun.mpich -launcher ssh -launcher-exec $scratch/agent -iface cable
            -hosts 10.77.0.1:$each,10.77.0.2:$each -np $((2 * each))"
    fi
    run_job ip netns exec "$a" unshare --uts sh -c "hostname machine-a; exec $(echo $command) $*"
}

# Adds up until an error, and writes it to a file: no other output passes a cut cable.
cat >adder.c <<'END'
#include <lockstep/comm.h>
#include <stdio.h>
int main(int argc, char **argv) {
    ls_comm *world = ls_init(&(ls_init_options){.timeout = 1});
    char path[4096];
    float number = 1;
    ls_status status = world == NULL ? ls_error_status() : LS_OK;
    snprintf(path, sizeof path, "%s.%d", argv[argc - 1], ls_comm_rank(world));
    for (long i = 0; status == LS_OK; i++) {
        number = 1;
        status = ls_comm_allreduce(world, &number, &number, 1, LS_F32, LS_SUM, NULL);
        if (i == 10) {
            FILE *file = fopen(path, "w");
            fclose(file);
        }
    }
    FILE *file = fopen(path, "w");
    fprintf(file, "%s: %s\n", ls_status_name(status), ls_error_message());
    fclose(file);
    return 1;
}
END
cc -I"$LS_SOURCE/include" adder.c -o adder -L"$LS_BUILD/lib" -llockstep -Wl,-rpath,"$LS_BUILD/lib" || exit 1

# The program's own communicators: one of all ranks, and one for each machine.
cat >own.c <<'END'
#include <lockstep/mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm machine;
    MPI_Comm_split(MPI_COMM_WORLD, rank / (size / 2), rank, &machine);
    ls_comm *all = ls_comm_from_mpi(MPI_COMM_WORLD, NULL), *near = ls_comm_from_mpi(machine, NULL);
    float sum = 1;
    if (ls_comm_allreduce(all, &sum, &sum, 1, LS_F32, LS_SUM, NULL) != LS_OK ||
        ls_comm_allreduce(near, &sum, &sum, 1, LS_F32, LS_SUM, NULL) != LS_OK) {
        printf("%s\n", ls_error_message());
    }
    printf("%s %s %g\n", ls_comm_backend(all), ls_comm_backend(near), sum);
    fflush(stdout); /* for finalize_hung */
    ls_comm_free(near);
    ls_comm_free(all);
    MPI_Comm_free(&machine);
    MPI_Finalize();
    return 0;
}
END

both() {
    [ -e "$1.0" ] && [ -e "$1.1" ]
}
both_say() {
    [ -s "$1.0" ] && [ -s "$1.1" ]
}

check_flavour() {
    local flavour=$1 name attempt
    check "$flavour: a program with lockstep/mpi.h builds" mpi_builds "$flavour" own.c own_$flavour
    for attempt in 1 2 3 4; do
        job_limit=40
        mpi "$flavour" 4 "$scratch/own_$flavour"
        job_limit=120
        finalize_hung "$flavour" 4 || break
        echo "note    MPICH hung in MPI_Finalize (attempt $attempt):"
        cat hung
        end_marked
    done
    check "$flavour: a program's own communicators, 2 ranks on each: ends well" is "$status" 0
    check "$flavour: a program's own communicators, 2 ranks on each: shared memory on one machine, MPI across" \
        is "$(grep -c '^mpi shm 8' out)" 4
    mpi "$flavour" 2 "$lockstep" bench allreduce --sizes 4,64K,1M --iterations 3 --json
    check "$flavour: an all-reduce across: ends well" is "$status" 0
    check "$flavour: an all-reduce across: by backend mpi, with right sums" \
        is "$(grep -c '"backend": "mpi".*"correct": true' out)" 3
    for name in disagreement random_programs; do
        mpi "$flavour" 4 "$LS_BUILD/tests/ranks_$name"
        check "$flavour, 2 ranks on each: $name" is "$status" 0
    done
    mpi "$flavour" 4 "$lockstep" bench allreduce --backend shm --sizes 4 --iterations 1
    check "$flavour: shared memory asked for: refused" test "$status" != 0
    check "$flavour: shared memory asked for: says where the ranks are" \
        says err "rank [0-3] is on machine-[ab] and rank [0-3] on machine-[ab], which do not share memory"

    if tc -n "$a" qdisc add dev cable root netem delay 1ms loss 1% 2>/dev/null; then
        mpi "$flavour" 2 "$lockstep" bench allreduce --sizes 4,64K,1M --iterations 3 --json
        check "$flavour: delay and loss: right sums" is "$(grep -c '"correct": true' out)" 3
        tc -n "$a" qdisc del dev cable root
    else
        echo "SKIPPED $flavour: delay and loss: this kernel has no netem"
    fi

    mpi "$flavour" 2 "$scratch/adder" "$scratch/said-$flavour" &
    check "$flavour: the cable is cut: both were adding" await both "said-$flavour"
    ip -n "$a" link set cable down
    check "$flavour: the cable is cut: both ranks end" await both_say "said-$flavour"
    check "$flavour: the cable is cut: rank 0 says so" says "said-$flavour.0" "^LS_ERR_\(TIMEOUT\|IO\|PEER\): ls_comm"
    check "$flavour: the cable is cut: rank 1 says so" says "said-$flavour.1" "^LS_ERR_\(TIMEOUT\|IO\|PEER\): ls_comm"
    ip -n "$a" link set cable up
    wait $!
    end_marked # what MPI's own launcher may have left on the machine that it could not reach
    check "$flavour: the cable is cut: nothing is left" nobody_soon
}

each_flavour "$@"
finish_flavours
