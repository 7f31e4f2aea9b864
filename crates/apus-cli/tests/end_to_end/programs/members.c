/*
 * Members of epoll sets that are put in as few programs do it: with EPOLLEXCLUSIVE, in several sets, or before they are connected. Both
 * ends of each connection are in this process. Prints a line for each case; a wait that does not end is ended by SIGALRM.
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

static int listener;
static struct sockaddr_in at = {.sin_family = AF_INET};

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "members: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int accepted(void) {
    int fd = accept(listener, NULL, NULL);
    check(fd >= 0, "accept");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd;
}

static void talk(int a, int b) {
    meet_here(a, b);
}

static int control(int set, int operation, int fd, unsigned events) {
    return epoll_ctl(set, operation, fd, &(struct epoll_event){.events = events, .data.u64 = 77});
}

static void *write_late(void *fd) {
    poll(NULL, 0, 20);
    check(write(*(int *)fd, "x", 1) == 1, "write");
    return NULL;
}

static void waits(const char *what, int set, int a, int b) {
    struct epoll_event event;
    pthread_t writer;
    for (int i = 0; i < 10; i++) {
        check(epoll_wait(set, &event, 1, 0) == 0, "nothing");
        pthread_create(&writer, NULL, write_late, &b);
        check(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 77 && event.events == EPOLLIN, "bytes");
        pthread_join(writer, NULL);
        check(read(a, &(char){0}, 1) == 1, "read");
    }
    printf("%s: woken\n", what);
}

static void refused(const char *what, int result) { printf("%s: %d %s\n", what, result, strerror(errno)); }

static void exclusive(int a, int b) {
    int sets[2] = {epoll_create1(0), epoll_create1(0)};
    struct epoll_event event;
    for (int i = 0; i < 2; i++) check(control(sets[i], EPOLL_CTL_ADD, a, EPOLLIN | EPOLLEXCLUSIVE) == 0, "add");
    refused("again", control(sets[0], EPOLL_CTL_ADD, a, EPOLLIN));
    refused("change", control(sets[0], EPOLL_CTL_MOD, a, EPOLLIN));
    refused("change", control(sets[0], EPOLL_CTL_MOD, a, EPOLLIN | EPOLLEXCLUSIVE));
    talk(a, b);
    refused("change", control(sets[0], EPOLL_CTL_MOD, a, EPOLLIN));
    for (int i = 0; i < 2; i++) waits("exclusive", sets[i], a, b);
    check(control(sets[0], EPOLL_CTL_DEL, a, 0) == 0, "remove");
    refused("remove", control(sets[0], EPOLL_CTL_DEL, a, 0));
    check(control(sets[0], EPOLL_CTL_ADD, a, EPOLLIN) == 0, "add");
    waits("not exclusive", sets[0], a, b);
    check(control(sets[0], EPOLL_CTL_DEL, a, 0) == 0, "remove");
    check(control(sets[0], EPOLL_CTL_ADD, a, EPOLLIN | EPOLLOUT | EPOLLEXCLUSIVE) == 0, "add");
    check(epoll_wait(sets[0], &event, 1, -1) == 1 && event.events == EPOLLOUT, "room");
    check(control(sets[0], EPOLL_CTL_DEL, a, 0) == 0, "remove");
    check(control(sets[0], EPOLL_CTL_ADD, a, EPOLLIN | EPOLLET | EPOLLEXCLUSIVE) == 0, "add");
    waits("edge", sets[0], a, b);
    for (int i = 0; i < 2; i++) close(sets[i]);
}

/* Put into sets before it is connected, and changed before it is carried. */
static void early(int how) {
    int a = socket(AF_INET, SOCK_STREAM, 0), sets[3];
    struct epoll_event event;
    if (how == 1) fcntl(a, F_SETFL, O_NONBLOCK);
    for (int i = 0; i < 3; i++) {
        sets[i] = epoll_create1(0);
        check(control(sets[i], EPOLL_CTL_ADD, a, i == 1 ? EPOLLIN | EPOLLOUT | EPOLLET : EPOLLIN) == 0, "add");
    }
    check(control(sets[2], EPOLL_CTL_DEL, a, 0) == 0, "remove");
    check(epoll_wait(sets[0], &event, 1, 0) == 1 && event.events == EPOLLHUP, "it is not connected");
    check(control(sets[0], EPOLL_CTL_MOD, a, EPOLLIN | EPOLLPRI) == 0, "modify");
    if (how == 2) {
        int copy = dup(a);
        close(a);
        a = copy;
        /* The sets still have the number that was closed, which nobody can name any more. */
    }
    check(connect(a, (struct sockaddr *)&at, sizeof at) == 0 || errno == EINPROGRESS, "connect");
    int b = accepted();
    setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (how == 1) {
        check(poll(&(struct pollfd){.fd = a, .events = POLLOUT}, 1, -1) == 1, "connected");
        check(epoll_wait(sets[1], &event, 1, -1) == 1 && event.events & EPOLLOUT, "connected");
    }
    if (how < 2) check(control(sets[0], EPOLL_CTL_MOD, a, EPOLLIN) == 0, "modify");
    talk(a, b);
    pthread_t writer;
    for (int i = 0; i < 10; i++) {
        pthread_create(&writer, NULL, write_late, &b);
        check(epoll_wait(sets[0], &event, 1, -1) == 1 && event.data.u64 == 77 && event.events == EPOLLIN, "bytes");
        pthread_join(writer, NULL);
        check(epoll_wait(sets[1], &event, 1, -1) == 1 && event.events & EPOLLIN, "bytes by edge");
        check(epoll_wait(sets[1], &event, 1, 0) == 0, "reported already");
        check(epoll_wait(sets[2], &event, 1, 0) == 0, "removed");
        check(read(a, &(char){0}, 1) == 1, "read");
    }
    printf("early: woken\n");
    close(a);
    check(read(b, &(char){0}, 1) == 0, "the end");
    close(b);
    for (int i = 0; i < 3; i++) close(sets[i]);
}

int main(int count, char **arguments) {
    socklen_t length = sizeof at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 5) == 0, "listen");
    getsockname(listener, (struct sockaddr *)&at, &length);
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(60);
    int a = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(a, (struct sockaddr *)&at, sizeof at) == 0, "connect");
    int b = accepted();
    setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    exclusive(a, b);
    early(0);
    early(1);
    early(2);
    return 0;
}
