/* Einstein summation, composed of permutations, sums and matrix products, two operands at a time. */
#include <string.h>

#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"

static const char call[] = "ls_einsum";

enum { LETTERS = 128, MOST_OPERANDS = 16 };

/* A tensor whose axes have letters. */
typedef struct labelled {
    ls_tensor *tensor;
    char letter[LS_MAX_DIMS];
} labelled;

/* A parsed equation. */
typedef struct equation {
    int operands;
    char letter[MOST_OPERANDS][LS_MAX_DIMS + 1];
    int axes[MOST_OPERANDS];
    char output[LS_MAX_DIMS + 1];
    int output_axes;
    int uses[LETTERS]; /* number of uses of each letter in the output and in the operands that are not processed yet */
    int64_t size[LETTERS];
} equation;

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static ls_status refuse(const char *text, const char *why) {
    return ls_fail(LS_ERR_ARGUMENT, "%s: \"%s\": %s", call, text, why);
}

/* Reads letters up to the first other character. Returns the end, or NULL on failure. */
static const char *read_letters(const char *text, const char *at, char *letter, int *count) {
    for (*count = 0; is_letter(*at) || *at == ' '; at++) {
        if (*at == ' ') {
            continue;
        }
        if (*count == LS_MAX_DIMS) {
            (void)ls_fail(LS_ERR_ARGUMENT, "%s: \"%s\": more than %d letters for a tensor", call, text, LS_MAX_DIMS);
            return NULL;
        }
        letter[(*count)++] = *at;
    }
    return at;
}

/* Without an arrow, the output has the letters that occur once, in alphabetical order, capitals first. */
static ls_status implicit_output(const char *text, equation *e) {
    int times[LETTERS] = {0};
    for (int i = 0; i < e->operands; i++) {
        for (int k = 0; k < e->axes[i]; k++) {
            times[(int)e->letter[i][k]]++;
        }
    }
    for (int c = 0; c < LETTERS; c++) {
        if (times[c] == 1) {
            if (e->output_axes == LS_MAX_DIMS) {
                return refuse(text, "the result would have too many axes");
            }
            e->output[e->output_axes++] = (char)c;
        }
    }
    return LS_OK;
}

static ls_status check_output(const char *text, const equation *e) {
    for (int i = 0; i < e->output_axes; i++) {
        bool there = false;
        for (int k = 0; k < e->operands; k++) {
            there = there || memchr(e->letter[k], e->output[i], (size_t)e->axes[k]) != NULL;
        }
        if (!there || memchr(e->output, e->output[i], (size_t)i) != NULL) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: \"%s\": letter %c of the result %s", call, text, e->output[i],
                           there ? "occurs twice" : "does not occur in an operand");
        }
    }
    return LS_OK;
}

static ls_status read_equation(const char *text, int count, equation *e) {
    const char *at = text;
    for (e->operands = 0;; at++) {
        if (e->operands == MOST_OPERANDS) {
            return refuse(text, "names more than 16 operands");
        }
        const int i = e->operands++;
        at = read_letters(text, at, e->letter[i], &e->axes[i]);
        if (at == NULL) {
            return ls_error_status();
        }
        if (*at != ',') {
            break;
        }
    }
    if (*at == '.') {
        return refuse(text, "there is no ellipsis here: give every axis a letter");
    }
    if (e->operands != count) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: \"%s\" names %d operands, but there are %d", call, text, e->operands,
                       count);
    }
    if (*at == '\0') {
        return implicit_output(text, e);
    }
    if (at[0] != '-' || at[1] != '>') {
        return refuse(text, "must be letters with commas between the operands, and the result after \"->\"");
    }
    at = read_letters(text, at + 2, e->output, &e->output_axes);
    return at == NULL    ? ls_error_status()
           : *at != '\0' ? refuse(text, "text follows the result")
                         : check_output(text, e);
}

static ls_status check_sizes(const char *text, ls_tensor *const *operands, equation *e) {
    for (int c = 0; c < LETTERS; c++) {
        e->size[c] = -1;
    }
    for (int i = 0; i < e->operands; i++) {
        if (operands[i]->ndim != e->axes[i]) {
            return ls_fail(LS_ERR_SHAPE, "%s: \"%s\": operand %d is %s, but has %d letters", call, text, i + 1,
                           LS_SHAPE_TEXT(operands[i]), e->axes[i]);
        }
        for (int k = 0; k < e->axes[i]; k++) {
            int64_t *size = &e->size[(int)e->letter[i][k]];
            if (*size >= 0 && *size != operands[i]->size[k]) {
                return ls_fail(LS_ERR_SHAPE, "%s: \"%s\": letter %c has sizes %lld and %lld", call, text,
                               e->letter[i][k], (long long)*size, (long long)operands[i]->size[k]);
            }
            *size = operands[i]->size[k];
        }
    }
    return LS_OK;
}

