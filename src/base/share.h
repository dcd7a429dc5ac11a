/* Division of items into shares that are as equal as possible. The first shares may have one more item. */
#ifndef LS_BASE_SHARE_H
#define LS_BASE_SHARE_H

#include <stdint.h>

typedef struct ls_share {
    int64_t start;
    int64_t count;
} ls_share;

/* Returns share `i` when `total` items are divided into `shares` shares. */
static inline ls_share ls_share_of(int64_t total, int64_t shares, int64_t i) {
    const int64_t more = total % shares;
    return (ls_share){total / shares * i + (i < more ? i : more), total / shares + (i < more)};
}

#endif
