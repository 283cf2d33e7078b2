/* layered.h - a model of equal layers all of whose bytes are known, with tensors large enough to be offloaded.
 *
 * A layer has a product P (1 MiB, saved), an activation R (2 MiB, saved), a product Q (1 MiB, not saved), a dropout
 * with its result D (1 MiB) and mask M (512 KiB, saved), and a sum, its output (1 MiB). Its recomputation ends with the
 * mask. Its input is the output of the layer before. Backward needs M, R and P, in this order. There is one parameter
 * of 1 MiB.
 */
#ifndef TESTS_LAYERED_H
#define TESTS_LAYERED_H

#include "profile/profile.h"

#define MIB ((int64_t)1 << 20)
#define MAX_LAYERS 8
#define SAVED (MIB + 2 * MIB + MIB / 2) /* of a layer */

/* What a layer does otherwise. */
typedef enum twist {
    NOTHING,
    NO_MARKS,            /* products are no functions whose results may be kept */
    COPIES,              /* they copy an operand first: of the first one the copy is saved */
    SMALL_COPIES,        /* the same, small, with attention in place of products */
    OTHER_RECOMPUTATION, /* it is not what forward does */
    CASTS,               /* the first layer casts a parameter of 1 MiB, in autocast that ends with forward */
    SHARED_INPUTS, /* each layer is given the output of the first one, too, which the last to run backward frees */
    ONLY_KEPT      /* there is no recomputed trace */
} twist;

ms_profile *layered_profile(int n_layers, twist odd);

#endif
