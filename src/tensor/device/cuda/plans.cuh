/*
 * Tables of plans. A plan is a library's data for a call, cached by a key, so that a training step in steady state
 * creates no plans. Each stream has its own tables. A PLAN has a `key` with only 64-bit members, without padding, and
 * `is_used`; a plan of all zeros is empty.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_PLANS_CUH
#define LS_TENSOR_DEVICE_CUDA_PLANS_CUH

#include <cstdint>
#include <cstring>

namespace ls {

template <class KEY> uint64_t hash_of(const KEY &key) {
    uint64_t number[sizeof key / sizeof(uint64_t)], hash = 0x9e3779b97f4a7c15U;
    static_assert(sizeof key == sizeof number, "keys are of 64-bit numbers");
    memcpy(number, &key, sizeof key);
    for (const uint64_t n : number) {
        hash = (hash ^ n) * 0xff51afd7ed558ccdU;
        hash ^= hash >> 32;
    }
    return hash;
}

template <class PLAN, int SIZE> struct plan_table {
    PLAN plan[SIZE];

    /*
     * Returns the plan with this key. If there is no such plan, sets *is_new, and returns an empty plan, or a plan that
     * `clear` has emptied, with the key set. The caller then creates the plan and sets is_used.
     */
    template <class KEY> PLAN *find(const KEY &key, void (*clear)(PLAN *), bool *is_new) {
        constexpr int probes = 8;
        const uint64_t hash = hash_of(key);
        PLAN *place = nullptr;
        *is_new = false;
        for (int i = 0; i < probes; i++) {
            PLAN *const p = &plan[(hash + (uint64_t)i) % SIZE];
            if (p->is_used && memcmp(&p->key, &key, sizeof key) == 0) {
                return p;
            }
            place = place == nullptr && !p->is_used ? p : place;
        }
        if (place == nullptr) {
            place = &plan[(hash + (hash >> 32) % probes) % SIZE];
        }
        clear(place);
        place->key = key;
        *is_new = true;
        return place;
    }
};

} // namespace ls

#endif
