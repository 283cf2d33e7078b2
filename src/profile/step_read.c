/* step_read.c - reads a step from JSON (step_json.h).
 *
 * Tapes are unfolded once for each class. Then the segments are laid out in the order of the step, and their tapes are
 * played in the order of the variants (ms__variant_order). This numbers the keys and finds names that are not allowed.
 */
#include "shape_terms.h"
#include "step_json.h"

#define NOBODY UINT32_MAX

typedef struct pair {
    int32_t code, operand;
} pair;

typedef struct tape {
    pair *pairs;
    uint32_t n_pairs, n_events, n_new;
} tape;

/* A segment of a class: a tape for all variants, or a recomputed and a plain one, or these and a pointwise one. */
typedef struct part {
    uint32_t phase, n_tapes;
    tape tapes[MS__N_VARIANTS];
} part;

typedef struct unit_class {
    part *parts;
    uint32_t n_parts, n_keys;
    bool used;
} unit_class;

/* The owner of keys: a unit, or the segments between units (the first owner). */
typedef struct owner {
    unit_class *class;
    uint32_t next_part;
    uint32_t place;     /* in the order in which units first run; NOBODY: it does not */
    uint32_t first_key; /* in `keys` */
    uint32_t n_keys;    /* so far */
} owner;

typedef struct reader {
    ms__arena *arena;  /* the step's */
    ms__arena scratch; /* freed at the end */
    ms__step step;
    ms__step_key *kinds;
    uint32_t n_kinds;
    unit_class rest, *classes;
    uint32_t n_classes;
    owner *owners;         /* n_units + 1 */
    uint32_t *at_place;    /* place -> owner */
    uint32_t n_placed;     /* units that run */
    uint32_t *keys;        /* of owners, by their numbers there */
    uint32_t *first_fresh; /* MS__N_VARIANTS for each segment: the number that a tape gives to its first new key */
    uint8_t *fates;        /* key -> a bit for each variant that allocated it, and one for each that released it */
} reader;

/* ---- Numbers and tables ---- */

/* At the step's own shape, coefficients must give its numbers. */
static ms_status check_coefficients(const ms__step *step) {
    int64_t terms[MS__N_TERMS], value;
    if (!ms__terms_of((ms__shape){step->batch, step->length}, terms))
        return ms__fail(MS_E_LIMIT, "shape %lld x %lld is too large", (long long)step->batch, (long long)step->length);
    for (uint32_t i = 0; i < step->n_numbers; i++)
        if (!ms__terms_value(step->coefficients + (size_t)i * MS__N_TERMS, step->denominator, terms, &value) ||
            value != step->numbers[i])
            return ms__fail(MS_E_PARSE, "\"coefficients\" do not give number %u at the step's own shape", i);
    return MS_OK;
}

static ms_status read_shape(reader *r, const ms__json *object) {
    ms__step *step = &r->step;
    size_t n = 0, n_coefficients = 0;
    ms_status status = ms__json_get_int(object, "batch", 0, &step->batch);
    if (status == MS_OK) status = ms__json_get_int(object, "length", 0, &step->length);
    if (status == MS_OK) status = ms__json_get_bool(object, "recomputed", &step->has_recomputed);
    if (status == MS_OK && ms__json_get(object, "pointwise") != NULL)
        status = ms__json_get_bool(object, "pointwise", &step->has_pointwise);
    if (status == MS_OK && step->has_pointwise && !step->has_recomputed)
        status = ms__fail(MS_E_PARSE, "\"pointwise\" needs \"recomputed\"");
    if (status == MS_OK) status = ms__json_get_ints(object, "numbers", 0, INT64_MAX, r->arena, &step->numbers, &n);
    if (status != MS_OK) return status;
    if (n > UINT32_MAX / MS__N_TERMS) return ms__fail(MS_E_LIMIT, "the step has too many numbers");
    step->n_numbers = (uint32_t)n;
    if (ms__json_get(object, "denominator") == NULL && ms__json_get(object, "coefficients") == NULL) return MS_OK;
    status = ms__json_get_int(object, "denominator", 1, &step->denominator);
    if (status == MS_OK)
        status = ms__json_get_ints(object, "coefficients", INT64_MIN / 8, INT64_MAX / 8, r->arena, &step->coefficients,
                                   &n_coefficients);
    if (status == MS_OK && n_coefficients != n * MS__N_TERMS)
        status = ms__fail(MS_E_PARSE, "\"coefficients\" must have %d entries for each number", MS__N_TERMS);
    return status == MS_OK ? check_coefficients(step) : status;
}

