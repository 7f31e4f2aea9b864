/*
 * Epoll sets that are waited for by poll and select, and that are members of other sets. Both ends of each connection are in this process.
 * Prints a line for each case; a wait that does not end is ended by SIGALRM. With an argument, it leaves out what cannot be carried.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include "meet.h"

static int listener;

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "nested: %s: %s\n", what, strerror(errno));
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
}

/* Messages there and back, until the connection is carried if it ever is. */
static void talk(int a, int b) {
    meet_here(a, b);
}

static void *write_late(void *fd) {
    poll(NULL, 0, 20);
    check(write(*(int *)fd, "x", 1) == 1, "write");
    return NULL;
}

static void add(int set, int fd, unsigned events) {
    struct epoll_event event = {.events = events, .data.u64 = 1000 + events % 1000};
    check(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "add");
}

static void change(int set, int fd, unsigned events) {
    struct epoll_event event = {.events = events, .data.u64 = 2000 + events % 1000};
    check(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0, "modify");
}

static void take(int fd) {
    char byte;
    check(read(fd, &byte, 1) == 1, "read");
}

/* What poll and select say of two descriptors without a wait, as digits. */
static int looks(int a, int set) {
    struct pollfd members[2] = {{.fd = a, .events = POLLIN}, {.fd = set, .events = POLLIN | POLLOUT}};
    int count = poll(members, 2, 0);
    fd_set read_set;
    struct timeval none = {0, 0};
    FD_ZERO(&read_set);
    FD_SET(a, &read_set);
    FD_SET(set, &read_set);
    int selected = select((a > set ? a : set) + 1, &read_set, NULL, NULL, &none);
    return count * 10000 + members[0].revents * 1000 + members[1].revents * 100 + selected * 10 + !!FD_ISSET(set, &read_set);
}

/* Waits until the set has something, by poll or select, with another connection beside it. */
static void wait_for(int a, int set, int how) {
    struct pollfd members[2] = {{.fd = a, .events = POLLIN}, {.fd = set, .events = POLLIN}};
    fd_set read_set;
    FD_ZERO(&read_set);
    FD_SET(a, &read_set);
    FD_SET(set, &read_set);
    if (how == 0) {
        check(poll(members, 2, -1) == 1 && members[1].revents == POLLIN, "poll");
    } else if (how == 1) {
        check(select((a > set ? a : set) + 1, &read_set, NULL, NULL, NULL) == 1 && FD_ISSET(set, &read_set), "select");
    } else if (how == 2) {
        check(poll(members + 1, 1, -1) == 1 && members[1].revents == POLLIN, "poll of the set alone");
    }
}

static void report(const char *what, int set) {
    struct epoll_event events[8];
    int count = epoll_wait(set, events, 8, 0);
    printf("%s:", what);
    for (int i = 0; i < count; i++) printf(" %x with %d", events[i].events, (int)events[i].data.u64);
    printf("%s\n", count ? "" : " nothing");
}

static int a, far_a, b, far_b;

/* A set in poll and select, which `outer` is or contains. */
static void waits(const char *what, int outer, int inner) {
    pthread_t writer;
    printf("%s: at first %d\n", what, looks(a, outer));
    for (int how = 0; how < 3; how++) {
        for (int i = 0; i < 10; i++) {
            pthread_create(&writer, NULL, write_late, &far_b);
            wait_for(a, outer, how);
            pthread_join(writer, NULL);
            if (i == 0) printf("%s: with bytes %d, again %d\n", what, looks(a, outer), looks(a, outer));
            struct epoll_event event;
            check(epoll_wait(inner, &event, 1, -1) == 1 && event.data.u64 == 1000 + EPOLLIN, "the event");
            take(b);
            if (i == 0) printf("%s: read %d\n", what, looks(a, outer));
        }
    }
    check(write(far_a, "x", 1) == 1, "write");
    printf("%s: the other one %d\n", what, looks(a, outer));
    take(a);
    int ends[2];
    check(pipe(ends) == 0, "pipe");
    add(inner, ends[0], EPOLLIN);
    printf("%s: empty pipe %d\n", what, looks(a, outer));
    check(write(ends[1], "x", 1) == 1, "write");
    printf("%s: pipe %d\n", what, looks(a, outer));
    close(ends[0]);
    close(ends[1]);
    printf("%s: no pipe %d\n", what, looks(a, outer));
    talk(b, far_b);
}

