/*
 * How much of the stack calls about a connection take: each is made in a thread whose stack has known bytes. Both ends of the connection
 * are in this process. Prints a line with the bytes for each call, and makes each in a thread with a small stack.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "meet.h"

enum { STACK = 512 << 10, PAINT = 0x5a };

static int listener, fd, far, file, set, pipe_end;
static char room[8192];
static struct pollfd many[1024];
static fd_set members;
static struct iovec parts[64];

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "stacks: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void take(int from, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t now = recv(from, room, length - done, 0);
        check(now > 0, "recv");
        done += now;
    }
}

static void poll_many(int count) {
    for (int i = 0; i < count; i++) many[i] = (struct pollfd){i ? pipe_end : fd, POLLIN, 0};
    check(poll(many, count, 20) == 0, "poll of many");
}

static void select_many(int count) {
    static struct timeval time;
    time.tv_usec = 20000;
    FD_ZERO(&members);
    FD_SET(fd, &members);
    for (int i = 0; i < count; i++) FD_SET(pipe_end + i, &members);
    check(select(FD_SETSIZE, &members, NULL, NULL, &time) == 0, "select");
}

static void send_and_recv(void) {
    check(send(fd, room, 64, 0) == 64, "send");
    take(far, 64);
}
static void poll_one(void) { poll_many(1); }
static void poll_100(void) { poll_many(100); }
static void poll_1024(void) { poll_many(1024); }
static void select_one(void) { select_many(0); }
static void select_100(void) { select_many(100); }
static void epoll(void) {
    struct epoll_event event;
    check(epoll_wait(set, &event, 1, 20) == 0, "epoll_wait");
}
static void poll_set(void) {
    struct pollfd member = {set, POLLIN, 0};
    check(poll(&member, 1, 20) == 0, "poll of a set");
}
static void send_file(void) {
    off_t from = 0;
    check(sendfile(fd, file, &from, 8192) == 8192, "sendfile");
    take(far, 8192);
}
static void parts_of_it(void) {
    for (int i = 0; i < 64; i++) parts[i] = (struct iovec){room + 8 * i, 8};
    check(writev(fd, parts, 64) == 512, "writev");
    for (ssize_t done = 0, now; done < 512; done += now) check((now = readv(far, parts, 64)) > 0, "readv");
}
static void message(void) {
    static struct msghdr to, from;
    to.msg_iov = from.msg_iov = &(struct iovec){room, 64};
    to.msg_iovlen = from.msg_iovlen = 1;
    check(sendmsg(fd, &to, 0) == 64 && recvmsg(far, &from, MSG_WAITALL) == 64, "sendmsg, recvmsg");
}
static void close_it(void) { check(close(fd) == 0, "close"); }

static const struct {
    const char *name;
    void (*call)(void);
} calls[] = {{"send, recv", send_and_recv}, {"poll of 1", poll_one},     {"poll of 100", poll_100},   {"poll of 1024", poll_1024},
             {"select of 1", select_one},   {"select of 100", select_100}, {"epoll_wait", epoll},       {"poll of a set", poll_set},
             {"sendfile", send_file},       {"writev, readv", parts_of_it}, {"sendmsg, recvmsg", message}, {"close", close_it}};

static void *run(void *index) {
    calls[(intptr_t)index].call();
    return NULL;
}

static void in_thread(pthread_attr_t *attributes, intptr_t index) {
    pthread_t thread;
    check(pthread_create(&thread, attributes, run, (void *)index) == 0, "pthread_create");
    pthread_join(thread, NULL);
}

int main(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    alarm(60);
    setvbuf(stdout, NULL, _IOLBF, 0);
    check(setrlimit(RLIMIT_NOFILE, &(struct rlimit){4096, 4096}) == 0, "setrlimit");
    listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0, "listen");
    getsockname(listener, (struct sockaddr *)&at, &length);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(fd, (struct sockaddr *)&at, sizeof at) == 0, "connect");
    far = accept(listener, NULL, NULL);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(far, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    meet_here(fd, far);
    struct epoll_event event = {.events = EPOLLIN};
    set = epoll_create1(0);
    check(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    file = fileno(tmpfile());
    check(write(file, room, sizeof room) == sizeof room, "write");
    int ends[2];
    check(pipe(ends) == 0, "pipe");
    pipe_end = 200;
    for (int i = 0; i < 100; i++) check(dup2(ends[0], pipe_end + i) >= 0, "dup2");

    pthread_attr_t known, small;
    pthread_attr_init(&known);
    pthread_attr_init(&small);
    check(pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN) == 0, "a small stack");
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        unsigned char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(stack, PAINT, STACK);
        check(pthread_attr_setstack(&known, stack, STACK) == 0, "a stack");
        in_thread(&known, i);
        int free_bytes = 0;
        while (free_bytes < STACK && stack[free_bytes] == PAINT) free_bytes++;
        printf("%s: %d\n", calls[i].name, STACK - free_bytes);
        if (calls[i].call != close_it) in_thread(&small, i);
    }
    return 0;
}
