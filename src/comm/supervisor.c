#include "comm/supervisor.h"

#include <signal.h>

static const double kill_again_seconds = 0.01;

bool ls_verdict_suspect(ls_verdict *verdict, const ls_failure *failure) {
    const bool better = !verdict->suspected || (verdict->failure.blames && !failure->blames);
    if (verdict->decided || !better) {
        return false;
    }
    verdict->suspected = true;
    verdict->failure = *failure;
    return true;
}

bool ls_verdict_decide(ls_verdict *verdict, const ls_failure *failure) {
    if (verdict->decided) {
        return false;
    }
    verdict->decided = verdict->suspected = true;
    verdict->failure = *failure;
    return true;
}

/* ---- the processes ----------------------------------------------------------------------------------------------- */

static void set_deadline(ls_supervisor *self, double seconds) {
    self->deadline = ls_deadline_after(seconds);
    if (self->owner->set_timer != NULL) {
        self->owner->set_timer(self->user, seconds);
    }
}

void ls_supervisor_started(ls_supervisor *self) {
    self->running++;
}

void ls_supervisor_ended(ls_supervisor *self) {
    self->running--;
}

static void count_others(ls_supervisor *self) {
    self->others = self->failed ? self->others : self->running;
    self->failed = true;
}

void ls_supervisor_end(ls_supervisor *self, int signal) {
    self->phase = LS_SUPERVISOR_ENDING;
    self->owner->signal_all(self->user, signal);
    self->owner->signal_all(self->user, SIGCONT);
    set_deadline(self, self->grace);
}

void ls_supervisor_kill(ls_supervisor *self) {
    self->phase = LS_SUPERVISOR_KILLING;
    if (!self->settled) {
        self->owner->signal_all(self->user, SIGKILL);
        set_deadline(self, kill_again_seconds);
    }
}

void ls_supervisor_decide(ls_supervisor *self, const ls_failure *failure) {
    if (!ls_verdict_decide(&self->verdict, failure)) {
        return;
    }
    count_others(self);
    if (self->phase == LS_SUPERVISOR_RUNNING && !self->settled) {
        ls_supervisor_end(self, SIGTERM);
    }
    if (self->owner->decided != NULL) {
        self->owner->decided(self->user, &self->verdict.failure);
    }
}

bool ls_supervisor_failed(ls_supervisor *self, const ls_failure *failure) {
    if (self->phase != LS_SUPERVISOR_RUNNING) {
        return false;
    }
    count_others(self);
    if (failure->blames) {
        const bool first = ls_verdict_suspect(&self->verdict, failure);
        if (first) {
            set_deadline(self, LS_BLAME_SECONDS);
        }
        return first;
    }
    if (self->awaits_verdict) {
        ls_supervisor_end(self, SIGTERM);
    } else {
        ls_supervisor_decide(self, failure);
    }
    return true;
}

void ls_supervisor_all_ended(ls_supervisor *self) {
    if (self->verdict.suspected && !self->awaits_verdict) {
        ls_supervisor_decide(self, &self->verdict.failure);
    }
}

void ls_supervisor_tick(ls_supervisor *self) {
    if (self->phase != LS_SUPERVISOR_RUNNING) {
        ls_supervisor_kill(self);
    } else if (self->awaits_verdict) {
        ls_supervisor_end(self, SIGTERM);
    } else {
        ls_supervisor_all_ended(self);
    }
}
