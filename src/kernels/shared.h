/* shared.h - lets the C compiler, NVRTC and nvcc read the same source.
 *
 * Headers that both sides read (X_math.h) include this and nothing else: NVRTC has no headers of the C library. They
 * are copied into the device code when the library is built.
 */
#ifndef MS_KERNELS_SHARED_H
#define MS_KERNELS_SHARED_H

#if defined(__CUDACC__)
#define MS__SHARED __device__ __forceinline__
#define MS__SAME(condition, text) static_assert(condition, text)
#define MS__KERNEL(name) extern "C" __global__ void name
#else
#define MS__SHARED static inline
#define MS__SAME(condition, text) _Static_assert(condition, text)
#define MS__KERNEL(name) static void name
#endif

typedef unsigned long long ms__u64; /* the same type on both sides; uint64_t is not */

MS__SAME(sizeof(ms__u64) == 8 && sizeof(void *) == 8, "64-bit addresses on both sides");

#endif
