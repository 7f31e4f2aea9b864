/*
 * A clock for programs under valgrind, as LD_PRELOAD: CLOCK_BOOTTIME, by which the nodes of Apus measure time, runs 64 times slower.
 *
 * valgrind makes a program some 50 times slower. By a clock that is not slowed, every turn of a node would come after a pause, and
 * would look at sockets that a turn without valgrind does not look at. Timeouts of the kernel are not slowed, so a thread that sleeps
 * on a timer wakes some times too early, which the other clocks must not do: std waits until moments of CLOCK_MONOTONIC.
 */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLOWER 64

int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (syscall(SYS_clock_gettime, clock, time) != 0)
        return -1;
    if (clock == CLOCK_BOOTTIME) {
        unsigned long long nanos = (time->tv_sec * 1000000000ULL + time->tv_nsec) / SLOWER;
        time->tv_sec = nanos / 1000000000;
        time->tv_nsec = nanos % 1000000000;
    }
    return 0;
}
