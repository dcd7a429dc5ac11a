/* Files for tests: a folder of their own that goes away again, and its contents. */
#ifndef LS_TESTS_SUPPORT_FILES_H
#define LS_TESTS_SUPPORT_FILES_H

#include <stddef.h>

/* The path of a file of this name in the test's folder, made on first use; lent until the next call but three. */
const char *test_path(const char *name);

/* Writes bytes to that file and returns its path. */
const char *test_file(const char *name, const void *bytes, size_t size);

/* Removes the folder with all in it. */
void test_files_remove(void);

/* The same as the end of a group of cmocka tests. */
int test_files_teardown(void **state);

/* The number of files in the folder: so that a test can see that nothing was left. */
int test_files_count(void);

/* The number of files in any folder; 0 when there is no such folder. Names that begin with a dot do not count. */
int test_folder_count(const char *path);

/* The number of descriptors that are open in this process. */
int test_descriptors_count(void);

#endif
