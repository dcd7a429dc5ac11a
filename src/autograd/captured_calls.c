/* Captured steps: recorded calls to the library, marks of gradients, and guards. */
#include "autograd/captured_record.h"

#include <limits.h>
#include <string.h>

#include "base/memory.h"
#include "comm/meter.h"
#include "comm/poll.h"

void ls_step_refuse_memory(ls_step *step) {
    if (step->capture.status == LS_OK) {
        step->capture.status = LS_ERR_MEMORY;
        strcpy(step->capture.message, "out of memory for the record");
    }
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* The arguments of a recorded call that marks which leaves have gradients. */
typedef struct gradient_marks {
    int count;
    struct {
        ls_leaf *leaf;
        bool has_gradient;
        bool changed; /* by this step */
        bool given;   /* by the latest backward pass */
    } marks[];
} gradient_marks;

static ls_status mark_gradients(void *arguments) {
    const gradient_marks *all = arguments;
    for (int i = 0; i < all->count; i++) {
        ls_leaf *leaf = all->marks[i].leaf;
        leaf->has_gradient = all->marks[i].has_gradient;
        if (all->marks[i].changed) {
            ls_leaf_changed(leaf, "ls_step_replay");
        }
        if (all->marks[i].given) {
            leaf->given = ls_thread_present->pass;
        }
    }
    return LS_OK;
}

/*
 * Returns whether an exchange with the other ranks has decided if this leaf has a gradient. The decision may differ in
 * each replay. For a shard that is not open, the exchange of its unit has decided.
 */
static bool is_settled(const captured_input *input) {
    const ls_leaf *leaf = input->tensor->leaf;
    return (leaf->shard && !leaf->open) ||
           (input->settled && leaf->has_gradient == input->has_settled && leaf->given == input->given_settled);
}

/* A settled leaf is marked only if the step clears its gradient after the exchange: then it has no gradient in any
 * replay. */
void ls_step_record_marks(ls_step *step) {
    gradient_marks *all = ls_capture_add_call(&step->capture, mark_gradients,
                                              sizeof *all + (size_t)step->input_count * sizeof all->marks[0]);
    for (int i = 0; all != NULL && i < step->input_count; i++) {
        const captured_input *input = &step->inputs[i];
        ls_leaf *leaf = input->tensor->leaf;
        const bool settled = leaf != NULL && is_settled(input);
        if (leaf != NULL && (!settled || input->cleared)) {
            all->marks[all->count].leaf = leaf;
            all->marks[all->count].has_gradient = leaf->has_gradient;
            all->marks[all->count].changed = !settled && leaf->given != input->given;
            all->marks[all->count++].given = !settled && leaf->given == ls_thread_present->pass;
        }
    }
}

/* ---- calls and guards -------------------------------------------------------------------------------------------- */

typedef struct library_call {
    ls_status (*run)(void *object);
    void *object;
} library_call;

static ls_status run_library_call(void *arguments) {
    const library_call *call = arguments;
    return call->run(call->object);
}

void ls_capture_call_begin(ls_capture *capture) {
    if (ls_capture_records(capture)) {
        ls_step_record_marks(ls_step_of(capture));
    }
    ls_capture_pause(capture);
}

bool ls_capture_call_end(ls_capture *capture, ls_status status, ls_status (*run)(void *object), void *object) {
    capture->paused--;
    if (status != LS_OK || !ls_capture_records(capture)) {
        return false;
    }
    ls_step *step = ls_step_of(capture);
    step->exchanged += ls_comm_metered.calls - step->call_began;
    library_call *call = ls_capture_add_call(capture, run_library_call, sizeof *call);
    if (call == NULL) {
        return false;
    }
    *call = (library_call){.run = run, .object = object};
    capture->calls[capture->call_count - 1].operation = NULL; /* the call's error messages already contain its name */
    return true;
}

/* Ends a part of an exchange. Returns the index of its call; 0 if it was not recorded. */
static int end_part(ls_capture *capture, ls_status status, ls_status (*run)(void *object), void *object) {
    return ls_capture_call_end(capture, status, run, object) ? capture->call_count - 1 : 0;
}

void ls_capture_pause(ls_capture *capture) {
    capture->paused++;
    ls_step_of(capture)->call_began = ls_comm_metered.calls;
}

void ls_capture_early_end(ls_capture *capture, ls_status status, ls_status (*run)(void *object), void *object) {
    ls_step *step = ls_step_of(capture);
    const int call = end_part(capture, status, run, object);
    if (step->early_call > 0) {
        step->polls = true;
    } else {
        step->early_call = call;
    }
}

void ls_capture_enter(ls_capture *capture, void (*leave)(void *object), void *object) {
    ls_step *step = ls_step_of(capture);
    captured_entry *entries = ls_grow(step->entries, (size_t)step->entry_count, sizeof *entries);
    if (entries == NULL) {
        ls_step_refuse_memory(step);
        return;
    }
    entries[step->entry_count++] =
        (captured_entry){.enter = capture->call_count - 1, .leave = INT_MAX, .function = leave, .object = object};
    step->entries = entries;
}

void ls_capture_leave(ls_capture *capture) {
    const ls_step *step = ls_step_of(capture);
    if (step->entry_count > 0) {
        step->entries[step->entry_count - 1].leave = capture->call_count - 1;
    }
}

void ls_step_leave_entered(const ls_step *step) {
    const int failed = step->capture.failed;
    for (int i = 0; i < step->entry_count; i++) {
        const captured_entry *entry = &step->entries[i];
        if (entry->enter < failed && failed < entry->leave) {
            entry->function(entry->object);
        }
    }
}

static ls_status poll_communicators(void *arguments) {
    (void)arguments;
    ls_comm_poll();
    return LS_OK;
}

void ls_capture_poll(ls_capture *capture) {
    if (ls_capture_records(capture) && ls_step_of(capture)->polls) {
        if (ls_capture_add_call(capture, poll_communicators, 0) != NULL) {
            capture->calls[capture->call_count - 1].polls = true;
        }
    }
}

void ls_capture_exchange_end(ls_capture *capture, ls_status status, ls_status (*run)(void *object),
                             void (*notify)(void *object, bool begun), void *object) {
    ls_step *step = ls_step_of(capture);
    const int call = end_part(capture, status, run, object);
    if (call == 0) {
        return;
    }
    if (step->exchange_count == LS_STEP_EXCHANGES) {
        ls_capture_refuse(capture, "the step",
                          "exchanges data with other ranks more than twice: capture one forward pass and one backward "
                          "pass of a data-parallel model");
        return;
    }
    step->exchanges[step->exchange_count++] = (captured_exchange){
        .begin = step->early_call > 0 ? step->early_call : call, .call = call, .notify = notify, .object = object};
    step->early_call = 0;
    step->polls = false;
}

void ls_capture_gradients_settled(ls_capture *capture) {
    ls_step *step = ls_step_of(capture);
    if (!ls_capture_records(capture)) {
        return;
    }
    if (step->averages) {
        ls_capture_refuse(capture, "the step",
                          "averages gradients over ranks more than once: capture one backward pass");
        return;
    }
    step->averages = true;
    for (int i = 0; i < step->input_count; i++) {
        captured_input *input = &step->inputs[i];
        const ls_leaf *leaf = input->tensor->leaf;
        if (leaf != NULL) {
            input->cleared = false;
            input->settled = true;
            input->has_settled = leaf->has_gradient;
            input->given_settled = leaf->given;
        }
    }
}

void ls_capture_scale_by(ls_capture *capture, double **at, int count) {
    ls_step *step = ls_step_of(capture);
    step->factors = at;
    step->factor_count = count;
}

void ls_capture_factor(ls_capture *capture, int which) {
    const ls_step *step = ls_step_of(capture);
    if (ls_capture_records(capture) && which >= 0 && which < step->factor_count) {
        step->factors[which] = ls_capture_number(capture);
    }
}

bool ls_capture_changes_factors(const ls_capture *capture) {
    return ((const ls_step *)(const void *)capture)->factor_count > 0;
}

static bool has_guard(const ls_step *step, const ls_capture_guard *guard) {
    bool has = false;
    for (int i = 0; i < step->guard_count && !has; i++) {
        const ls_capture_guard *other = &step->guards[i];
        has = other->check == guard->check && other->object == guard->object && other->state == guard->state;
    }
    return has;
}

void ls_capture_add_guard(ls_capture *capture, const ls_capture_guard *guard) {
    ls_step *step = ls_step_of(capture);
    if (!ls_capture_records(capture) || has_guard(step, guard)) {
        return;
    }
    ls_capture_guard *guards = ls_grow(step->guards, (size_t)step->guard_count, sizeof *guards);
    if (guards == NULL) {
        ls_step_refuse_memory(step);
        return;
    }
    guard->hold(guard->object, true);
    guards[step->guard_count++] = *guard;
    step->guards = guards;
}
