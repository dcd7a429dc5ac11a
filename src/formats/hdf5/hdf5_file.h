/* Internals of the plug-in hdf5, shared by its files. */
#ifndef LS_FORMATS_HDF5_HDF5_FILE_H
#define LS_FORMATS_HDF5_HDF5_FILE_H

#include <hdf5.h>
#include <stdio.h>

#include "formats/array_format.h"

/* H5F_ACC_RDONLY and other macros would call H5check, which aborts if the patch release of the library differs. */
#undef H5CHECK
#define H5CHECK

/* HDF5's error handler (which prints errors), saved while it is switched off. */
typedef struct ls_hdf5_silence {
    H5E_auto2_t handler;
    void *data;
} ls_hdf5_silence;

/* Switches off the printing of errors for this thread. ls_hdf5_restore restores it. */
ls_hdf5_silence ls_hdf5_silence_errors(void);
void ls_hdf5_restore(ls_hdf5_silence before);

/*
 * Sets the reason to HDF5's innermost error in the last call, which must be the failed call: each call deletes the
 * reason of the previous call. Returns false.
 */
bool ls_hdf5_explain(char reason[LS_ARRAY_REASON]);

/* Returns a negative number with a reason on failure. */
hid_t ls_hdf5_open_for_reading(const char *path, char reason[LS_ARRAY_REASON]);

/* Describes an open variable. Fails with a reason if no tensor can hold it. */
bool ls_hdf5_describe(hid_t variable, ls_array *array, char reason[LS_ARRAY_REASON]);

/* Checks that the sources of a virtual variable exist. If a source is missing, HDF5 reads fill values instead. */
bool ls_hdf5_check_sources(hid_t variable, hid_t creation, char reason[LS_ARRAY_REASON]);

/* See `attribute` of ls_array_format. */
int ls_hdf5_attribute(const ls_array *array, const char *name, bool as_elements,
                      ls_array_number numbers[LS_ARRAY_NUMBERS]);

bool ls_hdf5_write(const char *path, const ls_array_data *arrays, int count, int *refused,
                   char reason[LS_ARRAY_REASON]);

#endif
