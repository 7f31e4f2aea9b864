/*
 * Options and calls that bytes in memory have to follow: SO_RCVLOWAT, TCP_INQ, recvmmsg, sendmmsg, preadv2, pwritev2, splice. Both ends
 * of each connection are in this process. Prints a line for each case; a wait that does not end is ended by SIGALRM.
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
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "meet.h"

#ifndef TCP_INQ
#define TCP_INQ 36
#endif

static int listener;

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "options: %s: %s\n", what, strerror(errno));
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

static void talk(int a, int b) {
    meet_here(a, b);
}

static void set(int fd, int level, int name, int value) { check(setsockopt(fd, level, name, &value, sizeof value) == 0, "an option"); }

static int least_fd;

static void *write_in_parts(void *fd) {
    for (int i = 0; i < 10; i++) {
        poll(NULL, 0, 2);
        check(write(*(int *)fd, "0123456789", 10) == 10, "write");
    }
    return NULL;
}

static void *lower_late(void *fd) {
    poll(NULL, 0, 20);
    set(*(int *)fd, SOL_SOCKET, SO_RCVLOWAT, 1);
    return NULL;
}

static int readable(int fd, int epoll) {
    struct pollfd member = {.fd = fd, .events = POLLIN};
    struct epoll_event event;
    struct timeval none = {0, 0};
    fd_set members;
    FD_ZERO(&members);
    FD_SET(fd, &members);
    return poll(&member, 1, 0) * 100 + select(fd + 1, &members, NULL, NULL, &none) * 10 + epoll_wait(epoll, &event, 1, 0);
}

static void low_water(int a, int b) {
    char bytes[256];
    pthread_t thread;
    int epoll = epoll_create1(0), value;
    socklen_t size = sizeof value;
    struct epoll_event event = {.events = EPOLLIN};
    check(epoll_ctl(epoll, EPOLL_CTL_ADD, a, &event) == 0, "add");
    set(a, SOL_SOCKET, SO_RCVLOWAT, 100);
    check(getsockopt(a, SOL_SOCKET, SO_RCVLOWAT, &value, &size) == 0, "the option");
    printf("least: %d, readable %03d", value, readable(a, epoll));
    check(write(b, bytes, 50) == 50, "write");
    printf(", with 50 %03d", readable(a, epoll));
    check(write(b, bytes, 50) == 50, "write");
    printf(", with 100 %03d", readable(a, epoll));
    printf(", read %zd", recv(a, bytes, 60, 0));
    printf(", with 40 %03d", readable(a, epoll));
    printf(", read without wait %zd\n", recv(a, bytes, 256, MSG_DONTWAIT));
    for (int how = 0; how < 4; how++) {
        struct pollfd member = {.fd = a, .events = POLLIN};
        fd_set members;
        FD_ZERO(&members);
        FD_SET(a, &members);
        pthread_create(&thread, NULL, write_in_parts, &b);
        if (how == 0) check(poll(&member, 1, -1) == 1, "poll");
        if (how == 1) check(select(a + 1, &members, NULL, NULL, NULL) == 1, "select");
        if (how == 2) check(epoll_wait(epoll, &event, 1, -1) == 1, "epoll_wait");
        printf("all parts: %zd\n", recv(a, bytes, 200, 0));
        pthread_join(thread, NULL);
    }
    check(write(b, bytes, 10) == 10, "write");
    pthread_create(&thread, NULL, lower_late, &a);
    struct pollfd member = {.fd = a, .events = POLLIN};
    check(poll(&member, 1, -1) == 1, "poll");
    pthread_join(thread, NULL);
    printf("lowered: %zd\n", recv(a, bytes, 200, 0));
    set(a, SOL_SOCKET, SO_RCVLOWAT, 100);
    check(write(b, bytes, 10) == 10 && shutdown(b, SHUT_WR) == 0, "the end");
    check(epoll_wait(epoll, &event, 1, -1) == 1, "the end");
    printf("before the end: %03d", readable(a, epoll));
    printf(", %zd", recv(a, bytes, 200, 0));
    printf(", %zd\n", recv(a, bytes, 200, 0));
    close(epoll);
}

/* Reads a message and prints the number of unread bytes that it reports. */
static void rest(int fd, size_t bytes, size_t room, int flags) {
    static char buffer[8192];
    char control[256] = {0};
    struct iovec part = {buffer, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room ? control : NULL, .msg_controllen = room};
    ssize_t result = recvmsg(fd, &message, flags);
    printf("%zd bytes, flags %x, control %zu", result, message.msg_flags, (size_t)message.msg_controllen);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && room >= CMSG_SPACE(sizeof(int)))
        printf(", level %d, type %d, rest %d", header->cmsg_level, header->cmsg_type, *(int *)CMSG_DATA(header));
    printf("\n");
}

