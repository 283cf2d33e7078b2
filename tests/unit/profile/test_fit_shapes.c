/* test_fit_shapes.c - the shapes that a profile for all shapes is fitted from. */
#include "shaped.h"

static int64_t shapes_of(int64_t batch, int64_t length, ms_shape *out) {
    int64_t n = -1;
    CHECK_STATUS(ms_profile_get_fit_shapes((ms_shape){batch, length}, out, &n), MS_OK);
    return n;
}

TEST(batches_alone) {
    ms_shape shapes[MS_FIT_MAX_SHAPES];
    CHECK_EQ_INT(shapes_of(4, 0, shapes), 3);
    CHECK(shapes[0].batch == 4 && shapes[1].batch == 8 && shapes[2].batch == 12 && shapes[2].length == 0);
    CHECK_EQ_INT(shapes_of(1, 7, shapes), 3); /* a batch of 1 often skips copies that 2 needs */
    CHECK(shapes[0].batch == 2 && shapes[0].length == 7);
}

/* The shapes separate all terms: a model with every term can be fitted, and the last shape checks the fit. */
TEST(they_tell_every_term) {
    static const int64_t lengths[] = {8, 9, 31, 63, 64, 65, 100, 512, 1000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        ms_shape shapes[MS_FIT_MAX_SHAPES];
        ms__shape internal[MS_FIT_MAX_SHAPES];
        int64_t n = shapes_of(1 + (int64_t)i, lengths[i], shapes);
        CHECK_EQ_INT(n, MS_FIT_MAX_SHAPES);
        for (int64_t j = 0; j < n; j++) internal[j] = (ms__shape){shapes[j].batch, shapes[j].length};
        ms_profile *fitted = NULL, *other = NULL, *traced = shaped_profile((ms__shape){7, 77}, NOTHING_ODD);
        CHECK_STATUS(try_fit(internal, n, NOTHING_ODD, &fitted), MS_OK);
        if (lengths[i] >= 64) {
            CHECK_STATUS(ms_profile_reshape(fitted, 7, 77, &other), MS_OK);
            for (uint32_t k = 0; k < traced->step->n_keys; k++)
                CHECK_EQ_INT(other->step->numbers[other->step->keys[k].size],
                             traced->step->numbers[traced->step->keys[k].size]);
        }
        ms_profile_destroy(fitted);
        ms_profile_destroy(other);
        ms_profile_destroy(traced);
    }
}

TEST(what_is_refused) {
    ms_shape shapes[MS_FIT_MAX_SHAPES];
    int64_t n = -1;
    CHECK_STATUS(ms_profile_get_fit_shapes((ms_shape){0, 8}, shapes, &n), MS_E_INVALID);
    CHECK_STATUS(ms_profile_get_fit_shapes((ms_shape){INT64_MAX, 8}, shapes, &n), MS_E_INVALID);
    CHECK_STATUS(ms_profile_get_fit_shapes((ms_shape){1, -1}, shapes, &n), MS_E_INVALID);
    CHECK_STATUS(ms_profile_get_fit_shapes((ms_shape){1, 8}, NULL, &n), MS_E_INVALID);
    CHECK_STATUS(ms_profile_get_fit_shapes((ms_shape){1, 8}, shapes, NULL), MS_E_INVALID);
    CHECK_EQ_INT(n, -1);
}

SUITE(fit_shapes, CASE(batches_alone), CASE(they_tell_every_term), CASE(what_is_refused));
