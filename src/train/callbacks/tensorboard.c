/* Writes the events of a run for TensorBoard. */
#include "train/callbacks/callback.h"

#include <stdio.h>
#include <string.h>

static const char *const maker = "ls_tensorboard";

enum { TAG_ROOM = 300, NODE_LIMIT = 512 };

typedef struct board {
    ls_tensorboard_options options;
    char *folder;
    ls_events *events; /* open on rank 0, from the first run on */
    bool shown;        /* the inputs were written */
} board;

/* Ignores values that TensorBoard cannot display: a parameter that is not finite, or an input that is not a picture. */
static ls_status left_out(ls_status status) {
    return status == LS_ERR_ARGUMENT || status == LS_ERR_SHAPE ? LS_OK : status;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* A graph under construction: one node for each module without children, with the source of its input. */
typedef struct graph {
    ls_events_node nodes[NODE_LIMIT];
    char names[NODE_LIMIT][TAG_ROOM];
    const char *inputs[NODE_LIMIT][2];
    int count;
} graph;

/* Leaves out nodes beyond the limit, and nodes with long names, which would no longer be unique if they were cut. */
static const char *add_node(graph *g, const char *name, const char *op, const char *input) {
    if (g->count == NODE_LIMIT || strlen(name) == TAG_ROOM - 1) {
        return input;
    }
    const int i = g->count++;
    (void)snprintf(g->names[i], TAG_ROOM, "%s", name);
    g->inputs[i][0] = input;
    g->nodes[i] = (ls_events_node){.name = g->names[i], .op = op, .inputs = input != NULL ? g->inputs[i] : NULL};
    return g->names[i];
}

/* Returns the node that produces the module's output. Assumes that the children run one after another. */
static const char *add_module(graph *g, const ls_module *module, const char *name, const char *input) {
    const int children = ls_module_child_count(module);
    for (int i = 0; i < children; i++) {
        const char *own = ls_module_child_name(module, i);
        char full[TAG_ROOM];
        (void)snprintf(full, sizeof full, "%s%s%s", name, own[0] != '\0' ? "/" : "", own);
        input = add_module(g, ls_module_child(module, i), full, input);
    }
    return children > 0 ? input : add_node(g, name, ls_module_type_name(module), input);
}

static ls_status write_graph(const board *self, const ls_module *model) {
    graph *g = ls_allocate_for(maker, 1, sizeof *g);
    LS_TRY(ls_made(g));
    add_node(g, "output", "Output", add_module(g, model, "model", add_node(g, "input", "Input", NULL)));
    const ls_status status = left_out(ls_events_graph(self->events, g->nodes, g->count));
    ls_free(g);
    return status;
}

/* Writes the model as a Markdown code block. */
static ls_status write_text(const board *self, const ls_module *model) {
    const size_t length = ls_module_format(model, NULL, 0), room = length + 16;
    char *text = ls_allocate_for(maker, 1, room);
    LS_TRY(ls_made(text));
    memcpy(text, "```\n", 4);
    (void)ls_module_format(model, text + 4, length + 1);
    memcpy(text + 4 + length, "\n```\n", 6);
    const ls_status status = left_out(ls_events_text(self->events, "model", 0, text));
    ls_free(text);
    return status;
}

static ls_status on_start(ls_trial_state *state, void *user) {
    board *self = user;
    if (!ls_callback_in_real_run(state) || !ls_callback_is_first_rank(state) || self->events != NULL) {
        return LS_OK;
    }
    LS_TRY(self->options.no_histograms ? LS_OK : ls_callback_needs_parameters(state, maker, "set .no_histograms, "));
    self->events = ls_events_open(self->folder, NULL);
    LS_TRY(ls_made(self->events));
    LS_TRY(self->options.no_model ? LS_OK : write_text(self, state->model));
    return self->options.no_model ? LS_OK : write_graph(self, state->model);
}

/* ---- numbers and pictures ---------------------------------------------------------------------------------------- */

/* Writes the first inputs of rank 0: each [height, width] or [channels, height, width]. */
static ls_status on_sample(ls_trial_state *state, void *user) {
    board *self = user;
    const int64_t count = self->options.images < state->count ? self->options.images : state->count;
    if (self->shown || self->events == NULL || ls_callback_in_replay(state)) {
        return LS_OK;
    }
    self->shown = true;
    for (int64_t i = 0; i < count; i++) {
        char tag[TAG_ROOM];
        (void)snprintf(tag, sizeof tag, "input/%lld", (long long)i);
        ls_tensor *picture = ls_select(state->input, 0, i);
        LS_TRY(picture != NULL ? left_out(ls_events_image(self->events, tag, state->step, picture))
                               : ls_error_status());
    }
    return LS_OK;
}

static ls_status on_step_training(ls_trial_state *state, void *user) {
    const board *self = user;
    double loss;
    if (self->options.every_steps == 0 || state->step % self->options.every_steps != 0 ||
        ls_callback_in_replay(state)) {
        return LS_OK;
    }
    LS_TRY(ls_callback_batch_loss(state, &loss));
    if (self->events == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_events_scalar(self->events, "batch/loss", state->step, loss));
    for (int i = 0; state->optimizer != NULL && i < ls_optimizer_group_count(state->optimizer); i++) {
        char tag[TAG_ROOM];
        (void)snprintf(tag, sizeof tag, "batch/learning_rate/%d", i);
        LS_TRY(ls_events_scalar(self->events, tag, state->step, ls_optimizer_learning_rate(state->optimizer, i)));
    }
    return LS_OK;
}

static ls_status write_histograms(const board *self, const ls_trial_state *state) {
    for (int i = 0; i < ls_module_parameter_count(state->model); i++) {
        char tag[TAG_ROOM];
        (void)snprintf(tag, sizeof tag, "parameters/%s", ls_module_parameter_name(state->model, i));
        LS_TRY(left_out(ls_events_histogram(self->events, tag, state->epoch, ls_module_parameter(state->model, i))));
    }
    return LS_OK;
}

static ls_status on_end_epoch(ls_trial_state *state, void *user) {
    const board *self = user;
    const ls_trial *trial = state->trial;
    if (self->events == NULL || !ls_callback_in_real_run(state)) {
        return LS_OK;
    }
    ls_history_entry entry;
    ls_history_entry_of(&trial->history, trial->history.count - 1, &entry);
    for (int i = 0; i < entry.count; i++) {
        char tag[TAG_ROOM];
        (void)snprintf(tag, sizeof tag, "epoch/%s", entry.values[i].name);
        LS_TRY(ls_events_scalar(self->events, tag, state->epoch, entry.values[i].value));
    }
    return self->options.no_histograms ? LS_OK : write_histograms(self, state);
}

static ls_status on_end(ls_trial_state *state, void *user) {
    const board *self = user;
    (void)state;
    return self->events != NULL ? ls_events_flush(self->events) : LS_OK;
}

/* If the log does not contain the loss of batches, it does not communicate. */
static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(ls_tensorboard_options, every_steps), {.name = NULL}};
    const board *self = user;
    ls_describe(text, size, self->options.every_steps > 0 ? maker : "", fields, &self->options);
}