static void rests(int a, int b) {
    static char bytes[4000];
    rest(a, 10, 128, MSG_DONTWAIT);
    check(write(b, bytes, sizeof bytes) == sizeof bytes, "write");
    rest(a, 1000, 128, 0);
    rest(a, 500, 128, MSG_PEEK);
    rest(a, 500, 0, 0);
    rest(a, 500, 8, 0);
    rest(a, 500, CMSG_LEN(sizeof(int)), 0);
    rest(a, 1000, 128, 0);
    rest(a, 8192, 128, 0);
    check(write(b, bytes, 100) == 100 && shutdown(b, SHUT_WR) == 0, "the end");
    check(poll(&(struct pollfd){.fd = a, .events = POLLRDHUP}, 1, 1000) >= 0, "poll");
    rest(a, 60, 128, 0);
    rest(a, 0, 128, 0);
    rest(a, 40, 128, 0);
    rest(a, 40, 128, 0);
    set(a, IPPROTO_TCP, TCP_INQ, 0);
    rest(a, 40, 128, 0);
}

static void many(int a, int b) {
    char bytes[4][8] = {"first ", "second ", "third ", "fourth "};
    struct iovec parts[4];
    struct mmsghdr messages[4] = {0};
    for (int i = 0; i < 4; i++) {
        parts[i] = (struct iovec){bytes[i], strlen(bytes[i])};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    }
    printf("sendmmsg: %d", sendmmsg(a, messages, 4, 0));
    for (int i = 0; i < 4; i++) printf(" %u", messages[i].msg_len);
    memset(bytes, 0, sizeof bytes);
    for (int i = 0; i < 4; i++) parts[i].iov_len = 7;
    printf("\nrecvmmsg: %d", recvmmsg(b, messages, 3, 0, NULL));
    for (int i = 0; i < 3; i++) printf(" %u %.7s,", messages[i].msg_len, bytes[i]);
    printf("\nthe rest: %d", recvmmsg(b, messages, 4, MSG_WAITFORONE, NULL));
    printf(" %u %.7s\n", messages[0].msg_len, bytes[0]);
    int result = recvmmsg(b, messages, 4, MSG_DONTWAIT, NULL);
    printf("nothing: %d %s\n", result, strerror(errno));
    check(write(a, "0123456789", 10) == 10, "write");
    struct timespec none = {0, 0};
    result = recvmmsg(b, messages, 4, 0, &none);
    printf("a time: %d, %u\n", result, messages[0].msg_len);
    check(recv(b, bytes, sizeof bytes, 0) == 3, "the rest");
    printf("none: %d %d\n", recvmmsg(b, messages, 0, 0, NULL), sendmmsg(a, messages, 0, 0));
}

static void vectors(int a, int b) {
    char bytes[32] = {0};
    struct iovec parts[2] = {{"one ", 4}, {"two", 3}}, to[2] = {{bytes, 3}, {bytes + 3, 20}};
    static char from[40][8], all[40][8];
    struct iovec forty[40];
    for (int i = 0; i < 40; i++) forty[i] = (struct iovec){memset(from[i], 'a' + i % 26, 8), 8};
    printf("of 40 parts: %zd", writev(a, forty, 40));
    for (int i = 0; i < 40; i++) forty[i].iov_base = all[i];
    printf(" %zd", readv(b, forty, 40));
    check(!memcmp(from, all, sizeof all) && writev(a, forty, 30) == 240, "parts");
    printf(", in part %zd\n", readv(b, forty, 40));
    printf("pwritev2: %zd", pwritev2(a, parts, 2, -1, 0));
    printf(", at an offset %zd", pwritev2(a, parts, 2, 5, 0));
    printf(" %s\n", strerror(errno));
    printf("preadv2: %zd %s", preadv2(b, to, 2, -1, 0), bytes);
    printf(", without wait %zd", preadv2(b, to, 2, -1, RWF_NOWAIT));
    printf(" %s", strerror(errno));
    printf(", at an offset %zd", preadv2(b, to, 2, 5, 0));
    printf(" %s", strerror(errno));
    printf(", wrong flags %zd", preadv2(b, to, 2, -1, 1 << 20));
    printf(" %s\n", strerror(errno));
}