/* An array of records with `width` whole numbers from 0 to `max` each. */
static ms_status read_table(reader *r, const ms__json *object, const char *key, size_t width, const int64_t *max,
                            int64_t **out, uint32_t *out_n) {
    size_t n = 0;
    ms_status status = ms__json_get_ints(object, key, 0, UINT32_MAX, &r->scratch, out, &n);
    if (status != MS_OK) return status;
    if (n % width != 0) return ms__fail(MS_E_PARSE, "\"%s\" must have %zu numbers in each of its records", key, width);
    if (n / width > MS__STEP_MAX_EVENTS) return ms__fail(MS_E_LIMIT, "\"%s\" is too long", key);
    for (size_t i = 0; i < n; i++)
        if ((*out)[i] > max[i % width])
            return ms__fail(MS_E_PARSE, "\"%s\": item %zu must be at most %lld", key, i, (long long)max[i % width]);
    *out_n = (uint32_t)(n / width);
    return MS_OK;
}

static ms_status read_costs(reader *r, const ms__json *object) {
    ms__step *step = &r->step;
    int64_t number = (int64_t)step->n_numbers - 1, *v;
    const int64_t max[] = {number, number, MS__MAX_ELEMENT_BYTES, MS__OP_ALL};
    ms_status status = read_table(r, object, "costs", 4, max, &v, &step->n_costs);
    if (status != MS_OK) return status;
    step->costs = ms__arena_array(r->arena, step->n_costs, sizeof *step->costs);
    if (step->costs == NULL) return MS_E_NO_MEMORY;
    for (uint32_t i = 0; i < step->n_costs; i++, v += 4)
        step->costs[i] = (ms__step_cost){(uint32_t)v[0], (uint32_t)v[1], (uint32_t)v[2], (uint32_t)v[3]};
    return MS_OK;
}

static ms_status read_scratches(reader *r, const ms__json *object) {
    ms__step *step = &r->step;
    int64_t number = (int64_t)step->n_numbers - 1, *v;
    const int64_t max[1 + MS__SCRATCH_NUMBERS] = {MS__N_SCRATCH_RULES - 1, number, number, number, number};
    ms_status status = read_table(r, object, "scratches", 1 + MS__SCRATCH_NUMBERS, max, &v, &step->n_scratches);
    if (status != MS_OK) return status;
    step->scratches = ms__arena_array(r->arena, step->n_scratches, sizeof *step->scratches);
    if (step->scratches == NULL) return MS_E_NO_MEMORY;
    for (uint32_t i = 0; i < step->n_scratches; i++) {
        step->scratches[i].rule = (uint32_t)*v++;
        for (int j = 0; j < MS__SCRATCH_NUMBERS; j++) step->scratches[i].n[j] = (uint32_t)*v++;
    }
    return MS_OK;
}

static ms_status read_kinds(reader *r, const ms__json *object) {
    int64_t *v;
    const int64_t max[] = {(int64_t)r->step.n_numbers - 1, MS_N_CATEGORIES - 1};
    ms_status status = read_table(r, object, "keys", 2, max, &v, &r->n_kinds);
    if (status != MS_OK) return status;
    r->kinds = ms__arena_array(&r->scratch, r->n_kinds, sizeof *r->kinds);
    if (r->kinds == NULL) return MS_E_NO_MEMORY;
    for (uint32_t i = 0; i < r->n_kinds; i++, v += 2) r->kinds[i] = (ms__step_key){(uint32_t)v[0], (uint32_t)v[1], 0};
    return MS_OK;
}

/* ---- Tapes ---- */

static bool is_operand(const ms__json *item) {
    return item->type == MS__JSON_INT && item->integer >= -(int64_t)MS__STEP_MAX_EVENTS &&
           item->integer <= (int64_t)MS__STEP_MAX_EVENTS;
}

/* The pairs in `n` items. With `out` they are written there. Returns their number with arrays unfolded, or -1 if one is
 * malformed. */
