/*
 * Readiness that epoll, poll and select report is real. A server answers requests and closes each connection after some of them, in turns
 * with bytes on their way or none, and half closes. The client reads at each report, and prints the number of reads that found nothing.
 *
 *   announced [SEED]
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
#include <sys/wait.h>
#include <unistd.h>

enum { CONNECTIONS = 60, REQUESTS = 300, ANSWER = 300 };

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "announced: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void serve(int listener) {
    for (int i = 0; i < CONNECTIONS; i++) {
        char bytes[ANSWER] = {0};
        int fd = accept(listener, NULL, NULL);
        check(fd >= 0, "accept");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        for (int request = 0; request < REQUESTS; request++) {
            if (recv(fd, bytes, 1, 0) != 1) break;
            /* In parts, so that the client may find some of them. */
            for (int part = 0; part < 3; part++) check(send(fd, bytes, ANSWER / 3, 0) == ANSWER / 3, "answer");
        }
        if (i % 3 == 1) {
            shutdown(fd, SHUT_WR);
            while (recv(fd, bytes, sizeof bytes, 0) > 0) {
            }
        }
        if (i % 3 == 2) poll(NULL, 0, 1);
        close(fd);
    }
}

/* Waits until the socket is reported as readable. */
static void wait_for(int fd, int set, int how) {
    struct epoll_event event;
    struct pollfd member = {.fd = fd, .events = POLLIN};
    fd_set members;
    FD_ZERO(&members);
    FD_SET(fd, &members);
    if (how == 0) check(epoll_wait(set, &event, 1, -1) == 1, "epoll_wait");
    if (how == 1) check(poll(&member, 1, -1) == 1, "poll");
    if (how == 2) check(select(fd + 1, &members, NULL, NULL, NULL) == 1, "select");
}

int main(int count, char **arguments) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    static const char *names[] = {"epoll", "poll", "select"};
    alarm(60);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 64) == 0, "listen");
    getsockname(listener, (struct sockaddr *)&at, &length);
    pid_t server = fork();
    if (server == 0) {
        serve(listener);
        return 0;
    }
    close(listener);
    int empty[3] = {0}, ends = 0, errors = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        int how = i % 3, fd = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0), is_over = 0;
        check(connect(fd, (struct sockaddr *)&at, sizeof at) == 0, "connect");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        fcntl(fd, F_SETFL, O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN};
        check(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "add");
        for (int request = 0; !is_over; request++) {
            char bytes[ANSWER];
            if (request < REQUESTS) check(send(fd, "?", 1, MSG_NOSIGNAL) == 1, "request");
            for (int got = 0; got < ANSWER && !is_over;) {
                wait_for(fd, set, how);
                ssize_t now = recv(fd, bytes, sizeof bytes, 0);
                if (now > 0) got += now;
                if (now < 0 && errno == EAGAIN) empty[how]++;
                if (now < 0 && errno != EAGAIN) errors++;
                is_over = now == 0 || now < 0 && errno != EAGAIN;
                ends += now == 0;
            }
        }
        close(fd);
        close(set);
    }
    int status;
    waitpid(server, &status, 0);
    for (int how = 0; how < 3; how++) printf("%s: %d times nothing\n", names[how], empty[how]);
    printf("%d ends, %d errors, server %d\n", ends, errors, status);
    return 0;
}
