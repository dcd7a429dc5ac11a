/*
 * Messages that are like the one before. An envelope costs as much as a tenth of a message of 16 KiB, so who sends the
 * same twice to a rank, to the last count, announces in the second envelope that more of it follows without any:
 * repeats. Their receives can be posted before they come. They have a tag of their own, so nothing else is written
 * there, and the next envelope, of whatever kind, ends them.
 *
 * Each envelope says how many repeats went before it. Its receiver takes all of them before it reads the envelope, and
 * withdraws receives that were posted for more; so all messages are matched in the order in which they were sent.
 *
 * A receive that was posted too early must not take a repeat of a later announcement: hence kinds used in turn, and no
 * announcement before the last one was received. The receiver has asked for an envelope then only after it read all
 * those before, and withdrew what was posted for the turn before the last announcement; three turns are never confused.
 */
#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/mpi/mpi.h"

#define MOST_OPEN 16 /* transfers: every look tests each of them, so more receives are posted only as others end */

/* ---- what is sent --------------------------------------------------------------------------------------------------
 */

static bool same(const ls_call_header *a, const ls_call_header *b) {
    return a->tag == b->tag && a->dtype == b->dtype && a->count == b->count && a->bytes == b->bytes;
}

int ls_mpi_repeats(ls_mpi *mpi, int to, ls_call_header *envelope) {
    ls_mpi_row *row = &mpi->rows[to];
    const size_t bytes = (size_t)envelope->bytes;
    const bool again = bytes > ls_mpi_room_of(mpi, 0) && ls_mpi_is_whole(mpi, bytes) && same(&row->last, envelope);
    if (again && row->announced) {
        row->repeats++;
        return LS_MPI_REPEATS + (int)row->turn;
    }
    row->announced = again && row->unheard == 0;
    if (row->announced) {
        row->turn = (row->turn + 1) % LS_MPI_TURNS;
        envelope->layout = (uint32_t)LS_MPI_REPEATS + row->turn;
    }
    envelope->agreed = row->repeats;
    row->repeats = 0;
    row->last = *envelope;
    return 0;
}

uint64_t ls_mpi_last_repeats(const ls_mpi *mpi, int to) {
    return mpi->rows[to].repeats;
}

/* ---- what comes ----------------------------------------------------------------------------------------------------
 */

/* Begins to receive a repeat: one that came, or is only expected. */
static ls_status take_repeat(ls_mpi *mpi, int from, bool came) {
    ls_mpi_row *row = &mpi->rows[from];
    ls_match_target target;
    const ls_status status = ls_match_offer(&mpi->match, &row->coming, &target);
    if (status != LS_OK) {
        return ls_mpi_give_up(mpi, status);
    }
    row->taken++;
    return ls_mpi_begin_content(mpi, &row->coming, &target, row->kind, came ? -1 : from);
}

ls_status ls_mpi_expect(ls_mpi *mpi, int from) {
    const ls_mpi_row *row = &mpi->rows[from];
    while (row->kind != 0 && mpi->transfer_count < MOST_OPEN && ls_match_awaits(&mpi->match, &row->coming)) {
        LS_TRY(take_repeat(mpi, from, false));
    }
    return LS_OK;
}

/* Takes a repeat of that rank if one is here. */
static ls_status find_repeat(ls_mpi *mpi, int from, bool *found) {
    LS_TRY(ls_mpi_probe(mpi, from, mpi->rows[from].kind, found));
    return *found ? take_repeat(mpi, from, true) : LS_OK;
}

ls_status ls_mpi_find_repeats(ls_mpi *mpi, bool *moved) {
    for (int from = 0; from < mpi->size; from++) {
        for (bool found = mpi->rows[from].kind != 0; found;) {
            LS_TRY(find_repeat(mpi, from, &found));
            *moved = *moved || found;
        }
    }
    return LS_OK;
}

/* Withdraws the receive that was posted last for repeats of that rank. */
static ls_status withdraw(ls_mpi *mpi, int from) {
    ls_mpi_arrival **link = &mpi->arrivals;
    while (*link != NULL && (*link)->early != from) {
        link = &(*link)->next;
    }
    ls_mpi_arrival *arrival = *link;
    if (arrival == NULL) {
        return ls_mpi_give_up(mpi, ls_fail(LS_ERR_INTERNAL, "ls_comm_recv: repeats of rank %d were lost", from));
    }
    LS_TRY(ls_mpi_withdraw(mpi, &arrival->open));
    ls_match_retract(&arrival->target);
    *link = arrival->next;
    ls_free(arrival);
    return LS_OK;
}

ls_status ls_mpi_await_repeats(ls_mpi *mpi, const ls_call_header *envelope, bool *ready) {
    const int from = envelope->root;
    ls_mpi_row *row = &mpi->rows[from];
    for (bool found = true; found && row->taken < envelope->agreed;) {
        LS_TRY(find_repeat(mpi, from, &found));
    }
    while (row->taken > envelope->agreed) {
        LS_TRY(withdraw(mpi, from));
        row->taken--;
    }
    *ready = row->taken == envelope->agreed;
    if (*ready) {
        row->taken = 0;
        row->kind = 0;
    }
    return LS_OK;
}

ls_status ls_mpi_heed(ls_mpi *mpi, const ls_call_header *envelope, const ls_match_header *message) {
    ls_mpi_row *row = &mpi->rows[message->from];
    row->kind = (int)envelope->layout;
    row->coming = *message;
    return ls_mpi_expect(mpi, message->from);
}
