/* The texts of a CSV column: a table that is sorted by their bytes, whose indices are the class numbers. */
#ifndef LS_FORMATS_CSV_CLASSES_H
#define LS_FORMATS_CSV_CLASSES_H

#include <lockstep/formats.h>

/* An empty table; NULL and an error on failure. */
ls_csv_classes *ls_csv_classes_new(void);
/* Adds a text, unless it is there. Returns LS_ERR_FORMAT, without a message, if the table is full. */
ls_status ls_csv_classes_add(ls_csv_classes *classes, const char *text);

#endif
