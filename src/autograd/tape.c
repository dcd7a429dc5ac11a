#include "autograd/tape.h"

#include <stddef.h>
#include <string.h>

#include "tensor/capture.h"

static void output_died(ls_tape_link *link) {
    ls_node *node = (ls_node *)link;
    node->output = NULL;
    ls_tape_discard(node);
}

/* Returns whether the tape belongs to a scope that the user opened, not to the thread's default scope. */
static bool is_in_a_scope(const ls_tape *tape) {
    const ls_scope *scope = (const ls_scope *)(const void *)((const char *)tape - offsetof(ls_scope, tape));
    return scope->outer != NULL;
}

/*
 * When a tape's scope has dropped its tensors, moves the remaining nodes to the outer tape. These nodes are held by
 * kept tensors, or they communicate: another rank may need the communication, whether or not this rank kept tensors.
 * When the outermost scope ends without a kept tensor, no pass of this rank can walk the nodes, and all of them are
 * freed.
 */
static bool scope_ended(ls_tape *tape, ls_tape *outer) {
    bool kept = false;
    for (ls_tape_link *link = tape->first; link != NULL && !kept; link = link->next) {
        kept = ((ls_node *)link)->output->scope != &ls_nowhere;
    }
    if (outer == NULL || (!kept && !is_in_a_scope(outer))) {
        while (tape->last != NULL) {
            ls_tape_discard((ls_node *)tape->last);
        }
        return false;
    }
    for (ls_tape_link *link = tape->first; link != NULL; link = link->next) {
        link->tape = outer;
    }
    tape->first->previous = outer->last;
    if (outer->last != NULL) {
        outer->last->next = tape->first;
    } else {
        outer->first = tape->first;
    }
    outer->last = tape->last;
    *tape = (ls_tape){0};
    return true;
}

static const ls_tape_listener listener = {.output_died = output_died, .scope_ended = scope_ended};

static void walked_output_died(ls_tape_link *link) {
    (void)link;
}

static const ls_tape_listener walked_listener = {.output_died = walked_output_died};

ls_tape_link ls_tape_walked = {.listener = &walked_listener};
ls_tape_link ls_tape_gradient = {.listener = &walked_listener};

static void append(ls_tape *tape, ls_tape_link *link) {
    link->tape = tape;
    link->listener = &listener;
    link->next = NULL;
    link->previous = tape->last;
    if (tape->last != NULL) {
        tape->last->next = link;
    } else {
        tape->first = link;
    }
    tape->last = link;
}

static void detach(ls_tape_link *link) {
    if (link->previous != NULL) {
        link->previous->next = link->next;
    } else {
        link->tape->first = link->next;
    }
    if (link->next != NULL) {
        link->next->previous = link->previous;
    } else {
        link->tape->last = link->previous;
    }
}

static size_t words_for(int count) {
    return ((size_t)count + 63) / 64;
}

static size_t array_bytes(int count) {
    return (size_t)count * sizeof(ls_tensor *) + words_for(count) * sizeof(uint64_t);
}

/* Allocates an array for inputs that do not fit inside the node, and for their wanted bits. */
static bool make_array(ls_thread_state *thread, ls_node *node) {
    node->inputs = ls_cache_allocate(&thread->cache, array_bytes(node->input_count));
    if (node->inputs != NULL) {
        memset(node->inputs + node->input_count, 0, words_for(node->input_count) * sizeof(uint64_t));
    }
    return node->inputs != NULL;
}

static uint64_t *wanted_words(ls_node *node) {
    return node->inputs == node->inline_inputs ? &node->wanted : (uint64_t *)(void *)(node->inputs + node->input_count);
}

/* Takes references to the inputs. Returns a bit mask of the inputs needed for the wanted gradients. */
static unsigned hold_inputs(ls_node *node, ls_tensor *const *inputs) {
    uint64_t *wanted = wanted_words(node);
    unsigned reads = 0;
    for (int i = 0; i < node->input_count; i++) {
        ls_tensor *input = inputs[i];
        node->inputs[i] = input;
        if (input == NULL) {
            continue;
        }
        ls_tensor_hold(input);
        if (input->needs_grad) {
            wanted[i / 64] |= (uint64_t)1 << (i % 64);
            reads |= i < LS_NODE_INPUTS ? node->op->reads[i] : 0U;
            if (input->leaf != NULL) {
                input->leaf->uses++;
            }
        }
    }
    return reads;
}

