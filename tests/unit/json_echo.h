/* json_echo.h - write a document as it was read.
 *
 * The round trip that the tests and the fuzzer of JSON share. The text is canonical: echoing it again changes nothing.
 */
#ifndef TESTS_JSON_ECHO_H
#define TESTS_JSON_ECHO_H

#include "common/json.h"

/* The canonical text of a document; `*out_text` is owned, ms_free. */
ms_status json_echo(const ms__json *document, char **out_text);

#endif