static void *splice_late(void *fd) {
    poll(NULL, 0, 10);
    check(write(*(int *)fd, "late", 4) == 4, "write");
    return NULL;
}

static void splices(int a, int b) {
    int pipe_of[2];
    char bytes[64] = {0};
    static char block[60000], got[60000];
    pthread_t thread;
    check(pipe(pipe_of) == 0 && write(pipe_of[1], "from a pipe", 11) == 11, "pipe");
    printf("splice out: %zd", splice(pipe_of[0], NULL, a, NULL, 6, 0));
    printf(", %zd", splice(pipe_of[0], NULL, a, NULL, 100, SPLICE_F_MORE));
    printf(", %zd", splice(pipe_of[0], NULL, a, NULL, 100, SPLICE_F_NONBLOCK));
    printf(" %s", strerror(errno));
    printf(", read %zd %s\n", recv(b, bytes, 11, MSG_WAITALL), bytes);
    check(write(a, "into a pipe", 11) == 11, "write");
    printf("splice in: %zd", splice(b, NULL, pipe_of[1], NULL, 4, 0));
    printf(", %zd", splice(b, NULL, pipe_of[1], NULL, 100, 0));
    fcntl(b, F_SETFL, O_NONBLOCK);
    printf(", %zd", splice(b, NULL, pipe_of[1], NULL, 100, 0));
    printf(" %s", strerror(errno));
    fcntl(b, F_SETFL, 0);
    memset(bytes, 0, sizeof bytes);
    printf(", read %zd %s\n", read(pipe_of[0], bytes, sizeof bytes), bytes);
    pthread_create(&thread, NULL, splice_late, &a);
    printf("splice waits: %zd\n", splice(b, NULL, pipe_of[1], NULL, 100, 0));
    pthread_join(thread, NULL);
    check(read(pipe_of[0], bytes, sizeof bytes) == 4, "read");
    for (size_t i = 0; i < sizeof block; i++) block[i] = i * 7 % 251;
    for (int round = 0; round < 20; round++) {
        size_t out = 0, in = 0, read_bytes = 0;
        check(write(pipe_of[1], block, sizeof block) == sizeof block, "a pipe");
        while (out < sizeof block) {
            ssize_t now = splice(pipe_of[0], NULL, a, NULL, sizeof block - out, SPLICE_F_NONBLOCK);
            check(now > 0 || errno == EAGAIN, "splice out");
            if (now > 0) out += now;
            now = recv(b, got + in, sizeof got - in, MSG_DONTWAIT);
            if (now > 0) in += now;
        }
        while (in < sizeof got) in += recv(b, got + in, sizeof got - in, 0);
        check(!memcmp(block, got, sizeof got), "bytes out");
        for (in = 0; in < 20000; in += read_bytes) {
            check(in || write(a, block, 20000) == 20000, "write");
            ssize_t now = splice(b, NULL, pipe_of[1], NULL, 20000, 0);
            check(now > 0, "splice in");
            read_bytes = now;
            for (ssize_t done = 0, part; done < now; done += part)
                check((part = read(pipe_of[0], got + in + done, now - done)) > 0, "read");
        }
        check(!memcmp(block, got, 20000), "bytes in");
    }
    off_t offset = 0;
    printf("an offset: %zd", splice(pipe_of[0], NULL, a, &offset, 10, 0));
    printf(" %s", strerror(errno));
    printf(", no pipe %zd", splice(b, NULL, a, NULL, 10, 0));
    printf(" %s\n", strerror(errno));
    check(shutdown(a, SHUT_WR) == 0, "the end");
    printf("the end: %zd\n", splice(b, NULL, pipe_of[1], NULL, 100, 0));
}

int main(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static void (*const cases[])(int, int) = {low_water, rests, many, vectors, splices};
    listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 5) == 0, "listen");
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(60);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        int a, b;
        make_pair(&a, &b);
        /* Before it is carried and afterwards. */
        set(a, IPPROTO_TCP, TCP_INQ, cases[i] == rests);
        talk(a, b);
        cases[i](a, b);
        close(a);
        close(b);
    }
    return 0;
}
