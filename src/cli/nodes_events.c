/* Communication between nodes while ranks run: an event on one node leads to the same action on all nodes. */
#include <stdio.h>
#include <string.h>

#include "cli/nodes_state.h"

enum { QUERIES = 4 }; /* how often a silent launcher is queried within the timeout */

static bool is_zero(const ls_nodes *nodes) {
    return nodes->options.node == 0;
}

static void on_silence(uv_timer_t *timer);

/*
 * After a failure, once no process is left on this node: the other nodes have the grace time plus the timeout to report
 * the same.
 */
static void limit_silence(ls_nodes *nodes) {
    const double seconds = nodes->options.timeout + nodes->options.grace;
    if (nodes->failing && nodes->done && !nodes->over && !uv_is_active((uv_handle_t *)&nodes->silence)) {
        uv_timer_start(&nodes->silence, on_silence, (uint64_t)(seconds * 1000.0), 0);
    }
}

static void note_failing(ls_nodes *nodes) {
    nodes->failing = true;
    limit_silence(nodes);
}

/* ---- verdicts ---------------------------------------------------------------------------------------------------- */

/* Records the first failure. Node 0 decides which failure is the first. */
static void decide(ls_nodes *nodes, const ls_failure *failure) {
    if (!ls_verdict_decide(&nodes->verdict, failure)) {
        return;
    }
    note_failing(nodes);
    ls_node_message end = {.word = LS_NODE_END, .numbers = {failure->rank, failure->process, failure->wait_status}};
    snprintf(end.text, sizeof end.text, "%s", failure->text);
    if (is_zero(nodes)) {
        ls_nodes_tell_all(nodes, &end, NULL);
    }
    nodes->events->failed(nodes->events->user, failure);
}

static void decide_suspect(ls_nodes *nodes) {
    if (nodes->verdict.suspected) {
        decide(nodes, &nodes->verdict.failure);
    }
}

static void on_blame_timeout(uv_timer_t *timer) {
    decide_suspect(timer->data);
}

/* On node 0: if the failed rank reports another rank as the cause, waits for that rank to end. */
static void note_failure(ls_nodes *nodes, const ls_failure *failure) {
    note_failing(nodes);
    if (!failure->blames) {
        decide(nodes, failure);
    } else if (ls_verdict_suspect(&nodes->verdict, failure)) {
        uv_timer_start(&nodes->blame, on_blame_timeout, (uint64_t)(LS_BLAME_SECONDS * 1e3), 0);
    }
}

/* Finishes the start: on node 0 when no process is left anywhere, and on other nodes also when the connection to
 * node 0 is lost. */
static void conclude(ls_nodes *nodes) {
    bool done = nodes->done && !nodes->over, lost = false;
    for (int i = 0; i < nodes->count; i++) {
        const ls_remote_node *node = &nodes->others[nodes->first + i];
        done = done && (is_zero(nodes) ? node->done || node->lost : node->lost);
        lost = lost || node->lost;
    }
    if (!done) {
        return;
    }
    decide_suspect(nodes);
    nodes->over = true;
    const bool restart = !lost && nodes->events->wants_restart(nodes->events->user);
    if (is_zero(nodes)) {
        ls_nodes_tell_all(nodes, &(ls_node_message){.word = LS_NODE_OVER, .numbers = {restart}}, NULL);
    }
    nodes->events->over(nodes->events->user, restart);
}

/* ---- messages from other nodes ----------------------------------------------------------------------------------- */

static void lose(ls_remote_node *node, const char *why) {
    ls_nodes *nodes = node->nodes;
    ls_failure failure = {.rank = -1};
    snprintf(failure.text, sizeof failure.text, "the launcher of node %d, on %s, cannot be reached any more: %.300s",
             node->number, node->host, why);
    uv_poll_stop(&node->poll);
    uv_close((uv_handle_t *)&node->poll, NULL);
    node->watched = false;
    ls_connection_free(node->link);
    node->link = NULL;
    node->lost = true;
    if (!nodes->over && !node->done) {
        decide(nodes, &failure);
    }
    conclude(nodes);
}

/* Stops waiting for a node. */
static void abandon(ls_remote_node *node, const char *why) {
    char line[256];
    snprintf(line, sizeof line, "lockstep: no longer waiting for node %d on %s: %s", node->number, node->host, why);
    node->nodes->events->print(node->nodes->events->user, line);
    lose(node, why);
}

/* Handles a node whose launcher is stopped or hangs. */
static void on_silence(uv_timer_t *timer) {
    ls_nodes *nodes = timer->data;
    char why[96];
    snprintf(why, sizeof why, "it has sent nothing for %g s since the job failed (is it stopped?)",
             nodes->options.timeout + nodes->options.grace);
    decide_suspect(nodes);
    for (int i = 0; i < nodes->count && !nodes->over; i++) {
        ls_remote_node *node = &nodes->others[nodes->first + i];
        if (node->watched && !node->done) {
            abandon(node, why);
        }
    }
}

/*
 * No process is left on this node, but the job continues elsewhere, possibly for a long time. A stopped launcher would
 * never report the end, so this function queries the launchers. It counts queries, not seconds, because this process
 * may be stopped, too.
 */
static void on_pulse(uv_timer_t *timer) {
    ls_nodes *nodes = timer->data;
    for (int i = 0; i < nodes->count && !nodes->over && !nodes->failing; i++) {
        ls_remote_node *node = &nodes->others[nodes->first + i];
        if (node->watched && !node->done && node->queries == QUERIES) {
            char why[96];
            snprintf(why, sizeof why, "it has not answered for %g s (is it stopped?)", nodes->options.timeout);
            abandon(node, why);
        } else if (node->watched && !node->done) {
            node->queries++;
            ls_node_tell(node, &(ls_node_message){.word = LS_NODE_ASK});
        }
    }
}