static void release(void *user) {
    board *self = user;
    (void)(ls_events_close(self->events) == LS_OK); /* on_end has reported errors */
    ls_free(self->folder);
    ls_free(self);
}

ls_callback *ls_tensorboard(const char *folder, const ls_tensorboard_options *options) {
    static const ls_tensorboard_options defaults;
    options = options != NULL ? options : &defaults;
    if (folder == NULL || options->every_steps < 0 || options->images < 0) {
        (void)(folder == NULL ? ls_fail(LS_ERR_ARGUMENT, "%s: the folder is NULL", maker)
                              : ls_fail(LS_ERR_ARGUMENT,
                                        "%s: .every_steps is %lld and .images is %lld, but neither may be negative",
                                        maker, (long long)options->every_steps, (long long)options->images));
        return NULL;
    }
    board *self = ls_allocate_for(maker, 1, sizeof *self);
    char *copy = self != NULL ? ls_duplicate_string(folder) : NULL;
    if (copy == NULL) {
        (void)ls_fail_memory(maker, strlen(folder) + 1);
        ls_free(self);
        return NULL;
    }
    *self = (board){.options = *options, .folder = copy};
    return ls_callback_make(&(ls_callback_hooks){.on_start = on_start,
                                                 .on_sample = on_sample,
                                                 .on_step_training = on_step_training,
                                                 .on_end_epoch = on_end_epoch,
                                                 .on_end = on_end,
                                                 .name = "tensorboard",
                                                 .describe = describe,
                                                 .release = release},
                            self);
}
