/* shim.h - the words of CUDA that device code uses, for a C compiler. One thread of the grid at a time. */
#ifndef TESTS_FAKE_SHIM_H
#define TESTS_FAKE_SHIM_H

typedef struct fake_dim {
    unsigned x, y, z;
} fake_dim;

typedef struct ulonglong2 {
    _Alignas(16) unsigned long long x;
    unsigned long long y;
} ulonglong2;

static _Thread_local fake_dim threadIdx, blockIdx, blockDim, gridDim;

static inline unsigned long long atomicAdd(unsigned long long *to, unsigned long long value) {
    return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}

#endif
