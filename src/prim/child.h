/* child.h - what the files of the throw-away child share. The public part is in memscale.h (ms_child). */
#ifndef MS_CHILD_H
#define MS_CHILD_H

#include <stdint.h>

#include "../common/status.h"

/* What a child has of the process that it is a copy of. */
enum {
    MS__CHILD_PIPE = 3 /* its only open file but for the null device at 0, 1 and 2 */
};

/* Run in the child, before anything else. Cuts it off from the devices, files, signals and limits of its parent: see
 * ms_child_create. Allocates nothing and takes no lock, since another thread of the parent may have held one. `pipe`
 * becomes MS__CHILD_PIPE. False: it could not be done, and the child must end. */
bool ms__child_confine(int pipe, int64_t parent, int64_t memory_bytes);

#endif
