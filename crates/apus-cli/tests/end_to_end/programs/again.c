/*
 * Forks while a connection is carried. It is with TCP as long as a child has it, and is carried again when none has it any more. Both
 * ends check every byte; the end that serves waits with epoll. In plain TCP the output is the same, but for the last word of each line.
 *
 *     again
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "meet.h"

static unsigned char count_of_client, count_of_server;
static unsigned char left[5000]; /* what the server writes before it closes */

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "again[%d]: %s\n", getpid(), what);
    exit(1);
}

/* Echoes messages of two bytes by epoll: a kind, and the number after the one before. At 'F' the server forks, and at 'E' the child
 * ends. At 'C' it writes some bytes, and closes the connection before they are read. */
static void serve(int fd, int edges) {
    int set = epoll_create1(EPOLL_CLOEXEC), pipes[2] = {-1, -1};
    struct epoll_event event = {EPOLLIN | (edges ? EPOLLET : 0), {.u64 = 77}};
    fcntl(fd, F_SETFL, O_NONBLOCK);
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    for (;;) {
        check(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 77, "an event");
        unsigned char bytes[100];
        ssize_t got;
        while ((got = read(fd, bytes, sizeof bytes)) > 0) {
            for (ssize_t i = 0; i < got; i += 2) {
                if (got - i < 2) check(read(fd, bytes + got, 1) == 1, "half a message");
                check(bytes[i + 1] == count_of_server++, "a byte is wrong");
                if (pipes[1] >= 0 && bytes[i] == 'E') {
                    close(pipes[1]);
                    pipes[1] = -1;
                    wait(NULL);
                }
                if (bytes[i] == 'F') {
                    check(!pipe2(pipes, O_CLOEXEC), "pipe");
                    if (fork() == 0) {
                        close(pipes[1]);
                        _exit(read(pipes[0], bytes, 1) != 0);
                    }
                    close(pipes[0]);
                }
                check(write(fd, bytes + i, 2) == 2, "write");
                if (bytes[i] == 'C') {
                    check(write(fd, left, sizeof left) == sizeof left, "write");
                    close(fd);
                    exit(0);
                }
            }
        }
        if (got == 0) exit(0);
    }
}

static void ask(int fd, char kind) {
    unsigned char message[2] = {kind, count_of_client++}, answer[2] = {0};
    check(write(fd, message, 2) == 2, "write");
    for (ssize_t done = 0; done < 2;) {
        ssize_t now = read(fd, answer + done, 2 - done);
        check(now > 0, "read");
        done += now;
    }
    check(!memcmp(message, answer, 2), "an answer is wrong");
}

/* Whether the connection is carried; with `waits`, it is waited for, for 20 seconds at most. */
static int is_carried(int fd, int waits) {
    time_t until = time(NULL) + 20;
    for (;;) {
        uint64_t before = by_tcp(fd);
        for (int i = 0; i < 300; i++) ask(fd, '.');
        if (by_tcp(fd) == before) return 1;
        if (!waits || !getenv("MEETS") || time(NULL) > until) return 0;
    }
}

enum { NOW, SOON };

static void say(int fd, const char *when, int waits) {
    printf("%s: %s\n", when, is_carried(fd, waits) ? "carried" : "by TCP");
    fflush(stdout);
}

struct child {
    pid_t process;
    int until; /* closed, it has the child end */
};

/* A child that does something and then waits. It has done it, or has become a program, when this returns. */
static struct child forked(void (*work)(int), int fd) {
    int started[2], until[2];
    check(!pipe2(started, O_CLOEXEC) && !pipe2(until, O_CLOEXEC), "pipe");
    struct child child = {.process = fork(), .until = until[1]};
    if (child.process == 0) {
        close(until[1]);
        work(fd);
        check(write(started[1], "", 1) == 1, "write");
        close(started[1]);
        _exit(read(until[0], (char[1]){0}, 1) != 0);
    }
    close(started[1]);
    close(until[0]);
    check(read(started[0], (char[1]){0}, 1) >= 0, "read");
    close(started[0]);
    return child;
}

static void end(struct child child) {
    close(child.until);
    kill(child.process, SIGKILL);
    check(waitpid(child.process, NULL, 0) == child.process, "wait");
}

static void only_waits(int fd) { (void)fd; }

static void uses_it(int fd) {
    for (int i = 0; i < 50; i++) ask(fd, '.');
}

static void forks_and_ends(int fd) {
    (void)fd;
    if (fork() != 0) _exit(0);
}

static void becomes_a_program(int fd) {
    dup2(fd, 0);
    execlp("sleep", "sleep", "100", NULL);
    _exit(1);
}

static void becomes_a_program_without_it(int fd) {
    (void)fd;
    execlp("sleep", "sleep", "100", NULL);
    _exit(1);
}

/* The server closes the connection, whose last bytes nobody has read. A child reads them. */
static void read_in_a_child(int fd, pid_t server) {
    int status;
    ask(fd, 'C');
    check(waitpid(server, &status, 0) == server && status == 0, "the server");
    pid_t child = fork();
    if (child == 0) {
        size_t all = 0;
        ssize_t now;
        while ((now = read(fd, left, sizeof left)) > 0) all += now;
        _exit(now != 0 || all != sizeof left);
    }
    check(waitpid(child, &status, 0) == child && status == 0, "the child did not find what the server has left");
}

static void client(int fd, pid_t server) {
    say(fd, "at the beginning", SOON);

    struct child child = forked(only_waits, fd), other;
    say(fd, "a child has it", NOW);
    end(child);
    say(fd, "the child has ended", SOON);

    child = forked(uses_it, fd);
    count_of_client += 50;
    end(child);
    say(fd, "a child has used it", SOON);

    child = forked(only_waits, fd);
    other = forked(only_waits, fd);
    end(child);
    say(fd, "one of two children has ended", NOW);
    end(other);
    say(fd, "both have ended", SOON);

    child = forked(forks_and_ends, fd);
    check(waitpid(child.process, NULL, 0) == child.process, "wait");
    say(fd, "a child of a child has it", NOW);
    close(child.until);
    say(fd, "it has ended", SOON);

    child = forked(becomes_a_program, fd);
    say(fd, "a program has it", NOW);
    end(child);
    say(fd, "the program has ended", SOON);

    check(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0, "fcntl");
    child = forked(becomes_a_program_without_it, fd);
    say(fd, "a program does not have it", SOON);
    end(child);

    ask(fd, 'F');
    say(fd, "a child of the server has it", NOW);
    ask(fd, 'E');
    say(fd, "that child has ended", SOON);
    read_in_a_child(fd, server);
    close(fd);
}

int main(void) {
    alarm(200);
    for (int edges = 0; edges < 2; edges++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof at;
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        check(!bind(listener, (void *)&at, sizeof at) && !listen(listener, 1), "listen");
        getsockname(listener, (void *)&at, &length);
        pid_t server = fork();
        if (server == 0) serve(accept(listener, NULL, NULL), edges);
        close(listener);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        check(!connect(fd, (void *)&at, sizeof at), "connect");
        count_of_client = 0;
        client(fd, server);
    }
    return 0;
}
