/* CSV files as tensors, for data sets. */
#ifndef LS_FORMATS_CSV_H
#define LS_FORMATS_CSV_H

#include <lockstep/formats.h>

#include "base/status.h"

/*
 * Reads columns like ls_csv_read, without the columns in `targets`, which may be NULL. Messages begin with `call`.
 * Fails with LS_ERR_ARGUMENT if the program has selected a target in options->columns.
 */
ls_tensor *ls_csv_read_columns(const char *call, const char *path, const char *const *targets, int count,
                               const ls_csv_options *options);

/* Sets `*is_text` to whether options->text lists the column, by its name or by its number. */
ls_status ls_csv_find_text(const char *call, const char *path, const char *column, const ls_csv_options *options,
                           bool *is_text);

#endif
