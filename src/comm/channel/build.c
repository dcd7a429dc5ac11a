#include "comm/channel/build.h"

#include <inttypes.h>
#include <stdio.h>

#include "comm/backend.h"

void ls_build_write(char text[LS_BUILD_CAPACITY]) {
    snprintf(text, LS_BUILD_CAPACITY, "%s (layout %016" PRIx64 ")", ls_version(), ls_shm_layout_number);
}
