/* child.c - a throw-away copy of this process: made, watched, heard, ended.
 *
 * It is made by the system call itself, not by fork(): no handler runs, neither in the parent nor in the child. torch's
 * engine refuses to work in a child that its handler has seen, and handlers of other libraries stop threads of the
 * parent. The price is that a lock of the C library which another thread held at that moment stays locked in the child.
 * So a child reports as soon as it has allocated and freed something, and one that does not use the processor is
 * killed: the caller tries again.
 *
 * Its exit sends no signal, and such a child is invisible to every wait that does not ask for it (__WALL). So programs
 * that wait for children of their own, or count them, notice nothing. It is killed when the thread that made it ends.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common/structs.h"
#include "../common/text.h"
#include "child.h"
#include "prim.h"

#define START_NS ((int64_t)1000000000) /* without using the processor, before it has reported */
#define TICK_MS 20
#define MAX_MESSAGE_BYTES ((size_t)1 << 30)

struct ms_child {
    pid_t pid; /* 0: this is the child; -1: it has ended */
    int pipe;  /* read end, or MS__CHILD_PIPE in the child */
    ms_child_options options;
    int64_t begun_ns;   /* when it was made */
    int64_t moved_ns;   /* when it last used the processor, or sent something */
    int64_t used_ticks; /* of the processor */
    int has_reported;
    unsigned char *bytes; /* owned: what it sent, after the header */
    size_t n_bytes, n_expected;
    unsigned char header[8];
    size_t n_header;
    int exit_status;
};

/* ---- In the child ---- */

static bool send_all(const void *bytes, size_t n) {
    const unsigned char *next = bytes;
    while (n > 0) {
        ssize_t sent = write(MS__CHILD_PIPE, next, n);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        next += sent;
        n -= (size_t)sent;
    }
    return true;
}

static void store_size(unsigned char out[8], uint64_t size) {
    for (int i = 0; i < 8; i++) out[i] = (unsigned char)(size >> 8 * i);
}

static uint64_t load_size(const unsigned char in[8]) {
    uint64_t size = 0;
    for (int i = 0; i < 8; i++) size |= (uint64_t)in[i] << 8 * i;
    return size;
}

/* A header of zeros: it works. */
ms_status ms_child_report(ms_child *child) {
    if (child == NULL || child->pid != 0) return ms__fail(MS_E_INVALID, "ms_child_report is for the child");
    const unsigned char header[8] = {0};
    return send_all(header, sizeof header) ? MS_OK : ms__fail(MS_E_IO, "the parent does not listen");
}

void ms_child_finish(ms_child *child, const void *bytes, size_t n_bytes) {
    unsigned char header[8];
    store_size(header, (uint64_t)n_bytes + 1);
    bool sent = child != NULL && child->pid == 0 && send_all(header, sizeof header) && send_all(bytes, n_bytes);
    _exit(sent ? 0 : 1);
}

/* ---- In the parent ---- */

static pid_t fork_quietly(void) {
    return (pid_t)syscall(SYS_clone, 0UL, NULL, NULL, NULL, 0UL); /* no signal, no handlers */
}

static ms_status check_options(const ms_child_options *options) {
    if (options->quiet_ns <= 0 || options->limit_ns <= 0 || options->memory_bytes < 0)
        return ms__fail(MS_E_INVALID, "ms_child_options: a limit is out of range");
    return MS_OK;
}

ms_status ms_child_create(const ms_child_options *options, ms_child **out, int64_t *out_is_child) {
    if (out == NULL || out_is_child == NULL) return ms__fail(MS_E_INVALID, "ms_child_create: an argument is NULL");
    ms_child_options given;
    ms_status status = ms__struct_read(MS__STRUCT(ms_child_options), options, &given);
    if (status == MS_OK) status = check_options(&given);
    if (status != MS_OK) return status;
    const char *never = ms__prim_environment("MEMSCALE_NO_FORK");
    if (never != NULL && strcmp(never, "0") != 0) return ms__fail(MS_E_UNAVAILABLE, "MEMSCALE_NO_FORK is set");
    ms_child *child = calloc(1, sizeof *child);
    if (child == NULL) return ms__fail_memory(sizeof *child);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        free(child);
        return ms__fail(MS_E_UNAVAILABLE, "no pipe for a child process: %s", strerror(errno));
    }
    child->options = given;
    child->pipe = ends[0];
    child->begun_ns = child->moved_ns = ms__prim_now_ns();
    int64_t self = ms__prim_pid();
    child->pid = fork_quietly();
    if (child->pid == 0) {
        if (!ms__child_confine(ends[1], self, given.memory_bytes)) _exit(1);
        child->pipe = MS__CHILD_PIPE;
    } else {
        (void)close(ends[1]);
    }
    if (child->pid < 0) {
        int reason = errno;
        child->pid = -1;
        ms_child_destroy(child);
        return ms__fail(MS_E_UNAVAILABLE, "no child process can be made: %s", strerror(reason));
    }
    *out_is_child = child->pid == 0;
    *out = child;
    return MS_OK;
}

/* Has it ended? Reaps it. */
static bool has_ended(ms_child *child, bool wait) {
    if (child->pid < 0) return true;
    int status = 0;
    pid_t found;
    do found = waitpid(child->pid, &status, __WALL | (wait ? 0 : WNOHANG));
    while (found < 0 && errno == EINTR);
    if (found == 0) return false;
    child->exit_status = found < 0 ? -1 : status;
    child->pid = -1;
    return true;
}

