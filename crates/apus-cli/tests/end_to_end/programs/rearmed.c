/*
 * One thread sleeps in an epoll set, while another one changes what it waits for: it arms a member again that fired once, asks for more,
 * or fills the connection so that there is room later. Both ends of each connection are in this process. A wait that does not end is
 * ended by SIGALRM.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "meet.h"

static int listener, set;

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "rearmed: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void make_pair(int *a, int *b) {
    struct sockaddr_in at;
    socklen_t length = sizeof at;
    getsockname(listener, (struct sockaddr *)&at, &length);
    *a = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(*a, (struct sockaddr *)&at, sizeof at) == 0, "connect");
    *b = accept(listener, NULL, NULL);
    check(*b >= 0, "accept");
    for (int i = 0; i < 2; i++) setsockopt(i ? *a : *b, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    meet_here(*a, *b);
}

static void change(int fd, unsigned events) {
    check(epoll_ctl(set, EPOLL_CTL_MOD, fd, &(struct epoll_event){.events = events}) == 0, "modify");
}

static void *wait_for(void *events) {
    struct epoll_event event;
    check(epoll_wait(set, &event, 1, -1) == 1, "epoll_wait");
    check(event.events & *(unsigned *)events, "what was waited for");
    return NULL;
}

/* While another thread sleeps for these events. */
static void meanwhile(unsigned events, void (*work)(int, int), int a, int b) {
    pthread_t waiter;
    pthread_create(&waiter, NULL, wait_for, &events);
    poll(NULL, 0, 20);
    work(a, b);
    pthread_join(waiter, NULL);
}

static void arm(int a, int b) {
    (void)b;
    change(a, EPOLLIN | EPOLLONESHOT);
}
static void arm_and_write(int a, int b) {
    change(a, EPOLLIN | EPOLLONESHOT);
    poll(NULL, 0, 10);
    check(write(b, "x", 1) == 1, "write");
}
static void ask_for_room(int a, int b) {
    (void)b;
    change(a, EPOLLOUT);
}
static void drain(int from, size_t bytes) {
    static char buffer[65536];
    while (bytes > 0) {
        ssize_t now = recv(from, buffer, sizeof buffer < bytes ? sizeof buffer : bytes, 0);
        check(now > 0, "recv");
        bytes -= now;
    }
}
static void fill_and_drain(int a, int b) {
    static char buffer[65536];
    size_t done = 0;
    for (ssize_t now; (now = send(a, buffer, sizeof buffer, MSG_DONTWAIT)) > 0;) done += now;
    check(errno == EAGAIN, "send");
    poll(NULL, 0, 10);
    drain(b, done);
}

/* Bytes arrive while the connection is full. Room is reported as well. */
static void fill_and_answer(int a, int b) {
    static char buffer[65536];
    struct epoll_event event = {.events = EPOLLOUT};
    size_t done = 0;
    change(a, EPOLLIN | EPOLLOUT | EPOLLET);
    check(epoll_wait(set, &event, 1, -1) == 1 && event.events == EPOLLOUT, "room");
    int answers = 0;
    do { /* The kernel may find more room. */
        if (event.events & EPOLLOUT)
            for (ssize_t now; (now = send(a, buffer, sizeof buffer, MSG_DONTWAIT)) > 0;) done += now;
        if (!answers++) check(write(b, "x", 1) == 1, "write");
        check(epoll_wait(set, &event, 1, -1) == 1, "bytes");
    } while (!(event.events & EPOLLIN));
    if (event.events & EPOLLOUT)
        for (ssize_t now; (now = send(a, buffer, sizeof buffer, MSG_DONTWAIT)) > 0;) done += now;
    drain(a, 1);
    drain(b, done);
    check(epoll_wait(set, &event, 1, -1) == 1 && event.events & EPOLLOUT, "room again");
}

int main(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event;
    int a, b;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 5) == 0, "listen");
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(60);
    set = epoll_create1(0);
    make_pair(&a, &b);
    check(epoll_ctl(set, EPOLL_CTL_ADD, a, &(struct epoll_event){.events = EPOLLIN | EPOLLONESHOT}) == 0, "add");
    for (int i = 0; i < 10; i++) {
        change(a, EPOLLIN | EPOLLONESHOT);
        check(write(b, "x", 1) == 1 && epoll_wait(set, &event, 1, -1) == 1, "once");
        meanwhile(EPOLLIN, arm, a, b);
        drain(a, 1);
        meanwhile(EPOLLIN, arm_and_write, a, b);
        drain(a, 1);
        check(epoll_wait(set, &event, 1, 0) == 0, "nothing");
    }
    printf("armed: woken\n");
    for (int i = 0; i < 10; i++) {
        change(a, EPOLLIN);
        meanwhile(EPOLLOUT, ask_for_room, a, b);
    }
    printf("asked for room: woken\n");
    for (int i = 0; i < 10; i++) {
        change(a, EPOLLIN | EPOLLOUT | EPOLLET);
        check(epoll_wait(set, &event, 1, -1) == 1 && event.events == EPOLLOUT, "room");
        meanwhile(EPOLLOUT, fill_and_drain, a, b);
    }
    printf("filled: woken\n");
    for (int i = 0; i < 10; i++) fill_and_answer(a, b);
    printf("answered: reported\n");
    return 0;
}
