/*
 * The beginning of a connection: so many short messages that it is carried, if it can be. With MEETS in the environment of the client,
 * messages go on until TCP carries none of them, or until 20 seconds and 9,000 messages have passed: a busy machine needs longer for the
 * first 3,000.
 */
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Bytes that TCP has received and sent, as linux/tcp.h has them. */
static uint64_t by_tcp(int fd) {
    uint64_t info[32] = {0};
    socklen_t size = sizeof info;
    enum { INFO = 11, RECEIVED = 16, SENT = 25 };
    getsockopt(fd, IPPROTO_TCP, INFO, info, &size);
    return info[RECEIVED] + info[SENT];
}

static void meet(int fd, int serves) {
    char byte = 0;
    if (serves) {
        while (!byte)
            if (read(fd, &byte, 1) != 1 || write(fd, &byte, 1) != 1) exit(1);
        return;
    }
    uint64_t before = 0;
    time_t until = time(NULL) + 20;
    for (int i = 1; !byte; i++) {
        if (i % 100 == 0 && i >= 3000) {
            uint64_t now = by_tcp(fd);
            byte = !getenv("MEETS") || now == before || (time(NULL) > until && i > 9000);
            before = now;
        }
        if (write(fd, &byte, 1) != 1 || read(fd, &(char){0}, 1) != 1) exit(1);
    }
}

/* The same for both ends in one process: until TCP carries no messages, if MEETS is there. */
static void meet_here(int a, int b) {
    char byte = 'x';
    uint64_t before = 0;
    time_t until = time(NULL) + 20;
    for (int i = 1;; i++) {
        if (write(a, &byte, 1) != 1 || read(b, &byte, 1) != 1 || write(b, &byte, 1) != 1) exit(1);
        if (poll(&(struct pollfd){.fd = a, .events = POLLIN}, 1, -1) != 1 || read(a, &byte, 1) != 1) exit(1);
        if (i % 40 == 0) {
            uint64_t now = by_tcp(a) + by_tcp(b);
            if (!getenv("MEETS") || now == before || time(NULL) > until) return;
            before = now;
        }
        if (i % 40 >= 4 && i % 40 < 14) poll(NULL, 0, 1);
    }
}
