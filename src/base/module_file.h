/*
 * The files of plug-ins: parts of Lockstep that need an external library and are opened on demand. Each is a shared
 * library lockstep-NAME.so. There are plug-ins for backends (comm/module.h), for oneDNN (tensor/device/onednn/onednn.h)
 * and for GPUs (tensor/device/cuda/cuda.h).
 *
 * The search covers the folders of LOCKSTEP_MODULE_PATH (separated by colons; ignored in setuid and setgid programs),
 * then the folder of the library or program that contains the core, and, relative to this folder, lockstep/, ../lib and
 * ../LIBDIR/lockstep for the LIBDIR of the installation. It stops at the first file that exists.
 *
 * A plug-in runs with all rights of the process. So it is rejected if all users may write to the file or to its folder,
 * or if the file or folder belongs to a user other than root, the effective user and the owner of the core.
 */
#ifndef LS_BASE_MODULE_FILE_H
#define LS_BASE_MODULE_FILE_H

#define LS_MODULE_REASON 768

typedef enum ls_module_file_state {
    LS_MODULE_OPEN = 0,
    LS_MODULE_ABSENT,          /* no such file */
    LS_MODULE_WITHOUT_LIBRARY, /* a library that the plug-in needs is not installed on this machine */
    LS_MODULE_BROKEN,          /* rejected, from a different version of Lockstep, or the system cannot open it */
} ls_module_file_state;

typedef struct ls_module_file {
    ls_module_file_state state;
    const char *name;              /* borrowed from the caller of ls_module_file_open */
    void (*enter)(void);           /* the entry function, to be cast to its type; NULL if the plug-in is not open */
    char reason[LS_MODULE_REASON]; /* why the plug-in is not open, as the end of a sentence; "" if it is open */
} ls_module_file;

/*
 * Opens lockstep-NAME.so, whose entry function has the name `function` (lockstep/sys/module.h). The name of a plug-in
 * consists of letters, digits and underscores. A plug-in is never closed. Sets no error.
 */
ls_module_file ls_module_file_open(const char *name, const char *function);

/*
 * Returns `table`, the result of the plug-in's entry function. If this is NULL although the plug-in is open, the
 * plug-in is from a different version of Lockstep; the state becomes LS_MODULE_BROKEN and the reason says so.
 */
const void *ls_module_file_check(ls_module_file *file, const void *table);

#endif
