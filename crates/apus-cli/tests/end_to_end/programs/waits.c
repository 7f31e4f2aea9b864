/*
 * Waits of several threads for one connection, which must end, and a wait for a member that fired once, which must not. Both ends of
 * each connection are in this process. With the argument `many`, a wait for one connection among hundreds of descriptors. Prints a line for each case; a wait that does not end is ended by SIGALRM.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

static int listener;

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "waits: %s: %s\n", what, strerror(errno));
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
}

/* Messages there and back, until the connection is carried if it ever is. */
static void talk(int a, int b) {
    char byte = 'x';
    for (int i = 0; i < 40; i++) {
        check(write(a, &byte, 1) == 1 && read(b, &byte, 1) == 1, "there");
        check(write(b, &byte, 1) == 1 && read(a, &byte, 1) == 1, "back");
        if (i >= 4 && i < 14) poll(NULL, 0, 1);
    }
}

static void *wait_for_room(void *fd) {
    struct pollfd member = {.fd = *(int *)fd, .events = POLLOUT};
    check(poll(&member, 1, -1) == 1 && member.revents & POLLOUT, "room");
    return NULL;
}

static void *wait_for_bytes(void *fd) {
    struct pollfd member = {.fd = *(int *)fd, .events = POLLIN};
    check(poll(&member, 1, -1) == 1 && member.revents & POLLIN, "bytes");
    return NULL;
}

/* One thread waits for room, others for bytes, while the peer has the connection return to TCP, where there is room. */
static void threads(void) {
    static char bytes[4096];
    int a, b;
    make_pair(&a, &b);
    talk(a, b);
    while (send(a, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    }
    pthread_t room, readers[2];
    pthread_create(&room, NULL, wait_for_room, &a);
    for (int i = 0; i < 2; i++) pthread_create(&readers[i], NULL, wait_for_bytes, &a);
    poll(NULL, 0, 2);
    setsockopt(b, SOL_SOCKET, SO_RCVLOWAT, &(int){1}, sizeof(int));
    fcntl(b, F_SETFL, O_NONBLOCK);
    while (recv(b, bytes, sizeof bytes, 0) > 0) {
    }
    pthread_join(room, NULL);
    check(write(b, "x", 1) == 1, "write");
    for (int i = 0; i < 2; i++) pthread_join(readers[i], NULL);
    close(a);
    close(b);
}

/* A member that fired once is not reported again before the program arms it, although the connection comes to be carried meanwhile. */
static void once(int edge) {
    int a, b, set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT | edge, .data.u64 = 77}, got;
    make_pair(&a, &b);
    check(epoll_ctl(set, EPOLL_CTL_ADD, a, &event) == 0, "add");
    check(write(b, "1", 1) == 1 && epoll_wait(set, &got, 1, -1) == 1, "the first");
    char byte;
    check(read(a, &byte, 1) == 1, "read");
    talk(a, b);
    check(write(b, "2", 1) == 1, "write");
    printf("not armed: %d\n", epoll_wait(set, &got, 1, 20));
    check(epoll_ctl(set, EPOLL_CTL_MOD, a, &event) == 0, "modify");
    printf("armed: %d", epoll_wait(set, &got, 1, -1));
    printf(" with %d\n", (int)got.data.u64);
    check(read(a, &byte, 1) == 1 && byte == '2', "the second");
    talk(a, b);
    check(write(b, "3", 1) == 1, "write");
    printf("not armed: %d\n", epoll_wait(set, &got, 1, 20));
    close(a);
    close(b);
    close(set);
}

enum { MANY = 300 };

static void *write_late(void *fd) {
    poll(NULL, 0, 20);
    check(write(*(int *)fd, "x", 1) == 1, "write");
    return NULL;
}

/* Waits for a connection among many other descriptors. */
static void many(void) {
    int a, b, ends[2];
    char byte;
    struct pollfd members[MANY];
    fd_set set;
    make_pair(&a, &b);
    talk(a, b);
    check(pipe(ends) == 0, "pipe");
    FD_ZERO(&set);
    for (int i = 0; i < MANY; i++) {
        members[i] = (struct pollfd){.fd = i == MANY - 7 ? a : dup(ends[0]), .events = POLLIN};
        FD_SET(members[i].fd, &set);
    }
    pthread_t writer;
    pthread_create(&writer, NULL, write_late, &b);
    check(poll(members, MANY, -1) == 1 && members[MANY - 7].revents == POLLIN, "poll");
    pthread_join(writer, NULL);
    check(read(a, &byte, 1) == 1, "read");
    check(poll(members, MANY, 5) == 0, "nothing");
    pthread_create(&writer, NULL, write_late, &b);
    check(select(FD_SETSIZE, &set, NULL, NULL, NULL) == 1 && FD_ISSET(a, &set), "select");
    pthread_join(writer, NULL);
    check(read(a, &byte, 1) == 1, "read");
    talk(a, b);
    printf("many: woken\n");
}

int main(int count, char **arguments) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 5) == 0, "listen");
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(60);
    if (count > 1 && !strcmp(arguments[1], "many")) {
        many();
        return 0;
    }
    once(0);
    once(EPOLLET);
    for (int i = 0; i < 30; i++) threads();
    printf("threads: all woken\n");
    return 0;
}
