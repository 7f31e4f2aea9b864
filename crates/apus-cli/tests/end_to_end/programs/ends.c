/*
 * What the ends of a connection see of each other, case by case. The client is this process and the server is a child. Both first
 * exchange so many bytes that the connection is carried, if it can be. What is printed must be the same plain and under `apus run`.
 *
 *     ends                      both on this host
 *     ends NAMESPACE IP         the server in another network namespace (a file), with that address
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "meet.h"

static char buffer[100000];

static void say(const char *what, long result) {
    printf("  %s = %ld%s%s\n", what, result, result < 0 ? " " : "", result < 0 ? strerrorname_np(errno) : "");
    fflush(stdout);
}

static void put(int fd, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t now = write(fd, buffer, bytes - done);
        if (now <= 0) return;
        done += now;
    }
}

/* Reads until the end, and says how many bytes there were and how it ended. */
static void drain(int fd) {
    long all = 0;
    ssize_t now;
    while ((now = read(fd, buffer, sizeof buffer)) > 0) all += now;
    printf("  read %ld bytes, then ", all);
    say("read", now);
}

/* Waits for the other end to have done something, without sound of the connection itself. */
static int step[2];
static void done(void) { if (write(step[1], "x", 1) != 1) exit(1); }
static void await(void) { char byte; if (read(step[0], &byte, 1) != 1) exit(1); }

static void killed_after_writing(int fd, int serves) {
    if (serves) { put(fd, 5000); raise(SIGKILL); }
    drain(fd);
}

static void killed_without_reading(int fd, int serves) {
    if (serves) { await(); raise(SIGKILL); }
    put(fd, 100);
    done();
    drain(fd);
}

static void closed_without_reading(int fd, int serves) {
    if (serves) { await(); put(fd, 10); close(fd); _exit(0); }
    put(fd, 100);
    done();
    drain(fd);
}

static void half_closed(int fd, int serves) {
    if (serves) { put(fd, 3000); shutdown(fd, SHUT_WR); drain(fd); _exit(0); }
    drain(fd);
    put(fd, 70000);
    shutdown(fd, SHUT_WR);
}

