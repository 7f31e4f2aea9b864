/*
 * Bare system calls that close descriptors which the program has not opened, or take their numbers. Both ends of each connection are in
 * this process. Prints what the calls return, and whether all descriptors from 1,000 on are still there.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "meet.h"

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "spared: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void talk(int a, int b) {
    meet_here(a, b);
}

static int high(int *numbers) {
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;
    for (struct dirent *entry; (entry = readdir(directory));)
        if (atoi(entry->d_name) >= 1000) numbers[count++] = atoi(entry->d_name);
    closedir(directory);
    return count;
}

int main(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    static int numbers[4096], after[4096];
    alarm(30);
    check(setrlimit(RLIMIT_NOFILE, &(struct rlimit){4096, 4096}) == 0, "setrlimit");
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 5) == 0, "listen");
    getsockname(listener, (struct sockaddr *)&at, &length);
    int a = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(a, (struct sockaddr *)&at, sizeof at) == 0, "connect");
    int b = accept(listener, NULL, NULL);
    talk(a, b);
    int count = high(numbers), refused = 0;
    for (int fd = 1000; fd < 4096; fd++) refused += syscall(SYS_close, fd) == -1 && errno == EBADF;
    printf("close: %d refused\n", refused);
    int taken = 0;
    for (int i = 0; i < count; i++) {
        taken += syscall(SYS_dup3, a, numbers[i], 0) != -1 || errno != EBUSY;
#ifdef SYS_dup2
        taken += syscall(SYS_dup2, a, numbers[i]) != -1 || errno != EBUSY;
#endif
    }
    printf("dup: %d taken\n", taken);
    int copy = syscall(SYS_dup3, a, 100, 0);
    check(copy == 100 && write(copy, "x", 1) == 1 && read(b, &(char){0}, 1) == 1, "a duplicate");
    close(copy);
    printf("close_range: %d\n", (int)syscall(SYS_close_range, 50, ~0U, 0));
    printf("close_range, flags: %d\n", (int)syscall(SYS_close_range, 50, ~0U, 1 << 2));
    printf("close_range, wrong: %d\n", (int)syscall(SYS_close_range, 60, 50, 0));
    int left = high(after);
    printf("%s\n", left == count && !memcmp(numbers, after, count * sizeof *numbers) ? "all are there" : "some are gone");
    talk(a, b);
    close(a);
    check(read(b, &(char){0}, 1) == 0, "the end");
    return 0;
}
