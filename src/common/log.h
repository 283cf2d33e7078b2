/* log.h - messages of the library, through the sink that the host program set (memscale.h). */
#ifndef MS_COMMON_LOG_H
#define MS_COMMON_LOG_H

#include "status.h"

/* Format and send a message, if a sink wants its level. Longer messages are cut. */
void ms__log(int level, const char *format, ...) MS__PRINTF(2, 3);

#endif
