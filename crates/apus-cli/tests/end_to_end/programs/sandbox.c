/*
 * A program that allows itself only the system calls that it makes itself: any other one kills it. Both ends of each connection are in
 * this process.
 *
 *   sandbox before|after seccomp|prctl|wrapper [tsync]
 *
 * The filter comes before the first connection or after it, by syscall(SYS_seccomp), syscall(SYS_prctl) or the function prctl. Prints a
 * line for each step.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "meet.h"

static const int allowed[] = {
    SYS_read,    SYS_write, SYS_recvfrom, SYS_sendto,     SYS_socket,       SYS_connect, SYS_accept,    SYS_getsockname,
    SYS_close,   SYS_poll,  SYS_pselect6, SYS_epoll_wait, SYS_epoll_create1, SYS_epoll_ctl, SYS_exit_group, SYS_setsockopt,
    SYS_dup,     SYS_clone, SYS_wait4,    SYS_set_robust_list, SYS_rt_sigprocmask, SYS_gettid, SYS_futex, SYS_rseq,
};

static int listener;

static void check(int holds, const char *what) {
    if (holds) return;
    dprintf(2, "sandbox: %s: %s\n", what, strerror(errno));
    _exit(1);
}

static void say(const char *text) { check(write(1, text, strlen(text)) > 0, "write"); }

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

static void talk(int a, int b, int set) {
    char byte = 'x';
    for (int i = 0; i < 40; i++) {
        struct epoll_event event;
        struct pollfd member = {.fd = b, .events = POLLIN};
        fd_set members;
        FD_ZERO(&members);
        FD_SET(b, &members);
        check(send(a, &byte, 1, 0) == 1, "send");
        check(epoll_wait(set, &event, 1, -1) == 1 && event.data.fd == b, "epoll_wait");
        check(poll(&member, 1, -1) == 1 && select(b + 1, &members, NULL, NULL, NULL) == 1, "poll, select");
        check(recv(b, &byte, 1, 0) == 1, "there");
        check(write(b, &byte, 1) == 1 && read(a, &byte, 1) == 1, "back");
        if (i >= 4 && i < 14) poll(NULL, 0, 1);
    }
}

static void lock_in(const char *how, int tsync) {
    enum { N = sizeof allowed / sizeof *allowed };
    struct sock_filter program[2 * N + 2];
    int at = 0;
    program[at++] = (struct sock_filter){BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)};
    for (int i = 0; i < N; i++) {
        program[at++] = (struct sock_filter){BPF_JMP | BPF_JEQ | BPF_K, 0, 1, allowed[i]};
        program[at++] = (struct sock_filter){BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    }
    program[at++] = (struct sock_filter){BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS};
    struct sock_fprog filter = {at, program};
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    if (!strcmp(how, "wrapper")) check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0, "filter");
    if (!strcmp(how, "prctl")) check(syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0, "filter");
    if (!strcmp(how, "seccomp"))
        check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, tsync ? SECCOMP_FILTER_FLAG_TSYNC : 0, &filter) == 0, "filter");
}

int main(int count, char **arguments) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int is_before = !strcmp(arguments[1], "before"), set = epoll_create1(0), outer = epoll_create1(0), a = -1, b = -1, c, d, status;
    struct epoll_event event = {.events = EPOLLIN}, got;
    alarm(30);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 5) == 0, "listen");
    /* A library asks the kernel what it knows, which restricts nothing. */
    check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) == -1 && errno == EFAULT, "a question");
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) == -1 && errno == EFAULT, "a question");
    event.data.fd = set;
    check(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event) == 0, "add");
    if (!is_before) {
        make_pair(&a, &b);
        meet_here(a, b);
        event.data.fd = b;
        check(epoll_ctl(set, EPOLL_CTL_ADD, b, &event) == 0, "add");
        talk(a, b, set);
        say("talked before\n");
        check(send(a, "y", 1, 0) == 1, "send");
    }
    lock_in(arguments[2], count > 3);
    say("locked in\n");
    if (!is_before) {
        char byte = 0;
        check(epoll_wait(outer, &got, 1, -1) == 1 && got.data.fd == set, "outer");
        check(recv(b, &byte, 1, 0) == 1 && byte == 'y', "what was sent before");
        talk(a, b, set);
    }
    make_pair(&c, &d);
    event.data.fd = d;
    check(epoll_ctl(set, EPOLL_CTL_ADD, d, &event) == 0, "add");
    talk(c, d, set);
    say("talked\n");
    pid_t child = fork();
    if (child == 0) {
        talk(c, d, set);
        _exit(7);
    }
    check(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7, "child");
    close(dup(c));
    close(c);
    check(recv(d, &(char){0}, 1, 0) == 0, "end");
    say("ended\n");
    return 0;
}
