# Too little memory: an error with the bytes, never a signal, and no error because of irrelevant limits.
. "$LS_SOURCE/tests/support/checks.sh"
export LOCKSTEP_TIMEOUT=20
unset RANK WORLD_SIZE LOCKSTEP_BACKEND
cat >take.c <<'END'
#include <lockstep/comm.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv) { /* megabytes of ls_comm_alloc to take and to write */
    signal(SIGTERM, SIG_IGN); /* the launcher terminates the other ranks if one fails: each must print its error first */
    ls_comm *world = ls_init(NULL);
    if (argc != 2 || world == NULL) {
        printf("%s: %s\n", ls_status_name(ls_error_status()), ls_error_message());
        return 2;
    }
    const size_t bytes = (size_t)atoi(argv[1]) << 20;
    float *memory = ls_comm_alloc(world, bytes);
    if (memory == NULL) {
        printf("%s: %s\n", ls_status_name(ls_error_status()), ls_error_message());
        float one = 1; /* the communicator goes on */
        return ls_comm_allreduce(world, &one, &one, 1, LS_F32, LS_SUM, NULL) == LS_OK && one == 2 ? 3 : 4;
    }
    memset(memory, 1, bytes);
    return ls_finalize() == LS_OK ? 0 : 5;
}
END
cc -I"$LS_SOURCE/include" take.c -o take -L"$LS_BUILD/lib" -llockstep -Wl,-rpath,"$LS_BUILD/lib" || exit 1
missing=()

# limited LIMIT MEGABYTES: runs with this ulimit.
limited() {
    (ulimit $1 && launch run -n 2 ./take "$2" </dev/null && exit "$status")
    status=$?
}

launch run -n 2 ./take 8 </dev/null
check "no limit: fine" is "$status" 0
limited "-f 64" 1
check "files of 64 KiB: ls_init fails" is "$status" 2
check "files of 64 KiB: says so" says out "^LS_ERR_MEMORY: ls_init: .* bytes of shared memory exceed .*ulimit -f"
limited "-f 6000" 8
check "files of 6 MB: ls_comm_alloc fails" is "$status" 3
check "files of 6 MB: says so" says out "^LS_ERR_MEMORY: ls_comm_alloc: 8388608 bytes .*ulimit -f"
limited "-v 400000" 300
check "400 MB of addresses: ls_comm_alloc fails" is "$status" 3
check "400 MB of addresses: says so" says out "^LS_ERR_MEMORY: ls_comm_alloc: .* bytes of shared memory: Cannot allocate"

if unshare -m true 2>/dev/null; then
    LS_TEST_MARK=$mark unshare -m sh -c \
        'mount -t tmpfs -o size=16k tmpfs /dev/shm && exec "$@"' - "$lockstep" run -n 2 ./take 64 >out 2>err </dev/null
    check "a /dev/shm of 16 KiB does not matter" is "$?" 0
else
    missing+=("mount namespaces: not permitted")
fi

# Rank 0 comes late to a port in the ephemeral range: a waiting rank must not occupy the port by connecting to itself.
if unshare -n true 2>/dev/null && command -v ip >/dev/null; then
    LS_TEST_MARK=$mark LS_BUILD=$LS_BUILD WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=40000 unshare -n sh -c '
        ip link set lo up && echo "40000 40003" >/proc/sys/net/ipv4/ip_local_port_range || exit 9
        RANK=1 LOCAL_RANK=1 "$LS_BUILD/examples/ring" >out1 2>&1 &
        while ! grep -q "waiting for rank 0 (cannot connect to" out1; do sleep 0.1; done
        RANK=0 LOCAL_RANK=0 "$LS_BUILD/examples/ring" >out 2>&1
        status=$?
        wait
        exit $status' </dev/null
    check "rank 0 is late, few ports: both meet" is "$?" 0
    check "rank 0 is late, few ports: nobody was connected to itself" \
        bash -c '! grep -q "but it has sent nothing" out1 && grep -q "^rank 1 saw the numbers 10, 0" out1'
else
    missing+=("network namespaces: not permitted, or there is no ip command")
fi

# A control group of 48 MiB, of either version.
group=/sys/fs/cgroup/memory/$mark
limit=memory.limit_in_bytes
if [ ! -d /sys/fs/cgroup/memory ]; then
    group=/sys/fs/cgroup/$mark
    limit=memory.max
fi
if mkdir "$group" 2>/dev/null && echo $((48 << 20)) >"$group/$limit" 2>/dev/null; then
    (
        echo "$BASHPID" >"$group/cgroup.procs" && launch run -n 2 ./take 64 </dev/null && exit "$status"
    )
    check "a control group of 48 MiB: ls_comm_alloc fails" is "$?" 3
    check "a control group of 48 MiB: says so" \
        says out "^LS_ERR_MEMORY: ls_comm_alloc: 134217728 bytes .* this control group has only [0-9]* left"
    await rmdir "$group" 2>/dev/null
else
    rmdir "$group" 2>/dev/null
    missing+=("control groups: not permitted")
fi

if [ ${#missing[@]} != 0 ]; then
    printf 'SKIPPED %s\n' "${missing[@]}"
    check "nothing is left running" nobody_soon
    [ "$failed" = 0 ] && exit 77
    exit 1
fi
finish
