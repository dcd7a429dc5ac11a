# The batch file of docs/howto/slurm.md under a real Slurm: slurmctld and two nodes, simulated by network namespaces joined
# by a cable. Before the time limit, Slurm signals the ranks, which write a checkpoint and exit with status 75. The
# script requeues the job, and the job resumes from the checkpoint and ends with the same bits as an undisturbed
# training. Needs root, Slurm and munge.
. "$LS_SOURCE/tests/support/checks.sh"
PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" = 0 ] || {
    echo "SKIPPED Slurm: its daemons need root here"
    exit 77
}
for command in slurmctld slurmd srun sbatch munged; do
    command -v $command >/dev/null || {
        echo "SKIPPED Slurm: there is no $command (scripts/install-deps --slurm)"
        exit 77
    }
done
. "$LS_SOURCE/tests/support/machines.sh"
unset RANK WORLD_SIZE LOCKSTEP_BACKEND MASTER_ADDR MASTER_PORT "${!SLURM_@}"

# ---- a cluster ----
export SLURM_CONF=$scratch/slurm.conf
mkdir state spool.node1 spool.node2
chmod 755 "$scratch"
printf '127.0.0.1 localhost\n10.77.0.1 node1\n10.77.0.2 node2\n' >hosts
head -c 1024 /dev/urandom >munge.key
chmod 400 munge.key
echo CgroupPlugin=cgroup/v1 >cgroup.conf # which nothing uses: detection would look for a mount
cat >slurm.conf <<END
ClusterName=test
SlurmctldHost=node1
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$scratch/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool.%n
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd.%n.pid
SlurmctldLogFile=$scratch/slurmctld.log
SlurmdLogFile=$scratch/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerParameters=batch_sched_delay=0,sched_interval=1
MpiDefault=none
KillWait=5
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=node1 NodeAddr=10.77.0.1 CPUs=2
NodeName=node2 NodeAddr=10.77.0.2 CPUs=2
PartitionName=all Nodes=node[1-2] Default=YES MaxTime=60
END

# on NODE COMMAND...: runs on node 1 or 2, which can resolve the nodes' names.
on() {
    local node=$1 space=$a
    [ "$node" = 1 ] || space=$b
    shift
    LS_TEST_MARK=$mark ip netns exec "$space" unshare --mount --uts \
        sh -c 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"' "$scratch/hosts" node$node "$@"
}

(LS_TEST_MARK=$mark munged --foreground --force --num-threads 2 --key-file "$scratch/munge.key" --socket "$scratch/munge.socket" \
    --pid-file "$scratch/munge.pid" --log-file "$scratch/munged.log" --seed-file "$scratch/munge.seed" >munged.out 2>&1 &)
(on 1 slurmctld -D >slurmctld.out 2>&1 &)
(on 1 slurmd -D -N node1 >slurmd1.out 2>&1 &)
(on 2 slurmd -D -N node2 >slurmd2.out 2>&1 &)

cluster_is_up() {
    [ "$(on 1 sinfo --noheader --states=idle --format=%D 2>/dev/null)" = 2 ]
}
check "slurmctld and two nodes are up" await cluster_is_up
[ "$failed" = 0 ] || {
    tail -n 20 ./*.out ./*.log
    finish
}

# ---- the job ----
mkdir undisturbed interrupted
cat >interrupted/train <<END
#!/bin/sh
exec "$LS_BUILD/tests/checkpoint_program"
END
chmod +x interrupted/train
sed -n '/^#!\/bin\/bash$/,/^```$/{/^```$/!p}' "$LS_SOURCE/docs/howto/slurm.md" >interrupted/job
check "docs/howto/slurm.md has a batch file" grep -q '^srun ./train$' interrupted/job

(cd undisturbed && LS_TEST_MARK=$mark "$lockstep" run -n 2 "$LS_BUILD/tests/checkpoint_program" >out 2>&1 </dev/null)
check "an undisturbed training ends well" is $? 0

# In their first start, the ranks wait at step 20 for a signal, which Slurm sends 20 to 80 seconds later.
export HOLD=20
on 1 sbatch --parsable --chdir="$scratch/interrupted" --output="$scratch/job.out" --ntasks-per-node=1 --time=2 --signal=USR1@40 \
    "$scratch/interrupted/job" >id 2>err
id=$(cat id)
check "the job is queued" test -n "$id"

# job FIELD: Slurm's value for the job.
job() {
    on 1 scontrol --oneliner show job "$id" 2>/dev/null | tr ' ' '\n' | sed -n "s/^$1=//p"
}
has_ended() {
    case $(job JobState) in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL) return 0 ;; *) return 1 ;; esac
}
for i in $(seq 20); do
    await has_ended && break
done
check "the job is completed" is "$(job JobState)" COMPLETED
check "it was queued again once" is "$(job Restarts)" 1
check "the ranks had exited with status 75" says job.out "Exited with exit code 75"
for rank in 0 1; do
    check "rank $rank: the bits of an undisturbed training" cmp interrupted/result.$rank undisturbed/result.$rank
done
[ "$failed" = 0 ] || tail -n 30 job.out ./slurm*.log
end_marked # the daemons
finish
