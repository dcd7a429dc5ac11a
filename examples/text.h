/*
 * What the examples that learn the bytes of a file share: the loss of the byte that comes next, a byte drawn from what
 * a model says of it, the file's first, and the lines at the end.
 */
#ifndef LS_EXAMPLES_TEXT_H
#define LS_EXAMPLES_TEXT_H

#include <inttypes.h>
#include <stdio.h>

#include <lockstep/lockstep.h>

enum { BYTES = 256, TOP = 20 };

/* Each position is a sample of its own: its logits against the byte that comes next. */
static inline ls_tensor *next_byte(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    return ls_cross_entropy(ls_reshape(output, LS_SHAPE(-1, BYTES)), ls_reshape(target, LS_SHAPE(-1)), NULL);
}

/* One of the likeliest bytes, drawn by probability; -1 on failure. */
static inline int draw_byte(ls_tensor *logits, double temperature) {
    ls_tensor *indices = NULL;
    ls_tensor *values = ls_top_k(logits, TOP, 0, false, &indices);
    ls_tensor *sums = ls_cumsum(ls_softmax(ls_div(values, temperature), 0), 0);
    ls_tensor *below = ls_sum(ls_to(ls_lt(sums, ls_rand(LS_SCALAR, LS_F32)), LS_I64));
    const double place = below != NULL ? ls_item(below) : -1;
    ls_tensor *byte = place >= 0 ? ls_select(indices, 0, place < TOP ? (int64_t)place : TOP - 1) : NULL;
    return byte != NULL ? (int)ls_item(byte) : -1;
}

/* The file's first byte; a newline where there is none any more. */
static inline int first_byte(const char *file) {
    FILE *stream = fopen(file, "rb");
    const int byte = stream != NULL ? fgetc(stream) : EOF;
    if (stream != NULL) {
        fclose(stream);
    }
    return byte != EOF ? byte : '\n';
}

/* What training came to; rank 0 says most of it, last. */
static inline ls_status report(ls_trial *trial, ls_comm *world, ls_module *model, long context) {
    const double samples = ls_trial_throughput(trial); /* of all ranks: each asks */
    printf("rank %d parameters %016" PRIx64 "\n", ls_comm_rank(world), ls_module_hash(model));
    fflush(stdout);
    const ls_status status = ls_comm_barrier(world, NULL); /* so that rank 0's lines are the last */
    if (status != LS_OK || ls_comm_rank(world) != 0) {
        return status;
    }
    printf("parameters: %" PRId64 "\n", ls_module_size(model));
    printf("throughput: %.0f bytes/s\n", samples * (double)context);
    printf("loss: %.4f\n", ls_trial_metric(trial, "loss"));
    return LS_OK;
}

#endif
