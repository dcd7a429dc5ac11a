/* Inside of plug-in hdf5: what its files share. */
#ifndef LS_FORMATS_HDF5_HDF5_FILE_H
#define LS_FORMATS_HDF5_HDF5_FILE_H

#include <hdf5.h>
#include <stdio.h>

#include "formats/array_format.h"

/* H5F_ACC_RDONLY and others would call H5check, which ends the process if the library has another patch release. */
#undef H5CHECK
#define H5CHECK

/* HDF5's handler of errors, which prints them, while it is switched off. */
typedef struct ls_hdf5_silence {
    H5E_auto2_t handler;
    void *data;
} ls_hdf5_silence;

/* Switches the printing of errors off for this thread, and ls_hdf5_restore restores it. */
ls_hdf5_silence ls_hdf5_silence_errors(void);
void ls_hdf5_restore(ls_hdf5_silence before);

/* Sets the reason to HDF5's innermost error of the last failed call. */
void ls_hdf5_explain(char reason[LS_ARRAY_REASON]);

bool ls_hdf5_write(const char *path, const ls_array_data *arrays, int count, char reason[LS_ARRAY_REASON]);

#endif
