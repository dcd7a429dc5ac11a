/* Declarations that snippets of the documentation use. shell/consumer.sh compiles each snippet after this file. */
#include <lockstep/lockstep.h>
#include <math.h>
#include <stdio.h>

extern ls_comm *world;
extern ls_module *model;
extern ls_optimizer *optimizer;
extern ls_grad_scaler *scaler;
extern ls_loader *training, *validation;
extern ls_tensor *x, *target;
extern ls_callback *mine;
extern int64_t epochs;

ls_status report(ls_trial_state *state, void *user);
ls_status measure(const ls_trial_state *state, void *user, double *sum, double *weight);
ls_status add_products(const ls_trial_state *state, void *user, double *sums);
double correlation(const double *sums, void *user);