static void reset(int fd, int serves) {
    if (serves) {
        struct linger now = {1, 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(fd);
        _exit(0);
    }
    drain(fd);
}

static void looked_at(int fd, int serves) {
    if (serves) { put(fd, 4000); await(); put(fd, 4000); await(); _exit(0); }
    int waiting = 0;
    struct pollfd member = {fd, POLLIN | POLLOUT, 0};
    poll(&member, 1, -1);
    say("recv(PEEK)", recv(fd, buffer, 10, MSG_PEEK));
    say("recv(WAITALL)", recv(fd, buffer, 4000, MSG_WAITALL));
    say("ioctl", ioctl(fd, FIONREAD, &waiting));
    say("waiting", waiting);
    say("recv(DONTWAIT)", recv(fd, buffer, 10, MSG_DONTWAIT));
    struct timeval time = {0, 20000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    say("recv within a time", recv(fd, buffer, 10, 0));
    time.tv_usec = 0; /* The other end may be slow. */
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    done();
    member.events = POLLIN;
    say("poll", poll(&member, 1, 5000));
    say("revents", member.revents);
    long all = 0;
    for (ssize_t now; all < 4000 && (now = read(fd, buffer, 4000)) > 0;) all += now;
    say("all", all);
    done();
    drain(fd);
}

static void watched(int fd, int serves) {
    if (serves) { await(); put(fd, 100); await(); put(fd, 100); await(); _exit(0); }
    struct epoll_event event = {EPOLLIN | EPOLLET, {.u64 = 5}}, got = {0};
    int set = epoll_create1(0);
    say("add", epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    say("add again", epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    say("nothing", epoll_wait(set, &got, 1, 0));
    done();
    say("an edge", epoll_wait(set, &got, 1, 5000));
    say("events", got.events);
    say("data", got.data.u64);
    say("no second edge", epoll_wait(set, &got, 1, 10));
    event.events = EPOLLIN | EPOLLONESHOT;
    say("modify", epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    say("once", epoll_wait(set, &got, 1, 5000));
    say("not twice", epoll_wait(set, &got, 1, 10));
    say("armed", epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    say("once more", epoll_wait(set, &got, 1, 5000));
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP;
    say("read", read(fd, buffer, 1000));
    say("level", epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    say("writable", epoll_wait(set, &got, 1, 5000));
    say("events", got.events);
    say("remove", epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    say("remove again", epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    event.events = EPOLLIN;
    say("add", epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    done();
    say("bytes", epoll_wait(set, &got, 1, 5000));
    say("read", read(fd, buffer, 1000));
    done();
    say("the end", epoll_wait(set, &got, 1, 5000));
    drain(fd);
    close(set);
}

static void selected(int fd, int serves) {
    if (serves) { await(); put(fd, 100); drain(fd); _exit(0); }
    fd_set reads, writes;
    struct timeval time = {5, 0};
    FD_ZERO(&reads);
    FD_ZERO(&writes);
    FD_SET(fd, &reads);
    FD_SET(fd, &writes);
    say("select", select(fd + 1, &reads, &writes, NULL, &time));
    say("is readable", FD_ISSET(fd, &reads));
    say("is writable", FD_ISSET(fd, &writes) != 0);
    done();
    FD_ZERO(&reads);
    FD_SET(fd, &reads);
    say("select", select(fd + 1, &reads, NULL, NULL, NULL));
    say("read", read(fd, buffer, 1000));
    shutdown(fd, SHUT_WR);
    drain(fd);
}

static void forked(int fd, int serves) {
    if (serves) {
        put(fd, 1000);
        if (fork() == 0) { put(fd, 500); _exit(0); }
        wait(NULL);
        put(fd, 250);
        drain(fd);
        _exit(0);
    }
    shutdown(fd, SHUT_WR);
    drain(fd);
}

static void another_program(int fd, int serves) {
    if (serves) {
        dup2(fd, 0);
        dup2(fd, 1);
        close(fd);
        execlp("cat", "cat", NULL);
        _exit(1);
    }
    put(fd, 30000);
    shutdown(fd, SHUT_WR);
    drain(fd);
}

static void passed_on(int fd, int serves) {
    if (serves) {
        int pair[2];
        char control[CMSG_SPACE(sizeof fd)] = {0};
        struct iovec part = {"x", 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) exit(1);
        put(fd, 100);
        if (fork() == 0) {
            close(fd);
            if (recvmsg(pair[1], &message, 0) != 1) _exit(1);
            memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
            put(fd, 200);
            _exit(0);
        }
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(rights), &fd, sizeof fd);
        sendmsg(pair[0], &message, 0);
        wait(NULL);
        put(fd, 300);
        _exit(0);
    }
    drain(fd);
}

static void all_closed(int fd, int serves) {
    if (serves) { put(fd, 700); await(); close_range(3, ~0u, 0); for (int i = 3; i < 2000; i++) close(i); pause(); }
    done();
    drain(fd);
    kill(0 - getpgrp(), 0);
}

static void duplicated(int fd, int serves) {
    if (serves) {
        int other = dup(fd), third = dup2(fd, 900);
        close(fd);
        put(other, 300);
        close(other);
        put(third, 400);
        drain(third);
        close(third);
        _exit(0);
    }
    shutdown(fd, SHUT_WR);
    drain(fd);
}

/* A connection of this process: its two ends. */
static void connection(int ends[2]) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, size) || listen(listener, 1) || getsockname(listener, (void *)&address, &size)) exit(1);
    if (connect(ends[0], (void *)&address, size)) exit(1);
    ends[1] = accept(listener, NULL, NULL);
    close(listener);
}

/* Another connection takes the descriptor, whose own one is closed with bytes that were not read. */
static void replaced(int fd, int serves) {
    if (serves) {
        int ends[2];
        connection(ends);
        await();
        if (dup2(ends[0], fd) != fd) exit(1);
        await();
        put(fd, 10);
        close(ends[0]);
        close(fd);
        drain(ends[1]);
        _exit(0);
    }
    put(fd, 100);
    done();
    drain(fd);
    done();
}

/* The same by calls of which a library sees only the second. */
static void closed_unseen(int fd, int serves) {
    if (serves) {
        int ends[2], filler;
        while ((filler = dup(0)) < fd) {} /* No lower number is free. */
        close(filler);
        await();
        syscall(SYS_close, fd);
        connection(ends);
        say("the same number", ends[0] == fd);
        put(ends[0], 10);
        close(ends[0]);
        drain(ends[1]);
        _exit(0);
    }
    put(fd, 100);
    done();
}

static const struct { const char *name; void (*run)(int, int); } CASES[] = {
    {"killed after it wrote", killed_after_writing}, {"killed before it read", killed_without_reading},
    {"closed before it read", closed_without_reading}, {"half closed", half_closed}, {"reset", reset}, {"looked at", looked_at},
    {"watched by epoll", watched}, {"watched by select", selected}, {"forked", forked}, {"another program", another_program},
    {"passed on", passed_on}, {"all closed", all_closed}, {"duplicated", duplicated}, {"replaced", replaced},
    {"closed unseen", closed_unseen},
};

static void enter(int namespace) {
    if (namespace >= 0 && setns(namespace, CLONE_NEWNET)) {
        perror("setns");
        exit(1);
    }
}

int main(int count, char **arguments) {
    int here = count == 3 ? open("/proc/self/ns/net", O_RDONLY) : -1, there = count == 3 ? open(arguments[1], O_RDONLY) : -1;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof address;
        if (count == 3) address.sin_addr.s_addr = inet_addr(arguments[2]);
        enter(there);
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        enter(here);
        if (bind(listener, (void *)&address, size) || listen(listener, 1) || pipe(step)) return 1;
        getsockname(listener, (void *)&address, &size);
        printf("%s\n", CASES[i].name);
        fflush(stdout);
        pid_t server = fork();
        if (server == 0) {
            enter(there);
            int fd = accept(listener, NULL, NULL);
            close(listener);
            meet(fd, 1);
            CASES[i].run(fd, 1);
            _exit(0);
        }
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (void *)&address, size)) return 1;
        meet(fd, 0);
        CASES[i].run(fd, 0);
        close(fd);
        kill(server, SIGCONT);
        if (CASES[i].run == all_closed) kill(server, SIGKILL);
        waitpid(server, NULL, 0);
        close(listener);
        close(step[0]);
        close(step[1]);
    }
    return 0;
}
