/* Which watches take part in a backward pass from a loss. */
#include "autograd/backward.h"

/* If a forward pass in the innermost scope has failed, the scope may have a watch but no nodes. */
bool ls_watch_joins(const ls_scope *scope, const ls_scope_callback *callback, const ls_batch_loss *loss) {
    return (scope->tape.last != NULL || scope == loss->innermost) &&
           (!callback->conditional || callback->watch->reach(callback->user, loss) == LS_REACH_NOW);
}

void ls_drop_watches(const ls_batch_loss *loss) {
    for (ls_scope *scope = loss->innermost; scope != NULL; scope = scope->outer) {
        ls_scope_callback **link = &scope->callbacks;
        while (*link != NULL) {
            ls_scope_callback *callback = *link;
            if (callback->conditional && callback->watch->reach(callback->user, loss) == LS_REACH_NEVER) {
                *link = callback->next;
                ls_scope_drop_callback(callback);
            } else {
                link = &callback->next;
            }
        }
    }
}
