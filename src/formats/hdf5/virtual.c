/* Virtual variables: if HDF5 does not find a source, it reads fill values without an error. */
#include <stdlib.h>
#include <string.h>

#include "formats/hdf5/hdf5_file.h"

typedef ssize_t get_name_function(hid_t id, size_t index, char *name, size_t size);

/* Returns a name of a source, or NULL on failure. The caller frees it. */
static char *get_name(get_name_function *get, hid_t creation, size_t index) {
    const ssize_t length = get(creation, index, NULL, 0);
    char *name = length >= 0 ? calloc(1, (size_t)length + 1) : NULL;
    if (name != NULL) {
        (void)get(creation, index, name, (size_t)length + 1);
    }
    return name;
}

/* Returns the path of a source file. HDF5 looks up a relative path in the folder of the variable's file. The caller
 * frees the path. */
static char *source_path(hid_t variable, const char *file) {
    const ssize_t length = H5Fget_name(variable, NULL, 0);
    const size_t size = (size_t)(length > 0 ? length : 0) + strlen(file) + 1;
    char *path = calloc(1, size);
    if (path == NULL || length < 0) {
        free(path);
        return NULL;
    }
    (void)H5Fget_name(variable, path, (size_t)length + 1);
    if (strcmp(file, ".") != 0) { /* "." is the variable's own file */
        char *slash = file[0] == '/' ? NULL : strrchr(path, '/');
        char *end = slash != NULL ? slash + 1 : path;
        (void)snprintf(end, size - (size_t)(end - path), "%s", file);
    }
    return path;
}

/* Returns whether the source exists and stores its elements itself. */
static bool is_stored(const char *path, const char *name) {
    char reason[LS_ARRAY_REASON];
    const hid_t file = ls_hdf5_open_for_reading(path, reason);
    const hid_t variable = file >= 0 ? H5Dopen2(file, name, H5P_DEFAULT) : H5I_INVALID_HID;
    const hid_t creation = variable >= 0 ? H5Dget_create_plist(variable) : H5I_INVALID_HID;
    const bool stored = creation >= 0 && H5Pget_layout(creation) != H5D_VIRTUAL;
    if (creation >= 0) {
        (void)H5Pclose(creation);
    }
    if (variable >= 0) {
        (void)H5Dclose(variable);
    }
    if (file >= 0) {
        (void)H5Fclose(file);
    }
    return stored;
}

static bool check_source(hid_t variable, hid_t creation, size_t index, char reason[LS_ARRAY_REASON]) {
    char *file = get_name(H5Pget_virtual_filename, creation, index);
    char *name = get_name(H5Pget_virtual_dsetname, creation, index);
    char *path = file != NULL ? source_path(variable, file) : NULL;
    const bool numbered = name != NULL && path != NULL && (strchr(file, '%') != NULL || strchr(name, '%') != NULL);
    const bool good = name != NULL && path != NULL && !numbered && is_stored(path, name);
    if (!good) {
        (void)snprintf(reason, LS_ARRAY_REASON,
                       "it is virtual, and its source \"%.100s\" in %.200s %s: copy the elements into one variable, or "
                       "use ls_dataset_concat of the source files",
                       name != NULL ? name : "?", path != NULL ? path : "?",
                       numbered ? "is a pattern of names" : "is missing or is virtual too");
    }
    free(path);
    free(name);
    free(file);
    return good;
}

bool ls_hdf5_check_sources(hid_t variable, hid_t creation, char reason[LS_ARRAY_REASON]) {
    size_t count = 0;
    bool good = H5Pget_virtual_count(creation, &count) >= 0 || ls_hdf5_explain(reason);
    for (size_t i = 0; good && i < count; i++) {
        good = check_source(variable, creation, i, reason);
    }
    return good;
}
