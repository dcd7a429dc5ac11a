/* Reads networks.txt, and computes the numbers that its script and the test share. */
#include "tests/support/networks.h"

#include "tensor/tensor.h"
#include "tests/support/elements.h"
#include "tests/support/unit.h"

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static bool starts(const char *line, const char *word) {
    const size_t length = strlen(word);
    return strncmp(line, word, length) == 0 && (line[length] == ' ' || line[length] == '\0');
}

static double next_number(char **at, const char *line) {
    char *end = *at;
    const double number = strtod(*at, &end);
    if (end == *at) {
        fail_msg("networks.txt: a number is missing in \"%s\"", line);
    }
    *at = end;
    return number;
}

/* Reads "is LOSS", "d LENGTH A B C", "d 0" or "b LENGTH A B C". */
static void read_values(char *line, network *one) {
    char *at = strchr(line, ' ');
    if (line[0] == 'i') {
        one->loss = next_number(&at, line);
    } else {
        assert_true(one->tensor_count < NETWORK_TENSORS);
        network_tensor *tensor = &one->tensors[one->tensor_count++];
        *tensor = (network_tensor){.is_buffer = line[0] == 'b', .length = next_number(&at, line)};
        for (int i = 0; i < NETWORK_PRODUCTS && tensor->length > 0; i++) {
            tensor->products[i] = next_number(&at, line);
        }
    }
    if (*at != '\0') {
        fail_msg("networks.txt: there is more than was expected in \"%s\"", line);
    }
}

/* Reads the next line without its newline. Returns false at the end of the file. */
static bool read_line(FILE *file, char line[NETWORK_LINE]) {
    if (fgets(line, NETWORK_LINE, file) == NULL) {
        return false;
    }
    char *end = strchr(line, '\n');
    if (end == NULL) {
        fail_msg("networks.txt: this line is too long, or does not end: \"%s\"", line);
        return false;
    }
    *end = '\0';
    return true;
}

static int peek(FILE *file) {
    const int next = fgetc(file);
    return next == EOF ? EOF : ungetc(next, file);
}

bool network_read(FILE *file, int number, network *one) {
    char line[NETWORK_LINE], first[32];
    *one = (network){.number = number};
    if (!read_line(file, line)) {
        return false;
    }
    snprintf(first, sizeof first, "network %d", number);
    assert_string_equal(line, first);
    do {
        assert_true(one->line_count < NETWORK_LINES && read_line(file, line));
        memcpy(one->lines[one->line_count++], line, sizeof line);
    } while (!starts(line, "loss"));
    assert_true(read_line(file, line) && starts(line, "is"));
    read_values(line, one);
    for (int next = peek(file); next == 'd' || next == 'b'; next = peek(file)) {
        assert_true(read_line(file, line) && (starts(line, "d") || starts(line, "b")));
        read_values(line, one);
    }
    return true;
}

