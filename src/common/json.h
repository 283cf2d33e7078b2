/* json.h - a small strict JSON reader and writer.
 *
 * The reader accepts RFC 8259 and nothing else: valid UTF-8, no duplicate keys, no trailing bytes, at most
 * MS__JSON_MAX_DEPTH levels. Whole numbers that fit are kept exactly in 64 bits. Documents live in an arena; values
 * are immutable once read. The writer builds text and remembers its first failure, so that it is checked once, at the
 * end.
 */
#ifndef MS_COMMON_JSON_H
#define MS_COMMON_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "arena.h"
#include "status.h"
#include "vec.h"

#define MS__JSON_MAX_DEPTH 64

enum ms__json_type {
    MS__JSON_NULL,
    MS__JSON_BOOL,
    MS__JSON_INT,    /* integer: fits int64_t */
    MS__JSON_UINT,   /* uinteger: above INT64_MAX, fits uint64_t */
    MS__JSON_DOUBLE, /* real: has a fraction or exponent, or does not fit 64 bits */
    MS__JSON_STRING,
    MS__JSON_ARRAY,
    MS__JSON_OBJECT
};

typedef struct ms__json ms__json;

struct ms__json {
    enum ms__json_type type;
    bool boolean;
    int64_t integer;
    uint64_t uinteger;
    double real;
    const char *string; /* NUL-terminated; n is its length, since \u0000 is allowed inside */
    size_t n;           /* bytes of a string, items of an array, members of an object */
    const ms__json *items;
    const char *const *keys; /* of an object, n of them, without NUL bytes inside */
};

/* Read one document. Values belong to the arena. Errors: MS_E_PARSE with the byte offset, MS_E_NO_MEMORY. */
ms_status ms__json_read(ms__arena *arena, const char *text, size_t n_bytes, const ms__json **out);

/* A member of an object, or NULL. */
const ms__json *ms__json_get(const ms__json *object, const char *key);

/* Required members of an object, by type; the error names the key. */
ms_status ms__json_get_int(const ms__json *object, const char *key, int64_t min, int64_t *out);
ms_status ms__json_get_bool(const ms__json *object, const char *key, bool *out);
ms_status ms__json_get_string(const ms__json *object, const char *key, const char **out);
ms_status ms__json_get_array(const ms__json *object, const char *key, const ms__json **out);

/* A required array of whole numbers within these bounds; `*out` belongs to the arena. */
ms_status ms__json_get_ints(const ms__json *object, const char *key, int64_t min, int64_t max, ms__arena *arena,
                            int64_t **out, size_t *out_n);

/* Error MS_E_PARSE if the value is not an object or has a key that is not in the list (which ends in NULL). */
ms_status ms__json_check_keys(const ms__json *object, const char *const *allowed);

/* Errors: MS_E_PARSE if the value is not an object or has no version under this key, MS_E_VERSION if that differs. */
ms_status ms__json_check_version(const ms__json *document, const char *key, int64_t version);

typedef struct ms__json_writer {
    MS__VEC(char) text;
    ms_status status;
    int depth;
    int n_rows; /* rows that are open, one inside the other */
    bool need_comma;
} ms__json_writer;

void ms__json_begin_object(ms__json_writer *w, const char *key);
void ms__json_begin_array(ms__json_writer *w, const char *key);
void ms__json_end_object(ms__json_writer *w);
void ms__json_end_array(ms__json_writer *w);
void ms__json_put_bool(ms__json_writer *w, const char *key, bool value);
void ms__json_put_int(ms__json_writer *w, const char *key, int64_t value);
void ms__json_put_literal(ms__json_writer *w, const char *key, const char *text); /* a value as JSON text */
void ms__json_put_string(ms__json_writer *w, const char *key, const char *value, size_t n_bytes);

/* An array on one line, together with everything in it. */
void ms__json_begin_row(ms__json_writer *w, const char *key);
void ms__json_end_row(ms__json_writer *w);

/* A row of whole numbers. */
void ms__json_put_ints(ms__json_writer *w, const char *key, const int64_t *values, size_t n);

/* A structure's whole number (int64_t): its key, its offset, and its range. */
typedef struct ms__json_field {
    const char *key;
    size_t offset;
    int64_t min, max;
} ms__json_field;

/* Members of the object that is being written or read, for each of n fields of `record`. The error names the key. */
void ms__json_put_record(ms__json_writer *w, const ms__json_field *fields, size_t n, const void *record);
ms_status ms__json_get_record(const ms__json *object, const ms__json_field *fields, size_t n, void *record);

/* The text, owned by the caller (free), or the first failure; the writer is empty afterwards. */
ms_status ms__json_finish(ms__json_writer *w, char **out_text);

#endif
