/* Header of a classic NetCDF file: the size that the file must have. libnetcdf reads zeros after the end of a file. */
#ifndef LS_FORMATS_NETCDF_CLASSIC_H
#define LS_FORMATS_NETCDF_CLASSIC_H

#include "formats/array_format.h"

/*
 * Checks that a classic file (CDF-1, CDF-2, CDF-5) has all bytes of its variables. Padding after the last variable may
 * be missing. Fails with a reason. Returns true for files of other formats.
 */
bool ls_netcdf_check_classic(const char *path, char reason[LS_ARRAY_REASON]);

#endif
