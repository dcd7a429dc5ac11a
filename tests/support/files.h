/* Files for tests: a temporary folder per test, which is removed at the end, and its contents. */
#ifndef LS_TESTS_SUPPORT_FILES_H
#define LS_TESTS_SUPPORT_FILES_H

#include <stddef.h>

/*
 * Returns the path of a file in the test's folder, which is created on first use. The path is valid for the next three
 * calls.
 */
const char *test_path(const char *name);

/* Writes bytes to the file and returns its path. */
const char *test_file(const char *name, const void *bytes, size_t size);

/* Removes the test's folder with its contents. */
void test_files_remove(void);

/* Does the same, as the teardown function of a group of cmocka tests. */
int test_files_teardown(void **state);

/* Returns the number of files in the test's folder, so that a test can check that none is left. */
int test_files_count(void);

/* Returns the number of files in any folder, ignoring names that begin with a dot, or 0 if the folder does not
 * exist. */
int test_folder_count(const char *path);

/* Returns the number of open descriptors of this process. */
int test_descriptors_count(void);

#endif
