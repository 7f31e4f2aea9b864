/*
 * Round trips and a stream over one connection, by plain blocking sockets.
 *
 *     sockets-containers server IP PORT               serves one connection
 *     sockets-containers rr IP PORT SIZE SECONDS      prints the median of a round trip of SIZE bytes each way, in µs
 *     sockets-containers stream IP PORT SIZE SECONDS  prints the rate of writes of SIZE bytes, in Gb/s
 *
 * The first tenth of a second, in which a connection comes to be carried, is not counted.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static char bytes[1 << 20];
static double times[1 << 24];

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void move(int fd, size_t count, int writes) {
    for (size_t done = 0; done < count;) {
        ssize_t moved = writes ? write(fd, bytes + done, count - done) : read(fd, bytes + done, count - done);
        if (moved <= 0) exit(moved < 0);
        done += moved;
    }
}

static int in_order(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

int main(int count, char **arguments) {
    if (count < 4) return 2;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(arguments[2]), .sin_port = htons(atoi(arguments[3]))};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (!strcmp(arguments[1], "server")) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 1)) fail("listen");
        puts("ready"), fflush(stdout);
        int peer = accept(fd, NULL, NULL);
        setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        unsigned wanted[2]; /* bytes of a message, and whether each is answered */
        if (read(peer, wanted, sizeof wanted) != sizeof wanted) return 1;
        for (;;) {
            move(peer, wanted[0], 0);
            if (wanted[1]) move(peer, wanted[0], 1);
        }
    }
    if (count < 6 || atoi(arguments[4]) > (int)sizeof bytes) return 2;
    int is_rr = !strcmp(arguments[1], "rr");
    unsigned wanted[2] = {atoi(arguments[4]), is_rr};
    if (connect(fd, (struct sockaddr *)&at, sizeof at)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (write(fd, wanted, sizeof wanted) != sizeof wanted) fail("write");
    double seconds = atof(arguments[5]), start = now(), from = start + 0.1, last = 0;
    size_t messages = 0;
    while (last < from + seconds && messages < sizeof times / sizeof *times) {
        double before = now();
        move(fd, wanted[0], 1);
        if (is_rr) move(fd, wanted[0], 0);
        last = now();
        if (before >= from) times[messages++] = last - before;
    }
    if (!messages) return 1;
    if (is_rr) {
        qsort(times, messages, sizeof *times, in_order);
        printf("%.2f\n", times[messages / 2] * 1e6);
    } else {
        printf("%.1f\n", messages * 8.0 * wanted[0] / (last - from) / 1e9);
    }
    return 0;
}
