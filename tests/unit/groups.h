/* groups.h - tensors for tests of the offload engine, engines on the host, and streams that a test can hold up.
 *
 * Device memory is taken anew for each tensor and filled with other bytes before it is given back, so that a copy that
 * comes too early or too late is noticed.
 */
#ifndef TESTS_GROUPS_H
#define TESTS_GROUPS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "offload/host_backend.h"
#include "offload/offload.h"
#include "runner.h"

#define KIB INT64_C(1024)
#define MIB (1024 * KIB)
#define MAX_PIECES 6
#define N_SCENES 3

/* What one group consists of. */
typedef struct tensors {
    int64_t n_pieces;
    int64_t sizes[MAX_PIECES];
    unsigned char *at[MAX_PIECES]; /* on the device; NULL: not there */
    uint64_t seed;
    ms_offload_group *group;
} tensors;

/* Device memory comes from this device of the fake driver; below 0, where every test begins: from the host. */
void tensors_use_device(int device);

/* On the device and filled; sizes end at the first that is negative. */
tensors tensors_make(uint64_t seed, const int64_t *sizes);
tensors tensors_of_size(uint64_t seed, int64_t n_bytes);

void tensors_take(tensors *t); /* device memory with other bytes */
void tensors_fill(tensors *t);
void tensors_poison(tensors *t);
void tensors_drop(tensors *t); /* poison it and give it back */
void tensors_drop_piece(tensors *t, int64_t piece);
int64_t tensors_count_wrong(const tensors *t); /* bytes, of the pieces that are on the device */

/* These four calls of the engine. `user` is the tensors themselves. */
ms_status tensors_put(tensors *t, ms_offload *engine, int64_t key, ms__stream stream);
ms_status tensors_fetch(tensors *t, ms__stream stream);
void tensors_bring_back(tensors *t); /* fetch and use on stream 0, check; must succeed */
void tensors_end(tensors *t);        /* settle and free on stream 0; must succeed */

/* An engine of the public API without a GPU; must succeed. */
ms_offload *open_host(int64_t limit_bytes, int64_t max_pending);

ms_offload_stats stats_of(ms_offload *engine);

/* Nothing is left in an engine whose groups were all freed. */
void check_empty(ms_offload *engine);

/* An engine on a host backend of which the test knows. */
typedef struct lab {
    ms_offload *engine;
    const ms__backend *backend;
    void *device;
} lab;

lab open_lab(const ms_offload_options *options, const ms__host_faults *faults);
ms_offload_options lab_options(int64_t limit_bytes, int64_t max_pending);
ms__stream lab_stream(const lab *l);
void lab_sync(const lab *l, ms__stream stream);
void lab_call(const lab *l, ms__stream stream, void (*call)(void *argument), void *argument);

/* Hold up a stream until the gate is opened. */
typedef atomic_bool gate;
void gate_close(const lab *l, ms__stream stream, gate *g);
void gate_open(gate *g);

/* Time enough for a copy that does not wait for what it should. */
void let_others_run(void);

/* A life of an engine in which every kind of call is made. A call that fails is repeated and must then succeed; returns
 * how many failed. All contents are checked, and no group is left. */
int64_t live_through(ms_offload *engine);

#endif
