#include "autograd/samples.h"

#include <math.h>
#include <stdio.h>

#include "autograd/mixing_note.h"

static uint8_t spread_of(const ls_tensor *tensor) {
    const ls_tape_link *link = tensor != NULL ? tensor->node : NULL;
    return link != NULL && link->tape != NULL ? ((const ls_node *)(const void *)link)->spread : LS_SPREAD_NONE;
}

/* Same as spread_of, but also finds the samples in tensors without history, for example from ls_detach (mixing.h). */
static uint8_t noted_spread_of(const ls_tensor *tensor) {
    const uint8_t recorded = spread_of(tensor);
    return recorded != LS_SPREAD_NONE || tensor == NULL ? recorded : ls_mixing_kind(tensor->spread);
}

void ls_samples_begin(const ls_tensor *output, const void *module) {
    if (output->node != NULL && output->node->tape != NULL) {
        ((ls_node *)(void *)output->node)->samples_of = module;
    }
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

static bool has_samples(uint8_t spread) {
    return spread >= LS_SPREAD_FIRST && spread <= LS_SPREAD_OTHER;
}

static int axis_of(uint8_t spread) {
    return spread == LS_SPREAD_FIRST ? 0 : spread - LS_SPREAD_AXIS;
}

int ls_sample_axis(const ls_samples_call *call, int i) {
    const uint8_t spread = i < call->input_count ? call->spread_of(call->inputs[i]) : LS_SPREAD_NONE;
    return has_samples(spread) && spread != LS_SPREAD_OTHER ? axis_of(spread) : -1;
}

int ls_first_sample_axis(const ls_samples_call *call) {
    int axis = -1;
    for (int i = 0; i < call->input_count && axis < 0; i++) {
        axis = ls_sample_axis(call, i);
    }
    return axis;
}

bool ls_samples_linear_in(const ls_samples_call *call, int i) {
    if (call->op->saves_output || call->saved[0] != NULL) {
        return false;
    }
    const unsigned reads = i < LS_NODE_INPUTS ? call->op->reads[i] : 0;
    for (int k = 0; k < call->input_count && k < LS_NODE_INPUTS; k++) {
        if ((reads >> k & 1U) != 0 && call->spread_of(call->inputs[k]) != LS_SPREAD_NONE) {
            return false;
        }
    }
    return true;
}

/*
 * Handles operations without a rule: element-wise with broadcasting. Samples along different axes are combined in
 * pairs. A single number, and an axis of size 1, are repeated instead.
 */
static ls_samples_use align(ls_samples_call *call) {
    const int ndim = call->output->ndim;
    int to = -1;
    bool repeated = false;
    for (int i = 0; i < call->input_count; i++) {
        const ls_tensor *input = call->inputs[i];
        const int axis = ls_sample_axis(call, i);
        if (axis < 0) {
            continue;
        }
        if (input->ndim > ndim) {
            return LS_SAMPLES_UNKNOWN;
        }
        const int at = axis + ndim - input->ndim;
        repeated |= axis < input->ndim ? input->size[axis] == 1 : ndim > 0;
        if (to >= 0 && at != to && !repeated) {
            return LS_SAMPLES_MIXED;
        }
        to = to < 0 || at == to ? at : LS_MAX_DIMS;
    }
    call->axis = to < LS_MAX_DIMS ? to : -1;
    return LS_SAMPLES_MOVED;
}

/* Follows samples that lie along several axes: only their sum can be recognized. */
static ls_samples_use follow_scattered(ls_samples_call *call, uint8_t *spread) {
    call->axis = 0;
    call->leads = false;
    const ls_samples_use use = call->op->over_samples != NULL ? call->op->over_samples(call) : LS_SAMPLES_MOVED;
    *spread = LS_SPREAD_OTHER;
    return use == LS_SAMPLES_SUMMED && call->output->count == 1 ? LS_SAMPLES_SUMMED
           : use == LS_SAMPLES_MOVED                            ? LS_SAMPLES_KEPT
                                                                : LS_SAMPLES_UNKNOWN;
}

ls_samples_use ls_samples_follow(ls_samples_call *call, uint8_t *spread) {
    call->axis = ls_first_sample_axis(call);
    call->leads = true;
    call->divisor = INFINITY;
    for (int i = 0; i < call->input_count; i++) {
        const uint8_t own = call->spread_of(call->inputs[i]);
        if (own == LS_SPREAD_OTHER) {
            return follow_scattered(call, spread);
        }
        call->leads &= own == LS_SPREAD_NONE || own == LS_SPREAD_FIRST;
    }
    const ls_samples_use use = call->op->over_samples != NULL ? call->op->over_samples(call) : align(call);
    if (use != LS_SAMPLES_KEPT && use != LS_SAMPLES_MOVED) {
        return use;
    }
    if (call->axis == 0 && call->leads) {
        *spread = LS_SPREAD_FIRST;
    } else {
        *spread = (uint8_t)(call->axis < 0 || call->axis >= call->output->ndim ? LS_SPREAD_OTHER
                                                                               : LS_SPREAD_AXIS + call->axis);
    }
    return LS_SAMPLES_KEPT;
}

ls_status ls_samples_refuse(const char *call, const char *operation, int axis) {
    char along[32] = "";
    if (axis >= 0) {
        snprintf(along, sizeof along, " along axis %d", axis);
    }
    return ls_fail(
        LS_ERR_UNSUPPORTED,
        "%s: %s combines the samples of this rank%s, where one process would combine all samples of the global "
        "batch: gather the samples first (ls_allgather), reduce over the ranks (ls_allreduce), or compute "
        "along another axis",
        call, operation, along);
}

/* ---- one node ---------------------------------------------------------------------------------------------------- */

/* Kinds of inputs of a node. */
enum { SAMPLES = 1, REFUSED = 2, SUMS = 4 };

static ls_samples_call call_of(const ls_batch_loss *loss, const ls_node *node) {
    return (ls_samples_call){.op = node->op,
                             .inputs = node->inputs,
                             .input_count = node->input_count,
                             .output = node->output,
                             .parameters = &node->parameters,
                             .saved = node->saved,
                             .spread_of = spread_of,
                             .wants_divisor = true,
                             .single = loss->single};
}

static uint8_t refuse(ls_batch_loss *loss, const ls_node *node) {
    if (loss->refused == NULL) {
        const ls_samples_call call = call_of(loss, node);
        loss->refused = node;
        loss->refused_axis = ls_first_sample_axis(&call);
    }
    return LS_SPREAD_REFUSED;
}

/* Returns whether the gradient of input i is computed from a value that itself requires a gradient. */
static bool is_multiplied(const ls_node *node, int i) {
    const unsigned reads = i < LS_NODE_INPUTS ? node->op->reads[i] : 0;
    bool wanted = false;
    for (int k = 0; k < node->input_count && k < LS_NODE_INPUTS; k++) {
        wanted |= (reads >> k & 1U) != 0 && ls_wants(node, k);
    }
    return wanted;
}

static ls_node *node_of(const ls_tensor *input) {
    return (ls_node *)(void *)input->node;
}

/* Returns the note for the result of an operation on sums. */
static uint8_t follow_sums(ls_batch_loss *loss, ls_node *node) {
    const ls_samples_call call = call_of(loss, node);
    uint8_t result = 0;
    bool sums = false;
    node->plain = true;
    for (int i = 0; i < node->input_count; i++) {
        const uint8_t spread = spread_of(node->inputs[i]);
        if (spread == LS_SPREAD_NONE) {
            continue;
        }
        if (!ls_samples_linear_in(&call, i)) {
            return refuse(loss, node);
        }
        loss->multiplied |= is_multiplied(node, i);
        const ls_node *input = node_of(node->inputs[i]);
        sums |= input->plain || input->mixed;
        node->plain &= input->plain;
        result = result == 0 || result == spread ? spread : LS_SPREAD_SUMS;
    }
    node->mixed = sums && !node->plain;
    return result;
}

static uint8_t add_sum(ls_batch_loss *loss, ls_node *node, const ls_samples_call *call) {
    const int number = loss->sums++;
    const double divisor = call->divisor;
    node->sums_samples = true;
    node->divisor_tensor = call->divisor_tensor;
    node->plain = isinf(divisor);
    node->divides = !isinf(divisor);
    node->parameters.number[LS_NODE_WEIGHT] = loss->divisor = divisor;
    return (uint8_t)(number <= UINT8_MAX - LS_SPREAD_SUM ? LS_SPREAD_SUM + number : LS_SPREAD_SUMS);
}

/*
 * Returns whether the node combines each sample with constants of other samples of this rank. An example is the
 * product of an output and its detached transpose. If the other samples are recorded, too, the operation is refused.
 */
static bool is_over_pairs(const ls_batch_loss *loss, const ls_node *node) {
    ls_samples_call call = call_of(loss, node);
    uint8_t spread = LS_SPREAD_NONE;
    call.spread_of = noted_spread_of;
    call.wants_divisor = false;
    return ls_samples_follow(&call, &spread) == LS_SAMPLES_MIXED;
}

static uint8_t follow_samples(ls_batch_loss *loss, ls_node *node, bool has_noted) {
    ls_samples_call call = call_of(loss, node);
    uint8_t spread = LS_SPREAD_NONE;
    node->pairs = has_noted && is_over_pairs(loss, node);
    switch (ls_samples_follow(&call, &spread)) {
    case LS_SAMPLES_KEPT:
        return spread;
    case LS_SAMPLES_SUMMED:
        return add_sum(loss, node, &call);
    default:
        return refuse(loss, node);
    }
}

/* Returns whether the tensor has no history, but an operation has computed it from samples of this rank. */
static bool is_combined_constant(const ls_tensor *input) {
    return input != NULL && (input->node == NULL || input->node->tape == NULL) && ls_mixing_operation(input) != NULL;
}

/*
 * Marks a collective call with equal results, and its input, if the input contains only plain sums. Such a sum is
 * scaled by the number of ranks, because the ranks average its gradient. If the program itself combines the sums of the
 * ranks, the scaling must be undone: the ranks then compute with the same values as a single process.
 */
static void mark_collected(ls_node *node) {
    ls_node *input = node_of(node->inputs[0]);
    node->collects = input->plain;
    input->collected |= node->collects;
}

static uint8_t follow(ls_batch_loss *loss, ls_node *node) {
    unsigned inputs = 0;
    bool constant = false, noted = false;
    node->sums_samples = node->weighed = node->has_constant = node->pairs = false;
    node->plain = node->mixed = node->collects = node->collected = false;
    if (node->samples_of != NULL) {
        loss->begun = true;
        loss->single = node->output->ndim > 0 && node->output->size[0] == 1;
        return LS_SPREAD_FIRST;
    }
    if (!loss->begun) {
        return LS_SPREAD_NONE;
    }
    for (int i = 0; i < node->input_count; i++) {
        const uint8_t spread = spread_of(node->inputs[i]);
        constant |= is_combined_constant(node->inputs[i]);
        noted |= spread == LS_SPREAD_NONE && has_samples(noted_spread_of(node->inputs[i]));
        inputs |= spread == LS_SPREAD_NONE      ? 0U
                  : has_samples(spread)         ? SAMPLES
                  : spread == LS_SPREAD_REFUSED ? REFUSED
                                                : SUMS;
    }
    if (inputs != 0 && node->op->root_result) { /* a loss on the root only would be scaled by the root's share */
        return refuse(loss, node);
    }
    if (inputs == 0 || node->op->communicates) { /* the program decides what the ranks exchange */
        loss->exchanges |= inputs == SUMS;
        if (inputs == SUMS && node->op->equal_results) {
            if (node_of(node->inputs[0])->mixed) {
                return refuse(loss, node);
            }
            mark_collected(node);
        }
        return LS_SPREAD_NONE;
    }
    node->has_constant = constant;
    if ((inputs & REFUSED) != 0) {
        return LS_SPREAD_REFUSED;
    }
    return inputs == SUMS      ? follow_sums(loss, node)
           : inputs == SAMPLES ? follow_samples(loss, node, noted)
                               : refuse(loss, node);
}

/* ---- the tapes --------------------------------------------------------------------------------------------------- */

typedef void (*node_visitor)(void *user, ls_node *node);

/* Calls `function` for every node, in the order of recording. */
static void visit(ls_scope *scope, node_visitor function, void *user) {
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
    loss->earlier += node->sums_samples && node->segment != loss->segment;
}

typedef struct search {
    int first;
    int count;
    int number; /* index of the next sum */
    double *divisors;
    const ls_tensor **divisor_tensors;
    const double *weights;
    double plain; /* the scaling factor of sums without a divisor; 0 if none was visited */
    ls_node_filter *is_over_ranks;
    const void *ranks;
} search;

static void visit_sum(void *user, ls_node *node) {
    search *s = user;
    if (node->collects && s->plain != 0 && s->is_over_ranks(node, s->ranks)) {
        node->weighed = s->plain != 1;
        node->parameters.number[LS_NODE_WEIGHT] = 1 / s->plain;
    }
    if (!node->sums_samples) {
        return;
    }
    const int i = s->number++ - s->first;
    if (i < 0 || i >= s->count) {
        return;
    }
    if (s->divisors != NULL) {
        s->divisors[i] = node->parameters.number[LS_NODE_WEIGHT];
        if (s->divisor_tensors != NULL) {
            s->divisor_tensors[i] = node->divisor_tensor;
        }
    } else {
        node->sum_index = s->number - 1;
        s->plain = node->divides ? s->plain : s->weights[i];
        node->weighed = s->weights[i] != 1 || ls_thread_present->capture != NULL; /* a replay may change the factor */
        node->parameters.number[LS_NODE_WEIGHT] = s->weights[i];
    }
}

void ls_batch_loss_divisors(const ls_batch_loss *loss, int first, int count, double *divisors,
                            const ls_tensor **divisor_tensors) {
    visit(loss->innermost, visit_sum,
          &(search){.first = first, .count = count, .divisors = divisors, .divisor_tensors = divisor_tensors});
}

void ls_batch_loss_weigh(const ls_batch_loss *loss, int first, int count, const double *weights,
                         ls_node_filter *is_over_ranks, const void *ranks) {
    visit(
        loss->innermost, visit_sum,
        &(search){.first = first, .count = count, .weights = weights, .is_over_ranks = is_over_ranks, .ranks = ranks});
}

void ls_samples_trace(ls_batch_loss *loss, ls_scope *innermost, const ls_tensor *output, bool seeded) {
    *loss = (ls_batch_loss){
        .output = output, .innermost = innermost, .segment = ls_thread_present->segment, .weight = 1, .only = -1};
    visit(innermost, trace_node, loss);
    const uint8_t spread = spread_of(output);
    if (has_samples(spread)) {
        loss->by_samples = !seeded;
        if (seeded) { /* a single process would start with the gradients of all ranks */
            (void)add_sum(loss, (ls_node *)(void *)output->node, &(ls_samples_call){.divisor = INFINITY});
            loss->irregular = true;
        }
    } else if (spread == LS_SPREAD_SUMS) {
        loss->irregular = true;
    } else if (spread >= LS_SPREAD_SUM) {
        if (spread - LS_SPREAD_SUM != loss->sums - 1) {
            ls_batch_loss_divisors(loss, spread - LS_SPREAD_SUM, 1, &loss->divisor, NULL);
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

/* Returns whether the pass reaches a sought tensor through this one. Nodes before this tensor's were visited. */
static bool reaches(const ls_tensor *tensor) {
    const ls_tape_link *link = tensor->node;
    return tensor->needs_grad &&
           ((tensor->leaf != NULL && tensor->leaf->sought) ||
            (link != NULL && link->tape != NULL && ((const ls_node *)(const void *)link)->reaches));
}

static void visit_reach(void *unused, ls_node *node) {
    bool has_input = false;
    (void)unused;
    node->reaches = node->samples_of != NULL;
    for (int i = 0; i < node->input_count && !node->reaches; i++) {
        const ls_tensor *input = node->inputs[i];
        has_input |= input != NULL && input->needs_grad;
        node->reaches = input != NULL && reaches(input);
    }
    node->reaches |= node->op->communicates && !has_input; /* received from another rank */
}

bool ls_batch_loss_reaches(const ls_batch_loss *loss) {
    visit(loss->innermost, visit_reach, NULL);
    return reaches(loss->output);
}

typedef struct module_search {
    const void *module;
    bool remains;      /* an output of the module is on a tape */
    bool communicates; /* the pass walks a communicating node that depends on such an output */
} module_search;

static void visit_output(void *context, ls_node *node) {
    module_search *of = context;
    node->reaches = node->samples_of == of->module;
    of->remains |= node->reaches;
    for (int i = 0; i < node->input_count && !node->reaches; i++) {
        node->reaches = node->inputs[i] != NULL && reaches(node->inputs[i]);
    }
    of->communicates |= node->reaches && node->op->communicates && node->segment == ls_thread_present->segment;
}

ls_reach ls_samples_reach(const ls_batch_loss *loss, const void *module) {
    module_search of = {.module = module};
    visit(loss->innermost, visit_output, &of);
    return !of.remains                                                        ? LS_REACH_NEVER
           : loss->output == NULL || of.communicates || reaches(loss->output) ? LS_REACH_NOW
                                                                              : LS_REACH_LATER;
}

bool ls_samples_remain(const void *module) {
    for (const ls_scope *scope = ls_thread_present->scope; scope != NULL; scope = scope->outer) {
        for (const ls_tape_link *link = scope->tape.last; link != NULL; link = link->previous) {
            if (((const ls_node *)(const void *)link)->samples_of == module) {
                return true;
            }
        }
    }
    return false;
}

double ls_batch_loss_divisor(const ls_batch_loss *loss, int64_t samples) {
    return loss->refused != NULL ? (double)NAN
           : loss->by_samples    ? (double)samples
           : loss->only >= 0     ? loss->divisor
                                 : (double)NAN;
}

/* Reports a collective call whose result data parallelism would scale wrongly. */
static ls_status refuse_call(const ls_op *op) {
    return op->root_result ? ls_fail(LS_ERR_UNSUPPORTED,
                                     "ls_backward: the loss depends on %s of samples of a data-parallel module, which "
                                     "gives only the root a result: use ls_allreduce or ls_allgather",
                                     op->name)
                           : ls_fail(LS_ERR_UNSUPPORTED,
                                     "ls_backward: the input of %s mixes sums and means over the samples of a "
                                     "data-parallel module's output, which need different scaling factors: call it "
                                     "separately for sums and for means",
                                     op->name);
}

ls_status ls_batch_loss_check(const ls_batch_loss *loss) {
    if (loss->refused != NULL && (loss->refused->op->root_result || loss->refused->op->equal_results)) {
        return refuse_call(loss->refused->op);
    }
    if (loss->refused != NULL) {
        return ls_samples_refuse("ls_backward", loss->refused->op->name, loss->refused_axis);
    }
    if (loss->irregular && loss->multiplied && loss->only < 0) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "ls_backward: a sum or mean over the samples of a data-parallel module's output is multiplied "
                       "by a tensor that requires a gradient, and the loss has terms with different weights: "
                       "all-reduce the sum or mean first (ls_allreduce)");
    }
    return LS_OK;
}
