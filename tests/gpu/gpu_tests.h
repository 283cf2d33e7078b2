/* gpu_tests.h - what the C tests on a real GPU share. */
#ifndef TESTS_GPU_TESTS_H
#define TESTS_GPU_TESTS_H

#include <stdbool.h>

#include "runner.h"

/* Skip this test for want of a part of the GPU's software, or fail where a GPU is required. */
_Noreturn void lacks(const char *what, const char *why);

/* The GPUs; the test is skipped if there is none. */
ms_gpu *open_with(const char *const *nvrtc_paths, const char *cache);
ms_gpu *open_gpu(void);

#endif
