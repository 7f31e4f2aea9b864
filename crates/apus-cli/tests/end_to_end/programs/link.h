/* What the programs of run_trust.rs have in common: connections over the loopback interface, whole messages, and reasons to fail. */
#ifndef LINK_H
#define LINK_H
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "[%d]: %s: %s\n", getpid(), what, strerror(errno));
    exit(1);
}

/* The address of an end, by the name of a variable; the loopback address without it. */
static in_addr_t ip_of(const char *variable) {
    const char *text = getenv(variable);
    return text ? inet_addr(text) : htonl(INADDR_LOOPBACK);
}

static in_port_t port_in(const char *variable) {
    const char *text = getenv(variable);
    return htons(text ? atoi(text) : 0);
}

/* A listener at SERVER_IP and SERVER_PORT, or at a port that the system chooses. */
static int listen_at(struct sockaddr_in *at) {
    socklen_t length = sizeof *at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = ip_of("SERVER_IP"), .sin_port = port_in("SERVER_PORT")};
    check(!bind(fd, (struct sockaddr *)at, length) && !listen(fd, 1000), "listen");
    getsockname(fd, (struct sockaddr *)at, &length);
    return fd;
}

static int connect_to(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = ip_of("SERVER_IP"), .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    check(fd >= 0 && !connect(fd, (struct sockaddr *)&at, sizeof at), "connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void write_all(int fd, const void *bytes, size_t count) {
    for (size_t done = 0; done < count;) {
        ssize_t now = send(fd, (const char *)bytes + done, count - done, MSG_NOSIGNAL);
        check(now > 0, "write");
        done += now;
    }
}

static void read_all(int fd, void *bytes, size_t count) {
    for (size_t done = 0; done < count;) {
        ssize_t now = recv(fd, (char *)bytes + done, count - done, 0);
        if (now == 0) errno = 0;
        check(now > 0, "read");
        done += now;
    }
}
#endif
