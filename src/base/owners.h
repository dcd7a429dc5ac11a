/*
 * Reference counts of objects of which constructors take ownership: data sets and modules. (For a tensor, the scope
 * replaces the creator: see ls_tensor_own.) The creator holds one reference. The first constructor that takes ownership
 * of the object gets this reference, so that nested constructors leave nothing to free. Each later constructor gets a
 * new reference. The object is freed with its last reference. A retired record (ls_retire) has no references. The
 * counts are not atomic: only one thread may use an object at a time.
 *
 * The record of a captured step holds a reference. If only records hold the object, it counts as freed, but is
 * destroyed with the last record.
 */
#ifndef LS_BASE_OWNERS_H
#define LS_BASE_OWNERS_H

#include <stdbool.h>

typedef struct ls_owners {
    int references;
    int retained; /* number of these references that the user has retained */
    int recorded; /* number of these references that records of captured steps hold */
    bool made;    /* the creator still holds its reference: no constructor has taken ownership yet */
    bool freed;   /* the creator has dropped its reference */
} ls_owners;

#define LS_OWNERS_NEW ((ls_owners){.references = 1, .made = true})

/* Gives a reference to a constructor that takes ownership. */
static inline void ls_owners_take(ls_owners *owners) {
    if (!owners->made) {
        owners->references++;
    }
    owners->made = false;
}

static inline bool ls_owners_are_gone(const ls_owners *owners) {
    return owners->references == owners->recorded;
}

/* Drops a reference. Returns true if it was the last; the caller must then free the object. */
static inline bool ls_owners_drop(ls_owners *owners) {
    return owners->references > 0 && --owners->references == 0;
}

/* Gives a reference to the record of a captured step. ls_owners_drop_record drops it. */
static inline void ls_owners_hold_record(ls_owners *owners) {
    owners->references++;
    owners->recorded++;
}

/* Drops a reference of a record. Returns true if it was the last reference; the caller must then free the object. */
static inline bool ls_owners_drop_record(ls_owners *owners) {
    owners->recorded--;
    return ls_owners_drop(owners);
}

/* Gives the user an additional reference, of which constructors do not take ownership. */
static inline void ls_owners_retain(ls_owners *owners) {
    owners->references++;
    owners->retained++;
}

/* Drops a reference of the user: a retained one if there is one, otherwise the creator's. Does nothing if the user
 * has neither. Returns true if it was the last reference. */
static inline bool ls_owners_give_back(ls_owners *owners) {
    if (owners->retained > 0) {
        owners->retained--;
    } else if (owners->made) {
        owners->made = false;
        owners->freed = true;
    } else {
        return false;
    }
    return ls_owners_drop(owners);
}

#endif
