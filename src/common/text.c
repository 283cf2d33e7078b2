/* text.c - sizes and times as people read them. Only integer arithmetic, so that the text is the same everywhere. */
#include "text.h"

#include <string.h>

#include "status.h"

#define MAX_DIGITS 19 /* of an int64_t */

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

static ms_status copy_out(ms__figure figure, char *out, size_t n, const char *function) {
    if (out == NULL || strlen(figure.text) >= n)
        return ms__fail(MS_E_INVALID, "%s: out is NULL or has no room for \"%s\"", function, figure.text);
    memcpy(out, figure.text, strlen(figure.text) + 1);
    return MS_OK;
}

ms_status ms_format_bytes(int64_t bytes, char *out, size_t n) {
    return copy_out(ms__size_text(bytes, MS__MIN_DIGITS), out, n, "ms_format_bytes");
}

ms_status ms_format_ns(int64_t ns, char *out, size_t n) {
    return copy_out(ms__time_text(ns, MS__MIN_DIGITS), out, n, "ms_format_ns");
}
