/*
 * An epoll set whose members have something to report all the time, in waits with less room than that: each has its turn. Both ends of
 * each connection are in this process. Prints a line for each case.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "meet.h"

enum { CONNECTIONS = 6, PIPES = 5, CALLS = 60 };

static int listener;

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fair: %s: %s\n", what, strerror(errno));
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

/* Waits again and again, with room for a number of events, and says whether each member was reported. */
static void turns(const char *what, int set, int members, int room, int pause) {
    int reported[CONNECTIONS + PIPES] = {0};
    for (int call = 0; call < CALLS; call++) {
        struct epoll_event events[CONNECTIONS + PIPES];
        int count = epoll_wait(set, events, room, -1);
        check(count > 0, "epoll_wait");
        for (int i = 0; i < count; i++) reported[events[i].data.u32]++;
        if (pause) poll(NULL, 0, 1);
    }
    int least = CALLS * room;
    for (int i = 0; i < members; i++)
        if (reported[i] < least) least = reported[i];
    printf("%s, room for %d%s: %s\n", what, room, pause ? ", with pauses" : "", least >= 2 ? "each has its turn" : "some have none");
}

int main(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 5) == 0, "listen");
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(60);
    int set = epoll_create1(0), ends[CONNECTIONS][2], pipes[PIPES][2];
    for (int i = 0; i < CONNECTIONS; i++) make_pair(&ends[i][0], &ends[i][1]);
    for (int i = 0; i < CONNECTIONS; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        check(epoll_ctl(set, EPOLL_CTL_ADD, ends[i][0], &event) == 0 && write(ends[i][1], "x", 1) == 1, "a connection");
    }
    for (int room = 1; room < CONNECTIONS; room++)
        for (int pause = 0; pause < 2; pause++) turns("connections", set, CONNECTIONS, room, pause);
    for (int i = 0; i < PIPES; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = CONNECTIONS + i};
        check(pipe(pipes[i]) == 0 && write(pipes[i][1], "x", 1) == 1, "a pipe");
        check(epoll_ctl(set, EPOLL_CTL_ADD, pipes[i][0], &event) == 0, "a pipe");
    }
    for (int room = 1; room < CONNECTIONS; room++) turns("with pipes", set, CONNECTIONS + PIPES, room, 1);
    return 0;
}