/* Interest that changes while bytes are there. */
static void changes(int set) {
    check(write(far_b, "x", 1) == 1, "write");
    change(set, b, 0);
    printf("no interest: %d\n", looks(a, set));
    change(set, b, EPOLLIN);
    printf("interest: %d\n", looks(a, set));
    report("interest", set);
    change(set, b, EPOLLIN | EPOLLONESHOT);
    printf("once: %d\n", looks(a, set));
    report("once", set);
    printf("once, reported: %d\n", looks(a, set));
    change(set, b, EPOLLIN | EPOLLET);
    printf("edge: %d\n", looks(a, set));
    report("edge", set);
    printf("edge, reported: %d\n", looks(a, set));
    check(write(far_b, "x", 1) == 1, "write");
    printf("edge, more: %d\n", looks(a, set));
    take(b);
    take(b);
    change(set, b, EPOLLOUT);
    printf("room: %d\n", looks(a, set));
    check(epoll_ctl(set, EPOLL_CTL_DEL, b, NULL) == 0, "remove");
    printf("removed: %d\n", looks(a, set));
    check(write(far_b, "x", 1) == 1, "write");
    printf("removed, bytes: %d\n", looks(a, set));
    add(set, b, EPOLLIN);
    printf("added: %d\n", looks(a, set));
    take(b);
    printf("read: %d\n", looks(a, set));
}

/* Waits by epoll_wait of the outer set. */
static void outer_waits(int outer, int nested, int set) {
    struct epoll_event event;
    pthread_t writer;
    report("outer, nothing", outer);
    for (int i = 0; i < 10; i++) {
        pthread_create(&writer, NULL, write_late, &far_b);
        check(epoll_wait(outer, &event, 1, -1) == 1 && event.data.u64 == 1000 + EPOLLIN && event.events == EPOLLIN, "outer");
        pthread_join(writer, NULL);
        if (i == 0) report("outer, with bytes", outer);
        take(b);
        if (i == 0) report("outer, read", outer);
    }
    check(write(far_b, "x", 1) == 1, "write");
    change(outer, nested, EPOLLIN | EPOLLONESHOT);
    report("outer once", outer);
    report("outer once, reported", outer);
    change(outer, nested, EPOLLIN | EPOLLET);
    report("outer edge", outer);
    report("outer edge, reported", outer);
    check(write(far_b, "x", 1) == 1, "write");
    report("outer edge, more", outer);
    take(b);
    take(b);
    change(outer, nested, EPOLLIN);
    report("outer, changed", outer);
    check(epoll_ctl(outer, EPOLL_CTL_DEL, nested, NULL) == 0, "remove");
    check(write(far_b, "x", 1) == 1, "write");
    report("outer, removed", outer);
    report("inner", set);
    add(outer, nested, EPOLLIN);
    report("outer, added", outer);
    take(b);
    report("outer, read again", outer);
}

/* A set whose descriptor in the outer set was closed. */
static void outer_waits_for_closed(int outer) {
    struct epoll_event event;
    pthread_t writer;
    pthread_create(&writer, NULL, write_late, &far_b);
    check(epoll_wait(outer, &event, 1, -1) == 1 && event.data.u64 == 1000 + EPOLLIN, "closed");
    pthread_join(writer, NULL);
    take(b);
    report("closed, read", outer);
}

