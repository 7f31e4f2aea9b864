/*
 * An epoll set that is passed to another process, or that a child has inherited, which waits in it or polls it. The other process was
 * there before there was any connection. Both ends of the connection are in this process. A wait that does not end is ended by SIGALRM.
 *
 *   passed [inherited]
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
#include <sys/wait.h>
#include <unistd.h>

#include "meet.h"

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "passed: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Passes a descriptor on, or receives one. */
static int pass(int channel, int fd) {
    char byte = 'x', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (fd < 0) {
        check(recvmsg(channel, &message, 0) == 1, "recvmsg");
        return *(int *)CMSG_DATA(CMSG_FIRSTHDR(&message));
    }
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    *(int *)CMSG_DATA(header) = fd;
    check(sendmsg(channel, &message, 0) == 1, "sendmsg");
    return fd;
}

int main(int count, char **arguments) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int channels[2], status, inherits = count > 1, set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77};
    alarm(30);
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, channels) == 0, "socketpair");
    pid_t other = fork();
    if (other == 0) {
        alarm(30);
        struct pollfd member = {.fd = set, .events = POLLIN};
        char byte;
        if (inherits) {
            check(read(channels[1], &byte, 1) == 1, "it is ready");
            printf("poll: %d", poll(&member, 1, -1));
            printf(" with %d\n", member.revents);
        } else {
            int passed = pass(channels[1], -1), count = epoll_wait(passed, &event, 1, -1);
            printf("the other process: %d with %d\n", count, (int)event.data.u64);
        }
        return 0;
    }
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 5) == 0, "listen");
    getsockname(listener, (struct sockaddr *)&at, &length);
    int a = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(a, (struct sockaddr *)&at, sizeof at) == 0, "connect");
    int b = accept(listener, NULL, NULL);
    setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(b, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    check(epoll_ctl(set, EPOLL_CTL_ADD, a, &event) == 0, "add");
    meet_here(a, b);
    if (inherits) {
        check(write(channels[0], "r", 1) == 1 && write(b, "x", 1) == 1, "write");
        while (waitpid(other, &status, WNOHANG) == 0) check(epoll_wait(set, &event, 1, 5) >= 0, "epoll_wait");
        check(status == 0, "the child");
        return 0;
    }
    pass(channels[0], set);
    check(write(b, "x", 1) == 1, "write");
    check(waitpid(other, &status, 0) == other && status == 0, "the other process");
    return 0;
}