static int64_t unfold(const ms__json *items, size_t n, bool inside, pair *out) {
    int64_t n_pairs = 0;
    for (size_t i = 0; i < n;) {
        if (items[i].type == MS__JSON_ARRAY && !inside) {
            const ms__json *list = &items[i++];
            if (list->n < 3 || list->items[0].type != MS__JSON_INT || list->items[0].integer < 2 ||
                list->items[0].integer > MS__TAPE_MAX_TIMES)
                return -1;
            for (int64_t times = list->items[0].integer; times > 0; times--) {
                int64_t more = unfold(list->items + 1, list->n - 1, true, out == NULL ? NULL : out + n_pairs);
                if (more < 0) return -1;
                n_pairs += more;
            }
            continue;
        }
        if (n - i < 2 || !is_operand(&items[i]) || !is_operand(&items[i + 1]) || items[i].integer < 0 ||
            items[i].integer >= MS__N_TAPE_CODES)
            return -1;
        if (out != NULL) out[n_pairs] = (pair){(int32_t)items[i].integer, (int32_t)items[i + 1].integer};
        n_pairs++;
        i += 2;
    }
    return n_pairs;
}

static ms_status read_tape(reader *r, const ms__json *value, tape *out) {
    int64_t n = value->type == MS__JSON_ARRAY ? unfold(value->items, value->n, false, NULL) : -1;
    if (n < 0) return ms__fail(MS_E_PARSE, "a tape of the step is malformed");
    if (n > MS__STEP_MAX_EVENTS) return ms__fail(MS_E_LIMIT, "a tape of the step is too long");
    out->pairs = ms__arena_array(&r->scratch, (size_t)n, sizeof *out->pairs);
    if (out->pairs == NULL) return MS_E_NO_MEMORY;
    (void)unfold(value->items, value->n, false, out->pairs);
    out->n_pairs = (uint32_t)n;
    for (uint32_t i = 0; i < out->n_pairs; i++) {
        out->n_events += out->pairs[i].code != MS__TAPE_OTHER;
        out->n_new += out->pairs[i].code == MS__TAPE_NEW;
    }
    return MS_OK;
}

static ms_status read_part(reader *r, const ms__json *value, part *out) {
    size_t max_tapes = r->step.has_pointwise ? 3 : r->step.has_recomputed ? 2 : 1;
    if (value->type != MS__JSON_ARRAY || value->n < 2 || value->n > 1 + max_tapes)
        return ms__fail(MS_E_PARSE, "a segment of the step must be a phase and %s", max_tapes > 1 ? "tapes" : "a tape");
    const ms__json *phase = &value->items[0];
    if (phase->type != MS__JSON_INT || phase->integer < 0 || phase->integer >= MS_N_PHASES)
        return ms__fail(MS_E_PARSE, "a segment of the step has no phase");
    out->phase = (uint32_t)phase->integer;
    out->n_tapes = (uint32_t)(value->n - 1);
    ms_status status = MS_OK;
    for (uint32_t i = 0; i < out->n_tapes && status == MS_OK; i++)
        status = read_tape(r, &value->items[i + 1], &out->tapes[i]);
    return status;
}

static ms_status read_class(reader *r, const ms__json *list, unit_class *out) {
    if (list->type != MS__JSON_ARRAY) return ms__fail(MS_E_PARSE, "a class of the step must be an array");
    if (list->n > MS__STEP_MAX_EVENTS) return ms__fail(MS_E_LIMIT, "a class of the step is too long");
    out->parts = ms__arena_array(&r->scratch, list->n, sizeof *out->parts);
    if (out->parts == NULL) return MS_E_NO_MEMORY;
    out->n_parts = (uint32_t)list->n;
    int64_t n_keys = 0;
    for (size_t i = 0; i < list->n; i++) {
        ms_status status = read_part(r, &list->items[i], &out->parts[i]);
        if (status != MS_OK) return status;
        for (uint32_t t = 0; t < out->parts[i].n_tapes; t++) n_keys += out->parts[i].tapes[t].n_new;
        if (n_keys > MS__STEP_MAX_EVENTS) return ms__fail(MS_E_LIMIT, "a class of the step has too many keys");
    }
    out->n_keys = (uint32_t)n_keys;
    return MS_OK;
}

