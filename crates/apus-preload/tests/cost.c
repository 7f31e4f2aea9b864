// Makes a kind of calls many times and prints the nanoseconds that they took. cargo xtask sockets-cost runs it plain and preloaded.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int a, b, listener, epoll;
static struct sockaddr_in at = {.sin_family = AF_INET};

static int connected(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0) abort();
    return fd;
}

// Each makes two calls, or the four that a connection takes at least.
static void read_write(void) {
    char byte = 0;
    if (write(a, &byte, 1) != 1 || read(b, &byte, 1) != 1) abort();
}

static void send_recv(void) {
    char byte = 0;
    if (send(a, &byte, 1, 0) != 1 || recv(b, &byte, 1, 0) != 1) abort();
}

static void poll_select(void) {
    struct pollfd members[2] = {{a, POLLOUT, 0}, {b, POLLOUT, 0}};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(a, &set);
    if (poll(members, 2, 0) != 2 || select(a + 1, NULL, &set, NULL, NULL) != 1) abort();
}

static void epoll_calls(void) {
    struct epoll_event event = {.events = EPOLLOUT};
    if (epoll_ctl(epoll, EPOLL_CTL_MOD, a, &event) != 0 || epoll_wait(epoll, &event, 1, 0) != 1) abort();
}

static void dup_close(void) {
    if (close(dup(a)) != 0) abort();
}

static void fcntl_option(void) {
    int value;
    socklen_t length = sizeof value;
    if (fcntl(a, F_GETFL) < 0 || getsockopt(a, SOL_SOCKET, SO_ERROR, &value, &length) != 0) abort();
}

static void syscall_twice(void) {
    char byte = 0;
    if (syscall(SYS_write, a, &byte, 1L) != 1 || syscall(SYS_read, b, &byte, 1L) != 1) abort();
}

static void connection(void) {
    int fd = connected();
    close(accept(listener, NULL, NULL));
    close(fd);
}

static const struct {
    const char *name;
    void (*run)(void);
} kinds[] = {
    {"read_write", read_write}, {"send_recv", send_recv}, {"poll_select", poll_select}, {"epoll", epoll_calls},
    {"dup_close", dup_close}, {"fcntl_getsockopt", fcntl_option}, {"syscall", syscall_twice}, {"connection", connection},
};

int main(int count, char **arguments) {
    if (count != 3) return 2;
    int turns = atoi(arguments[2]);
    socklen_t length = sizeof at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (struct sockaddr *)&at, sizeof at);
    listen(listener, 16);
    getsockname(listener, (struct sockaddr *)&at, &length);
    a = connected();
    b = accept(listener, NULL, NULL);
    epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLOUT};
    epoll_ctl(epoll, EPOLL_CTL_ADD, a, &event);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(arguments[1], kinds[i].name)) continue;
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        for (int turn = 0; turn < turns; turn++) kinds[i].run();
        clock_gettime(CLOCK_MONOTONIC, &end);
        printf("%lld\n", (end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec);
        return 0;
    }
    return 2;
}
