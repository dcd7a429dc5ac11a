#include "comm/transport/simulated/queue.h"

#include "base/memory.h"
#include "comm/transport/simulated/state.h"

static bool before(const ls_sim_event *a, const ls_sim_event *b) {
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->number < b->number;
}

void ls_sim_queue_add(ls_sim_queue *queue, ls_sim_event event) {
    if (queue->count == queue->room) {
        const size_t room = queue->room == 0 ? 1024 : 2 * queue->room;
        ls_sim_event *events = ls_reallocate(queue->events, queue->room * sizeof *events, room * sizeof *events);
        if (events == NULL) {
            queue->no_memory = true;
            ls_free(event.packet);
            return;
        }
        queue->events = events;
        queue->room = room;
    }
    event.number = queue->added++;
    size_t at = queue->count++;
    while (at > 0 && before(&event, &queue->events[(at - 1) / 2])) {
        queue->events[at] = queue->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    queue->events[at] = event;
}

bool ls_sim_queue_take(ls_sim_queue *queue, ls_sim_event *event) {
    if (queue->count == 0) {
        return false;
    }
    *event = queue->events[0];
    const ls_sim_event last = queue->events[--queue->count];
    size_t at = 0;
    for (size_t child = 1; child < queue->count; child = 2 * at + 1) {
        child += child + 1 < queue->count && before(&queue->events[child + 1], &queue->events[child]);
        if (!before(&queue->events[child], &last)) {
            break;
        }
        queue->events[at] = queue->events[child];
        at = child;
    }
    queue->events[at] = last; /* if the queue is now empty, this writes to the slot of the removed event */
    return true;
}
