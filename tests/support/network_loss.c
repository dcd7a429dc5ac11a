/* Creates the inputs and losses for the networks in networks.txt. */
#include <inttypes.h>

#include <lockstep/loss.h>

#include "tests/support/networks.h"
#include "tests/support/unit.h"

static ls_loss_reduction reduction_of(network_words *words) {
    const char *text = network_text(words, "reduction");
    if (text == NULL) {
        return LS_LOSS_MEAN;
    }
    assert_true(strcmp(text, "sum") == 0 || strcmp(text, "none") == 0);
    return strcmp(text, "sum") == 0 ? LS_LOSS_SUM : LS_LOSS_NONE;
}

/* Cross entropy or, for log probabilities, nll. */
static ls_tensor *class_loss(network_words *words, ls_tensor *y, int number, bool from_logits) {
    const ls_dtype dtype = ls_dtype_of(y);
    const ls_shape shape = ls_shape_of(y);
    const int64_t classes = shape.size[1];
    ls_shape places = {.ndim = shape.ndim - 1, .size = {shape.size[0]}};
    for (int i = 1; i < places.ndim; i++) {
        places.size[i] = shape.size[i + 1];
    }
    ls_class_loss_options options = {.reduction = reduction_of(words),
                                     .label_smoothing = network_number(words, "smoothing", 0),
                                     .ignore_index = (int64_t)network_number(words, "ignore", -1)};
    options.ignore = options.ignore_index >= 0;
    if (network_flag(words, "weighted")) {
        options.weight = network_tensor_of(number, NETWORK_CLASS_WEIGHT, LS_SHAPE(classes), dtype, 1, 1.25);
    }
    ls_tensor *target = network_flag(words, "probabilities")
                            ? network_tensor_of(number, NETWORK_TARGET, shape, dtype, 0.5, 0.5)
                            : network_below(number, NETWORK_TARGET, places, classes);
    return from_logits ? ls_cross_entropy(y, target, &options)
                       : ls_nll_loss(y, target,
                                     &(ls_nll_loss_options){.reduction = options.reduction,
                                                            .weight = options.weight,
                                                            .ignore = options.ignore,
                                                            .ignore_index = options.ignore_index});
}

static ls_tensor *distance_loss(network_words *words, ls_tensor *y, int number) {
    const ls_shape shape = ls_shape_of(y);
    const ls_loss_reduction reduction = reduction_of(words);
    const double margin = network_number(words, "margin", 0);
    ls_tensor *target = network_tensor_of(number, NETWORK_TARGET, shape, ls_dtype_of(y), 1, 0);
    if (strcmp(words->name, "triplet") == 0) {
        ls_tensor *negative = network_tensor_of(number, NETWORK_OTHER, shape, ls_dtype_of(y), 1, 0);
        return ls_triplet_margin_loss(y, target, negative, margin, reduction);
    }
    ls_tensor *half = network_below(number, NETWORK_CLASS_WEIGHT, LS_SHAPE(shape.size[0]), 2);
    ls_tensor *sign = ls_sub(ls_mul(half, 2), 1);
    return ls_cosine_embedding_loss(y, target, sign, margin, reduction);
}

static ls_tensor *bce_with_logits(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction) {
    return ls_bce_with_logits_loss(x, target, &(ls_bce_with_logits_options){.reduction = reduction});
}

/* Returns NULL if the loss is unknown. */
static ls_tensor *element_loss(network_words *words, ls_tensor *y, int number) {
    const ls_shape shape = ls_shape_of(y);
    const ls_loss_reduction reduction = reduction_of(words);
    if (strcmp(words->name, "huber") == 0) {
        ls_tensor *target = network_tensor_of(number, NETWORK_TARGET, shape, ls_dtype_of(y), 1, 0);
        return ls_huber_loss(y, target, network_number(words, "delta", 0), reduction);
    }
    static const struct {
        const char *name;
        ls_tensor *(*loss)(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);
        double scale, shift; /* of its targets */
    } losses[] = {{"mse", ls_mse_loss, 1, 0},
                  {"l1", ls_l1_loss, 1, 0},
                  {"bce", ls_bce_loss, 0.5, 0.5},
                  {"bce_with_logits", bce_with_logits, 0.5, 0.5},
                  {"kl_div", ls_kl_div_loss, 0.5, 0.5}};
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        if (strcmp(losses[i].name, words->name) == 0) {
            return losses[i].loss(
                y, network_tensor_of(number, NETWORK_TARGET, shape, ls_dtype_of(y), losses[i].scale, losses[i].shift),
                reduction);
        }
    }
    return NULL;
}

ls_tensor *network_loss(const network *one, ls_tensor *y) {
    network_words words;
    if (!network_words_read(one->lines[one->line_count - 1] + strlen("loss "), &words)) {
        return NULL;
    }
    const bool entropy = strcmp(words.name, "cross_entropy") == 0;
    const bool distance = strcmp(words.name, "triplet") == 0 || strcmp(words.name, "cosine_embedding") == 0;
    ls_tensor *loss = entropy || strcmp(words.name, "nll") == 0 ? class_loss(&words, y, one->number, entropy)
                      : distance                                ? distance_loss(&words, y, one->number)
                                                                : element_loss(&words, y, one->number);
    if (loss != NULL && reduction_of(&words) == LS_LOSS_NONE) {
        loss = ls_sum(ls_mul(
            loss, network_tensor_of(one->number, NETWORK_ELEMENT_WEIGHT, ls_shape_of(loss), ls_dtype_of(y), 1, 0)));
    }
    return network_all_used(&words) ? loss : NULL;
}

/* ---- inputs and parameters --------------------------------------------------------------------------------------- */

ls_tensor *network_input(const network *one, ls_dtype dtype) {
    const char *at = strchr(one->lines[0], ' ');
    const bool index = strncmp(one->lines[0], "index ", 6) == 0;
    ls_shape shape = {.ndim = 0};
    if (at == NULL || (!index && strncmp(one->lines[0], "x ", 2) != 0)) {
        return NULL;
    }
    for (char *end; *at == ' ' && at[1] != 'o'; at = end) {
        assert_true(shape.ndim < LS_MAX_DIMS);
        shape.size[shape.ndim++] = strtoll(at, &end, 10);
    }
    int64_t count = 0;
    if (index) {
        assert_int_equal(sscanf(at, " of %" SCNd64, &count), 1);
        return network_below(one->number, 0, shape, count);
    }
    assert_true(*at == '\0');
    ls_tensor *x = network_tensor_of(one->number, 0, shape, dtype, 1, 0);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    return x;
}

void network_set_numbers(const network *one, ls_module *model) {
    const int parameters = ls_module_parameter_count(model), buffers = ls_module_buffer_count(model);
    for (int i = 0; i < parameters; i++) {
        network_fill(ls_module_parameter(model, i), one->number, 1 + i, 0.5, 0);
    }
    for (int i = 0; i < buffers; i++) {
        const bool variance = strstr(ls_module_buffer_name(model, i), "running_var") != NULL;
        network_fill(ls_module_buffer(model, i), one->number, 1 + parameters + i, 0.5, variance ? 1 : 0);
    }
}
