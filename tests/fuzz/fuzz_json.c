/* fuzz_json.c - any bytes into the JSON reader. What it reads, the writer writes, and reading and writing that text
 * again does not change it. An error has an offset inside the text.
 */
#include "fuzz.h"

#include <string.h>

#include "error_info.h"
#include "json_echo.h"

const char *const fuzz_dictionary[] = {"{\"a\":",
                                       "[",
                                       "]",
                                       "}",
                                       ",",
                                       ":",
                                       "\"",
                                       "\\u",
                                       "\\ud83d",
                                       "\\ude00",
                                       "\\u0000",
                                       "null",
                                       "true",
                                       "false",
                                       "-0",
                                       "1e999",
                                       "1e-5",
                                       "0.1",
                                       "\\\\",
                                       "\\\"",
                                       "\xC3\xA9",
                                       "\xED\xA0\x80",
                                       "18446744073709551615",
                                       "-9223372036854775808",
                                       "[[[[[[[[",
                                       "]]]]]]]]",
                                       NULL};

static char *echo(const char *text, size_t n_bytes) {
    ms__arena arena = {0};
    const ms__json *document = NULL;
    char *written = NULL;
    ms_status status = ms__json_read(&arena, text, n_bytes, &document);
    if (status == MS_OK) {
        REQUIRE(json_echo(document, &written) == MS_OK);
    } else {
        REQUIRE(status == MS_E_PARSE && document == NULL);
        REQUIRE(error_info().byte_offset >= 0 && (size_t)error_info().byte_offset <= n_bytes);
    }
    ms__arena_free(&arena);
    return written;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    char *first = echo((const char *)data, n_bytes);
    if (first == NULL) return 0;
    char *second = echo(first, strlen(first));
    REQUIRE(second != NULL && strcmp(first, second) == 0);
    ms_free(first);
    ms_free(second);
    return 0;
}