void network_print(const network *one, const char *what) {
    print_error("network %d: %s\n", one->number, what);
    for (int i = 0; i < one->line_count; i++) {
        print_error("    %s\n", one->lines[i]);
    }
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

double network_value(int number, int tensor, int64_t element) {
    uint64_t z = ((uint64_t)number << 40) + ((uint64_t)tensor << 24) + (uint64_t)element + 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    return (double)(z >> 40) / 0x1p23 - 1;
}

void network_fill(ls_tensor *tensor, int number, int index, double scale, double shift) {
    void *values = elements(tensor);
    for (int64_t i = 0; i < ls_numel(tensor); i++) {
        const double value = network_value(number, index, i) * scale + shift;
        if (ls_dtype_of(tensor) == LS_F64) {
            ((double *)values)[i] = value;
        } else {
            ((float *)values)[i] = (float)value;
        }
    }
}

/* ---- tensors that are kept --------------------------------------------------------------------------------------- */

enum { KEPT = 32 };

static _Thread_local struct {
    bool on;
    int count;
    struct {
        int number, index;
        ls_dtype dtype;
        ls_tensor *tensor;
    } tensors[KEPT];
} kept;

void network_keep_tensors(bool on) {
    while (kept.count > 0) {
        ls_tensor_drop(kept.tensors[--kept.count].tensor);
    }
    kept.on = on;
}

ls_tensor *network_find_kept(int number, int index, ls_dtype dtype) {
    for (int i = 0; i < kept.count; i++) {
        if (kept.tensors[i].number == number && kept.tensors[i].index == index && kept.tensors[i].dtype == dtype) {
            return kept.tensors[i].tensor;
        }
    }
    return NULL;
}

ls_tensor *network_keep(int number, int index, ls_tensor *tensor) {
    if (kept.on) {
        assert_true(kept.count < KEPT);
        kept.tensors[kept.count].number = number;
        kept.tensors[kept.count].index = index;
        kept.tensors[kept.count].dtype = ls_dtype_of(tensor);
        kept.tensors[kept.count++].tensor = ls_tensor_take(tensor);
    }
    return tensor;
}

ls_tensor *network_tensor_of(int number, int index, ls_shape shape, ls_dtype dtype, double scale, double shift) {
    ls_tensor *tensor = network_find_kept(number, index, dtype);
    if (tensor == NULL) {
        tensor = ls_empty(shape, dtype);
        assert_non_null(tensor);
        network_fill(tensor, number, index, scale, shift);
        tensor = network_keep(number, index, tensor);
    }
    return tensor;
}

ls_tensor *network_below(int number, int index, ls_shape shape, int64_t count) {
    ls_tensor *tensor = network_find_kept(number, index, LS_I64);
    if (tensor != NULL) {
        return tensor;
    }
    tensor = ls_empty(shape, LS_I64);
    assert_non_null(tensor);
    int64_t *values = elements(tensor);
    for (int64_t i = 0; i < ls_numel(tensor); i++) {
        values[i] = (int64_t)((network_value(number, index, i) + 1) / 2 * (double)count);
    }
    return network_keep(number, index, tensor);
}

/* ---- the words of a line ----------------------------------------------------------------------------------------- */

bool network_words_read(const char *line, network_words *words) {
    int at = 0;
    *words = (network_words){.count = 0};
    if (sscanf(line, "%31[a-z0-9_]%n", words->name, &at) != 1) {
        return false;
    }
    while (line[at] != '\0') {
        char word[64];
        int length = 0;
        if (words->count == NETWORK_WORDS || sscanf(line + at, " %63s%n", word, &length) != 1) {
            return false;
        }
        at += length;
        const int i = words->count++;
        if (sscanf(word, "%31[a-z0-9_]=%31s", words->word[i].key, words->word[i].value) < 1) {
            return false;
        }
    }
    return true;
}

const char *network_text(network_words *words, const char *key) {
    for (int i = 0; i < words->count; i++) {
        if (strcmp(words->word[i].key, key) == 0) {
            words->word[i].used = true;
            return words->word[i].value;
        }
    }
    return NULL;
}

bool network_flag(network_words *words, const char *key) {
    const char *value = network_text(words, key);
    if (value != NULL && value[0] != '\0') {
        fail_msg("networks.txt: %s of %s has no value, but here it is %s", key, words->name, value);
    }
    return value != NULL;
}

double network_number(network_words *words, const char *key, double otherwise) {
    const char *value = network_text(words, key);
    char *end = NULL;
    const double number = value != NULL ? strtod(value, &end) : otherwise;
    if (value != NULL && (end == value || *end != '\0')) {
        fail_msg("networks.txt: %s of %s is \"%s\"", key, words->name, value);
    }
    return number;
}

ls_shape network_shape(network_words *words, const char *key) {
    const char *value = network_text(words, key);
    ls_shape shape = {.ndim = 0};
    for (bool more = value != NULL; more;) {
        char *end = NULL;
        assert_true(shape.ndim < LS_MAX_DIMS);
        shape.size[shape.ndim++] = strtoll(value, &end, 10);
        more = *end == ',';
        if (end == value || (!more && *end != '\0')) {
            fail_msg("networks.txt: %s of %s ends with \"%s\"", key, words->name, value);
        }
        value = end + 1;
    }
    return shape;
}

bool network_all_used(const network_words *words) {
    for (int i = 0; i < words->count; i++) {
        if (!words->word[i].used) {
            return false;
        }
    }
    return true;
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

ls_tensor *network_train(void *training) {
    const network_training *self = training;
    ls_optimizer_zero_grad(self->optimizer);
    ls_zero_grad(self->x);
    ls_tensor *y = ls_forward(self->model, self->x);
    ls_tensor *loss = y != NULL ? network_loss(self->one, y) : NULL;
    return ls_backward(loss) == LS_OK && ls_optimizer_step(self->optimizer) == LS_OK ? loss : NULL;
}
