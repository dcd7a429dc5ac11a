/*
 * The key of ranks that were given none: on loopback, where alone they may meet, every local user could join them. So
 * processes of one user share a key by themselves, in a file that nobody else can read:
 *
 *     $XDG_RUNTIME_DIR/lockstep/key    else /run/user/UID/lockstep/key (that is where the variable mostly leads, but
 *                                      cron, su and ssh do not all set it)
 *     $HOME/.cache/lockstep/key        where there is no session, as on the nodes of many clusters
 *     /tmp/lockstep-UID/key            where there is no home either, as in containers; last, because anybody can take
 *                                      that name first
 *
 * The first place that can be had is taken, so all of them find the same one. Who finds another (another user's
 * processes, or a container with folders of its own) is refused and told to set LOCKSTEP_KEY.
 */
#ifndef LS_COMM_USER_KEY_H
#define LS_COMM_USER_KEY_H

#include "comm/channel/auth.h"

/*
 * The key that `text` is; where it is none, this user's. Where no place for that can be had the key is none, as the log
 * says. LS_ERR_ARGUMENT when the text is too long.
 */
ls_status ls_key_find(ls_key *key, const char *text);

#endif