/* ---- computation: each function consumes its tensors. NULL is allowed, and marks a failure ----------------------- */

/* Replaces x's tensor with `next`, which was computed from it. */
static void replace(labelled *x, ls_tensor *next) {
    x->tensor = ls_replaced(next, x->tensor, NULL);
}

/* Permutes the axes to the order of these letters, which must be all of x's letters. */
static void order(labelled *x, const char *letter, int count) {
    ls_axes axes = {.count = count};
    bool same = true;
    for (int i = 0; i < count && x->tensor != NULL; i++) {
        axes.axis[i] = (int)((const char *)memchr(x->letter, letter[i], (size_t)count) - x->letter);
        same = same && axes.axis[i] == i;
    }
    if (x->tensor != NULL && !same) {
        replace(x, ls_permute(x->tensor, axes));
    }
    memcpy(x->letter, letter, (size_t)count);
}

/* Replaces two axes that have the same letter with their diagonal, which becomes the last axis. */
static void take_diagonal(labelled *x, int first, int second) {
    const int count = x->tensor->ndim;
    const int64_t size = x->tensor->size[first];
    const char repeated = x->letter[first];
    ls_axes axes = {.count = count};
    int placed = 0;
    for (int i = 0; i < count; i++) {
        if (i != first && i != second) {
            x->letter[placed] = x->letter[i];
            axes.axis[placed++] = i;
        }
    }
    axes.axis[placed] = first;
    axes.axis[placed + 1] = second;
    x->letter[placed] = repeated;
    replace(x, ls_permute(x->tensor, axes));
    replace(x, x->tensor == NULL ? NULL : ls_flatten(x->tensor, count - 2, count - 1));
    replace(x, x->tensor == NULL ? NULL : ls_slice(x->tensor, -1, 0, size * size, size + 1));
}

static void take_diagonals(labelled *x) {
    for (int i = 0; x->tensor != NULL && i < x->tensor->ndim; i++) {
        for (int k = i + 1; x->tensor != NULL && k < x->tensor->ndim; k++) {
            if (x->letter[i] == x->letter[k]) {
                take_diagonal(x, i, k);
                i = -1; /* the letters have moved: start again */
                break;
            }
        }
    }
}

/* Sums over the letters that occur neither in `other` nor in the output or the remaining operands. */
static void sum_the_rest(const equation *e, labelled *x, const labelled *other) {
    ls_axes axes = {.count = 0};
    int left = 0;
    for (int i = 0; x->tensor != NULL && i < x->tensor->ndim; i++) {
        const char c = x->letter[i];
        if (e->uses[(int)c] > 0 || (other != NULL && memchr(other->letter, c, (size_t)other->tensor->ndim) != NULL)) {
            x->letter[left++] = c;
        } else {
            axes.axis[axes.count++] = i;
        }
    }
    if (axes.count > 0) {
        replace(x, ls_sum_axes(x->tensor, axes, false));
    }
}

/* The letters of two operands: in both and needed later, in only one, and in both and summed over. */
typedef struct split {
    char both[LS_MAX_DIMS], summed[LS_MAX_DIMS], only[2][LS_MAX_DIMS];
    int boths, sums, onlys[2];
} split;

static split split_letters(const equation *e, const labelled *a, const labelled *b) {
    split s = {.boths = 0};
    for (int i = 0; i < a->tensor->ndim; i++) {
        const char c = a->letter[i];
        if (memchr(b->letter, c, (size_t)b->tensor->ndim) == NULL) {
            s.only[0][s.onlys[0]++] = c;
        } else if (e->uses[(int)c] > 0) {
            s.both[s.boths++] = c;
        } else {
            s.summed[s.sums++] = c;
        }
    }
    for (int i = 0; i < b->tensor->ndim; i++) {
        if (memchr(a->letter, b->letter[i], (size_t)a->tensor->ndim) == NULL) {
            s.only[1][s.onlys[1]++] = b->letter[i];
        }
    }
    return s;
}

static int64_t size_of(const equation *e, const char *letter, int count) {
    int64_t size = 1;
    for (int i = 0; i < count; i++) {
        size *= e->size[(int)letter[i]];
    }
    return size;
}