static void begin_queries(ls_nodes *nodes) {
    const uint64_t interval = (uint64_t)(nodes->options.timeout * 1000.0 / QUERIES);
    for (int i = 0; i < nodes->count; i++) {
        nodes->others[nodes->first + i].queries = 0;
    }
    if (!nodes->over) {
        uv_timer_start(&nodes->pulse, on_pulse, interval, interval > 0 ? interval : 1);
    }
}

static void handle(ls_remote_node *node, const ls_node_message *message) {
    ls_nodes *nodes = node->nodes;
    const int *numbers = message->numbers;
    ls_failure failure = {
        .rank = numbers[0], .process = numbers[1], .wait_status = numbers[2], .blames = numbers[3] != 0};
    snprintf(failure.text, sizeof failure.text, "%s", message->text);
    node->queries = 0;
    if (message->word == LS_NODE_ASK) {
        ls_node_tell(node, &(ls_node_message){.word = LS_NODE_HERE});
    } else if (message->word == LS_NODE_FAILED && is_zero(nodes)) {
        note_failure(nodes, &failure);
    } else if (message->word == LS_NODE_END && !is_zero(nodes)) {
        decide(nodes, &failure);
    } else if (message->word == LS_NODE_SIGNAL && numbers[0] > 0 && numbers[0] < 65) {
        if (is_zero(nodes)) {
            nodes->verdict.decided = true;
            ls_nodes_tell_all(nodes, message, node);
        }
        note_failing(nodes);
        nodes->events->interrupted(nodes->events->user, numbers[0], numbers[1]);
    } else if (message->word == LS_NODE_DONE && is_zero(nodes)) {
        node->done = true;
        conclude(nodes);
    } else if (message->word == LS_NODE_OVER && !is_zero(nodes)) {
        nodes->over = true;
        nodes->events->over(nodes->events->user, numbers[0] != 0);
    }
}

static void on_link(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    ls_remote_node *node = (ls_remote_node *)poll;
    bool whole = true;
    /* Messages after "over" belong to the next start. */
    while (whole && node->link != NULL && node->watched && !node->nodes->over) {
        ls_node_message message;
        if (ls_node_hear(node->link, &whole, &message) != LS_OK) {
            lose(node, ls_error_message());
            return;
        }
        if (whole) {
            handle(node, &message);
        }
    }
}

/* ---- functions for the launcher ---------------------------------------------------------------------------------- */

ls_status ls_nodes_watch(ls_nodes *nodes, uv_loop_t *loop, const ls_nodes_events *events) {
    nodes->loop = loop;
    nodes->events = events;
    uv_timer_init(loop, &nodes->blame);
    uv_timer_init(loop, &nodes->silence);
    uv_timer_init(loop, &nodes->pulse);
    nodes->blame.data = nodes->silence.data = nodes->pulse.data = nodes;
    for (int i = 0; i < nodes->count; i++) {
        ls_remote_node *node = &nodes->others[nodes->first + i];
        int failure = uv_poll_init(loop, &node->poll, node->link->fd);
        node->watched = failure == 0;
        failure = failure == 0 ? uv_poll_start(&node->poll, UV_READABLE, on_link) : failure;
        if (failure != 0) {
            return ls_fail(LS_ERR_IO, "lockstep run: cannot watch the connection to node %d: %s", node->number,
                           uv_strerror(failure));
        }
    }
    return LS_OK;
}

void ls_nodes_unwatch(ls_nodes *nodes) {
    if (nodes->blame.data != NULL) { /* the handle was opened */
        uv_close((uv_handle_t *)&nodes->blame, NULL);
        uv_close((uv_handle_t *)&nodes->silence, NULL);
        uv_close((uv_handle_t *)&nodes->pulse, NULL);
        nodes->blame.data = NULL;
    }
    for (int i = 0; i < nodes->count; i++) {
        ls_remote_node *node = &nodes->others[nodes->first + i];
        if (node->watched) {
            uv_close((uv_handle_t *)&node->poll, NULL);
            node->watched = false;
        }
    }
}

void ls_nodes_failed(ls_nodes *nodes, const ls_failure *failure) {
    if (is_zero(nodes)) {
        note_failure(nodes, failure);
        return;
    }
    if (nodes->others[0].link == NULL) {
        decide(nodes, failure);
        return;
    }
    (void)ls_verdict_suspect(&nodes->verdict, failure);
    note_failing(nodes);
    ls_node_message message = {.word = LS_NODE_FAILED,
                               .numbers = {failure->rank, failure->process, failure->wait_status, failure->blames}};
    snprintf(message.text, sizeof message.text, "%s", failure->text);
    ls_node_tell(&nodes->others[0], &message);
}

void ls_nodes_interrupt(ls_nodes *nodes, int signal) {
    nodes->verdict.decided = true;
    note_failing(nodes);
    ls_nodes_tell_all(nodes, &(ls_node_message){.word = LS_NODE_SIGNAL, .numbers = {signal, nodes->options.node}},
                      NULL);
}

void ls_nodes_done(ls_nodes *nodes) {
    nodes->done = true;
    if (!is_zero(nodes)) {
        ls_node_tell(&nodes->others[0], &(ls_node_message){.word = LS_NODE_DONE});
    }
    conclude(nodes);
    limit_silence(nodes);
    begin_queries(nodes);
}
