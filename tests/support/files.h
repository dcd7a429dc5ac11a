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

/* The number of files in the folder: so that a test can see that nothing was left. */
int test_files_count(void);

#endif
