/* test_offload_failures.c - every call of the backend failing, at each of its calls in turn.
 *
 * Whatever fails: the call of the engine says so, all groups keep their contents, nothing is in flight on memory of the
 * call that failed, and the same call succeeds afterwards.
 */
#include "groups.h"

#include <string.h>

#define MAX_CALLS 500 /* more than a life makes */

/* One life with the nth call failing. Returns whether there were that many. */
static bool live_failing(int64_t nth, int64_t pinned_limit_bytes, int64_t max_pending) {
    const ms__host_faults faults = {.seed = (uint64_t)nth, .fail_at = nth, .max_delay_ns = 20000};
    ms_offload_options options = lab_options(16 * MIB, max_pending);
    const ms__backend *backend = NULL;
    void *device = NULL;
    ms_offload *engine = NULL;
    options.pinned_limit_bytes = pinned_limit_bytes;
    CHECK_STATUS(ms__host_backend_create(&faults, &backend, &device), MS_OK);
    ms_status status = ms__offload_start(&options, backend, device, &engine);
    if (status != MS_OK) { /* with its backend */
        CHECK_STATUS(status, MS_E_CUDA);
        CHECK(engine == NULL);
        return true;
    }
    int64_t n_failed = live_through(engine), n_calls = ms__host_count_calls(device);
    bool was_reached = n_calls >= nth;
    if (pinned_limit_bytes == 0) /* memory that is not pinned has nothing to fall back to */
        CHECK_EQ_INT(n_failed, was_reached ? 1 : 0);
    ms_offload_destroy(engine);
    return was_reached;
}

static void fail_each(int64_t pinned_limit_bytes, int64_t max_pending) {
    int64_t nth = 1;
    while (nth < MAX_CALLS && live_failing(nth, pinned_limit_bytes, max_pending)) nth++;
    CHECK(nth > 50 && nth < MAX_CALLS);
}

TEST(every_call_of_the_backend) {
    fail_each(0, 0);
    fail_each(0, 2);
}

/* Memory that cannot be pinned is taken all the same. */
TEST(every_call_with_pinned_memory) { fail_each(INT64_MAX, 1); }

/* ---- Nothing is in flight ---- */

/* The calls of a put and of a fetch: two for events, two or three to order streams, two copies, one to record. */
enum { N_SETUP = 3, N_PUT = 7, N_FETCH = 7, SECOND_COPY = 6 };

static const int64_t sizes[] = {5000, 3000, -1};
static atomic_bool has_napped;

/* Copies that were queued after this are not done before it. */
static void nap(void *argument) {
    (void)argument;
    ms__thread_sleep(20000000);
    atomic_store(&has_napped, true);
}

static lab open_failing(int64_t nth) {
    const ms__host_faults faults = {.fail_at = nth};
    const ms_offload_options options = lab_options(8 * KIB, 2);
    lab l = open_lab(&options, &faults);
    CHECK_STATUS(ms_offload_reserve(l.engine, 8 * KIB), MS_OK);
    atomic_store(&has_napped, false);
    return l;
}

/* Where copies were queued, a call that fails has waited for them: its memory may be used at once. */
TEST(a_put_that_fails_has_no_copy_in_flight) {
    for (int64_t nth = 1; nth <= N_PUT; nth++) {
        lab l = open_failing(N_SETUP + nth);
        tensors t = tensors_make(1, sizes), other = tensors_make(2, sizes);
        lab_call(&l, l.engine->out, nap, NULL);
        CHECK_STATUS(tensors_put(&t, l.engine, 0, 0), MS_E_CUDA);
        CHECK(nth < SECOND_COPY || atomic_load(&has_napped));
        tensors_drop(&t);
        CHECK_EQ_INT(stats_of(l.engine).n_puts, 0);
        check_empty(l.engine);
        CHECK_STATUS(tensors_put(&other, l.engine, 0, 0), MS_OK); /* into the same host memory */
        CHECK_STATUS(ms_offload_settle(other.group, 0), MS_OK);
        tensors_drop(&other);
        tensors_bring_back(&other);
        tensors_end(&other);
        ms_offload_destroy(l.engine);
    }
}

TEST(a_fetch_that_fails_has_no_copy_in_flight) {
    for (int64_t nth = 1; nth <= N_FETCH; nth++) {
        lab l = open_failing(N_SETUP + N_PUT + nth);
        tensors t = tensors_make(1, sizes);
        CHECK_STATUS(tensors_put(&t, l.engine, 0, 0), MS_OK);
        lab_sync(&l, l.engine->out);
        tensors_drop(&t);
        tensors_take(&t);
        lab_call(&l, l.engine->in, nap, NULL);
        CHECK_STATUS(tensors_fetch(&t, 0), MS_E_CUDA);
        CHECK(nth < SECOND_COPY || atomic_load(&has_napped));
        tensors_drop(&t);
        CHECK_EQ_INT(stats_of(l.engine).n_fetches, 0);
        tensors_bring_back(&t);
        tensors_end(&t);
        check_empty(l.engine);
        ms_offload_destroy(l.engine);
    }
}

/* ---- Release ---- */

/* A group that could not be released is the next one again. */
TEST(a_release_that_fails) {
    for (int64_t nth = 1; nth <= 2; nth++) { /* the question, or the wait */
        const ms__host_faults faults = {.fail_at = 12 + nth};
        const ms_offload_options options = lab_options(MIB, 0);
        static gate closed;
        lab l = open_lab(&options, &faults);
        ms__stream stream = lab_stream(&l);
        tensors t = tensors_of_size(1, 100);
        void *user = &l;
        gate_close(&l, stream, &closed);
        CHECK_STATUS(tensors_put(&t, l.engine, 0, stream), MS_OK);
        while (ms__host_count_calls(l.device) < 12) {
            bool is_done = false;
            CHECK_STATUS(l.backend->is_done(l.device, t.group->out_event, &is_done), MS_OK);
        }
        CHECK_STATUS(ms_offload_release(l.engine, stream, &user), MS_E_CUDA);
        CHECK(user == &l);
        CHECK_EQ_INT(stats_of(l.engine).n_pending, 1);
        CHECK_EQ_INT(stats_of(l.engine).n_waits, 0);
        CHECK_STATUS(ms_offload_release(l.engine, stream, &user), MS_OK);
        CHECK(user == &t);
        gate_open(&closed);
        tensors_end(&t);
        l.backend->stream_destroy(l.device, stream);
        ms_offload_destroy(l.engine);
    }
}

SUITE(offload_failures, CASE(every_call_of_the_backend), CASE(every_call_with_pinned_memory),
      CASE(a_put_that_fails_has_no_copy_in_flight), CASE(a_fetch_that_fails_has_no_copy_in_flight),
      CASE(a_release_that_fails));
