#include "comm/pieces.h"

const ls_flow ls_flows[LS_OP_COUNT] = {
    [LS_OP_BROADCAST] = {.moves = true, .from_root = true, .keeps_self = true},
    [LS_OP_GATHER] = {.moves = true, .to_root = true, .assembles = true},
    [LS_OP_GATHERV] = {.moves = true, .to_root = true, .assembles = true},
    [LS_OP_ALLGATHER] = {.moves = true, .assembles = true},
    [LS_OP_ALLGATHERV] = {.moves = true, .assembles = true},
    [LS_OP_SCATTER] = {.moves = true, .from_root = true, .cuts = true},
    [LS_OP_SCATTERV] = {.moves = true, .from_root = true, .cuts = true},
    [LS_OP_ALLTOALL] = {.moves = true, .cuts = true, .assembles = true},
    [LS_OP_ALLTOALLV] = {.moves = true, .cuts = true, .assembles = true},
    [LS_OP_SPLIT] = {.moves = true, .assembles = true},
    [LS_OP_BARRIER] = {.moves = true},
    [LS_OP_REDUCE] = {.to_root = true},
    [LS_OP_REDUCE_SCATTER] = {.cuts = true},
};
