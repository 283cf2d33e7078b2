/* json_write.c - the JSON writer of json.h: one growing text, two spaces a level, keys in the order they are put. Rows
 * are on one line, without spaces.
 *
 * Text that is not valid UTF-8 is written byte for byte; callers pass UTF-8. The first failure sticks.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

static void put(ms__json_writer *w, const char *text, size_t n) {
    if (w->status != MS_OK) return;
    if (!ms__vec_reserve(&w->text, n)) {
        w->status = MS_E_NO_MEMORY;
        return;
    }
    if (n > 0) memcpy(w->text.items + w->text.n, text, n);
    w->text.n += n;
}

static void put_text(ms__json_writer *w, const char *text) { put(w, text, strlen(text)); }

static void put_newline(ms__json_writer *w) {
    put_text(w, "\n");
    for (int i = 0; i < w->depth; i++) put_text(w, "  ");
}

static void put_quoted(ms__json_writer *w, const char *text, size_t n) {
    put_text(w, "\"");
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        char escape[8];
        if (c == '"' || c == '\\')
            (void)snprintf(escape, sizeof escape, "\\%c", c);
        else if (c < 0x20)
            (void)snprintf(escape, sizeof escape, "\\u%04x", c);
        else
            (void)snprintf(escape, sizeof escape, "%c", c);
        put_text(w, escape);
    }
    put_text(w, "\"");
}

static void start_value(ms__json_writer *w, const char *key) {
    if (w->need_comma) put_text(w, ",");
    if (w->depth > 0 && w->n_rows == 0) put_newline(w);
    if (key != NULL) {
        put_quoted(w, key, strlen(key));
        put_text(w, ": ");
    }
    w->need_comma = true;
}

static void begin(ms__json_writer *w, const char *key, const char *bracket) {
    start_value(w, key);
    put_text(w, bracket);
    w->depth++;
    w->need_comma = false;
}

static void end(ms__json_writer *w, const char *bracket) {
    w->depth--;
    if (w->need_comma && w->n_rows == 0) put_newline(w);
    put_text(w, bracket);
    w->need_comma = true;
}

void ms__json_begin_object(ms__json_writer *w, const char *key) { begin(w, key, "{"); }
void ms__json_begin_array(ms__json_writer *w, const char *key) { begin(w, key, "["); }
void ms__json_end_object(ms__json_writer *w) { end(w, "}"); }
void ms__json_end_array(ms__json_writer *w) { end(w, "]"); }

void ms__json_begin_row(ms__json_writer *w, const char *key) {
    begin(w, key, "[");
    w->n_rows++;
}

void ms__json_end_row(ms__json_writer *w) {
    end(w, "]");
    w->n_rows--;
}

void ms__json_put_ints(ms__json_writer *w, const char *key, const int64_t *values, size_t n) {
    ms__json_begin_row(w, key);
    for (size_t i = 0; i < n; i++) ms__json_put_int(w, NULL, values[i]);
    ms__json_end_row(w);
}

void ms__json_put_literal(ms__json_writer *w, const char *key, const char *text) {
    start_value(w, key);
    put_text(w, text);
}

void ms__json_put_bool(ms__json_writer *w, const char *key, bool value) {
    ms__json_put_literal(w, key, value ? "true" : "false");
}

void ms__json_put_int(ms__json_writer *w, const char *key, int64_t value) {
    char text[32];
    (void)snprintf(text, sizeof text, "%" PRId64, value);
    ms__json_put_literal(w, key, text);
}

void ms__json_put_string(ms__json_writer *w, const char *key, const char *value, size_t n_bytes) {
    start_value(w, key);
    put_quoted(w, value, n_bytes);
}

ms_status ms__json_finish(ms__json_writer *w, char **out_text) {
    put(w, "\n", 2); /* the newline and the terminating NUL */
    ms_status status = w->status;
    if (status == MS_OK)
        *out_text = w->text.items;
    else
        ms__vec_free(&w->text);
    *w = (ms__json_writer){0};
    return status;
}
