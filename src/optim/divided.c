#include "optim/divided.h"

double *ls_divided_sum(const char *call, ls_divided_sums *sums, const ls_division *divisions) {
    for (int i = 0; i < sums->count; i++) {
        const ls_division *own = sums->sums[i].divisions;
        if (own[LS_DIVIDED_TENSOR].user == divisions[LS_DIVIDED_TENSOR].user &&
            own[LS_DIVIDED_MODEL].user == divisions[LS_DIVIDED_MODEL].user) {
            return &sums->sums[i].sum;
        }
    }
    if (sums->count == LS_MOST_DIVIDED_SUMS) {
        return ls_fail_null(LS_ERR_UNSUPPORTED, "%s: the model is sharded over more than %d groups of ranks", call,
                            LS_MOST_DIVIDED_SUMS);
    }
    ls_divided_sum_of *made = &sums->sums[sums->count++];
    *made = (ls_divided_sum_of){.sum = 0};
    for (int i = 0; i < LS_DIVISIONS; i++) {
        made->divisions[i] = divisions[i];
    }
    return &made->sum;
}

static ls_status add_stages(const char *call, ls_divided_sums *sums, const ls_module *module) {
    const ls_division divisions[LS_DIVISIONS] = {[LS_DIVIDED_MODEL] = module->division};
    if (module->division.add != NULL && ls_divided_sum(call, sums, divisions) == NULL) {
        return ls_error_status();
    }
    for (int i = 0; i < module->child_count; i++) {
        LS_TRY(add_stages(call, sums, module->children[i].module));
    }
    return LS_OK;
}

ls_status ls_divided_begin(const char *call, ls_divided_sums *sums, const ls_module *model) {
    sums->count = 0;
    sums->failed = 0;
    return model != NULL ? add_stages(call, sums, model) : LS_OK;
}

/* Adds up both numbers over the ranks of a division. */
static ls_status add(const ls_division *division, double *sum, double *failed) {
    double numbers[] = {*sum, *failed};
    LS_TRY(division->add != NULL ? division->add(division->user, numbers, 2) : LS_OK);
    *sum = numbers[0];
    *failed = numbers[1];
    return LS_OK;
}

/*
 * Sums first over the shards of tensors, then over the shards of the model, which contain whole tensors and tensor
 * shards.
 */
ls_status ls_divided_total(ls_divided_sums *all, double *total) {
    ls_divided_sum_of *sums = all->sums;
    *total = 0;
    for (int i = 0; i < all->count; i++) {
        LS_TRY(add(&sums[i].divisions[LS_DIVIDED_TENSOR], &sums[i].sum, &all->failed));
    }
    for (int i = 0; i < all->count; i++) {
        const ls_division division = sums[i].divisions[LS_DIVIDED_MODEL];
        double sum = 0;
        for (int k = i; k < all->count; k++) {
            if (sums[k].divisions[LS_DIVIDED_MODEL].user == division.user) {
                sum += sums[k].sum;
                sums[k] = (ls_divided_sum_of){.sum = 0}; /* already counted */
            }
        }
        LS_TRY(add(&division, &sum, &all->failed));
        *total += sum;
    }
    return LS_OK;
}