/* Records the versions of these inputs, of the output, and of a communicating node's first input. */
static void note_versions(ls_node *node, unsigned reads) {
    for (int k = 0; node->op->optional != 0 && k < node->input_count; k++) {
        reads &= node->inputs[k] != NULL ? ~0U : ~(1U << k);
    }
    node->reads = reads;
    for (reads |= node->op->communicates && node->input_count > 0 && node->inputs[0] != NULL; reads != 0;
         reads &= reads - 1) {
        const int k = __builtin_ctz(reads);
        node->versions[k] = node->inputs[k]->storage->version;
    }
    node->versions[LS_NODE_INPUTS] = node->output->storage->version;
}

ls_status ls_tape_record(ls_thread_state *thread, const ls_op_call *call) {
    ls_node *node = ls_cache_allocate(&thread->cache, sizeof *node);
    if (node == NULL) {
        return ls_fail_memory(call->op->name, sizeof *node);
    }
    node->op = call->op;
    node->output = call->output;
    node->gradient = NULL;
    node->input_count = call->input_count;
    node->holds_output = call->op->communicates;
    node->samples_of = NULL;
    node->spread = 0;
    node->sums_samples = node->weighed = node->has_constant = node->pairs = false;
    node->plain = node->mixed = node->collects = node->collected = false;
    node->segment = thread->segment;
    node->captured = thread->capture != NULL ? thread->capture->serial : 0;
    node->wanted = 0;
    node->inputs = node->inline_inputs;
    if (call->input_count > LS_NODE_INPUTS && !make_array(thread, node)) {
        ls_cache_release(&thread->cache, node, sizeof *node);
        return ls_fail_memory(call->op->name, array_bytes(call->input_count));
    }
    const unsigned reads = hold_inputs(node, call->inputs);
    node->of_gradient = call->of_gradient;
    node->rounds_to = (uint8_t)call->rounds_to;
    node->depends =
        call->depends || call->op->saves_output || call->saved[0] != NULL || (reads & *wanted_words(node)) != 0;
    note_versions(node, reads);
    for (int i = 0; i < LS_NODE_SAVED; i++) {
        node->saved[i] = call->saved[i];
    }
    if (call->parameters != NULL) {
        node->parameters = *call->parameters;
    }
    append(&thread->scope->tape, &node->link);
    node->output->node = &node->link;
    node->output->needs_grad = true;
    if (node->holds_output) {
        ls_tensor_hold(node->output);
    }
    if (node->op->hold != NULL) {
        node->op->hold(node->parameters.context, true);
    }
    return LS_OK;
}

static void drop_inputs(ls_node *node) {
    const uint64_t *wanted = wanted_words(node);
    for (int i = 0; i < node->input_count; i++) {
        ls_tensor *input = node->inputs[i];
        if (input == NULL) {
            continue;
        }
        if (input->leaf != NULL && (wanted[i / 64] >> (i % 64) & 1U) != 0) {
            input->leaf->uses--;
        }
        ls_tensor_drop(input);
    }
    if (node->inputs != node->inline_inputs) {
        ls_record_release(node->inputs, array_bytes(node->input_count));
    }
}

void ls_tape_discard(ls_node *node) {
    /* Remove the node from the tape first, because the drops below may free other nodes. */
    detach(&node->link);
    if (node->output != NULL) {
        node->output->node = &ls_tape_walked;
    }
    drop_inputs(node);
    for (int i = 0; i < LS_NODE_SAVED; i++) {
        if (node->saved[i] != NULL) {
            ls_tensor_drop(node->saved[i]);
        }
    }
    ls_tensor_drop(node->gradient);
    if (node->holds_output) {
        ls_tensor_drop(node->output);
    }
    if (node->op->hold != NULL) { /* last, because the context may contain node->op */
        node->op->hold(node->parameters.context, false);
    }
    ls_record_release(node, sizeof *node);
}

void ls_tape_clear(ls_scope *scope) {
    while (scope->tape.last != NULL) {
        ls_tape_discard((ls_node *)scope->tape.last);
    }
}

bool ls_tape_is_closed(const ls_scope *scope) {
    bool outer = false;
    for (const ls_scope *other = scope->outer; other != NULL && !outer; other = other->outer) {
        outer = other->tape.first != NULL;
    }
    bool closed = true;
    for (const ls_tape_link *link = scope->tape.first; outer && closed && link != NULL; link = link->next) {
        const ls_node *node = (const ls_node *)link;
        for (int i = 0; i < node->input_count && closed; i++) {
            const ls_tensor *input = node->inputs[i];
            closed =
                input == NULL || input->node == NULL || input->node->tape == NULL || input->node->tape == &scope->tape;
        }
    }
    return closed;
}
