/* log.c - the logging sink: one atomic pointer to a structure of the host program.
 *
 * The pointer is released by ms_log_set_sink and acquired by ms__log, so a thread that sees the sink sees its fields.
 */
#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static _Atomic(const ms_log_sink *) current_sink;

void ms_log_set_sink(const ms_log_sink *sink) {
    atomic_store_explicit(&current_sink, sink, memory_order_release); /* partner: the acquire in ms__log */
}

void ms__log(int level, const char *format, ...) {
    const ms_log_sink *sink =
        atomic_load_explicit(&current_sink, memory_order_acquire); /* partner: the release in ms_log_set_sink */
    if (sink == NULL || sink->write == NULL || level < sink->min_level) return;
    char message[512];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (length >= 0) sink->write(sink->user, level, message);
}
