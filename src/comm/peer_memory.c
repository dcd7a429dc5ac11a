#include "comm/peer_memory.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

enum { ONE_READ = 256 << 20 }; /* in bytes; the kernel limits the size of one read */

/* The kernel reads the parts in order. Before it reads the next part, it releases the pages of the previous part, with
 * a memory barrier. So if the mark is still present when it is read after the data, it was present while the data was
 * being read. */
static bool read_once(const ls_peer_memory *peer, void *into, uint64_t address, size_t bytes) {
    unsigned char mark[LS_PEER_MARK_MOST];
    const struct iovec here[] = {{.iov_base = into, .iov_len = bytes}, {.iov_base = mark, .iov_len = peer->mark_size}};
    const struct iovec there[] = {{.iov_base = (void *)(uintptr_t)address, .iov_len = bytes},
                                  {.iov_base = (void *)(uintptr_t)peer->mark_at, .iov_len = peer->mark_size}};
    const ssize_t got = process_vm_readv((pid_t)peer->process, here, 2, there, 2, 0);
    if (got != (ssize_t)(bytes + peer->mark_size)) {
        errno = got >= 0 ? EFAULT : errno;
        return false;
    }
    errno = 0;
    /* cppcheck-suppress uninitvar ; the kernel has filled the mark */
    return memcmp(mark, peer->mark, peer->mark_size) == 0;
}

bool ls_peer_memory_read(const ls_peer_memory *peer, void *into, uint64_t address, size_t bytes) {
    size_t done = 0;
    do {
        const size_t step = bytes - done < ONE_READ ? bytes - done : ONE_READ;
        if (!read_once(peer, (unsigned char *)into + done, address + done, step)) {
            return false;
        }
        done += step;
    } while (done < bytes);
    return true;
}
