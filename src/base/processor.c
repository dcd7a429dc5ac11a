#include "base/processor.h"

#include <stdio.h>
#include <string.h>

#include "base/clones.h"

#ifdef LS_HAS_CLONES
const char *ls_processor_level(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("x86-64-v4")   ? "x86-64-v4"
           : __builtin_cpu_supports("x86-64-v3") ? "x86-64-v3"
                                                 : "x86-64";
}
#else
const char *ls_processor_level(void) {
    return "one level";
}
#endif

#ifdef __x86_64__
#include <cpuid.h>

/* A macro, because __builtin_cpu_supports accepts only a literal. */
#define ADD(name)                                                                                                      \
    length += __builtin_cpu_supports(name) && length < LS_PROCESSOR_CAPACITY                                           \
                  ? (size_t)snprintf(text + length, LS_PROCESSOR_CAPACITY - length, " " name)                          \
                  : 0

void ls_processor_describe(char text[LS_PROCESSOR_CAPACITY]) {
    unsigned eax = 0, words[3] = {0}, unused = 0;
    char vendor[sizeof words + 1] = "";
    (void)__get_cpuid(0, &eax, &words[0], &words[2], &words[1]);
    memcpy(vendor, words, sizeof words);
    (void)__get_cpuid(1, &eax, &unused, &unused, &unused);
    const unsigned family = (eax >> 8 & 15) + (eax >> 20 & 255);
    const unsigned model = (eax >> 4 & 15) | (eax >> 16 & 15) << 4;
    size_t length = (size_t)snprintf(text, LS_PROCESSOR_CAPACITY, "%s %u.%u", vendor, family, model);
    __builtin_cpu_init();
    ADD("avx");
    ADD("avx2");
    ADD("fma");
    ADD("avx512f");
    ADD("avx512bw");
    ADD("avx512dq");
    ADD("avx512vl");
    ADD("avx512vnni");
    ADD("avx512bf16");
}

#else
#include <sys/auxv.h>
#include <sys/utsname.h>

void ls_processor_describe(char text[LS_PROCESSOR_CAPACITY]) {
    struct utsname about;
    const char *machine = uname(&about) == 0 ? about.machine : "unknown";
    snprintf(text, LS_PROCESSOR_CAPACITY, "%.32s %lx %lx", machine, getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
}

#endif
