/*
 * Fuses a matrix product with the ReLU of its result: the product writes the result of the ReLU, so that the result
 * before the ReLU needs no memory. The bits are the same: ls_sequential makes the same calls for a linear layer with a
 * ReLU after it.
 */
#include "tensor/capture_record.h"
#include "tensor/device/cpu/cpu.h"

static ls_captured_address *find_address(const ls_capture *capture, const void *at) {
    for (int i = 0; i < capture->address_count; i++) {
        if ((const void *)capture->addresses[i].at == at) {
            return &capture->addresses[i];
        }
    }
    return NULL;
}

static bool is_dense_and_plain(const ls_gemm *gemm) {
    return gemm->batch <= 1 && gemm->ldc == gemm->n && !gemm->accumulate && gemm->activation == LS_ACTIVATION_NONE;
}

/* Returns whether the map is the ReLU of the whole product, in the product's order. */
static bool is_relu_of(const ls_captured_map *map, const ls_gemm *gemm) {
    const ls_tensor *x = map->operands[0], *y = map->y;
    return map->kernel == ls_cpu_kernels.relu && x->data == gemm->c && x->count == gemm->m * gemm->n &&
           x->count == y->count && x->contiguous && y->contiguous && x->dtype == (uint8_t)gemm->dtype;
}

/* Makes the product `first` include the ReLU `next`, if only these calls use the memory between them. */
static void fuse(ls_capture *capture, int first, int next) {
    ls_gemm *gemm = ls_captured_gemm(&capture->calls[first]);
    const ls_captured_map *map = ls_captured_map_of(&capture->calls[next]);
    if (gemm == NULL || map == NULL || !is_dense_and_plain(gemm) || !is_relu_of(map, gemm)) {
        return;
    }
    ls_captured_address *product = find_address(capture, &gemm->c);
    const ls_captured_address *x = find_address(capture, &map->operands[0]->data);
    const ls_captured_address *y = find_address(capture, &map->y->data);
    if (product == NULL || x == NULL || y == NULL || x->block != product->block) {
        return;
    }
    ls_captured_block *between = product->block, *result = y->block;
    if (between == result || between->storage != NULL || between->first != first || between->last != next) {
        return;
    }
    between->first = -1; /* the block needs no place in the arena */
    result->first = result->first < first ? result->first : first;
    gemm->activation = LS_ACTIVATION_RELU;
    gemm->c = map->y->data;
    product->block = result;
    product->offset = y->offset;
    ls_captured_call_drop(&capture->calls[next]);
}

void ls_capture_fuse_products(ls_capture *capture) {
    for (int first = 0; capture->status == LS_OK && first < capture->call_count; first++) {
        int next = first + 1;
        while (next < capture->call_count && capture->calls[next].polls) {
            next++;
        }
        if (next < capture->call_count) {
            fuse(capture, first, next);
        }
    }
}
