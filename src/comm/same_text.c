#include "comm/same_text.h"

#include <stdio.h>
#include <string.h>

#include "comm/agree.h"
#include "comm/record.h"

typedef struct text_record {
    char text[LS_SAME_TEXT_CAPACITY];
} text_record;

typedef struct text_names {
    const char *name;
    const char *what;
} text_names;

static ls_status compare(ls_comm *comm, void *records, void *argument) {
    const text_record *all = records;
    const text_names *names = argument;
    ls_rank_list first = {.count = 0}, others = {.count = 0};
    int other = 0;
    while (other < comm->size && memcmp(&all[other], &all[0], sizeof *all) == 0) {
        other++;
    }
    if (other == comm->size) {
        return LS_OK;
    }
    for (int rank = 0; rank < comm->size; rank++) {
        if (memcmp(&all[rank], &all[0], sizeof *all) == 0) {
            ls_rank_list_add(&first, rank);
        } else if (memcmp(&all[rank], &all[other], sizeof *all) == 0) {
            ls_rank_list_add(&others, rank);
        }
    }
    return ls_fail(LS_ERR_MISMATCH, "%s: %s %s %s %.*s, but %s %s %.*s", names->name, first.text,
                   first.count == 1 ? "has" : "have", names->what, LS_SAME_TEXT_CAPACITY - 1, all[0].text, others.text,
                   others.count == 1 ? "has" : "have", LS_SAME_TEXT_CAPACITY - 1, all[other].text);
}

ls_status ls_comm_check_same_text(ls_comm *comm, const char *name, const char *what, const char *text) {
    text_record own = {.text = ""};
    text_names names = {.name = name, .what = what};
    snprintf(own.text, sizeof own.text, "%s", text);
    ls_call call = {
        .operation = LS_OP_ALLGATHER, .dtype = LS_U8, .count = sizeof own, .width = sizeof(uint8_t), .send = &own};
    return ls_comm_agree(comm, name, &call, compare, &names);
}
