/* The kind of processor on which this process runs: the properties by which kernels and libraries select
   instructions. */
#ifndef LS_BASE_PROCESSOR_H
#define LS_BASE_PROCESSOR_H

enum { LS_PROCESSOR_CAPACITY = 192 };

/*
 * Writes the kind. On x86-64: the vendor, the family, the model and the vector instructions, such as "GenuineIntel 6.85
 * avx2 fma avx512f". On other machines: the architecture and the kernel's CPU feature bits, such as "aarch64 119fff 0".
 */
void ls_processor_describe(char text[LS_PROCESSOR_CAPACITY]);

/* Returns the level of the functions with LS_CLONES (base/clones.h) that this process uses, such as "x86-64-v3". */
const char *ls_processor_level(void);

#endif
