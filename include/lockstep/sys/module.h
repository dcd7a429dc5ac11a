/**
 * @file sys/module.h
 * Entry functions of plug-ins. A plug-in is a shared library `lockstep-NAME.so` that the library opens on demand. It
 * exports an entry function, and needs no symbols from the library. lockstep.h does not include this header.
 *
 * ```c
 * #include <lockstep/sys/module.h>
 * static const ls_backend *table;
 * LS_API ls_backend_module_function ls_backend_module;
 * const ls_backend *ls_backend_module(int abi_version, const ls_core *core) {
 *     return core != NULL && abi_version == LS_BACKEND_ABI ? table : NULL;
 * }
 * ```
 *
 * | plug-in | entry function | opened for |
 * |---|---|---|
 * | `lockstep-NAME.so` | `ls_backend_module` | backend "NAME" of communicators |
 * | `lockstep-mpi_openmpi.so`, `lockstep-mpi_mpich.so` | `ls_backend_module` | backend "mpi", by MPI library |
 * | `lockstep-cuda.so` | `ls_cuda_module` | devices "cuda:0", "cuda:1", ... |
 * | `lockstep-onednn.so` | `ls_onednn_module` | large products and convolutions on the CPU |
 * | `lockstep-hdf5.so`, `lockstep-netcdf.so` | `ls_array_format_module` | HDF5 and NetCDF files |
 *
 * The library calls `ls_backend_module` at each search for the backend, and each of the other functions once per
 * plug-in. It passes the version of the interface and a table of the library's functions, which stays valid. Plug-ins
 * for files get no such table. The function returns the plug-in's table, or NULL if it does not know this version.
 *
 * The tables are opaque here, because their layout changes from version to version. Until 1.0, plug-ins are therefore
 * built in Lockstep's source tree (CONTRIBUTING.md), and the library rejects a plug-in of a different version.
 */
#ifndef LOCKSTEP_SYS_MODULE_H
#define LOCKSTEP_SYS_MODULE_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Versions of the four interfaces, for the parameter `abi_version` of an entry function. */
enum { LS_BACKEND_ABI = 18, LS_CUDA_ABI = 4, LS_ONEDNN_ABI = 5, LS_ARRAY_FORMAT_ABI = 2 };

/** A backend of communicators. Opaque. */
typedef struct ls_backend ls_backend;
/** The functions of the library that a backend may call. Opaque. */
typedef struct ls_core ls_core;
/** The entry function of a backend. */
typedef const ls_backend *ls_backend_module_function(int abi_version, const ls_core *core);

/** The GPUs of a process. Opaque. */
typedef struct ls_cuda ls_cuda;
/** The functions of the library that the plug-in for GPUs may call. Opaque. */
typedef struct ls_cuda_core ls_cuda_core;
/** The entry function of the plug-in for GPUs. */
typedef const ls_cuda *ls_cuda_module_function(int abi_version, const ls_cuda_core *core);

/** Products and convolutions of oneDNN. Opaque. */
typedef struct ls_onednn ls_onednn;
/** The functions of the library that the plug-in for oneDNN may call. Opaque. */
typedef struct ls_onednn_core ls_onednn_core;
/** The entry function of the plug-in for oneDNN. */
typedef const ls_onednn *ls_onednn_module_function(int abi_version, const ls_onednn_core *core);

/** Files of arrays. Opaque. */
typedef struct ls_array_format ls_array_format;
/** The entry function of a plug-in for files of arrays. */
typedef const ls_array_format *ls_array_format_module_function(int abi_version);

#ifdef __cplusplus
}
#endif

#endif
