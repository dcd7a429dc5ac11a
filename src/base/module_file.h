/*
 * The files of modules: parts of Lockstep that stand on a library of others and are opened on demand, one shared
 * library lockstep-NAME.so each. They are looked for in the folders of LOCKSTEP_MODULE_PATH (separated by colons),
 * then, seen from the folder of the library or program that holds the core, in that folder, in lockstep/, in ../lib,
 * and in
 * ../LIBDIR/lockstep for the LIBDIR that the installation uses. There are modules for backends (comm/module.h) and for
 * oneDNN (tensor/device/onednn/onednn.h).
 */
#ifndef LS_BASE_MODULE_FILE_H
#define LS_BASE_MODULE_FILE_H

#include <stdbool.h>

#define LS_MODULE_FOLDER 4096

/*
 * Opens lockstep-NAME.so, whose name has letters, digits and underscores only, for dlsym; it is never closed. NULL with
 * `*there` false when there is no such file, and with `*there` true, dlerror() saying why, when it cannot be opened.
 * `folder` becomes that of the core.
 */
void *ls_module_file_open(const char *name, char folder[LS_MODULE_FOLDER], bool *there);

#endif