static ms_status read_classes(reader *r, const ms__json *object) {
    const ms__json *rest = NULL, *list = NULL;
    ms_status status = ms__json_get_array(object, "rest", &rest);
    if (status == MS_OK) status = ms__json_get_array(object, "classes", &list);
    if (status != MS_OK || rest == NULL || list == NULL) return status;
    r->classes = ms__arena_array(&r->scratch, list->n, sizeof *r->classes);
    if (r->classes == NULL) return MS_E_NO_MEMORY;
    if (list->n > MS__STEP_MAX_EVENTS) return ms__fail(MS_E_LIMIT, "the step has too many classes");
    r->n_classes = (uint32_t)list->n;
    status = read_class(r, rest, &r->rest);
    for (size_t i = 0; i < list->n && status == MS_OK; i++) status = read_class(r, &list->items[i], &r->classes[i]);
    return status;
}

/* ---- The order of the step ---- */

static ms_status read_units(reader *r, const ms__json *object) {
    int64_t *classes;
    size_t n = 0, n_units = r->step.n_units;
    ms_status status = ms__json_get_ints(object, "units", 0, (int64_t)r->n_classes - 1, &r->scratch, &classes, &n);
    if (status != MS_OK) return status;
    if (n != n_units) return ms__fail(MS_E_PARSE, "the step has %zu layers, the profile has %zu", n, n_units);
    r->owners = ms__arena_array(&r->scratch, n + 1, sizeof *r->owners);
    r->at_place = ms__arena_array(&r->scratch, n, sizeof *r->at_place);
    if (r->owners == NULL || r->at_place == NULL) return MS_E_NO_MEMORY;
    uint64_t n_keys = 0;
    for (size_t i = 0; i <= n; i++) {
        r->owners[i].class = i == 0 ? &r->rest : &r->classes[classes[i - 1]];
        r->owners[i].class->used = true;
        r->owners[i].place = NOBODY;
        r->owners[i].first_key = (uint32_t)n_keys;
        n_keys += r->owners[i].class->n_keys;
        if (n_keys > MS__STEP_MAX_EVENTS) return ms__fail(MS_E_LIMIT, "the step has too many keys");
    }
    for (uint32_t i = 0; i < r->n_classes; i++) /* tapes that are never played would not be checked */
        if (!r->classes[i].used) return ms__fail(MS_E_PARSE, "no layer of the step has class %u", i);
    r->step.n_keys = (uint32_t)n_keys;
    return MS_OK;
}

/* The tape of a variant. */
static uint32_t tape_of(const part *p, int variant) {
    uint32_t own = variant == MS__RECOMPUTED ? 0 : variant == MS__PLAIN ? 1 : 2;
    while (own > 0 && own >= p->n_tapes) own--;
    return own;
}

/* Put the segments of each unit where "order" has them. */
static ms_status lay_out(reader *r, const int64_t *order) {
    ms__step *step = &r->step;
    for (uint32_t i = 0; i < step->n_segments; i++) {
        uint32_t index = (uint32_t)(order[i] + 1);
        owner *o = &r->owners[index];
        if (o->next_part >= o->class->n_parts)
            return ms__fail(MS_E_PARSE, "\"order\": layer %lld has too many segments", (long long)order[i]);
        const part *p = &o->class->parts[o->next_part++];
        if (i > 0 && p->phase < step->segments[i - 1].phase)
            return ms__fail(MS_E_PARSE, "\"order\": segment %u goes back to an earlier phase", i);
        if (index > 0 && o->place == NOBODY) {
            o->place = r->n_placed++;
            r->at_place[o->place] = index;
        }
        ms__segment *segment = &step->segments[i];
        *segment = (ms__segment){.unit = (int32_t)order[i], .phase = p->phase};
        for (int v = 0; v < MS__N_VARIANTS; v++) {
            if (!ms__step_has(step, v)) continue;
            segment->first[v] = step->n_events;
            segment->n[v] = p->tapes[tape_of(p, v)].n_events;
            if (segment->n[v] > MS__STEP_MAX_EVENTS - step->n_events)
                return ms__fail(MS_E_LIMIT, "the step has more than %u events", MS__STEP_MAX_EVENTS);
            step->n_events += segment->n[v];
        }
    }
    for (uint32_t i = 0; i <= step->n_units; i++)
        if (r->owners[i].next_part != r->owners[i].class->n_parts)
            return ms__fail(MS_E_PARSE, "\"order\": layer %d has too few segments", (int)i - 1);
    return MS_OK;
}

