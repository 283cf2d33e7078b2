/* log.c - the logging sink: copies of the sinks that the host program set, and which of them is in use.
 *
 * There is no lock, so that a fork cannot leave one locked: a new sink goes to the next slot, and only then becomes the
 * current one. A reader copies the current slot and then checks that the slot still has the same turn; it has not if
 * the sink was replaced so often meanwhile that the slot was used again. All accesses are sequentially consistent: a
 * reader that sees a field of a later turn also sees that the turn of the slot has changed.
 */
#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#define N_SLOTS 8

typedef void write_fn(void *user, int level, const char *message);

static struct slot {
    _Atomic(uint64_t) turn; /* 0: being written */
    _Atomic(write_fn *) write;
    _Atomic(void *) user;
    atomic_int min_level;
} slots[N_SLOTS];

static _Atomic(uint64_t) last_turn;    /* the last one handed out */
static _Atomic(uint64_t) current_turn; /* 0: no sink was set */

void ms_log_set_sink(const ms_log_sink *sink) {
    uint64_t turn = atomic_fetch_add(&last_turn, 1) + 1;
    struct slot *slot = &slots[turn % N_SLOTS];
    atomic_store(&slot->turn, 0);
    atomic_store(&slot->write, sink == NULL ? NULL : sink->write);
    atomic_store(&slot->user, sink == NULL ? NULL : sink->user);
    atomic_store(&slot->min_level, sink == NULL ? 0 : sink->min_level);
    atomic_store(&slot->turn, turn);
    atomic_store(&current_turn, turn);
}

static ms_log_sink get_sink(void) {
    for (;;) {
        uint64_t turn = atomic_load(&current_turn);
        struct slot *slot = &slots[turn % N_SLOTS];
        ms_log_sink sink = {.write = atomic_load(&slot->write),
                            .user = atomic_load(&slot->user),
                            .min_level = atomic_load(&slot->min_level)};
        if (turn == 0) return (ms_log_sink){0};
        if (atomic_load(&slot->turn) == turn) return sink;
    }
}

void ms__log(int level, const char *format, ...) {
    ms_log_sink sink = get_sink();
    if (sink.write == NULL || level < sink.min_level) return;
    char message[512];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (length >= 0) sink.write(sink.user, level, message);
}
