/* Changes what system calls do for one process, for LD_PRELOAD: calls on files below one directory fail with EIO or
   take longer, and the clock shows another time.

   CALLS_UNDER is the directory, CALLS_CONTROL a file with struct control: it is mapped, so that the test can change
   it while the process runs. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    int64_t clock_s; /* how many seconds the clock is ahead */
    int fails[3];    /* how many calls fail: reads, writes, syncs; -1: all */
    int failed[3];
    int delay_ms[3]; /* by how much each call is delayed */
    int delayed[3];
    char match[240]; /* only files with this in their path */
};
enum { READ, WRITE, SYNC };

static struct control *control;
static const char *under;

__attribute__((constructor)) static void open_control(void) {
    under = getenv("CALLS_UNDER");
    const char *path = getenv("CALLS_CONTROL");
    int fd = under && path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *at = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED)
        control = at;
}

static int is_concerned(const char *path) {
    return strncmp(path, under, strlen(under)) == 0 && strstr(path, control->match);
}

static int path_fails(int kind, const char *path) {
    if (!is_concerned(path))
        return 0;
    int left = __atomic_load_n(&control->fails[kind], __ATOMIC_SEQ_CST);
    while (left > 0 && !__atomic_compare_exchange_n(&control->fails[kind], &left, left - 1, 0, __ATOMIC_SEQ_CST,
                                                    __ATOMIC_SEQ_CST))
        ;
    if (left == 0)
        return 0;
    __atomic_add_fetch(&control->failed[kind], 1, __ATOMIC_SEQ_CST);
    errno = EIO;
    return 1;
}

static int fails(int kind, int fd) {
    if (!control || (!control->fails[kind] && !control->delay_ms[kind]))
        return 0;
    char link[32], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0)
        return 0;
    path[size] = 0;
    int delay_ms = control->delay_ms[kind];
    if (delay_ms && is_concerned(path)) {
        struct timespec delay = {delay_ms / 1000, delay_ms % 1000 * 1000000L};
        nanosleep(&delay, NULL);
        __atomic_add_fetch(&control->delayed[kind], 1, __ATOMIC_SEQ_CST);
    }
    return path_fails(kind, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(kind, result, name, parameters, ...)                                                                      \
    result name parameters {                                                                                           \
        static __typeof__(&name) real;                                                                                 \
        if (!real)                                                                                                     \
            real = REAL(name);                                                                                         \
        return fails(kind, fd) ? -1 : real(__VA_ARGS__);                                                               \
    }

WRAP(READ, ssize_t, read, (int fd, void *data, size_t size), fd, data, size)
WRAP(READ, ssize_t, pread, (int fd, void *data, size_t size, off_t at), fd, data, size, at)
WRAP(READ, ssize_t, pread64, (int fd, void *data, size_t size, off64_t at), fd, data, size, at)
WRAP(WRITE, ssize_t, write, (int fd, const void *data, size_t size), fd, data, size)
WRAP(WRITE, ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), fd, data, size, at)
WRAP(WRITE, ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), fd, data, size, at)
WRAP(WRITE, ssize_t, pwritev, (int fd, const struct iovec *data, int count, off_t at), fd, data, count, at)
WRAP(WRITE, ssize_t, pwritev64, (int fd, const struct iovec *data, int count, off64_t at), fd, data, count, at)
WRAP(WRITE, int, ftruncate, (int fd, off_t size), fd, size)
WRAP(WRITE, int, ftruncate64, (int fd, off64_t size), fd, size)
WRAP(SYNC, int, fsync, (int fd), fd)
WRAP(SYNC, int, fdatasync, (int fd), fd)
WRAP(SYNC, int, syncfs, (int fd), fd)

ssize_t sendfile(int to, int fd, off_t *at, size_t size) {
    static ssize_t (*real)(int, int, off_t *, size_t);
    if (!real)
        real = dlsym(RTLD_NEXT, "sendfile");
    return fails(READ, fd) ? -1 : real(to, fd, at, size);
}

ssize_t sendfile64(int to, int fd, off64_t *at, size_t size) {
    static ssize_t (*real)(int, int, off64_t *, size_t);
    if (!real)
        real = dlsym(RTLD_NEXT, "sendfile64");
    return fails(READ, fd) ? -1 : real(to, fd, at, size);
}

int rename(const char *from, const char *to) {
    static int (*real)(const char *, const char *);
    if (!real)
        real = dlsym(RTLD_NEXT, "rename");
    return control && control->fails[WRITE] && path_fails(WRITE, to) ? -1 : real(from, to);
}

static int creates(int flags, const char *path) {
    return control && control->fails[WRITE] && (flags & O_CREAT) && access(path, F_OK) != 0 && path_fails(WRITE, path);
}

#define WRAP_OPEN(name)                                                                                                \
    int name(const char *path, int flags, ...) {                                                                       \
        static int (*real)(const char *, int, ...);                                                                    \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;                                                      \
        va_end(rest);                                                                                                  \
        if (!real)                                                                                                     \
            real = dlsym(RTLD_NEXT, #name);                                                                            \
        return creates(flags, path) ? -1 : real(path, flags, mode);                                                    \
    }

WRAP_OPEN(open)
WRAP_OPEN(open64)

/* The clock. File systems keep the machine's. */

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && control && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += control->clock_s;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static int (*real)(struct timeval *restrict, void *restrict);
    if (!real)
        real = dlsym(RTLD_NEXT, "gettimeofday");
    int result = real(now, zone);
    if (result == 0 && control)
        now->tv_sec += control->clock_s;
    return result;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into)
        *into = now.tv_sec;
    return now.tv_sec;
}
