/* fake_gpus.h - a ms_gpu on the fake driver (tests/fake), and the check that it leaks nothing. */
#ifndef TESTS_GPUS_H
#define TESTS_GPUS_H

#include "fake.h"
#include "runner.h"

#define FAKE_DRIVER FAKE_FOLDER "/libcuda.so.1"
#define FAKE_NVML FAKE_FOLDER "/libnvidia-ml.so.1"
#define FAKE_NVRTC FAKE_FOLDER "/libnvrtc.so.13"
#define FAKE_DRIVER_OLD FAKE_FOLDER "/libcuda_old.so"
#define FAKE_NVML_OLD FAKE_FOLDER "/libnvml_old.so"
#define FAKE_SHORT FAKE_FOLDER "/libshort.so"

/* Options for the fake libraries; `cache` as in ms_gpu_options. */
ms_gpu_options fake_options(const char *cache);

/* A ms_gpu on them; must succeed. */
ms_gpu *open_fake(const char *cache);

/* The same without NVRTC. */
ms_gpu *open_without_nvrtc(const char *cache);

/* The state of one component. */
ms_gpu_component_info part_of(ms_gpu *gpu, int32_t part);

/* All objects, contexts and uses of NVML were released. */
void check_nothing_left(void);

/* Pseudo-random bytes from a seed. */
void fill_random(void *memory, size_t n_bytes, uint64_t seed);

/* The checksum of device memory; must succeed. */
uint64_t checksum_of(ms_gpu *gpu, int64_t device, const void *memory, size_t n_bytes);

#endif
