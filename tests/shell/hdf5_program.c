/* Writes tensors of every dtype and shape to two files, for hdf5.sh: hdf5_program SAFETENSORS HDF5. */
#include <stdio.h>

#include <lockstep/lockstep.h>

int main(int argc, char **argv) {
    ls_scope *scope = ls_scope_begin();
    static const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_BF16, LS_F16, LS_I64, LS_I32, LS_U8, LS_BOOL};
    enum { DTYPES = sizeof dtypes / sizeof *dtypes };
    ls_named tensors[DTYPES + 3];
    static char names[DTYPES][32];
    for (int i = 0; i < DTYPES; i++) {
        snprintf(names[i], sizeof names[i], "layers.%d/%s", i, ls_dtype_name(dtypes[i]));
        tensors[i] = (ls_named){names[i], ls_to(ls_randint(LS_SHAPE(3, i + 1), LS_I64, 0, 200), dtypes[i])};
    }
    tensors[DTYPES] = (ls_named){"scalar", ls_full(LS_SCALAR, LS_F32, 2.5)};
    tensors[DTYPES + 1] = (ls_named){"empty", ls_empty(LS_SHAPE(0, 4), LS_F32)};
    tensors[DTYPES + 2] = (ls_named){"normal", ls_to(ls_randn(LS_SHAPE(100), LS_F32), LS_F16)};
    const bool good = argc == 3 && ls_safetensors_save(argv[1], tensors, DTYPES + 3, NULL) == LS_OK &&
                      ls_hdf5_save(argv[2], tensors, DTYPES + 3) == LS_OK;
    if (!good) {
        fprintf(stderr, "%s\n", ls_error_message());
    }
    return ls_scope_end(scope) == LS_OK && good ? 0 : 1;
}
