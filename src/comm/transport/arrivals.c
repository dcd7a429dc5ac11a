#include "comm/transport/arrivals.h"

#include "base/memory.h"

static bool suits(const ls_transfer *receive, int from, int channel) {
    return receive->channel == channel && (receive->peer == from || receive->peer < 0);
}

ls_transfer *ls_arrivals_claim(ls_arrivals *arrivals, int from, int channel) {
    ls_transfer **link = &arrivals->receives;
    while (*link != NULL && !suits(*link, from, channel)) {
        link = &(*link)->next;
    }
    ls_transfer *receive = *link;
    if (receive != NULL) {
        *link = receive->next;
        receive->next = NULL;
    }
    return receive;
}

static void append(ls_arrivals *arrivals, ls_early *early) {
    ls_early **link = &arrivals->early;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = early;
}

static void take_off(ls_arrivals *arrivals, ls_early *early) {
    ls_early **link = &arrivals->early;
    while (*link != early) {
        link = &(*link)->next;
    }
    *link = early->next;
    early->next = NULL;
}

ls_early *ls_arrivals_keep(ls_arrivals *arrivals, int from, int channel, size_t bytes, bool remote) {
    ls_early *early = ls_allocate(sizeof *early + (remote ? 0 : bytes));
    if (early == NULL) {
        return NULL;
    }
    *early = (ls_early){.from = from, .channel = channel, .bytes = bytes, .remote = remote};
    append(arrivals, early);
    return early;
}

ls_early *ls_arrivals_post(ls_arrivals *arrivals, ls_transfer *receive) {
    ls_early *early = arrivals->early;
    while (early != NULL && (early->receive != NULL || !suits(receive, early->from, early->channel))) {
        early = early->next;
    }
    if (early == NULL) {
        ls_transfer **link = &arrivals->receives;
        while (*link != NULL) {
            link = &(*link)->next;
        }
        receive->next = NULL;
        *link = receive;
    }
    return early;
}

void ls_arrivals_put_last(ls_arrivals *arrivals, ls_early *early) {
    take_off(arrivals, early);
    append(arrivals, early);
}

void ls_arrivals_drop(ls_arrivals *arrivals, ls_early *early) {
    take_off(arrivals, early);
    ls_free(early);
}

void ls_arrivals_withdraw(ls_arrivals *arrivals, ls_transfer *receive) {
    for (ls_transfer **link = &arrivals->receives; *link != NULL; link = &(*link)->next) {
        if (*link == receive) {
            *link = receive->next;
            return;
        }
    }
    for (ls_early *early = arrivals->early; early != NULL; early = early->next) {
        early->receive = early->receive == receive ? NULL : early->receive;
    }
}

void ls_arrivals_free(ls_arrivals *arrivals) {
    while (arrivals->early != NULL) {
        ls_arrivals_drop(arrivals, arrivals->early);
    }
    arrivals->receives = NULL;
}
