/*
 * The key of ranks that were given none: on loopback, where alone they may meet, every local user could join them. So
 * processes of one user share a key by themselves, in a file that nobody else can read:
 *
 *     $XDG_RUNTIME_DIR/lockstep/key    else /run/user/UID/lockstep/key (that is where the variable mostly leads, but
 *                                      cron, su and ssh do not all set it)
 *     $HOME/.cache/lockstep/key        without a session, as on the nodes of many clusters
 *     /tmp/lockstep-UID/key            without a home, as in containers; last, because any user can take this name
 * first
 *
 * Processes use the first folder that is available, so all of them find the same key. A process that finds another key
 * (of another user, or in a container with its own folders) is refused, with the advice to set LOCKSTEP_KEY.
 */
#ifndef LS_COMM_USER_KEY_H
#define LS_COMM_USER_KEY_H

#include "comm/channel/auth.h"

/*
 * Reads the key from `text` or, if the text is empty, finds this user's key. If no folder is available for it, there is
 * no key, and the log says so. Fails with LS_ERR_ARGUMENT if the text is too long.
 */
ls_status ls_key_find(ls_key *key, const char *text);

#endif
