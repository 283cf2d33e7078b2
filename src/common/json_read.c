/* json_read.c - the strict JSON reader of json.h: recursive descent with a depth limit.
 *
 * Items of an array or object are gathered in a vector while it is open and copied to the arena when it closes. Every
 * failure names the byte offset.
 */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

typedef struct reader {
    const char *text;
    size_t n_bytes;
    size_t at;
    int depth;
    ms__arena *arena;
} reader;

static ms_status read_value(reader *r, ms__json *out);

static ms_status bad(const reader *r, const char *what) {
    return ms__fail_value(MS_E_PARSE, (int64_t)r->at, "JSON: %s at byte %zu", what, r->at);
}

static int peek(const reader *r) { return r->at < r->n_bytes ? (unsigned char)r->text[r->at] : -1; }

static void skip_space(reader *r) {
    for (int c = peek(r); c == ' ' || c == '\t' || c == '\n' || c == '\r'; c = peek(r)) r->at++;
}

static ms_status read_word(reader *r, const char *word) {
    size_t length = strlen(word);
    if (r->n_bytes - r->at < length || memcmp(r->text + r->at, word, length) != 0) return bad(r, "unknown word");
    r->at += length;
    return MS_OK;
}

/* The length of the valid UTF-8 sequence at `s`, or 0. Overlong forms, surrogates and values above U+10FFFF are
 * invalid. */
static size_t utf8_length(const unsigned char *s, size_t n) {
    if (s[0] < 0x80) return 1;
    size_t length = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || n < length) return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    if (s[0] == 0xE0 && s[1] < 0xA0) return 0;
    if (s[0] == 0xED && s[1] > 0x9F) return 0;
    if (s[0] == 0xF0 && s[1] < 0x90) return 0;
    if (s[0] == 0xF4 && s[1] > 0x8F) return 0;
    return length;
}

static size_t utf8_put(char *out, uint32_t code) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

static ms_status read_hex4(reader *r, uint32_t *out) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        int c = peek(r);
        if (c < 0 || !isxdigit(c)) return bad(r, "\\u needs four hexadecimal digits");
        value = value * 16 + (uint32_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
        r->at++;
    }
    *out = value;
    return MS_OK;
}

static ms_status read_unicode_escape(reader *r, uint32_t *out) {
    uint32_t high = 0, low = 0;
    ms_status status = read_hex4(r, &high);
    if (status != MS_OK) return status;
    if (high >= 0xDC00 && high <= 0xDFFF) return bad(r, "lone low surrogate");
    if (high < 0xD800 || high > 0xDBFF) {
        *out = high;
        return MS_OK;
    }
    if (r->n_bytes - r->at < 2 || r->text[r->at] != '\\' || r->text[r->at + 1] != 'u')
        return bad(r, "lone high surrogate");
    r->at += 2;
    status = read_hex4(r, &low);
    if (status != MS_OK) return status;
    if (low < 0xDC00 || low > 0xDFFF) return bad(r, "high surrogate without its low one");
    *out = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    return MS_OK;
}

static ms_status read_escape(reader *r, char *out, size_t *n) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    int c = peek(r);
    if (c == 'u') {
        uint32_t code = 0;
        r->at++;
        ms_status status = read_unicode_escape(r, &code);
        if (status == MS_OK) *n += utf8_put(out + *n, code);
        return status;
    }
    const char *found = c > 0 ? strchr(names, c) : NULL;
    if (found == NULL) return bad(r, "unknown escape");
    out[(*n)++] = values[found - names];
    r->at++;
    return MS_OK;
}

/* Bytes up to the closing quote. The decoded string needs no more, since decoding makes every escape shorter. */
static size_t raw_string_bytes(const reader *r) {
    size_t at = r->at;
    while (at < r->n_bytes && r->text[at] != '"') at += r->text[at] == '\\' ? 2 : 1;
    return (at > r->n_bytes ? r->n_bytes : at) - r->at;
}

static ms_status read_string(reader *r, const char **out, size_t *out_n) {
    if (peek(r) != '"') return bad(r, "a string was expected");
    r->at++;
    char *decoded = ms__arena_alloc(r->arena, raw_string_bytes(r) + 1);
    if (decoded == NULL) return MS_E_NO_MEMORY;
    size_t n = 0;
    for (;;) {
        int c = peek(r);
        if (c < 0) return bad(r, "unterminated string");
        if (c < 0x20) return bad(r, "control character in a string");
        if (c == '"') break;
        if (c == '\\') {
            r->at++;
            ms_status status = read_escape(r, decoded, &n);
            if (status != MS_OK) return status;
            continue;
        }
        size_t length = utf8_length((const unsigned char *)r->text + r->at, r->n_bytes - r->at);
        if (length == 0) return bad(r, "invalid UTF-8");
        memcpy(decoded + n, r->text + r->at, length);
        n += length;
        r->at += length;
    }
    r->at++;
    decoded[n] = '\0';
    *out = decoded;
    *out_n = n;
    return MS_OK;
}

