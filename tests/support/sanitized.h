/* Whether a sanitizer watches the test. It makes the test ten times as slow, so long tests then have fewer cases. */
#ifndef LS_TESTS_SUPPORT_SANITIZED_H
#define LS_TESTS_SUPPORT_SANITIZED_H

#ifdef LS_SANITIZED
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

#endif
