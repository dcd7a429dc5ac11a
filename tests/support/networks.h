/*
 * Networks of tests/fixtures/networks.txt (its script says what the lines mean): reading them, their numbers, and the
 * modules of their lines.
 */
#ifndef LS_TESTS_SUPPORT_NETWORKS_H
#define LS_TESTS_SUPPORT_NETWORKS_H

#include <stdio.h>

#include <lockstep/nn.h>

enum { NETWORK_LINES = 32, NETWORK_LINE = 128, NETWORK_TENSORS = 20, NETWORK_PRODUCTS = 3, NETWORK_WORDS = 16 };

/* Numbers of the tensors that are neither the input, a parameter nor a buffer. */
enum {
    NETWORK_LAYER = 500, /* and the number of its line: a mask or lengths */
    NETWORK_TARGET = 600,
    NETWORK_CLASS_WEIGHT,
    NETWORK_ELEMENT_WEIGHT,
    NETWORK_OTHER,
    NETWORK_VECTOR = 1000
};

/* What PyTorch has of a gradient, or of a buffer afterwards. */
typedef struct network_tensor {
    bool is_buffer;
    double length; /* 0: of nothing but rounding */
    double products[NETWORK_PRODUCTS];
} network_tensor;

typedef struct network {
    int number;
    int line_count; /* the input's, those of the layers, the loss's */
    char lines[NETWORK_LINES][NETWORK_LINE];
    double loss;
    int tensor_count;
    network_tensor tensors[NETWORK_TENSORS];
} network;

/* The next of the file, whose number must be `number`; false at the end of the file. Fails the test at a line that is
 * not known. */
bool network_read(FILE *file, int number, network *one);

/* Prints its number and lines, and what is the matter. */
void network_print(const network *one, const char *what);

/* Element `element` of tensor `tensor`, in [-1, 1). */
double network_value(int number, int tensor, int64_t element);
/* Sets the elements of a floating tensor to that times `scale` plus `shift`. */
void network_fill(ls_tensor *tensor, int number, int index, double scale, double shift);
/* A tensor of such values. */
ls_tensor *network_tensor_of(int number, int index, ls_shape shape, ls_dtype dtype, double scale, double shift);
/* One of i64, from 0 to `count` - 1. */
ls_tensor *network_below(int number, int index, ls_shape shape, int64_t count);

/* A line: its name, then words "KEY=VALUE" or "KEY". */
typedef struct network_words {
    char name[32];
    int count;
    struct {
        char key[32], value[32]; /* empty: none */
        bool used;
    } word[NETWORK_WORDS];
} network_words;

/* False where it is none. */
bool network_words_read(const char *line, network_words *words);
/* The value of the word, "" of one without, lent; NULL where there is no such word. */
const char *network_text(network_words *words, const char *key);
/* Whether there is such a word, without a value. */
bool network_flag(network_words *words, const char *key);
/* The number behind it; `otherwise` where there is no such word. */
double network_number(network_words *words, const char *key, double otherwise);
/* The whole numbers behind it, with commas between; none where there is no such word. */
ls_shape network_shape(network_words *words, const char *key);
/* Whether all words were asked for. */
bool network_all_used(const network_words *words);

/* The module of all layers of the network; NULL with the line in *failed where one is not known or not made. */
ls_module *network_module(const network *one, ls_dtype dtype, const char **failed);
/* Whether its layers have f64: a table of rows (Embedding) has f32 alone. */
bool network_has_f64(const network *one);

#endif
