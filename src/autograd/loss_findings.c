/*
 * Records, for the watches of a backward pass, the sums over samples in the loss and the constants that scale them. A
 * program that computes a mean by hand divides the sum, or multiplies the summed tensor by constant weights.
 */
#include "autograd/backward.h"

#include "autograd/mixing_note.h"
#include "autograd/ops/ops.h"
#include "tensor/capture.h"

/* Constants by which the elements of a sum are multiplied. */
typedef struct scaling {
    double number;            /* product of the constants that have one element */
    const ls_tensor *weights; /* a constant with more elements, broadcast to the summed tensor; or NULL */
    bool divides;             /* the elements are divided by `weights` */
    bool is_ambiguous;        /* see ls_found_sum */
} scaling;

static const ls_node *node_of(const ls_tensor *tensor) {
    const ls_tape_link *link = tensor->node;
    return link != NULL && link->tape != NULL ? (const ls_node *)(const void *)link : NULL;
}

/* Looks through products and quotients with a constant operand. Returns the other factor of the summed tensor. */
static const ls_tensor *look_through(const ls_tensor *summed, scaling *s) {
    const ls_node *node = node_of(summed);
    ls_constant_factor factor;
    while (node != NULL && ls_find_constant_factor(node, &factor)) {
        if (factor.tensor == NULL || factor.tensor->count == 1) {
            const double number = factor.tensor != NULL ? ls_item(factor.tensor) : factor.number;
            s->number *= factor.divides ? 1 / number : number;
            s->is_ambiguous |= factor.tensor != NULL && factor.tensor->ndim > 0;
        } else if (s->weights == NULL) {
            s->weights = factor.tensor;
            s->divides = factor.divides;
        } else {
            return NULL; /* two tensors of weights */
        }
        summed = factor.variable;
        node = node_of(summed);
    }
    return summed;
}

typedef struct weight_sum {
    double sum;
    bool differ; /* between samples */
    bool binary; /* all weights are 0 or 1 */
} weight_sum;

/* Adds up the weights, whose axis `axis` counts samples. If the weights cannot be read, returns 0 and sets `binary`. */
static weight_sum add_weights(const scaling *s, int axis) {
    const ls_tensor *w = s->weights;
    ls_tensor *host = ls_tensor_dense_on_host("ls_backward", w, LS_F64);
    weight_sum result = {.binary = true};
    const double *weight = host != NULL ? ls_host_data(host) : NULL;
    const int64_t count = host != NULL ? host->count : 0, samples = w->size[axis];
    int64_t inner = 1;
    for (int i = axis + 1; i < w->ndim; i++) {
        inner *= w->size[i];
    }
    for (int64_t i = 0; i < count; i++) {
        const int64_t first = i - i / inner % samples * inner; /* index of the same element of the first sample */
        result.sum += s->divides ? 1 / weight[i] : weight[i];
        result.binary &= weight[i] == 0 || weight[i] == 1;
        result.differ |= weight[i] != weight[first];
    }
    ls_tensor_drop(host);
    return result;
}

/*
 * If a program scales this rank's samples in the loss by constant weights, returns their total weight; otherwise 0.
 * `factor` is the gradient of the loss with respect to the sum, times the constants that have one element.
 */
static double total_weight(const ls_node *node, const scaling *s, double factor) {
    const ls_tensor *summed = node->inputs[0], *w = s->weights;
    const uint8_t spread = node_of(summed) != NULL ? node_of(summed)->spread : LS_SPREAD_NONE;
    const int position = spread == LS_SPREAD_FIRST ? 0 : spread - LS_SPREAD_AXIS;
    const int axis = position - (summed->ndim - w->ndim);
    if (spread < LS_SPREAD_FIRST || spread >= LS_SPREAD_OTHER || axis < 0 || w->size[axis] <= 1) {
        return 0; /* the weights are the same for all samples */
    }
    const weight_sum all = add_weights(s, axis);
    if ((all.binary && factor == 1) || (node->divides && !all.differ)) {
        return 0;
    }
    const double repeats = (double)summed->count / (double)w->count; /* by broadcasting */
    return factor * all.sum * repeats / (node->divides ? (double)summed->count : 1);
}

static void note_findings(ls_backward_pass *pass, const ls_node *node, const ls_tensor *gradient) {
    ls_pass_findings *found = pass->findings;
    for (int i = 0; i < node->input_count && node->has_constant; i++) {
        const char *operation = node->inputs[i] != NULL ? ls_mixing_operation(node->inputs[i]) : NULL;
        if (operation != NULL) {
            found->constant = operation;
            found->divides |= node->output->count == 1;
        }
    }
    found->pairs = node->pairs ? node->op->name : found->pairs;
    if (!node->sums_samples || node->collected || gradient->count != 1 || found->sums == LS_FOUND_SUMS) {
        return;
    }
    scaling s = {.number = 1};
    if (node->input_count == 1 && look_through(node->inputs[0], &s) == NULL) {
        s = (scaling){.number = 1};
    }
    ls_found_sum *sum = &found->sum[found->sums++];
    *sum = (ls_found_sum){.factor = ls_item(gradient) / pass->weight * s.number,
                          .is_mean = node->divides,
                          .is_ambiguous = s.is_ambiguous};
    sum->total_weight = s.weights != NULL ? total_weight(node, &s, sum->factor) : 0;
    for (int i = 0; i < LS_FOUND_SIZES && i < node->input_count; i++) {
        sum->sizes[i] = node->inputs[i] != NULL ? (double)node->inputs[i]->count : 0;
    }
}

void ls_note_findings(ls_backward_pass *pass, const ls_node *node, const ls_tensor *gradient) {
    ls_capture *capture = pass->thread->capture;
    if (capture != NULL) {
        capture->paused++; /* a replay uses the findings of the captured pass */
    }
    note_findings(pass, node, gradient);
    if (capture != NULL) {
        capture->paused--;
    }
}
