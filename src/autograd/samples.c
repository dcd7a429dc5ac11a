#include "autograd/samples.h"

#include <math.h>

uint8_t ls_spread_of(const ls_tensor *tensor) {
    const ls_tape_link *link = tensor != NULL ? tensor->node : NULL;
    return link != NULL && link->tape != NULL ? ((const ls_node *)(const void *)link)->spread : LS_SPREAD_NONE;
}

void ls_samples_begin(const ls_tensor *output) {
    if (output->node != NULL && output->node->tape != NULL) {
        ((ls_node *)(void *)output->node)->begins_samples = true;
    }
}

/* ---- one node ---------------------------------------------------------------------------------------------------- */

/* What the inputs of a node are: bit s for spread s, all sums in one. */
enum { FIRST = 1 << LS_SPREAD_FIRST, OTHER = 1 << LS_SPREAD_OTHER, REFUSED = 1 << LS_SPREAD_REFUSED };
enum { SUMS = 1 << LS_SPREAD_SUMS };

static uint8_t refuse(ls_batch_loss *loss, const ls_node *node) {
    loss->refused = loss->refused != NULL ? loss->refused : node;
    return LS_SPREAD_REFUSED;
}

/*
 * Whether the node is linear in input i, a sum: what its gradient is computed from is what every rank has in common.
 * Rules that keep something aside are taken for such that are not.
 */
static bool is_linear_in(ls_batch_loss *loss, const ls_node *node, int i) {
    if (node->op->saves_output || node->saved[0] != NULL) {
        return false;
    }
    const unsigned reads = i < LS_NODE_INPUTS ? node->op->reads[i] : 0;
    for (int k = 0; k < node->input_count && k < LS_NODE_INPUTS; k++) {
        if ((reads >> k & 1U) != 0 && ls_spread_of(node->inputs[k]) != LS_SPREAD_NONE) {
            return false;
        }
        loss->multiplied |= (reads >> k & 1U) != 0 && ls_wants(node, k);
    }
    return true;
}

/* The result of something made of sums. */
static uint8_t follow_sums(ls_batch_loss *loss, const ls_node *node) {
    uint8_t result = 0;
    for (int i = 0; i < node->input_count; i++) {
        const uint8_t spread = ls_spread_of(node->inputs[i]);
        if (spread == LS_SPREAD_NONE) {
            continue;
        }
        if (!is_linear_in(loss, node, i)) {
            return refuse(loss, node);
        }
        result = result == 0 || result == spread ? spread : LS_SPREAD_SUMS;
    }
    return result;
}

static uint8_t add_sum(ls_batch_loss *loss, ls_node *node, double divisor) {
    const int number = loss->sums++;
    node->sums_samples = true;
    node->parameters.number[LS_NODE_WEIGHT] = loss->divisor = divisor;
    return (uint8_t)(number <= UINT8_MAX - LS_SPREAD_SUM ? LS_SPREAD_SUM + number : LS_SPREAD_SUMS);
}

/* The result of something made of samples, along the first axis of each input that has them, or along another. */
static uint8_t follow_samples(ls_batch_loss *loss, ls_node *node, bool first) {
    double divisor = INFINITY;
    const ls_samples_rule rule = node->op->over_samples;
    const ls_samples_use use = rule != NULL ? rule(node, &divisor) : LS_SAMPLES_KEPT;
    if (!first) {
        if (rule == NULL || use == LS_SAMPLES_MOVED) {
            return LS_SPREAD_OTHER;
        }
        return (use == LS_SAMPLES_SUMMED && node->output->count == 1) ? add_sum(loss, node, divisor)
                                                                      : refuse(loss, node);
    }
    if (use == LS_SAMPLES_KEPT) {
        for (int i = 0; rule == NULL && i < node->input_count; i++) { /* broadcast to more axes */
            if (ls_spread_of(node->inputs[i]) == LS_SPREAD_FIRST && node->output->ndim > node->inputs[i]->ndim) {
                return LS_SPREAD_OTHER;
            }
        }
        return LS_SPREAD_FIRST;
    }
    /* A first axis of size 1 counts this rank's one sample, as those of others count theirs. */
    if (use == LS_SAMPLES_MOVED) {
        return loss->single && node->output->size[0] == 1 ? LS_SPREAD_FIRST : LS_SPREAD_OTHER;
    }
    return use == LS_SAMPLES_SUMMED ? add_sum(loss, node, divisor) : refuse(loss, node);
}

