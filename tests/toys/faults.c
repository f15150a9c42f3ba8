/* Makes the n-th write below a folder fail, whichever library writes: preloaded, it takes the place of the calls of libc.

A failed write has written half of its bytes, as on a disk that is full. Deletions never fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static char failed[PATH_MAX + 32];
static long count, first_failure, last_failure;
static int error_number;

/* Count the writes below `folder`, and let those from `first` to `last` fail with an error number; below 0 they
   kill the process. */
void faults_arm(const char *folder, long first, long last, int number) {
    snprintf(root, sizeof root, "%s", folder);
    count = 0, first_failure = first, last_failure = last, error_number = number, failed[0] = 0;
}

/* Let all succeed; the count and the name of what failed stay. */
void faults_disarm(void) { root[0] = 0; }

long faults_count(void) { return count; }

/* The first call that failed, for messages. */
const char *faults_failed(void) { return failed; }

static int fails(const char *call, const char *path) {
    if (!root[0] || strncmp(path, root, strlen(root)) != 0) return 0;
    long number = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    if (number < first_failure || number > last_failure) return 0;
    if (!failed[0]) snprintf(failed, sizeof failed, "%s %s", call, path + strlen(root));
    if (error_number < 0) raise(SIGKILL);
    errno = error_number;
    return 1;
}

static int fails_at(const char *call, int folder, const char *path) {
    char link[64], parent[PATH_MAX], whole[2 * PATH_MAX];
    if (!root[0]) return 0;
    if (path[0] == '/') return fails(call, path);
    if (folder == AT_FDCWD) {
        if (!getcwd(parent, sizeof parent)) return 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, parent, sizeof parent - 1);
        if (length < 0) return 0;
        parent[length] = 0;
    }
    snprintf(whole, sizeof whole, "%s/%s", parent, path);
    return fails(call, whole);
}

static int fails_open(const char *call, int file) {
    char link[64], path[PATH_MAX];
    if (!root[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(call, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                                                           \
    int name(const char *path, int flags, ...) {                                             \
        va_list rest;                                                                        \
        va_start(rest, flags);                                                               \
        mode_t mode = va_arg(rest, mode_t);                                                  \
        va_end(rest);                                                                        \
        if (flags & O_CREAT && fails_at("open", AT_FDCWD, path)) return -1;                  \
        return REAL(name)(path, flags, mode);                                                \
    }
#define OPENAT(name)                                                                         \
    int name(int folder, const char *path, int flags, ...) {                                 \
        va_list rest;                                                                        \
        va_start(rest, flags);                                                               \
        mode_t mode = va_arg(rest, mode_t);                                                  \
        va_end(rest);                                                                        \
        if (flags & O_CREAT && fails_at("open", folder, path)) return -1;                    \
        return REAL(name)(folder, path, flags, mode);                                        \
    }
#define PWRITE(name, offset_type)                                                            \
    ssize_t name(int file, const void *bytes, size_t size, offset_type offset) {             \
        if (!fails_open("write", file)) return REAL(name)(file, bytes, size, offset);        \
        REAL(name)(file, bytes, size / 2, offset);                                           \
        errno = error_number;                                                                \
        return -1;                                                                           \
    }
#define RESIZE(name, offset_type)                                                            \
    int name(int file, offset_type size) {                                                   \
        return fails_open("resize", file) ? -1 : REAL(name)(file, size);                     \
    }
#define RESERVE(name, offset_type)                                                           \
    int name(int file, offset_type start, offset_type size) {                                \
        return fails_open("reserve", file) ? error_number : REAL(name)(file, start, size);   \
    }
#define SYNC(name)                                                                           \
    int name(int file) { return fails_open("sync", file) ? -1 : REAL(name)(file); }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
RESIZE(ftruncate, off_t)
RESIZE(ftruncate64, off64_t)
RESERVE(posix_fallocate, off_t)
RESERVE(posix_fallocate64, off64_t)
SYNC(fsync)
SYNC(fdatasync)

ssize_t write(int file, const void *bytes, size_t size) {
    if (!fails_open("write", file)) return REAL(write)(file, bytes, size);
    REAL(write)(file, bytes, size / 2);
    errno = error_number;
    return -1;
}

ssize_t writev(int file, const struct iovec *parts, int n_parts) {
    return fails_open("write", file) ? -1 : REAL(writev)(file, parts, n_parts);
}

ssize_t copy_file_range(int source, off64_t *from, int target, off64_t *to, size_t size, unsigned flags) {
    return fails_open("copy", target) ? -1 : REAL(copy_file_range)(source, from, target, to, size, flags);
}

ssize_t sendfile64(int target, int source, off64_t *from, size_t size) {
    extern __typeof__(sendfile64) sendfile64;
    return fails_open("copy", target) ? -1 : REAL(sendfile64)(target, source, from, size);
}

ssize_t sendfile(int target, int source, off_t *from, size_t size) {
    extern __typeof__(sendfile) sendfile;
    return fails_open("copy", target) ? -1 : REAL(sendfile)(target, source, from, size);
}

int mkdir(const char *path, mode_t mode) {
    return fails_at("mkdir", AT_FDCWD, path) ? -1 : REAL(mkdir)(path, mode);
}

int rename(const char *old, const char *new) {
    return fails_at("rename", AT_FDCWD, new) ? -1 : REAL(rename)(old, new);
}

int renameat(int from, const char *old, int to, const char *new) {
    return fails_at("rename", to, new) ? -1 : REAL(renameat)(from, old, to, new);
}

int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    return fails_at("rename", to, new) ? -1 : REAL(renameat2)(from, old, to, new, flags);
}

int link(const char *old, const char *new) {
    return fails_at("link", AT_FDCWD, new) ? -1 : REAL(link)(old, new);
}

int linkat(int from, const char *old, int to, const char *new, int flags) {
    return fails_at("link", to, new) ? -1 : REAL(linkat)(from, old, to, new, flags);
}
