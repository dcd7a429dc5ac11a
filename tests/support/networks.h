/*
 * Reads the networks of tests/fixtures/networks.txt, computes their numbers, and makes the modules of their lines.
 * tests/fixtures/make_networks.py describes the lines of the file.
 */
#ifndef LS_TESTS_SUPPORT_NETWORKS_H
#define LS_TESTS_SUPPORT_NETWORKS_H

#include <stdio.h>

#include <lockstep/nn.h>
#include <lockstep/optim.h>

enum { NETWORK_LINES = 32, NETWORK_LINE = 128, NETWORK_TENSORS = 20, NETWORK_PRODUCTS = 3, NETWORK_WORDS = 16 };

/* Indices of the tensors that are not the input, parameters or buffers. */
enum {
    NETWORK_LAYER = 500, /* plus the line number: a mask or lengths */
    NETWORK_TARGET = 600,
    NETWORK_CLASS_WEIGHT,
    NETWORK_ELEMENT_WEIGHT,
    NETWORK_OTHER,
    NETWORK_VECTOR = 1000
};

/* PyTorch's values of a gradient, or of a buffer after the step. */
typedef struct network_tensor {
    bool is_buffer;
    double length; /* 0 means that it is zero except for rounding */
    double products[NETWORK_PRODUCTS];
} network_tensor;

typedef struct network {
    int number;
    int line_count; /* lines of the input, the layers and the loss */
    char lines[NETWORK_LINES][NETWORK_LINE];
    double loss;
    int tensor_count;
    network_tensor tensors[NETWORK_TENSORS];
} network;

/*
 * Reads the next network, which must have this number. Returns false at the end of the file. Fails the test if a line
 * is unknown.
 */
bool network_read(FILE *file, int number, network *one);

/* Prints the network's number and lines, and the error. */
void network_print(const network *one, const char *what);

/* Returns element `element` of tensor `tensor`, in [-1, 1). */
double network_value(int number, int tensor, int64_t element);
/* Sets the elements of a floating-point tensor to network_value times `scale` plus `shift`. */
void network_fill(ls_tensor *tensor, int number, int index, double scale, double shift);
/* Makes a tensor of these values. */
ls_tensor *network_tensor_of(int number, int index, ls_shape shape, ls_dtype dtype, double scale, double shift);
/* Makes an i64 tensor with values from 0 to `count` - 1. */
ls_tensor *network_below(int number, int index, ls_shape shape, int64_t count);

/*
 * While on, network_tensor_of and network_below return the same tensor for the same network, index and dtype. It lives
 * until the call with false.
 */
void network_keep_tensors(bool on);

/* Returns the kept tensor; NULL if it was not kept. */
ls_tensor *network_find_kept(int number, int index, ls_dtype dtype);
/* Keeps the tensor if keeping is on. Returns the tensor. */
ls_tensor *network_keep(int number, int index, ls_tensor *tensor);

/* Makes the loss of the network's last line, "loss NAME OPTIONS". Returns NULL if the loss is unknown. */
ls_tensor *network_loss(const network *one, ls_tensor *y);
/* Makes the input of a line "x SIZES" or "index SIZES of COUNT". Returns NULL for other lines. */
ls_tensor *network_input(const network *one, ls_dtype dtype);
/* Sets the parameters and buffers of the network's module. */
void network_set_numbers(const network *one, ls_module *model);

/* A network in training. */
typedef struct network_training {
    const network *one;
    ls_module *model;
    ls_optimizer *optimizer;
    ls_tensor *x;
} network_training;

/* The function of a training step, also for ls_step_capture. The argument is a network_training. Returns the loss, or
 * NULL on failure. */
ls_tensor *network_train(void *training);

/* A line: its name, then words "KEY=VALUE" or "KEY". */
typedef struct network_words {
    char name[32];
    int count;
    struct {
        char key[32], value[32]; /* empty: none */
        bool used;
    } word[NETWORK_WORDS];
} network_words;

/* Splits a line into words. Returns false if the line has a different form. */
bool network_words_read(const char *line, network_words *words);
/* Returns the value of the word, "" if it has no value, or NULL if there is no such word. The pointer is borrowed. */
const char *network_text(network_words *words, const char *key);
/* Returns whether the word exists without a value. */
bool network_flag(network_words *words, const char *key);
/* Returns the number of the word, or `otherwise` if there is no such word. */
double network_number(network_words *words, const char *key, double otherwise);
/* Returns the word's comma-separated integers, or an empty shape if there is no such word. */
ls_shape network_shape(network_words *words, const char *key);
/* Returns whether all words were used. */
bool network_all_used(const network_words *words);

/* Makes a module of all layers of the network. If a line is unknown or fails, returns NULL and stores the line in
 * *failed. */
ls_module *network_module(const network *one, ls_dtype dtype, const char **failed);
/* Returns whether the layers support f64: a table of rows (Embedding) supports only f32. */
bool network_has_f64(const network *one);

#endif
