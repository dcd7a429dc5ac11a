# LS_ZERO selects zero in programs that were compiled with -ffast-math.
. "$LS_SOURCE/tests/support/checks.sh"

cat >program.c <<'C'
#include <stdio.h>

#include <lockstep/autograd.h>
#include <lockstep/optim.h>

typedef struct problem {
    ls_tensor *weight;
    ls_optimizer *optimizer;
    int evaluations;
} problem;

static ls_status evaluate(void *argument, double *loss) {
    problem *self = argument;
    ls_tensor *value = ls_sum(ls_square(ls_square(self->weight)));
    const ls_status status = ls_backward(value);
    self->evaluations++;
    *loss = ls_item(value);
    return status;
}

static ls_status minimize(int zero) {
    problem self = {.weight = ls_full(LS_SHAPE(1), LS_F64, 0.3)};
    double loss;
    const ls_lbfgs_options options = {.tolerance_gradient = zero ? LS_ZERO : 0, .tolerance_change = zero ? LS_ZERO : 0};
    self.optimizer = ls_lbfgs(NULL, &options);
    if (self.optimizer == NULL || ls_set_requires_grad(self.weight, true) != LS_OK ||
        ls_optimizer_add_group(self.optimizer, &self.weight, 1, NULL) != LS_OK) {
        return ls_error_status();
    }
    ls_status status = LS_OK;
    for (int i = 0; i < 5 && status == LS_OK; i++) {
        status = ls_optimizer_step_closure(self.optimizer, evaluate, &self, &loss);
    }
    printf("evaluations %d\n", self.evaluations);
    ls_optimizer_free(self.optimizer);
    return status;
}

/* An argument asks for zeros, which compilers cannot know. */
int main(int argc, char **argv) {
    (void)argv;
    const int zero = argc > 1;
    ls_adam_options options = {.beta1 = zero ? LS_ZERO : 0};
    options.learning_rate = zero ? LS_ZERO : 0.0;
    ls_optimizer *adam = ls_adam(NULL, &options);
    ls_tensor *weight = ls_ones(LS_SHAPE(1), LS_F64);
    if (adam == NULL || ls_set_requires_grad(weight, true) != LS_OK ||
        ls_optimizer_add_group(adam, &weight, 1, NULL) != LS_OK || minimize(zero) != LS_OK) {
        fprintf(stderr, "%s\n", ls_error_message());
        return 1;
    }
    printf("learning_rate %g beta1 %g\n", ls_optimizer_learning_rate(adam, 0), ls_optimizer_momentum(adam));
    ls_optimizer_free(adam);
    return 0;
}
C

# evaluations WORD...: how often the program evaluated the loss.
evaluations() {
    ./program "$@" | sed -n 's/^evaluations //p'
}

check_compiler() {
    local compiler=$1
    check "$compiler: compiles" "$compiler" -std=c17 -O3 -ffast-math -Wall -Werror -I"$LS_SOURCE/include" program.c \
        -o program -L"$LS_BUILD/lib" -Wl,-rpath,"$LS_BUILD/lib" -llockstep
    check "$compiler: zero selects the defaults" is "$(./program | tail -1)" "learning_rate 0.001 beta1 0.9"
    check "$compiler: LS_ZERO selects zero" is "$(./program zero | tail -1)" "learning_rate 0 beta1 0"
    check "$compiler: tolerances of LS_ZERO end nothing early" test "$(evaluations zero)" -gt "$(evaluations)"
}

for compiler in gcc clang; do
    if command -v $compiler >/dev/null; then
        check_compiler $compiler
    else
        echo "SKIPPED there is no $compiler"
    fi
done
finish
