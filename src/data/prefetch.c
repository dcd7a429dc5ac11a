#include "data/prefetch.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/threads.h"
#include "tensor/account.h"
#include "tensor/device.h"

enum { NONE = -1 };

typedef struct slot {
    int64_t number; /* index of the finished batch, even if it failed; NONE if no batch is finished */
    ls_tensor *input;
    ls_tensor *target;
    ls_status status;
    bool silent; /* the batch failed without an error message */
    char message[LS_ERROR_CAPACITY];
} slot;

typedef struct worker {
    ls_prefetch *prefetch;
    int64_t next; /* index of the worker's next batch */
    pthread_t thread;
} worker;

struct ls_prefetch {
    ls_make_batch *make;
    void *user;
    int rank;
    const ls_device *device; /* current device of the thread that started the workers; used for tensors that the
                                program's functions create */
    ls_account *account;     /* account of the thread that started the workers; holds a reference */
    pid_t process;           /* the process of the threads */
    int threads;
    int started;
    int64_t ahead;
    int64_t slots;
    worker *workers;
    slot *batches;
    /*
     * Protects the fields below, `number` of slots and `next` of workers; `changed` signals changes of these fields.
     * The other fields of a slot belong to its worker while the worker makes a batch, and to the consumer once `number`
     * is set.
     */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t taken; /* index of the last batch taken: the next `ahead` batches may be made */
    int64_t end;   /* one past the index of the last batch that may be made */
    int busy;      /* workers that are currently making a batch */
    bool stops;
};

/* ---- on the threads ---------------------------------------------------------------------------------------------- */

static void fill(const ls_prefetch *self, int64_t number) {
    slot *place = &self->batches[number % self->slots];
    const uint32_t errors = ls_error_count;
    place->status = self->make(self->user, number, &place->input, &place->target);
    place->silent = ls_error_count == errors;
    if (place->status != LS_OK) {
        snprintf(place->message, sizeof place->message, "%s", ls_error_message());
    }
}

static bool has_work(const ls_prefetch *self, const worker *own) {
    return own->next < self->end && own->next <= self->taken + self->ahead;
}

static void *work(void *argument) {
    worker *own = argument;
    ls_prefetch *self = own->prefetch;
    ls_thread_state *thread = ls_thread();
    if (thread != NULL) { /* otherwise the first batch also fails for lack of memory */
        thread->device = self->device;
        ls_account_join(thread, self->account);
    }
    ls_log_set_rank(self->rank);
    pthread_mutex_lock(&self->lock);
    while (!self->stops) {
        if (!has_work(self, own)) {
            pthread_cond_wait(&self->changed, &self->lock);
            continue;
        }
        const int64_t number = own->next;
        own->next += self->threads;
        self->busy++;
        pthread_mutex_unlock(&self->lock);
        fill(self, number);
        pthread_mutex_lock(&self->lock);
        self->busy--;
        self->batches[number % self->slots].number = number;
        pthread_cond_broadcast(&self->changed);
    }
    pthread_mutex_unlock(&self->lock);
    ls_thread_end();
    return NULL;
}

/* ---- start and stop ---------------------------------------------------------------------------------------------- */

ls_prefetch *ls_prefetch_new(int threads, int64_t ahead, int rank, ls_make_batch *make_batch, void *user) {
    const int64_t slots = (ahead + threads) / threads * threads; /* `ahead` + 1, rounded up to full rounds */
    ls_prefetch *self = ls_allocate_zeroed(1, sizeof *self);
    slot *batches = ls_allocate_zeroed((size_t)slots, sizeof *batches);
    worker *workers = ls_allocate_zeroed((size_t)threads, sizeof *workers);
    if (self == NULL || batches == NULL || workers == NULL) {
        ls_free(self);
        ls_free(batches);
        ls_free(workers);
        (void)ls_fail_memory("ls_loader_new", sizeof *self + (size_t)slots * sizeof *batches);
        return NULL;
    }
    *self = (ls_prefetch){.make = make_batch,
                          .user = user,
                          .rank = rank,
                          .threads = threads,
                          .ahead = ahead,
                          .slots = slots,
                          .batches = batches,
                          .workers = workers,
                          .taken = NONE};
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, NULL);
    return self;
}

static void end_threads(ls_prefetch *self) {
    pthread_mutex_lock(&self->lock);
    self->stops = true;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
    for (int i = 0; i < self->started; i++) {
        pthread_join(self->workers[i].thread, NULL);
    }
    self->started = 0;
    self->stops = false;
    ls_account_drop(self->account);
    self->account = NULL;
}