/* Returns one operand as a batch of matrices: [both, only, summed], or [both, summed, only]. */
static ls_tensor *as_matrices(const equation *e, const split *s, labelled *x, int which) {
    char letter[LS_MAX_DIMS];
    const int only = s->onlys[which];
    memcpy(letter, s->both, (size_t)s->boths);
    memcpy(letter + s->boths + (which == 0 ? 0 : s->sums), s->only[which], (size_t)only);
    memcpy(letter + s->boths + (which == 0 ? only : 0), s->summed, (size_t)s->sums);
    order(x, letter, s->boths + only + s->sums);
    const int64_t rows = size_of(e, s->only[which], only), inner = size_of(e, s->summed, s->sums);
    const ls_shape shape = which == 0 ? LS_SHAPE(size_of(e, s->both, s->boths), rows, inner)
                                      : LS_SHAPE(size_of(e, s->both, s->boths), inner, rows);
    replace(x, x->tensor == NULL ? NULL : ls_reshape(x->tensor, shape));
    return x->tensor;
}

/* Returns the product of two operands whose other letters are already summed over. */
static labelled multiply_matrices(const equation *e, const char *text, labelled *a, labelled *b) {
    labelled y = {.tensor = NULL};
    const split s = split_letters(e, a, b);
    ls_shape shape = {.ndim = s.boths + s.onlys[0] + s.onlys[1]};
    if (shape.ndim > LS_MAX_DIMS) {
        (void)refuse(text, "an intermediate product has too many axes: change the order of the operands");
        (void)ls_scope_failed();
        return y;
    }
    if (as_matrices(e, &s, a, 0) == NULL || as_matrices(e, &s, b, 1) == NULL) {
        return y;
    }
    memcpy(y.letter, s.both, (size_t)s.boths);
    memcpy(y.letter + s.boths, s.only[0], (size_t)s.onlys[0]);
    memcpy(y.letter + s.boths + s.onlys[0], s.only[1], (size_t)s.onlys[1]);
    for (int i = 0; i < shape.ndim; i++) {
        shape.size[i] = e->size[(int)y.letter[i]];
    }
    y.tensor = s.sums == 0 ? ls_mul_tensor(a->tensor, b->tensor) : ls_matmul(a->tensor, b->tensor);
    replace(&y, y.tensor == NULL ? NULL : ls_reshape(y.tensor, shape));
    return y;
}

/* Returns the product of two operands, summed over the letters that are not needed later. Consumes both. */
static labelled multiply(const equation *e, const char *text, labelled a, labelled b) {
    labelled y = {.tensor = NULL};
    if (a.tensor != NULL && b.tensor != NULL) {
        sum_the_rest(e, &a, &b);
    }
    if (a.tensor != NULL && b.tensor != NULL) {
        sum_the_rest(e, &b, &a);
    }
    if (a.tensor != NULL && b.tensor != NULL) {
        y = multiply_matrices(e, text, &a, &b);
    }
    ls_release(a.tensor);
    ls_release(b.tensor);
    return y;
}

/* Returns operand i, with the diagonals of repeated letters, and subtracts its letters from the remaining uses. */
static labelled take_operand(equation *e, ls_tensor *const *operands, int i) {
    labelled x = {.tensor = ls_view_as_is(operands[i])};
    memcpy(x.letter, e->letter[i], (size_t)e->axes[i]);
    for (int k = 0; k < e->axes[i]; k++) {
        e->uses[(int)x.letter[k]]--;
    }
    take_diagonals(&x);
    return x;
}

static ls_tensor *compute(equation *e, const char *text, ls_tensor *const *operands) {
    for (int i = 0; i < e->operands; i++) {
        for (int k = 0; k < e->axes[i]; k++) {
            e->uses[(int)e->letter[i][k]]++;
        }
    }
    for (int i = 0; i < e->output_axes; i++) {
        e->uses[(int)e->output[i]]++;
    }
    labelled y = take_operand(e, operands, 0);
    for (int i = 1; i < e->operands && y.tensor != NULL; i++) {
        y = multiply(e, text, y, take_operand(e, operands, i));
    }
    if (y.tensor != NULL) {
        sum_the_rest(e, &y, NULL);
        order(&y, e->output, e->output_axes);
    }
    return y.tensor;
}

ls_tensor *ls_einsum(const char *text, ls_tensor *const *operands, int count) {
    if (text == NULL || operands == NULL || count < 1 || count > MOST_OPERANDS) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "%s: needs an equation and 1 to %d operands", call, MOST_OPERANDS);
    }
    if (!ls_inputs_are_given(call, operands, count)) {
        return NULL;
    }
    equation e = {.operands = 0};
    if (ls_check_floating(call, operands, count) != LS_OK || read_equation(text, count, &e) != LS_OK ||
        check_sizes(text, operands, &e) != LS_OK) {
        return ls_scope_failed();
    }
    return compute(&e, text, operands);
}
