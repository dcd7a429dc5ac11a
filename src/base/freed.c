#include "base/freed.h"

#include <stdatomic.h>
#include <stdlib.h>

ls_status ls_fail_freed(const char *call, const char *object, const char *function) {
    return ls_fail(LS_ERR_STATE, "%s: the %s has already been freed (%s); free it only after its last use", call,
                   object, function);
}

static _Atomic(void *) kept[16];
static atomic_uint next_kept;

void ls_keep_freed(void *record) {
    const unsigned place = atomic_fetch_add_explicit(&next_kept, 1, memory_order_relaxed);
    free(atomic_exchange(&kept[place % (sizeof kept / sizeof *kept)], record));
}
