/*
 * The key of ranks that were given none. Such ranks may meet only on loopback, where otherwise every local user could
 * join them. So processes of the same user automatically share a key, in a file that other users cannot read:
 *
 * - $XDG_RUNTIME_DIR/lockstep/key, or /run/user/UID/lockstep/key if the variable is not set: it usually names this
 *   folder, but cron, su and ssh do not always set it
 * - $HOME/.cache/lockstep/key, without a session, as on the nodes of many clusters
 * - /tmp/lockstep-UID/key, without a home, as in containers; last, because any user can create this folder first
 *
 * Processes use the first folder that is available, so all of them find the same key. A process that finds a different
 * key (of another user, or in a container with separate folders) is refused, with the advice to set LOCKSTEP_KEY.
 */
#ifndef LS_COMM_USER_KEY_H
#define LS_COMM_USER_KEY_H

#include "comm/channel/auth.h"

/*
 * Reads the key from `text` or, if the text is empty, finds this user's key. If no folder is available for it, there is
 * no key, and a message is logged. Fails with LS_ERR_ARGUMENT if the text is too long.
 */
ls_status ls_key_find(ls_key *key, const char *text);

#endif
