/* fields.h - rows of the tables that describe public structures to bindings (ms_field). */
#ifndef MS_COMMON_FIELDS_H
#define MS_COMMON_FIELDS_H

#include <stddef.h>

#include <memscale/memscale.h>

#define MS__FIELD(type, field, kind) {#field, offsetof(type, field), kind}

/* The body of a function that returns such a table. */
#define MS__RETURN_FIELDS(table, out_n)                                                                                \
    do {                                                                                                               \
        *(out_n) = (int64_t)(sizeof(table) / sizeof *(table));                                                         \
        return table;                                                                                                  \
    } while (0)

#endif