/* Ticks of processor time that it has used; -1 if unknown. */
static int64_t used_ticks(const ms_child *child) {
    char path[64], text[512];
    (void)snprintf(path, sizeof path, "/proc/%lld/stat", (long long)child->pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) (void)close(file);
    if (n <= 0) return -1;
    text[n] = '\0';
    char *next = strrchr(text, ')'); /* after the name, which may contain anything: a letter, then numbers */
    if (next == NULL || strlen(next) < sizeof ") R ") return -1;
    next += sizeof ") R " - 1;
    for (int i = 0; i < 10; i++) (void)strtoll(next, &next, 10); /* the 14th and 15th field are wanted */
    int64_t user = strtoll(next, &next, 10), kernel = strtoll(next, &next, 10);
    return user + kernel;
}

static ms_status check_progress(ms_child *child) {
    int64_t now = ms__prim_now_ns(), ticks = used_ticks(child);
    if (ticks != child->used_ticks) {
        child->used_ticks = ticks;
        child->moved_ns = now;
    }
    if (now - child->begun_ns > child->options.limit_ns)
        return ms__fail(MS_E_LIMIT, "it took longer than %s",
                        ms__time_text(child->options.limit_ns, MS__MIN_DIGITS).text);
    if (!child->has_reported && now - child->moved_ns > START_NS)
        return ms__fail(MS_E_UNAVAILABLE, "the child process did not start");
    if (now - child->moved_ns > child->options.quiet_ns)
        return ms__fail(MS_E_LIMIT, "it waited for something for %s",
                        ms__time_text(child->options.quiet_ns, MS__MIN_DIGITS).text);
    return MS_OK;
}

static ms_status grow(ms_child *child, size_t n) {
    if (n > MAX_MESSAGE_BYTES) return ms__fail(MS_E_LIMIT, "the answer is larger than %zu bytes", MAX_MESSAGE_BYTES);
    unsigned char *grown = realloc(child->bytes, n > 0 ? n : 1);
    if (grown == NULL) return ms__fail_memory(n);
    child->bytes = grown;
    return MS_OK;
}

/* Takes what has arrived: headers, then the answer. `*is_open` is false at the end of the pipe. */
static ms_status take(ms_child *child, bool *is_open) {
    bool in_header = child->n_expected == 0;
    void *to = in_header ? child->header + child->n_header : child->bytes + child->n_bytes;
    size_t wanted = in_header ? sizeof child->header - child->n_header : child->n_expected - 1 - child->n_bytes;
    ssize_t got = read(child->pipe, to, wanted);
    if (got < 0 && errno != EINTR && errno != EAGAIN)
        return ms__fail(MS_E_IO, "reading its answer: %s", strerror(errno));
    if (got == 0) *is_open = false;
    if (got <= 0) return MS_OK;
    child->moved_ns = ms__prim_now_ns();
    if (!in_header) {
        child->n_bytes += (size_t)got;
        return MS_OK;
    }
    child->n_header += (size_t)got;
    if (child->n_header < sizeof child->header) return MS_OK;
    child->n_header = 0;
    child->has_reported = 1;
    uint64_t size = load_size(child->header);
    if (size == 0) return MS_OK;
    child->n_expected = (size_t)size;
    return grow(child, child->n_expected - 1);
}

static bool is_complete(const ms_child *child) {
    return child->n_expected > 0 && child->n_bytes == child->n_expected - 1;
}

static ms_status fail_ended(ms_child *child) {
    (void)has_ended(child, true);
    int status = child->exit_status;
    if (status >= 0 && WIFSIGNALED(status))
        return ms__fail(MS_E_IO, "the child process was ended by signal %d (%s)", WTERMSIG(status),
                        strsignal(WTERMSIG(status)));
    return ms__fail(child->has_reported ? MS_E_IO : MS_E_UNAVAILABLE, "the child process ended with status %d",
                    status >= 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

ms_status ms_child_receive(ms_child *child, int64_t wait_ns, ms_child_answer *out) {
    if (child == NULL || child->pid == 0) return ms__fail(MS_E_INVALID, "ms_child_receive is for the parent");
    ms_status checked = ms__struct_check(MS__STRUCT(ms_child_answer), out);
    if (checked != MS_OK) return checked;
    int64_t until = ms__prim_now_ns() + wait_ns;
    while (!is_complete(child)) {
        struct pollfd file = {.fd = child->pipe, .events = POLLIN};
        int ready = poll(&file, 1, TICK_MS);
        bool is_open = true;
        ms_status status = ready > 0 ? take(child, &is_open) : check_progress(child);
        if (status != MS_OK) return status;
        if (!is_open || (ready == 0 && has_ended(child, false) && poll(&file, 1, 0) == 0)) return fail_ended(child);
        if (!is_complete(child) && ms__prim_now_ns() >= until) break;
    }
    const ms_child_answer answer = {.struct_bytes = sizeof answer,
                                    .is_complete = is_complete(child),
                                    .bytes = child->bytes,
                                    .n_bytes = child->n_bytes};
    return ms__struct_write(MS__STRUCT(ms_child_answer), &answer, out);
}

void ms_child_destroy(ms_child *child) {
    if (child == NULL || child->pid == 0) return;
    if (child->pid > 0 && !has_ended(child, false)) {
        (void)kill(child->pid, SIGKILL);
        (void)has_ended(child, true);
    }
    (void)close(child->pipe);
    free(child->bytes);
    free(child);
}
