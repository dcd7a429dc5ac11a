/*
 * The identity of this build of Lockstep. Ranks exchange memory and messages without describing their layout, so all
 * ranks of a job must run builds of the same version with the same shared-memory layout.
 */
#ifndef LS_COMM_CHANNEL_BUILD_H
#define LS_COMM_CHANNEL_BUILD_H

enum { LS_BUILD_CAPACITY = 40 };

/* Writes the version and the layout: "0.1.0 (layout 1a2b3c4d5e6f7a8b)". */
void ls_build_write(char text[LS_BUILD_CAPACITY]);

#endif
