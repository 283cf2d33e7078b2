/* memscale_errors.h - the one list of errors of MemScale.
 *
 * Included by memscale.h. Each line gives a name, a stable negative code and a short text. Codes are part of the
 * ABI: a code is never reused, a new error goes at the end. Expand it with your own X(name, code, text).
 */
#ifndef MEMSCALE_ERRORS_H
#define MEMSCALE_ERRORS_H

#define MS_ERROR_LIST(X)                                                                                               \
    X(MS_OK, 0, "success")                                                                                             \
    X(MS_E_INVALID, -1, "invalid argument")                                                                            \
    X(MS_E_NO_MEMORY, -2, "out of host memory")                                                                        \
    X(MS_E_PARSE, -3, "malformed input")                                                                               \
    X(MS_E_IO, -4, "input or output failed")                                                                           \
    X(MS_E_LIMIT, -5, "a limit of the library was exceeded")                                                           \
    X(MS_E_BUDGET, -6, "no plan fits the memory budget")                                                               \
    X(MS_E_MISMATCH, -7, "a plan does not belong to this model")                                                       \
    X(MS_E_VERSION, -8, "made by an incompatible version")                                                             \
    X(MS_E_CUDA, -9, "a call of the GPU's driver failed")                                                              \
    X(MS_E_UNAVAILABLE, -10, "not available on this machine")                                                          \
    X(MS_E_NOT_FOUND, -11, "there is nothing of that name")                                                            \
    X(MS_E_INTERRUPTED, -12, "a callback asked to stop")

#endif /* MEMSCALE_ERRORS_H */
