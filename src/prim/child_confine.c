/* child_confine.c - cuts a throw-away child off from everything that outlives it.
 *
 * The child is a copy of a process that may have threads, a GPU, open files and locks. It was made without any handler,
 * so nothing in it knows that it is a copy: a call of CUDA would go through its parent's mappings of the device and
 * destroy its parent's context. So these mappings go first. Then signals, files, limits, and a filter of system calls:
 * what a child may not do fails with EACCES.
 *
 * What always holds: nothing here allocates, locks, or uses stdio.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "child.h"

/* ---- Mappings of devices ---- */

#define LINE_BYTES 512
#define MAX_RANGES 512

typedef struct range {
    uintptr_t begin, end;
} range;

/* Lines of /proc/self/maps. */
typedef struct maps {
    int file;
    size_t at, n;
    char buffer[16384];
} maps;

static const char *const device_files[] = {"/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/dxg"};

/* The next line, cut to fit; 0 at the end, -1 on failure. */
static int next_line(maps *m, char line[LINE_BYTES]) {
    size_t n = 0;
    line[0] = '\0';
    for (;;) {
        if (m->at == m->n) {
            ssize_t got = read(m->file, m->buffer, sizeof m->buffer);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) return got < 0 ? -1 : n > 0;
            m->at = 0;
            m->n = (size_t)got;
        }
        char c = m->buffer[m->at++];
        if (c == '\n') break;
        if (n < LINE_BYTES - 1) line[n++] = c;
        line[n] = '\0';
    }
    return 1;
}

static const char *read_hex(const char *text, uintptr_t *out) {
    uintptr_t value = 0;
    for (;; text++) {
        if (*text >= '0' && *text <= '9')
            value = value * 16 + (uintptr_t)(*text - '0');
        else if (*text >= 'a' && *text <= 'f')
            value = value * 16 + (uintptr_t)(*text - 'a' + 10);
        else
            break;
    }
    *out = value;
    return text;
}

static bool is_device(const char *line) {
    const char *path = strchr(line, '/');
    for (size_t i = 0; path != NULL && i < sizeof device_files / sizeof *device_files; i++)
        if (strncmp(path, device_files[i], strlen(device_files[i])) == 0) return true;
    return false;
}

/* Ranges that map a device, as many as fit; -1 if they cannot be known. */
static int find_device_ranges(range *out) {
    maps m = {.file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)};
    if (m.file < 0) return -1;
    char line[LINE_BYTES] = "";
    int n = 0, more;
    while ((more = next_line(&m, line)) == 1 && n < MAX_RANGES) {
        if (!is_device(line)) continue;
        const char *rest = read_hex(line, &out[n].begin);
        (void)read_hex(rest + 1, &out[n].end);
        n++;
    }
    (void)close(m.file);
    return more < 0 ? -1 : n;
}

static bool unmap_devices(void) {
    range found[MAX_RANGES];
    for (int tries = 0; tries < 64; tries++) {
        int n = find_device_ranges(found);
        if (n <= 0) return n == 0;
        for (int i = 0; i < n; i++)
            if (munmap((void *)found[i].begin, found[i].end - found[i].begin) != 0) return false;
    }
    return false;
}

/* ---- Signals, files, limits ---- */

/* The parent's handlers are not ours. An interrupt is for the parent, which then kills the child. */
static void reset_signals(void) {
    for (int number = 1; number < NSIG; number++) (void)signal(number, SIG_DFL);
    const int ignored[] = {SIGINT, SIGQUIT, SIGHUP, SIGPIPE, SIGXFSZ, SIGTSTP};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) (void)signal(ignored[i], SIG_IGN);
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

static void close_from(int first) {
#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)first, ~0U, 0U) == 0) return;
#endif
    struct rlimit limit = {0, 0};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    for (rlim_t file = (rlim_t)first; file < limit.rlim_cur; file++) (void)close((int)file);
}

static bool keep_only(int pipe) {
    int safe = fcntl(pipe, F_DUPFD, MS__CHILD_PIPE + 1), null = open("/dev/null", O_RDWR);
    if (safe < 0 || null < 0) return false;
    for (int file = 0; file < MS__CHILD_PIPE; file++)
        if (dup2(null, file) < 0) return false;
    if (dup2(safe, MS__CHILD_PIPE) < 0) return false;
    close_from(MS__CHILD_PIPE + 1);
    return true;
}

static void limit(int resource, rlim_t value) {
    struct rlimit now;
    if (getrlimit((__rlimit_resource_t)resource, &now) != 0 || now.rlim_cur <= value) return;
    now.rlim_cur = value;
    (void)setrlimit((__rlimit_resource_t)resource, &now);
}

static bool write_text(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0) return false;
    bool done = write(file, text, strlen(text)) > 0;
    (void)close(file);
    return done;
}

/* Bytes that the process has mapped; 0 if unknown. */
static uint64_t mapped_bytes(void) {
    char text[64] = "";
    int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) (void)close(file);
    uint64_t pages = 0;
    for (ssize_t i = 0; i < n && text[i] >= '0' && text[i] <= '9'; i++) pages = pages * 10 + (uint64_t)(text[i] - '0');
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Where memory runs out, it is the child that the kernel should end. */
static void limit_memory(int64_t more_bytes) {
    (void)write_text("/proc/self/oom_score_adj", "1000");
    uint64_t mapped = more_bytes > 0 ? mapped_bytes() : 0;
    if (mapped > 0) limit(RLIMIT_AS, (rlim_t)(mapped + (uint64_t)more_bytes));
}