static ms_status read_order(reader *r, const ms__json *object) {
    ms__step *step = &r->step;
    int64_t *order;
    size_t n = 0;
    ms_status status = ms__json_get_ints(object, "order", -1, (int64_t)step->n_units - 1, &r->scratch, &order, &n);
    if (status != MS_OK) return status;
    if (n > MS__STEP_MAX_EVENTS) return ms__fail(MS_E_LIMIT, "the step has too many segments");
    step->n_segments = (uint32_t)n;
    step->segments = ms__arena_array(r->arena, n, sizeof *step->segments);
    if (step->segments == NULL) return MS_E_NO_MEMORY;
    status = lay_out(r, order);
    if (status != MS_OK) return status;
    step->events = ms__arena_array(r->arena, step->n_events, sizeof *step->events);
    step->keys = ms__arena_array(r->arena, step->n_keys, sizeof *step->keys);
    r->keys = ms__arena_array(&r->scratch, step->n_keys, sizeof *r->keys);
    r->fates = ms__arena_array(&r->scratch, step->n_keys, sizeof *r->fates);
    r->first_fresh = ms__arena_array(&r->scratch, n * MS__N_VARIANTS, sizeof *r->first_fresh);
    bool there =
        step->events != NULL && step->keys != NULL && r->keys != NULL && r->fates != NULL && r->first_fresh != NULL;
    return there ? MS_OK : MS_E_NO_MEMORY;
}

/* ---- Playing the tapes ---- */

typedef struct player {
    reader *r;
    owner *self;
    owner *other; /* whose key the next pair names; NULL: our own */
    uint32_t segment;
    int variant;
    bool again;     /* the tape was already played for another variant, so its new keys exist */
    int64_t last;   /* the number of our key that was named last */
    uint32_t fresh; /* the number of our next new key */
    uint32_t n_events;
} player;

static ms_status bad(const player *p, const char *what) {
    return ms__fail(MS_E_PARSE, "segment %u of the step %s", p->segment, what);
}

static ms_status add_event(player *p, uint32_t kind, uint32_t index) {
    ms__step *step = &p->r->step;
    if (kind <= MS__RELEASE) {
        uint8_t allocated = (uint8_t)(1U << (2 * p->variant)), released = (uint8_t)(2U << (2 * p->variant));
        uint8_t *fate = &p->r->fates[index];
        if (kind == MS__ALLOCATE && *fate & allocated) return bad(p, "allocates a key that is already allocated");
        if (kind == MS__RELEASE && (!(*fate & allocated) || *fate & released))
            return bad(p, "releases a key that is not allocated");
        *fate |= kind == MS__ALLOCATE ? allocated : released;
    }
    step->events[step->segments[p->segment].first[p->variant] + p->n_events++] = (ms__step_event){kind, index};
    return MS_OK;
}

static ms_status play_new(player *p, int32_t kind) {
    reader *r = p->r;
    if (kind < 0 || (uint32_t)kind >= r->n_kinds) return bad(p, "has a key of an unknown kind");
    p->last = p->fresh++;
    uint32_t *slot = &r->keys[p->self->first_key + (uint32_t)p->last];
    if (!p->again) {
        *slot = r->step.n_keys++;
        r->step.keys[*slot] = r->kinds[kind];
        p->self->n_keys++;
    }
    return add_event(p, MS__ALLOCATE, *slot);
}

static bool is_code_of_key(int32_t code) {
    return code == MS__TAPE_ALLOCATE || code == MS__TAPE_RELEASE || code == MS__TAPE_ACCUMULATE ||
           code == MS__TAPE_HOLD;
}

static uint32_t kind_of_event(int32_t code) {
    if (code == MS__TAPE_ALLOCATE) return MS__ALLOCATE;
    if (code == MS__TAPE_RELEASE) return MS__RELEASE;
    return code == MS__TAPE_HOLD ? MS__HOLD : MS__ACCUMULATE;
}

static ms_status play_key(player *p, int32_t code, int32_t operand) {
    owner *o = p->other == NULL ? p->self : p->other;
    int64_t number = p->other == NULL ? p->last + operand : operand;
    if (number < 0 || number >= (int64_t)o->n_keys) return bad(p, "names an unknown key");
    if (p->other == NULL) p->last = number;
    p->other = NULL;
    return add_event(p, kind_of_event(code), p->r->keys[o->first_key + (uint32_t)number]);
}

