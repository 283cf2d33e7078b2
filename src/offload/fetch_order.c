/* fetch_order.c - in which order groups come back: what ms_offload_next foresees, and how it learns.
 *
 * Backward usually needs groups in the reverse order of their puts. Where it does not (layers that share inputs, two
 * branches), the key that was used after another one the last time comes after it again.
 */
#include "../prim/prim.h"
#include "offload.h"

ms_status ms__offload_know_key(ms_offload *engine, int64_t key) {
    ms__lock(&engine->lock);
    size_t n_more = engine->nexts.n <= (size_t)key ? (size_t)key + 1 - engine->nexts.n : 0;
    bool has_room = ms__vec_reserve(&engine->nexts, n_more);
    while (has_room && engine->nexts.n <= (size_t)key) engine->nexts.items[engine->nexts.n++] = MS__NO_KEY;
    ms__unlock(&engine->lock);
    return has_room ? MS_OK : MS_E_NO_MEMORY;
}

void ms__offload_learn(ms_offload *engine, ms_offload_group *group) {
    if (engine->last_key != MS__NO_KEY && engine->last_key != group->key)
        engine->nexts.items[engine->last_key] = group->key;
    engine->last_key = group->key;
    if (group->used_in == engine->backward) engine->backward++;
    group->used_in = engine->backward;
    if (group->is_fetched && !group->is_foreseen) engine->counts.n_late++;
}

/* The group of a key that is nearest to `from`: first among older ones, then among newer ones. */
static ms_offload_group *find(const ms_offload_group *from, int64_t key) {
    for (ms_offload_group *group = from->older; group != NULL; group = group->older)
        if (group->key == key) return group;
    for (ms_offload_group *group = from->newer; group != NULL; group = group->newer)
        if (group->key == key) return group;
    return NULL;
}

static ms_offload_group *following(const ms_offload_group *group) {
    int64_t key = group->engine->nexts.items[group->key];
    ms_offload_group *found = key == MS__NO_KEY ? NULL : find(group, key);
    return found != NULL ? found : group->older;
}

void *ms_offload_next(const ms_offload_group *group, int64_t n_ahead) {
    void *user = NULL;
    /* In a forked child the lock may be closed for good. */
    if (group == NULL || ms__prim_pid() != group->engine->pid) return NULL;
    ms__lock(&group->engine->lock);
    const ms_offload_group *from = n_ahead < group->engine->counts.n_groups ? group : NULL;
    ms_offload_group *found = NULL;
    for (int64_t i = 0; i < n_ahead && from != NULL; i++) from = found = following(from);
    bool is_wanted = from != NULL && found != NULL && found != group && found->used_in != group->engine->backward;
    if (is_wanted && !found->is_pending && !found->is_fetched) {
        found->is_foreseen = true;
        user = found->user;
    }
    ms__unlock(&group->engine->lock);
    return user;
}
