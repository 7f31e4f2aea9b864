/*
 * A program that replaces functions of the C library, as other preloaded libraries do: clocks that stand still, an allocator that ends the
 * program if a call which a signal handler may make allocates, `close`, `sched_yield` and waits that do not do what they should for
 * descriptors that are not the program's. Both ends of each connection are in this process. A call that does not end is ended by SIGALRM.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "meet.h"

static volatile int is_strange;
static __thread volatile int allocates_nothing;

static void refuse(void) {
    if (!allocates_nothing) return;
    static const char text[] = "replaced: memory is allocated\n";
    if (syscall(SYS_write, 2, text, sizeof text - 1)) abort();
}

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *malloc(size_t bytes) { return refuse(), __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return refuse(), __libc_calloc(count, bytes); }
void *realloc(void *memory, size_t bytes) { return refuse(), __libc_realloc(memory, bytes); }

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!is_strange) return syscall(SYS_clock_gettime, clock, time);
    *time = (struct timespec){1000, 0};
    return 0;
}
int gettimeofday(struct timeval *time, void *zone) {
    (void)zone;
    *time = (struct timeval){1000, 0};
    return 0;
}
time_t time(time_t *at) {
    if (at) *at = 1000;
    return 1000;
}
int close(int fd) {
    static int (*next)(int);
    if (is_strange && fd >= 1024) return errno = EINTR, -1;
    if (!next) next = dlsym(RTLD_NEXT, "close");
    return next(fd);
}
int sched_yield(void) {
    if (is_strange) syscall(SYS_pause);
    return 0;
}

static int listener;

static void check(int holds, const char *what) {
    allocates_nothing = 0;
    if (holds) return;
    fprintf(stderr, "replaced: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* The result of a call during which nothing is allocated. */
#define QUIET(call) (allocates_nothing = 1, (call))

static void make_pair(int *a, int *b) {
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    getsockname(listener, (struct sockaddr *)&at, &length);
    *a = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(*a, (struct sockaddr *)&at, sizeof at) == 0, "connect");
    *b = accept(listener, NULL, NULL);
    check(*b >= 0, "accept");
    for (int i = 0; i < 2; i++) setsockopt(i ? *a : *b, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

static void talk(int a, int b) {
    char byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    for (int i = 0; i < 60; i++) {
        check(QUIET(write(a, &byte, 1)) == 1, "write");
        check(QUIET(read(b, &byte, 1)) == 1, "read");
        check(QUIET(send(b, &byte, 1, 0)) == 1, "send");
        check(QUIET(recv(a, &byte, 1, 0)) == 1, "recv");
        check(QUIET(sendmsg(a, &message, 0)) == 1, "sendmsg");
        check(QUIET(recvmsg(b, &message, 0)) == 1, "recvmsg");
        check(QUIET(writev(b, &part, 1)) == 1, "writev");
        check(QUIET(readv(a, &part, 1)) == 1, "readv");
        if (i >= 2 && i < 22) poll(NULL, 0, 1);
    }
}

static void *drain(void *fd) {
    static char bytes[65536];
    for (size_t done = 0; done < 4 << 20;) {
        ssize_t now = read(*(int *)fd, bytes, sizeof bytes);
        check(now > 0, "read");
        done += now;
    }
    return NULL;
}

static void waits(int a, int b) {
    struct pollfd many[100], one = {.fd = a, .events = POLLIN};
    struct timeval left = {0, 20000};
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.fd = a}, events[2];
    int set = epoll_create1(0), outer = epoll_create1(0);
    fd_set members;
    char byte;
    check(epoll_ctl(set, EPOLL_CTL_ADD, a, &event) == 0, "add");
    check(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event) == 0, "add");
    check(QUIET(epoll_wait(set, events, 2, 20)) == 1 && events[0].events == EPOLLOUT, "room");
    event.events = EPOLLIN;
    check(epoll_ctl(set, EPOLL_CTL_MOD, a, &event) == 0, "modify");
    check(QUIET(poll(&one, 1, 20)) == 0, "poll");
    check(QUIET(ppoll(&one, 1, &(struct timespec){0, 20000000}, NULL)) == 0, "ppoll");
    for (int i = 0; i < 100; i++) many[i] = (struct pollfd){.fd = i ? listener : a, .events = POLLIN};
    check(QUIET(poll(many, 100, 20)) == 0, "poll of many");
    FD_ZERO(&members);
    FD_SET(a, &members);
    check(QUIET(select(a + 1, &members, NULL, NULL, &left)) == 0, "select");
    check(QUIET(epoll_wait(set, events, 2, 20)) == 0, "epoll_wait");
    check(QUIET(epoll_wait(outer, events, 2, 20)) == 0, "epoll_wait of the outer set");
    check(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 20000}, sizeof(struct timeval)) == 0, "a time");
    check(QUIET(recv(a, &byte, 1, 0)) == -1 && errno == EAGAIN, "recv with a time");
    check(QUIET(write(b, "y", 1)) == 1 && QUIET(poll(&one, 1, -1)) == 1 && QUIET(read(a, &byte, 1)) == 1, "bytes");
    close(outer);
    close(set);
}

static char bytes[1 << 20];

int main(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int a, b, set = epoll_create1(0);
    pthread_t reader;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
    alarm(30);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 5) == 0, "listen");
    FILE *file = tmpfile();
    check(ftruncate(fileno(file), 30000) == 0, "a file");
    is_strange = 1;
    make_pair(&a, &b);
    meet_here(a, b);
    /* A set that waits for room reports it when writes go into memory, and back. */
    check(epoll_ctl(set, EPOLL_CTL_ADD, a, &event) == 0, "add");
    talk(a, b);
    waits(a, b);
    pthread_create(&reader, NULL, drain, &b);
    for (int i = 0; i < 4; i++) {
        size_t done = 0;
        for (ssize_t now; done < sizeof bytes; done += now) check((now = QUIET(write(a, bytes, sizeof bytes - done))) > 0, "write");
    }
    pthread_join(reader, NULL);
    check(QUIET(sendfile(a, fileno(file), &(off_t){0}, 10000)) == 10000, "sendfile");
    for (ssize_t done = 0, now; done < 10000; done += now) check((now = QUIET(recv(b, bytes, 10000 - done, 0))) > 0, "recv");
    talk(a, b);
    /* By flags that only the kernel knows it returns to TCP. */
    check(QUIET(send(a, "z", 1, MSG_OOB)) == 1, "send");
    check(QUIET(recv(b, bytes, 1, MSG_OOB)) == 1, "recv");
    talk(a, b);
    check(QUIET(shutdown(a, SHUT_WR)) == 0 && QUIET(read(b, bytes, 1)) == 0, "shutdown");
    check(QUIET(close(b)) == 0 && QUIET(close(a)) == 0, "close");
    int pairs[10][2];
    for (int i = 0; i < 10; i++) {
        make_pair(&pairs[i][0], &pairs[i][1]);
        meet_here(pairs[i][0], pairs[i][1]);
        talk(pairs[i][0], pairs[i][1]);
        check(QUIET(write(pairs[i][0], "x", 1)) == 1, "write");
    }
    pid_t child = fork();
    if (child == 0) _exit(0);
    check(child > 0, "fork");
    for (int i = 0; i < 10; i++) check(QUIET(close(pairs[i][0])) == 0 && QUIET(close(pairs[i][1])) == 0, "close");
    printf("all calls ended\n");
    return 0;
}
