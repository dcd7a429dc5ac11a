/*
 * Who holds an object that constructors take over: a data set, a module. (A tensor's scope plays the maker's part: see
 * ls_tensor_own.) The maker has one reference. The first constructor that takes the object over gets it, so that
 * constructors nest and leave nothing to free; each later one gets a new reference. The object goes with the last; what
 * stays of it for a while (ls_retire) has none. Not atomic: an object belongs to one thread at a time.
 */
#ifndef LS_BASE_OWNERS_H
#define LS_BASE_OWNERS_H

#include <stdbool.h>

typedef struct ls_owners {
    int references;
    int retained; /* of them, those that the user asked for */
    bool made;    /* among them is the maker's: nobody has taken the object over yet */
} ls_owners;

#define LS_OWNERS_NEW ((ls_owners){.references = 1, .made = true})

/* A reference for who takes the object over. */
static inline void ls_owners_take(ls_owners *owners) {
    if (!owners->made) {
        owners->references++;
    }
    owners->made = false;
}

static inline bool ls_owners_are_gone(const ls_owners *owners) {
    return owners->references == 0;
}

/* Gives such a reference back. True: it was the last, and the object goes. */
static inline bool ls_owners_drop(ls_owners *owners) {
    return owners->references > 0 && --owners->references == 0;
}

/* One more reference for the user, which nobody takes over. */
static inline void ls_owners_retain(ls_owners *owners) {
    owners->references++;
    owners->retained++;
}

/* The user gives one back: a retained one, or else the maker's; nothing happens when he has neither. True: as above. */
static inline bool ls_owners_give_back(ls_owners *owners) {
    if (owners->retained > 0) {
        owners->retained--;
    } else if (owners->made) {
        owners->made = false;
    } else {
        return false;
    }
    return ls_owners_drop(owners);
}

#endif
