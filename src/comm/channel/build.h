/*
 * Which build of Lockstep this is. Ranks share memory and messages without describing them, so all ranks of a job must
 * run builds of the same version whose shared memory has the same layout.
 */
#ifndef LS_COMM_CHANNEL_BUILD_H
#define LS_COMM_CHANNEL_BUILD_H

enum { LS_BUILD_CAPACITY = 40 };

/* Writes the version and the layout: "0.1.0 (layout 1a2b3c4d5e6f7a8b)". */
void ls_build_write(char text[LS_BUILD_CAPACITY]);

#endif
