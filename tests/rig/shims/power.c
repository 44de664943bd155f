/* A disk that a power cut can be done to: preloaded into a server, it writes down what of its files would survive.
 *
 * TIMEOUTQ_POWER names a folder with a file `journal`, to which each event is appended as one line, and a folder
 * `limbo`, where files that lose their last name are kept. TIMEOUTQ_SYNC_US is how long a sync takes, microseconds.
 *
 *   boot PID                     the shim is at work in this process
 *   sync INODE LENGTH            fsync or fdatasync of a file came back: so much of it is on the disk
 *   folder INODE                 fsync of a folder came back: the names in it are on the disk
 *   make INODE PATH              a file was created
 *   move INODE PATH<tab>PATH     a file was renamed
 *   drop INODE PATH              a name was removed
 *   shorten INODE LENGTH         a file was truncated
 *
 * The length is read before the sync and written down after it: what is written meanwhile is not promised by it.
 * sync_file_range promises nothing and is left alone. Nothing is really synced: the page cache outlives the server.
 * power.py reads the journal. No allocation, no lock: each line is one write to a file that is open for appending. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int journal = -1;
static long sync_us;
static char limbo[1024];

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void note(const char *format, ...) {
    char line[4096];
    int before = errno;
    va_list words;
    va_start(words, format);
    int length = vsnprintf(line, sizeof line - 1, format, words);
    va_end(words);
    if (length < 0 || length >= (int) sizeof line - 1) abort();
    line[length++] = '\n';
    if (journal >= 0 && syscall(SYS_write, journal, line, length) != length) abort();
    errno = before;
}

__attribute__((constructor)) static void open_journal(void) {
    const char *folder = getenv("TIMEOUTQ_POWER"), *pause = getenv("TIMEOUTQ_SYNC_US");
    char path[1024];
    if (!folder || snprintf(limbo, sizeof limbo, "%s/limbo", folder) >= (int) sizeof limbo) return;
    if (snprintf(path, sizeof path, "%s/journal", folder) >= (int) sizeof path) return;
    journal = (int) syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
    sync_us = pause ? atol(pause) : 0;
    note("boot %d", (int) getpid());
}

static int synced(int file) {
    struct stat was;
    if (fstat(file, &was)) return -1;
    if (sync_us) {
        struct timespec left = {sync_us / 1000000, sync_us % 1000000 * 1000};
        while (nanosleep(&left, &left) && errno == EINTR) continue;
    }
    if (S_ISDIR(was.st_mode)) note("folder %lu", (unsigned long) was.st_ino);
    else if (S_ISREG(was.st_mode)) note("sync %lu %ld", (unsigned long) was.st_ino, (long) was.st_size);
    return 0;
}

int fsync(int file) { return synced(file); }
int fdatasync(int file) { return synced(file); }

/* ---- names */

static unsigned long inode(const char *path, long *length) {
    struct stat found;
    if (journal < 0 || stat(path, &found) || !S_ISREG(found.st_mode)) return 0;
    if (length) *length = (long) found.st_size;
    return (unsigned long) found.st_ino;
}

static void keep(const char *path) {
    unsigned long number = inode(path, NULL);
    char kept[1100];
    if (!number) return;
    snprintf(kept, sizeof kept, "%s/%lu", limbo, number);
    int before = errno;
    link(path, kept); /* it is there already when the file had another name: that is as good */
    errno = before;
}

int rename(const char *from, const char *to) {
    unsigned long number = inode(from, NULL);
    keep(to);
    int failed = (int) syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (!failed && number) note("move %lu %s\t%s", number, from, to);
    return failed;
}

int unlink(const char *path) {
    unsigned long number = inode(path, NULL);
    keep(path);
    int failed = (int) syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (!failed && number) note("drop %lu %s", number, path);
    return failed;
}

static void opened(const char *path, unsigned long was, long length, int emptied) {
    unsigned long is = inode(path, NULL);
    if (is && !was) note("make %lu %s", is, path);
    else if (is && emptied && length) note("shorten %lu 0", is);
}

static int opening(const char *path, int flags, mode_t mode) {
    long length = 0;
    int writes = journal >= 0 && (flags & O_ACCMODE) != O_RDONLY && (flags & (O_CREAT | O_TRUNC));
    unsigned long was = writes ? inode(path, &length) : 0;
    int file = (int) syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (writes && file >= 0) opened(path, was, length, flags & O_TRUNC);
    return file;
}

int open(const char *path, int flags, ...) {
    va_list words;
    va_start(words, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(words, mode_t) : 0;
    va_end(words);
    return opening(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list words;
    va_start(words, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(words, mode_t) : 0;
    va_end(words);
    return opening(path, flags, mode);
}

static FILE *stream(const char *which, const char *path, const char *mode) {
    FILE *(*next)(const char *, const char *) = (FILE * (*) (const char *, const char *)) dlsym(RTLD_NEXT, which);
    int writes = journal >= 0 && mode[0] != 'r';
    long length = 0;
    unsigned long was = writes ? inode(path, &length) : 0;
    FILE *file = next(path, mode);
    if (writes && file) opened(path, was, length, mode[0] == 'w');
    return file;
}

FILE *fopen(const char *path, const char *mode) { return stream("fopen", path, mode); }
FILE *fopen64(const char *path, const char *mode) { return stream("fopen64", path, mode); }

/* ---- lengths */

int ftruncate(int file, off_t length) {
    struct stat found;
    int failed = (int) syscall(SYS_ftruncate, file, length);
    if (!failed && !fstat(file, &found)) note("shorten %lu %ld", (unsigned long) found.st_ino, (long) length);
    return failed;
}

int truncate(const char *path, off_t length) {
    int failed = (int) syscall(SYS_truncate, path, length);
    if (!failed) note("shorten %lu %ld", inode(path, NULL), (long) length);
    return failed;
}

int ftruncate64(int file, off64_t length) { return ftruncate(file, length); }
int truncate64(const char *path, off64_t length) { return truncate(path, length); }