static ls_status start_threads(ls_prefetch *self) {
    self->process = getpid();
    self->device = ls_device_default();
    self->account = ls_account_hold(ls_account_of(ls_thread_present));
    while (self->started < self->threads) {
        worker *next = &self->workers[self->started];
        next->prefetch = self;
        const int error = ls_start_thread(&next->thread, "lockstep-loader", work, next);
        if (error != 0) {
            end_threads(self);
            return ls_fail(LS_ERR_IO, "ls_loader_next: cannot start %d threads: %s", self->threads, strerror(error));
        }
        self->started++;
    }
    return LS_OK;
}

static bool is_elsewhere(const ls_prefetch *self) {
    return self->started > 0 && self->process != getpid();
}

static void drop_slot(const slot *place, bool is_lent) {
    void (*drop)(ls_tensor * tensor) = is_lent ? ls_tensor_withdraw : ls_tensor_drop;
    drop(place->input);
    drop(place->target);
}

void ls_prefetch_free(ls_prefetch *self) {
    if (self == NULL) {
        return;
    }
    if (!is_elsewhere(self)) { /* in a forked process, the threads and the owner of the lock do not exist */
        end_threads(self);
        pthread_cond_destroy(&self->changed);
        pthread_mutex_destroy(&self->lock);
        for (int64_t i = 0; i < self->slots; i++) {
            drop_slot(&self->batches[i], self->taken != NONE && i == self->taken % self->slots);
        }
    }
    ls_free(self->batches);
    ls_free(self->workers);
    ls_free(self);
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/* Requires the lock. */
static void halt(ls_prefetch *self) {
    self->end = 0;
    while (self->busy > 0) {
        pthread_cond_wait(&self->changed, &self->lock);
    }
}

void ls_prefetch_halt(ls_prefetch *self) {
    if (self != NULL && self->started > 0 && !is_elsewhere(self)) {
        pthread_mutex_lock(&self->lock);
        halt(self);
        pthread_mutex_unlock(&self->lock);
    }
}

/* Restarts at batch `number`, which will be taken next. The caller must hold the lock. */
static void begin_anew(ls_prefetch *self, int64_t number, int64_t count) {
    halt(self);
    for (int64_t i = 0; i < self->slots; i++) {
        self->batches[i].number = NONE;
    }
    for (int i = 0; i < self->threads; i++) {
        const int64_t offset = (i - number % self->threads + self->threads) % self->threads;
        self->workers[i].next = number + offset;
    }
    self->end = count;
}

/* Returns NULL if the tensor has other references, because the thread that makes the next batch must not write to
 * it. */
static ls_tensor *renew(ls_tensor *tensor) {
    ls_tensor *renewed = ls_tensor_renew(tensor);
    if (renewed != NULL && !ls_tensor_is_alone(renewed)) {
        ls_tensor_drop(renewed);
        return NULL;
    }
    return renewed;
}

static void renew_lent(ls_prefetch *self) {
    if (self->taken != NONE) {
        slot *lent = &self->batches[self->taken % self->slots];
        lent->input = renew(lent->input);
        lent->target = renew(lent->target);
    }
}

static slot *wait_for(ls_prefetch *self, int64_t number, int64_t count) {
    slot *place = &self->batches[number % self->slots];
    pthread_mutex_lock(&self->lock);
    if (number != self->taken + 1 || self->end != count) {
        begin_anew(self, number, count);
    }
    self->taken = number;
    pthread_cond_broadcast(&self->changed);
    while (place->number != number) {
        pthread_cond_wait(&self->changed, &self->lock);
    }
    pthread_mutex_unlock(&self->lock);
    return place;
}

ls_status ls_prefetch_take(ls_prefetch *self, int64_t number, int64_t count, bool lent, ls_tensor **input,
                           ls_tensor **target) {
    if (is_elsewhere(self)) {
        return ls_fail(LS_ERR_STATE,
                       "ls_loader_next: the loader's threads are in process %lld, the parent of this process: create "
                       "the loader after fork, or read no batch before it",
                       (long long)self->process);
    }
    LS_TRY(self->started > 0 ? LS_OK : start_threads(self));
    if (lent) {
        renew_lent(self);
    }
    const slot *place = wait_for(self, number, count);
    *input = place->input;
    *target = place->target;
    if (place->status == LS_OK) {
        return LS_OK;
    }
    if (!place->silent) {
        ls_error_restore(place->status, place->message);
    }
    return place->status;
}
