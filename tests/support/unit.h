/* What every cmocka program includes. cmocka.h needs these headers before it. */
#ifndef LS_TESTS_SUPPORT_UNIT_H
#define LS_TESTS_SUPPORT_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#endif
