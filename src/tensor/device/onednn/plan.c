#include "tensor/device/onednn/plan.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A deep network has about fifty convolutions, each with three kinds of work. */
enum { MOST_PLANS = 512 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ls_plan *plans[MOST_PLANS];
static int plan_count;
static uint64_t now;

/* ---- construction ------------------------------------------------------------------------------------------------ */

static void destroy_memory(dnnl_memory_t memory) {
    if (memory != NULL) {
        (void)dnnl_memory_destroy(memory);
    }
}

static void destroy_primitive(dnnl_primitive_t primitive) {
    if (primitive != NULL) {
        (void)dnnl_primitive_destroy(primitive);
    }
}

static void slot_free(ls_plan_slot *slot) {
    for (int i = 0; i < LS_PLAN_OPERANDS; i++) {
        if (slot->wanted[i] != slot->given[i]) {
            destroy_memory(slot->wanted[i]);
        }
        destroy_memory(slot->given[i]);
    }
    destroy_memory(slot->scratch);
    if (slot->stream != NULL) {
        (void)dnnl_stream_destroy(slot->stream);
    }
}

static void plan_free(ls_plan *plan) {
    for (int i = 0; i < LS_PLAN_SLOTS; i++) {
        slot_free(&plan->slot[i]);
    }
    for (int i = 0; i < plan->operands; i++) {
        destroy_primitive(plan->operand[i].reorder);
    }
    destroy_primitive(plan->primitive);
    free(plan);
}

static dnnl_status_t memory_new(dnnl_memory_t *made, ls_layout layout) {
    return dnnl_memory_create(made, layout, ls_onednn_engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t reorder_new(dnnl_primitive_t *made, ls_layout from, ls_layout to) {
    dnnl_primitive_desc_t description = NULL;
    dnnl_status_t status =
        dnnl_reorder_primitive_desc_create(&description, from, ls_onednn_engine, to, ls_onednn_engine, NULL);
    if (status == dnnl_success) {
        status = dnnl_primitive_create(made, description);
        (void)dnnl_primitive_desc_destroy(description);
    }
    return status;
}

static dnnl_status_t add_operand(ls_plan *plan, const ls_operand_plan *from, ls_layout wanted, int slots) {
    const int at = plan->operands++;
    ls_operand *operand = &plan->operand[at];
    const bool same = dnnl_memory_desc_equal(from->given, wanted) != 0;
    *operand =
        (ls_operand){.argument = from->argument, .output = from->output, .bytes = dnnl_memory_desc_get_size(wanted)};
    dnnl_status_t status = same           ? dnnl_success
                           : from->output ? reorder_new(&operand->reorder, wanted, from->given)
                                          : reorder_new(&operand->reorder, from->given, wanted);
    for (int i = 0; i < slots && status == dnnl_success; i++) {
        ls_plan_slot *slot = &plan->slot[i];
        status = memory_new(&slot->given[at], from->given);
        slot->wanted[at] = slot->given[at];
        if (status == dnnl_success && !same) {
            slot->wanted[at] = NULL;
            status = memory_new(&slot->wanted[at], wanted);
        }
    }
    return status;
}

dnnl_status_t ls_plan_build(ls_plan *plan, const_dnnl_primitive_desc_t description, int slots,
                            const ls_operand_plan *operands, int count) {
    ls_layout scratch = dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    plan->slots = slots;
    plan->scratch_bytes = scratch != NULL ? dnnl_memory_desc_get_size(scratch) : 0;
    dnnl_status_t status = dnnl_primitive_create(&plan->primitive, description);
    for (int i = 0; i < count && status == dnnl_success; i++) {
        ls_layout wanted = operands[i].query == dnnl_query_undef
                               ? operands[i].given
                               : dnnl_primitive_desc_query_md(description, operands[i].query, 0);
        status = wanted != NULL ? add_operand(plan, &operands[i], wanted, slots) : dnnl_unimplemented;
    }
    for (int i = 0; i < slots && status == dnnl_success; i++) {
        status = dnnl_stream_create(&plan->slot[i].stream, ls_onednn_engine, dnnl_stream_default_flags);
        if (status == dnnl_success && plan->scratch_bytes > 0) {
            status = memory_new(&plan->slot[i].scratch, scratch);
        }
    }
    return status;
}

/* ---- cache of plans ---------------------------------------------------------------------------------------------- */

static ls_plan *find(const ls_plan_key *key) {
    for (int i = 0; i < plan_count; i++) {
        if (!plans[i]->busy && memcmp(&plans[i]->key, key, sizeof *key) == 0) {
            return plans[i];
        }
    }
    return NULL;
}

/* Frees the least recently used plan if the cache is full. Returns false if all plans are in use. */
static bool make_room(void) {
    if (plan_count < MOST_PLANS) {
        return true;
    }
    int oldest = -1;
    for (int i = 0; i < plan_count; i++) {
        if (!plans[i]->busy && (oldest < 0 || plans[i]->used < plans[oldest]->used)) {
            oldest = i;
        }
    }
    if (oldest >= 0) {
        plan_free(plans[oldest]);
        plans[oldest] = plans[--plan_count];
    }
    return oldest >= 0;
}

static ls_plan *plan_new(const ls_plan_key *key, int slots, ls_plan_maker *make, const void *context) {
    ls_plan *plan = calloc(1, sizeof *plan);
    if (plan != NULL) {
        plan->key = *key;
        plan->busy = true;
        plan->refused = make(plan, slots, context) != dnnl_success;
    }
    return plan;
}

ls_plan *ls_plan_take(const ls_plan_key *key, int slots, ls_plan_maker *make, const void *context) {
    pthread_mutex_lock(&lock);
    ls_plan *plan = find(key);
    if (plan != NULL) {
        plan->busy = true;
        plan->used = ++now;
    }
    pthread_mutex_unlock(&lock);
    return plan != NULL ? plan : plan_new(key, slots, make, context);
}

/* A plan is in the list if `used`, which counts from 1, is nonzero. */
void ls_plan_give(ls_plan *plan) {
    pthread_mutex_lock(&lock);
    bool kept = plan->used > 0;
    if (!kept && make_room()) {
        plan->used = ++now;
        plans[plan_count++] = plan;
        kept = true;
    }
    plan->busy = false;
    pthread_mutex_unlock(&lock);
    if (!kept) {
        plan_free(plan);
    }
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

dnnl_status_t ls_plan_place(ls_plan *plan, int slot, int operand, void *given, void *wanted) {
    const ls_plan_slot *own = &plan->slot[slot];
    const dnnl_status_t status = dnnl_memory_set_data_handle(own->given[operand], given);
    return status == dnnl_success && plan->operand[operand].reorder != NULL
               ? dnnl_memory_set_data_handle(own->wanted[operand], wanted)
               : status;
}

dnnl_status_t ls_plan_reorder(ls_plan *plan, int slot, int operand) {
    const ls_operand *what = &plan->operand[operand];
    const ls_plan_slot *own = &plan->slot[slot];
    if (what->reorder == NULL) {
        return dnnl_success;
    }
    dnnl_memory_t given = own->given[operand], wanted = own->wanted[operand];
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, what->output ? wanted : given},
                                         {DNNL_ARG_TO, what->output ? given : wanted}};
    return dnnl_primitive_execute(what->reorder, own->stream, 2, arguments);
}

dnnl_status_t ls_plan_execute(ls_plan *plan, int slot, void *scratch) {
    const ls_plan_slot *own = &plan->slot[slot];
    dnnl_exec_arg_t arguments[LS_PLAN_OPERANDS + 1];
    int count = 0;
    for (; count < plan->operands; count++) {
        arguments[count] = (dnnl_exec_arg_t){plan->operand[count].argument, own->wanted[count]};
    }
    if (own->scratch != NULL) {
        const dnnl_status_t status = dnnl_memory_set_data_handle(own->scratch, scratch);
        if (status != dnnl_success) {
            return status;
        }
        arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, own->scratch};
    }
    return dnnl_primitive_execute(plan->primitive, own->stream, count, arguments);
}