static ms_status play_other(player *p, int32_t operand) {
    reader *r = p->r;
    bool between = p->self == r->owners;
    int64_t index = between ? (int64_t)operand + 1 : 0; /* of the owner */
    if (!between && operand != 0) {
        int64_t place = (int64_t)p->self->place + operand;
        index = place < 0 || place >= (int64_t)r->n_placed ? -1 : (int64_t)r->at_place[place];
    }
    if (index < 0 || index > (int64_t)r->step.n_units || (between && index == 0))
        return bad(p, "names a key of an unknown layer");
    p->other = &r->owners[index];
    return MS_OK;
}

static ms_status play_pair(player *p, const pair *at) {
    const ms__step *step = &p->r->step;
    uint32_t operand = (uint32_t)at->operand; /* a negative one is beyond every table */
    if (p->other != NULL && !is_code_of_key(at->code))
        return bad(p, "names a key of another layer but does nothing to it");
    switch (at->code) {
    case MS__TAPE_NEW:
        return play_new(p, at->operand);
    case MS__TAPE_OPERATION:
        return operand < step->n_costs ? add_event(p, MS__OPERATION, operand) : bad(p, "has an unknown cost");
    case MS__TAPE_SCRATCH:
        return operand < step->n_scratches ? add_event(p, MS__SCRATCH, operand) : bad(p, "has an unknown scratch");
    case MS__TAPE_OTHER:
        return play_other(p, at->operand);
    default:
        return play_key(p, at->code, at->operand);
    }
}

static ms_status play_segment(reader *r, uint32_t segment, int variant) {
    owner *self = &r->owners[r->step.segments[segment].unit + 1];
    const part *next = &self->class->parts[self->next_part++];
    uint32_t number = tape_of(next, variant), *first_fresh = &r->first_fresh[(size_t)segment * MS__N_VARIANTS + number];
    const tape *played = &next->tapes[number];
    player p = {.r = r, .self = self, .segment = segment, .variant = variant, .last = -1, .fresh = self->n_keys};
    for (int nth = 0; ms__variant_order[nth] != variant; nth++)
        p.again = p.again ||
                  (ms__step_has(&r->step, ms__variant_order[nth]) && tape_of(next, ms__variant_order[nth]) == number);
    if (p.again)
        p.fresh = *first_fresh;
    else
        *first_fresh = p.fresh;
    ms_status status = MS_OK;
    for (uint32_t i = 0; i < played->n_pairs && status == MS_OK; i++) status = play_pair(&p, &played->pairs[i]);
    if (status == MS_OK && p.other != NULL) status = bad(&p, "names a key of another layer but does nothing to it");
    return status;
}

static ms_status play(reader *r) {
    ms_status status = MS_OK;
    r->step.n_keys = 0;
    for (int nth = 0; nth < MS__N_VARIANTS; nth++) {
        int v = ms__variant_order[nth];
        if (!ms__step_has(&r->step, v)) continue;
        for (uint32_t i = 0; i <= r->step.n_units; i++) r->owners[i].next_part = 0;
        for (uint32_t i = 0; i < r->step.n_segments && status == MS_OK; i++) status = play_segment(r, i, v);
    }
    return status;
}

static ms_status read_step(reader *r, const ms__json *object) {
    static const char *const allowed[] = {"batch",       "length",       "recomputed", "pointwise", "numbers",
                                          "denominator", "coefficients", "costs",      "keys",      "scratches",
                                          "rest",        "classes",      "units",      "order",     NULL};
    ms_status status = ms__json_check_keys(object, allowed);
    if (status == MS_OK) status = read_shape(r, object);
    if (status == MS_OK) status = read_costs(r, object);
    if (status == MS_OK) status = read_scratches(r, object);
    if (status == MS_OK) status = read_kinds(r, object);
    if (status == MS_OK) status = read_classes(r, object);
    if (status == MS_OK) status = read_units(r, object);
    if (status == MS_OK) status = read_order(r, object);
    if (status == MS_OK) status = play(r);
    return status == MS_OK ? ms__step_finish(r->arena, &r->step) : status;
}

ms_status ms__step_read(const ms__json *object, int64_t n_units, ms__arena *arena, ms__step *out) {
    reader r = {.arena = arena};
    if (n_units > MS__STEP_MAX_EVENTS) return ms__fail(MS_E_LIMIT, "the step has too many layers");
    r.step.n_units = (uint32_t)n_units;
    ms_status status = read_step(&r, object);
    ms__arena_free(&r.scratch);
    if (status == MS_OK) *out = r.step;
    return status;
}