static void *add_late(void *sets) {
    int *of = sets;
    poll(NULL, 0, 20);
    add(of[0], of[1], EPOLLIN);
    poll(NULL, 0, 20);
    check(write(far_b, "x", 1) == 1, "write");
    return NULL;
}

/* What is put into a set while somebody waits for that set, or for one around it. */
static void adds(void) {
    int outer = epoll_create1(0), set = epoll_create1(0);
    struct epoll_event event;
    pthread_t adder;
    add(set, b, EPOLLIN);
    pthread_create(&adder, NULL, add_late, (int[]){outer, set});
    check(epoll_wait(outer, &event, 1, -1) == 1, "outer, added late");
    pthread_join(adder, NULL);
    take(b);
    check(epoll_ctl(set, EPOLL_CTL_DEL, b, NULL) == 0, "remove");
    pthread_create(&adder, NULL, add_late, (int[]){set, b});
    check(epoll_wait(outer, &event, 1, -1) == 1, "inner, added late");
    pthread_join(adder, NULL);
    take(b);
    check(epoll_ctl(set, EPOLL_CTL_DEL, b, NULL) == 0, "remove");
    pthread_create(&adder, NULL, add_late, (int[]){set, b});
    wait_for(a, outer, 0);
    pthread_join(adder, NULL);
    take(b);
    close(set);
    check(write(far_b, "x", 1) == 1, "write");
    report("closed", outer);
    take(b);
    close(outer);
    printf("adds: woken\n");
}

static void *wait_by_poll(void *set) {
    wait_for(a, *(int *)set, 0);
    return NULL;
}

static void *wait_by_epoll(void *set) {
    struct epoll_event event;
    check(epoll_wait(*(int *)set, &event, 1, -1) == 1, "epoll_wait");
    return NULL;
}

/* Several threads wait for the same set in several ways. */
static void several(void) {
    int outer = epoll_create1(0), set = epoll_create1(0);
    add(set, b, EPOLLIN);
    add(outer, set, EPOLLIN);
    for (int i = 0; i < 20; i++) {
        pthread_t waiters[4], writer;
        pthread_create(&waiters[0], NULL, wait_by_poll, &set);
        pthread_create(&waiters[1], NULL, wait_by_poll, &outer);
        pthread_create(&waiters[2], NULL, wait_by_epoll, &set);
        pthread_create(&waiters[3], NULL, wait_by_epoll, &outer);
        pthread_create(&writer, NULL, write_late, &far_b);
        for (int at = 0; at < 4; at++) pthread_join(waiters[at], NULL);
        pthread_join(writer, NULL);
        take(b);
    }
    close(outer);
    close(set);
    printf("several: woken\n");
}

int main(int count, char **arguments) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 5) == 0, "listen");
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(60);
    make_pair(&a, &far_a);
    talk(a, far_a);
    make_pair(&b, &far_b);
    /* It is in the set before it is carried. */
    int early = epoll_create1(0);
    add(early, b, EPOLLIN);
    talk(b, far_b);
    waits("early", early, early);
    close(early);

    int set = epoll_create1(0);
    add(set, b, EPOLLIN);
    waits("fresh", set, set);
    changes(set);
    int outer = epoll_create1(0);
    add(outer, set, EPOLLIN);
    waits("outer", outer, set);
    outer_waits(outer, set, set);
    int outermost = epoll_create1(0), copy = dup(outer);
    add(outermost, copy, EPOLLIN);
    waits("outermost", outermost, set);
    outer_waits(outermost, copy, set);
    waits("duplicate", copy, set);
    close(outermost);
    close(copy);
    waits("without them", outer, set);
    close(outer);
    adds();
    several();
    talk(a, far_a);
    talk(b, far_b);
    if (count > 1) return 0;
    /* The kernel still reports a closed descriptor, because another one refers to the same set. */
    outer = epoll_create1(0);
    copy = dup(set);
    add(outer, copy, EPOLLIN);
    close(copy);
    outer_waits_for_closed(outer);
    return 0;
}
