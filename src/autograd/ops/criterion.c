/* Losses in the form that trials and pipelines accept. */
#include <lockstep/loss.h>

ls_tensor *ls_criterion_cross_entropy(ls_tensor *output, ls_tensor *target, void *user) {
    return ls_cross_entropy(output, target, user);
}

ls_tensor *ls_criterion_mse(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    return ls_mse_loss(output, target, LS_LOSS_MEAN);
}

ls_tensor *ls_criterion_bce(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    return ls_bce_loss(output, target, LS_LOSS_MEAN);
}

ls_tensor *ls_criterion_bce_with_logits(ls_tensor *output, ls_tensor *target, void *user) {
    return ls_bce_with_logits_loss(output, target, user);
}