/* ---- System calls that are denied ---- */

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#ifdef ARCHITECTURE

/* Whatever creates, removes, truncates or changes files, reaches other processes, or starts one. */
static const int denied[] = {
#ifdef SYS_creat
    SYS_creat,
    SYS_unlink,
    SYS_rename,
    SYS_mkdir,
    SYS_rmdir,
    SYS_link,
    SYS_symlink,
    SYS_mknod,
    SYS_chmod,
    SYS_chown,
    SYS_lchown,
    SYS_utime,
    SYS_utimes,
    SYS_fork,
    SYS_vfork,
#endif
    SYS_truncate,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_unlinkat,
    SYS_renameat2,
    SYS_mkdirat,
    SYS_linkat,
    SYS_symlinkat,
    SYS_mknodat,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchown,
    SYS_fchownat,
    SYS_utimensat,
    SYS_setxattr,
    SYS_lsetxattr,
    SYS_fsetxattr,
    SYS_removexattr,
    SYS_lremovexattr,
    SYS_fremovexattr,
#ifdef SYS_renameat
    SYS_renameat,
#endif
    SYS_socket,
    SYS_mq_open,
    SYS_mq_unlink,
    SYS_shmget,
    SYS_shmat,
    SYS_shmctl,
    SYS_semget,
    SYS_semop,
    SYS_semctl,
    SYS_msgget,
    SYS_msgsnd,
    SYS_msgctl,
    SYS_ptrace,
    SYS_process_vm_writev,
    SYS_execve,
    SYS_execveat,
    SYS_tkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_mount,
    SYS_umount2,
#ifdef SYS_pidfd_send_signal
    SYS_pidfd_send_signal,
#endif
};
/* Newer forms whose arguments a filter cannot see: the C library falls back to the older ones. */
static const int unknown[] = {
#ifdef SYS_openat2
    SYS_openat2,
#endif
#ifdef SYS_clone3
    SYS_clone3,
#endif
#ifdef SYS_io_uring_setup
    SYS_io_uring_setup,
#endif
};

typedef struct filter {
    struct sock_filter items[2 * (sizeof denied / sizeof *denied + sizeof unknown / sizeof *unknown) + 64];
    unsigned short n;
} filter;

#define DENY (SECCOMP_RET_ERRNO | EACCES)
#define MISSING (SECCOMP_RET_ERRNO | ENOSYS)

static void add(filter *f, unsigned short code, uint32_t k, uint8_t if_true, uint8_t if_false) {
    f->items[f->n++] = (struct sock_filter)BPF_JUMP(code, k, if_true, if_false);
}

static void load(filter *f, size_t offset) { add(f, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0); }

static void answer(filter *f, uint32_t what) { add(f, BPF_RET | BPF_K, what, 0, 0); }

/* This system call gets this answer. */
static void answer_call(filter *f, int number, uint32_t what) {
    add(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1);
    answer(f, what);
}

/* The lower half of an argument, on machines that store it first, as both architectures here do. */
static size_t argument(int index) { return offsetof(struct seccomp_data, args) + 8 * (size_t)index; }

/* Denied if one of these bits is set in an argument (or, with `unless`, if none is). */
static void check_bits(filter *f, int number, int index, uint32_t bits, bool unless) {
    add(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 4);
    load(f, argument(index));
    add(f, BPF_JMP | BPF_JSET | BPF_K, bits, unless ? 1 : 0, unless ? 0 : 1);
    answer(f, DENY);
    answer(f, SECCOMP_RET_ALLOW);
}

/* Allowed only if an argument is this value. */
static void check_value(filter *f, int number, int index, uint32_t value) {
    add(f, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 4);
    load(f, argument(index));
    add(f, BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0);
    answer(f, DENY);
    answer(f, SECCOMP_RET_ALLOW);
}

/* Without seccomp, RLIMIT_FSIZE still keeps the child from writing files. */
static void filter_calls(void) {
    filter f = {.n = 0};
    load(&f, offsetof(struct seccomp_data, arch));
    add(&f, BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    answer(&f, DENY);
    load(&f, offsetof(struct seccomp_data, nr));
    const uint32_t creates = O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY);
#ifdef SYS_open
    check_bits(&f, SYS_open, 1, creates, false);
#endif
    check_bits(&f, SYS_openat, 2, creates, false);
    check_bits(&f, SYS_clone, 0, CLONE_THREAD, true);
    check_value(&f, SYS_kill, 0, (uint32_t)getpid());
    check_value(&f, SYS_tgkill, 0, (uint32_t)getpid());
    for (size_t i = 0; i < sizeof denied / sizeof *denied; i++) answer_call(&f, denied[i], DENY);
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) answer_call(&f, unknown[i], MISSING);
    answer(&f, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = f.n, .filter = f.items};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0) (void)prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

#else
static void filter_calls(void) {}
#endif

bool ms__child_confine(int pipe, int64_t parent, int64_t memory_bytes) {
    if (!unmap_devices()) return false;
    reset_signals();
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != (pid_t)parent) return false;
    if (!keep_only(pipe)) return false;
    limit_memory(memory_bytes);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_FSIZE, 0);
    filter_calls();
    return true;
}
