/* A clock that a test sets: preloaded into a server, it answers what the mapped file says instead of the real time.
 *
 * TIMEOUTQ_CLOCK names a file of two 64-bit integers: {mode, microseconds}. Mode 0 adds the microseconds to the real
 * time (a clock that was stepped); mode 1 gives exactly these microseconds since 1970 (a clock that stands still until
 * the test moves it). Only the time of day is bent: monotonic clocks, and so timers, run on. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *told;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("TIMEOUTQ_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED) told = found;
}

static int64_t bent(int64_t real_us) {
    if (!told) return real_us;
    return told[0] == 1 ? told[1] : real_us + told[1];
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int failed = (int) syscall(SYS_clock_gettime, id, at);
    if (failed || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) return failed;
    int64_t us = bent((int64_t) at->tv_sec * 1000000 + at->tv_nsec / 1000);
    at->tv_sec = us / 1000000;
    at->tv_nsec = (us % 1000000) * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void) zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