static uint8_t follow(ls_batch_loss *loss, ls_node *node) {
    unsigned inputs = 0;
    node->sums_samples = node->weighed = false;
    if (node->begins_samples) {
        loss->begun = true;
        loss->single = node->output->ndim > 0 && node->output->size[0] == 1;
        return LS_SPREAD_FIRST;
    }
    if (!loss->begun) {
        return LS_SPREAD_NONE;
    }
    for (int i = 0; i < node->input_count; i++) {
        const uint8_t spread = ls_spread_of(node->inputs[i]);
        inputs |= 1U << (spread < LS_SPREAD_SUMS ? spread : LS_SPREAD_SUMS);
    }
    inputs &= ~1U;
    if (inputs == 0 || node->op->communicates) { /* what ranks exchange they exchange as the program says */
        return LS_SPREAD_NONE;
    }
    if ((inputs & REFUSED) != 0) {
        return LS_SPREAD_REFUSED;
    }
    if (inputs == SUMS) {
        return follow_sums(loss, node);
    }
    return inputs == FIRST || inputs == OTHER ? follow_samples(loss, node, inputs == FIRST) : refuse(loss, node);
}

/* ---- the tapes --------------------------------------------------------------------------------------------------- */

/* Calls `function` for every node, in the order in which they were recorded. */
typedef void (*visitor)(void *user, ls_node *node);

static void visit(ls_scope *scope, visitor function, void *user) {
    if (scope->outer != NULL) {
        visit(scope->outer, function, user);
    }
    for (ls_tape_link *link = scope->tape.first; link != NULL; link = link->next) {
        function(user, (ls_node *)(void *)link);
    }
}

static void trace_node(void *user, ls_node *node) {
    ls_batch_loss *loss = user;
    loss->irregular |= node->op->communicates && node->segment == loss->segment;
    node->spread = follow(loss, node);
}

typedef struct search {
    int first;
    int count;
    int number; /* of the next sum */
    double *divisors;
    const double *weights;
} search;

static void visit_sum(void *user, ls_node *node) {
    search *s = user;
    if (!node->sums_samples) {
        return;
    }
    const int i = s->number++ - s->first;
    if (i < 0 || i >= s->count) {
        return;
    }
    if (s->divisors != NULL) {
        s->divisors[i] = node->parameters.number[LS_NODE_WEIGHT];
    } else {
        node->weighed = s->weights[i] != 1;
        node->parameters.number[LS_NODE_WEIGHT] = s->weights[i];
    }
}

void ls_batch_loss_divisors(const ls_batch_loss *loss, int first, int count, double *divisors) {
    visit(loss->innermost, visit_sum, &(search){.first = first, .count = count, .divisors = divisors});
}

void ls_batch_loss_weigh(const ls_batch_loss *loss, int first, int count, const double *weights) {
    visit(loss->innermost, visit_sum, &(search){.first = first, .count = count, .weights = weights});
}

void ls_samples_trace(ls_batch_loss *loss, ls_scope *innermost, const ls_tensor *output, bool seeded) {
    *loss = (ls_batch_loss){.innermost = innermost, .segment = ls_thread_present->segment, .weight = 1, .only = -1};
    visit(innermost, trace_node, loss);
    const uint8_t spread = ls_spread_of(output);
    if (spread == LS_SPREAD_FIRST || spread == LS_SPREAD_OTHER) {
        loss->by_samples = !seeded;
        if (seeded) { /* one process would begin with the gradients of all ranks */
            (void)add_sum(loss, (ls_node *)(void *)output->node, INFINITY);
            loss->irregular = true;
        }
    } else if (spread == LS_SPREAD_SUMS) {
        loss->irregular = true;
    } else if (spread >= LS_SPREAD_SUM) {
        if (spread - LS_SPREAD_SUM != loss->sums - 1) {
            ls_batch_loss_divisors(loss, spread - LS_SPREAD_SUM, 1, &loss->divisor);
        }
        if (isinf(loss->divisor)) {
            loss->irregular = true;
        } else {
            loss->only = spread - LS_SPREAD_SUM;
        }
    }
    loss->by_samples |= spread == LS_SPREAD_NONE;
    if (spread != LS_SPREAD_REFUSED) {
        loss->refused = NULL;
    }
}

ls_status ls_batch_loss_check(const ls_batch_loss *loss) {
    if (loss->refused != NULL) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "ls_backward: %s makes of this rank's samples of a data-parallel module's output what one "
                       "process would make of the whole batch: gather them first (ls_allgather), or the mean over them "
                       "(ls_allreduce)",
                       loss->refused->op->name);
    }
    if (loss->irregular && loss->multiplied && loss->only < 0) {
        return ls_fail(
            LS_ERR_UNSUPPORTED,
            "ls_backward: a sum or mean over the samples of a data-parallel module's output is multiplied by "
            "something that wants a gradient, beside others that are weighed differently: all-reduce it "
            "first (ls_allreduce)");
    }
    return LS_OK;
}
