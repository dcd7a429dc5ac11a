#include "autograd/tape.h"

#include <stddef.h>
#include <string.h>

static void output_died(ls_tape_link *link) {
    ls_node *node = (ls_node *)link;
    node->output = NULL;
    ls_tape_discard(node);
}

/* Whether the tape is that of a scope that a user opened, not what a thread has for want of one. */
static bool is_in_a_scope(const ls_tape *tape) {
    const ls_scope *scope = (const ls_scope *)(const void *)((const char *)tape - offsetof(ls_scope, tape));
    return scope->outer != NULL;
}

/*
 * What is left on the tape when its scope has dropped its tensors is held by tensors that were kept, or by nodes that
 * communicate. All of it moves outwards, where the walk will find communication in its place: another rank may need it
 * whether this one kept something or not. When the outermost scope ends with nothing kept, nobody here is going to walk
 * it any more, and all of it goes.
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

/* Room for more inputs than fit inside, and for their wanted bits. */
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

/* Holds them; returns which of them the gradients that are wanted are computed from. */
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

/* Notes how the elements of these inputs, of a communicating node's first, and of the output are now. */
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
    node->begins_samples = false;
    node->spread = 0;
    node->sums_samples = node->weighed = node->has_constant = false;
    node->segment = thread->segment;
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
    /* Off the tape first: what is dropped below may take other nodes with it. */
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
    if (node->op->hold != NULL) { /* last: the row may go with it */
        node->op->hold(node->parameters.context, false);
    }
    ls_record_release(node, sizeof *node);
}
