/* text.c - sizes and times as people read them. Only integer arithmetic, so that the text is the same everywhere. */
#include "text.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "names.h"

#define MAX_DIGITS 19     /* of an int64_t */
#define MAX_PLACE_NAME 96 /* bytes of a layer's name in a sentence */

typedef struct unit {
    uint64_t scale;
    const char *name;
} unit;

static const unit size_units[] = {{1, "B"},
                                  {1000, "kB"},
                                  {1000000, "MB"},
                                  {1000000000, "GB"},
                                  {1000000000000, "TB"},
                                  {1000000000000000, "PB"},
                                  {1000000000000000000, "EB"}};
static const unit time_units[] = {{1, "ns"}, {1000, "us"}, {1000000, "ms"}, {1000000000, "s"}};

static int count_digits(uint64_t n) {
    int digits = 1;
    for (; n >= 10; n /= 10) digits++;
    return digits;
}

static uint64_t power_of_ten(int exponent) {
    uint64_t power = 1;
    for (; exponent > 0; exponent--) power *= 10;
    return power;
}

/* Rounded to a number of significant digits; a number with fewer stays as it is. */
static uint64_t round_to(uint64_t n, int digits) {
    int dropped = count_digits(n) - digits;
    if (dropped <= 0) return n;
    uint64_t step = power_of_ten(dropped);
    return (n + step / 2) / step * step;
}

/* At most MAX_DIGITS digits, a sign, a point and a unit: a figure has room for them. */
static void put_char(ms__figure *figure, size_t *at, char c) {
    if (*at + 1 < sizeof figure->text) figure->text[(*at)++] = c;
}

static void put_digits(ms__figure *figure, size_t *at, uint64_t n, int n_digits) {
    for (uint64_t place = power_of_ten(n_digits - 1); place > 0; place /= 10)
        put_char(figure, at, (char)('0' + n / place % 10));
}

static ms__figure format(int64_t value, int digits, const unit *units, int n_units) {
    ms__figure figure = {""};
    size_t at = 0;
    uint64_t n = round_to(value < 0 ? -(uint64_t)value : (uint64_t)value, digits);
    int u = 0;
    while (u + 1 < n_units && n >= units[u + 1].scale) u++;
    uint64_t scale = units[u].scale, whole = n / scale;
    int most = count_digits(scale) - 1, decimals = digits - count_digits(whole);
    if (decimals > most) decimals = most;
    if (value < 0) put_char(&figure, &at, '-');
    put_digits(&figure, &at, whole, count_digits(whole));
    if (decimals > 0) {
        put_char(&figure, &at, '.');
        put_digits(&figure, &at, n % scale / (scale / power_of_ten(decimals)), decimals);
    }
    put_char(&figure, &at, ' ');
    for (const char *name = units[u].name; *name != '\0'; name++) put_char(&figure, &at, *name);
    return figure;
}

ms__figure ms__size_text(int64_t bytes, int digits) {
    return format(bytes, digits, size_units, sizeof size_units / sizeof *size_units);
}

ms__figure ms__time_text(int64_t ns, int digits) {
    return format(ns, digits, time_units, sizeof time_units / sizeof *time_units);
}

ms__figure ms__signed_text(ms__figure figure) {
    if (figure.text[0] == '-') return figure;
    ms__figure result = {"+"};
    memcpy(result.text + 1, figure.text, sizeof figure.text - 2); /* a figure is never that long */
    return result;
}

static int digits_of(ms__figure (*text_of)(int64_t, int), int64_t a, int64_t b) {
    int digits = MS__MIN_DIGITS;
    while (a != b && digits < MAX_DIGITS && strcmp(text_of(a, digits).text, text_of(b, digits).text) == 0) digits++;
    return digits;
}

int ms__size_digits(int64_t a, int64_t b) { return digits_of(ms__size_text, a, b); }

int ms__time_digits(int64_t a, int64_t b) { return digits_of(ms__time_text, a, b); }

int ms__name_cut(const char *name, int most) {
    if (strlen(name) <= (size_t)most) return most;
    while (most > 0 && ((unsigned char)name[most] & 0xC0) == 0x80) most--;
    return most;
}

ms__place ms__place_text(int32_t phase, const char *layer) {
    ms__place place;
    const char *where = ms__phases[phase].place;
    bool is_pass = phase == MS_PHASE_FORWARD || phase == MS_PHASE_BACKWARD;
    if (layer != NULL)
        (void)snprintf(place.text, sizeof place.text, "%s of %.*s", where, ms__name_cut(layer, MAX_PLACE_NAME), layer);
    else
        (void)snprintf(place.text, sizeof place.text, "%s%s", where, is_pass ? ", between layers" : "");
    return place;
}

static ms_status copy_out(const char *text, char *out, size_t n, const char *function) {
    if (out == NULL || strlen(text) >= n)
        return ms__fail(MS_E_INVALID, "%s: out is NULL or has no room for \"%s\"", function, text);
    memcpy(out, text, strlen(text) + 1);
    return MS_OK;
}

ms_status ms_format_bytes(int64_t bytes, char *out, size_t n) {
    return copy_out(ms__size_text(bytes, MS__MIN_DIGITS).text, out, n, "ms_format_bytes");
}

ms_status ms_format_ns(int64_t ns, char *out, size_t n) {
    return copy_out(ms__time_text(ns, MS__MIN_DIGITS).text, out, n, "ms_format_ns");
}

ms_status ms_format_place(int32_t phase, const char *layer, char *out, size_t n) {
    if (phase < 0 || phase >= MS_N_PHASES) return ms__fail(MS_E_INVALID, "phase %d is unknown", (int)phase);
    return copy_out(ms__place_text(phase, layer).text, out, n, "ms_format_place");
}