static size_t skip_digits(reader *r) {
    size_t start = r->at;
    while (peek(r) >= '0' && peek(r) <= '9') r->at++;
    return r->at - start;
}

/* The digits as a whole number; false if it does not fit. */
static bool whole_number(const char *digits, size_t n, bool negative, ms__json *out) {
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t digit = (uint64_t)(digits[i] - '0');
        if (value > (UINT64_MAX - digit) / 10) return false;
        value = value * 10 + digit;
    }
    if (negative) {
        if (value > (uint64_t)INT64_MAX + 1) return false;
        out->type = MS__JSON_INT;
        out->integer = value == 0 ? 0 : -(int64_t)(value - 1) - 1;
    } else if (value <= INT64_MAX) {
        out->type = MS__JSON_INT;
        out->integer = (int64_t)value;
    } else {
        out->type = MS__JSON_UINT;
        out->uinteger = value;
    }
    return true;
}

/* strtod expects the decimal point of the host program's locale. */
static double parse_double(char *text) {
    char probe[16];
    (void)snprintf(probe, sizeof probe, "%.1f", 0.5);
    char *point = strchr(text, '.');
    if (point != NULL) *point = probe[1];
    return strtod(text, NULL);
}

static ms_status read_number(reader *r, ms__json *out) {
    size_t start = r->at;
    bool negative = peek(r) == '-', whole = true;
    if (negative) r->at++;
    size_t first_digit = r->at, n_digits = skip_digits(r);
    if (n_digits == 0) return bad(r, "a value was expected");
    if (n_digits > 1 && r->text[first_digit] == '0') return bad(r, "leading zero");
    if (peek(r) == '.') {
        whole = false;
        r->at++;
        if (skip_digits(r) == 0) return bad(r, "digits expected after the point");
    }
    if (peek(r) == 'e' || peek(r) == 'E') {
        whole = false;
        r->at++;
        if (peek(r) == '+' || peek(r) == '-') r->at++;
        if (skip_digits(r) == 0) return bad(r, "digits expected in the exponent");
    }
    if (whole && whole_number(r->text + first_digit, n_digits, negative, out)) return MS_OK;
    char *copy = ms__arena_string(r->arena, r->text + start, r->at - start);
    if (copy == NULL) return MS_E_NO_MEMORY;
    out->type = MS__JSON_DOUBLE;
    out->real = parse_double(copy);
    if (!isfinite(out->real)) return bad(r, "number out of range");
    return MS_OK;
}

typedef struct members {
    MS__VEC(ms__json) values;
    MS__VEC(const char *) keys;
} members;

static int compare_keys(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static ms_status check_duplicates(const reader *r, const members *m) {
    if (m->keys.n < 2) return MS_OK;
    const char **sorted = malloc(m->keys.n * sizeof *sorted);
    if (sorted == NULL) return ms__fail_memory(m->keys.n * sizeof *sorted);
    memcpy(sorted, m->keys.items, m->keys.n * sizeof *sorted);
    qsort(sorted, m->keys.n, sizeof *sorted, compare_keys);
    ms_status status = MS_OK;
    for (size_t i = 1; i < m->keys.n && status == MS_OK; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0) status = bad(r, "duplicate key in the object that ends");
    free(sorted);
    return status;
}

static ms_status read_key(reader *r, members *m) {
    const char *key;
    size_t n;
    skip_space(r);
    ms_status status = read_string(r, &key, &n);
    if (status != MS_OK) return status;
    if (strlen(key) != n) return bad(r, "NUL in a key");
    skip_space(r);
    if (peek(r) != ':') return bad(r, "':' was expected");
    r->at++;
    return ms__vec_push(&m->keys, key) ? MS_OK : MS_E_NO_MEMORY;
}

/* Everything between the brackets, the closing one included. */
static ms_status read_members(reader *r, char closing, members *m) {
    r->at++;
    skip_space(r);
    if (peek(r) == closing) {
        r->at++;
        return MS_OK;
    }
    for (;;) {
        ms_status status = closing == '}' ? read_key(r, m) : MS_OK;
        if (status != MS_OK) return status;
        ms__json value = {0};
        status = read_value(r, &value);
        if (status != MS_OK) return status;
        if (!ms__vec_push(&m->values, value)) return MS_E_NO_MEMORY;
        skip_space(r);
        int c = peek(r);
        if (c != ',' && c != closing)
            return bad(r, closing == '}' ? "',' or '}' was expected" : "',' or ']' was expected");
        r->at++;
        if (c == closing) return MS_OK;
    }
}

static ms_status keep_members(reader *r, const members *m, ms__json *out) {
    size_t n = m->values.n;
    out->n = n;
    if (n == 0) return MS_OK;
    ms__json *items = ms__arena_array(r->arena, n, sizeof *items);
    if (items == NULL) return MS_E_NO_MEMORY;
    memcpy(items, m->values.items, n * sizeof *items);
    out->items = items;
    if (m->keys.n == 0) return MS_OK;
    const char **keys = ms__arena_array(r->arena, n, sizeof *keys);
    if (keys == NULL) return MS_E_NO_MEMORY;
    memcpy(keys, m->keys.items, n * sizeof *keys);
    out->keys = keys;
    return MS_OK;
}

static ms_status read_container(reader *r, ms__json *out) {
    char closing = peek(r) == '{' ? '}' : ']';
    out->type = closing == '}' ? MS__JSON_OBJECT : MS__JSON_ARRAY;
    r->depth++;
    if (r->depth > MS__JSON_MAX_DEPTH) return bad(r, "nested too deeply");
    members m = {0};
    ms_status status = read_members(r, closing, &m);
    if (status == MS_OK) status = check_duplicates(r, &m);
    if (status == MS_OK) status = keep_members(r, &m, out);
    ms__vec_free(&m.values);
    ms__vec_free(&m.keys);
    r->depth--;
    return status;
}

static ms_status read_value(reader *r, ms__json *out) {
    skip_space(r);
    switch (peek(r)) {
    case '{':
    case '[':
        return read_container(r, out);
    case '"':
        out->type = MS__JSON_STRING;
        return read_string(r, &out->string, &out->n);
    case 't':
        out->type = MS__JSON_BOOL;
        out->boolean = true;
        return read_word(r, "true");
    case 'f':
        out->type = MS__JSON_BOOL;
        return read_word(r, "false");
    case 'n':
        out->type = MS__JSON_NULL;
        return read_word(r, "null");
    default:
        return read_number(r, out);
    }
}

ms_status ms__json_read(ms__arena *arena, const char *text, size_t n_bytes, const ms__json **out) {
    reader r = {.text = text, .n_bytes = n_bytes, .arena = arena};
    ms__json *value = ms__arena_alloc(arena, sizeof *value);
    if (value == NULL) return MS_E_NO_MEMORY;
    ms_status status = read_value(&r, value);
    if (status != MS_OK) return status;
    skip_space(&r);
    if (r.at != n_bytes) return bad(&r, "text after the end of the document");
    *out = value;
    return MS_OK;
}

const ms__json *ms__json_get(const ms__json *object, const char *key) {
    if (object == NULL || object->type != MS__JSON_OBJECT) return NULL;
    for (size_t i = 0; i < object->n; i++)
        if (strcmp(object->keys[i], key) == 0) return &object->items[i];
    return NULL;
}

ms_status ms__json_get_int(const ms__json *object, const char *key, int64_t min, int64_t *out) {
    const ms__json *value = ms__json_get(object, key);
    if (value == NULL || value->type != MS__JSON_INT || value->integer < min)
        return ms__fail(MS_E_PARSE, "\"%s\" must be a whole number of at least %lld", key, (long long)min);
    *out = value->integer;
    return MS_OK;
}

ms_status ms__json_get_bool(const ms__json *object, const char *key, bool *out) {
    const ms__json *value = ms__json_get(object, key);
    if (value == NULL || value->type != MS__JSON_BOOL) return ms__fail(MS_E_PARSE, "\"%s\" must be true or false", key);
    *out = value->boolean;
    return MS_OK;
}

ms_status ms__json_get_string(const ms__json *object, const char *key, const char **out) {
    const ms__json *value = ms__json_get(object, key);
    if (value == NULL || value->type != MS__JSON_STRING || strlen(value->string) != value->n)
        return ms__fail(MS_E_PARSE, "\"%s\" must be a string", key);
    *out = value->string;
    return MS_OK;
}

ms_status ms__json_get_array(const ms__json *object, const char *key, const ms__json **out) {
    const ms__json *value = ms__json_get(object, key);
    if (value == NULL || value->type != MS__JSON_ARRAY) return ms__fail(MS_E_PARSE, "\"%s\" must be an array", key);
    *out = value;
    return MS_OK;
}

ms_status ms__json_check_keys(const ms__json *object, const char *const *allowed) {
    if (object->type != MS__JSON_OBJECT) return ms__fail(MS_E_PARSE, "a JSON object was expected");
    for (size_t i = 0; i < object->n; i++) {
        const char *const *known = allowed;
        while (*known != NULL && strcmp(*known, object->keys[i]) != 0) known++;
        if (*known == NULL) return ms__fail(MS_E_PARSE, "unknown key \"%.64s\"", object->keys[i]);
    }
    return MS_OK;
}
