/*
 * Connections of programs whose limits are tight.
 *
 *     limits forks COUNT         a process for each connection, as postgres has it; connections are used until they are carried
 *     limits many COUNT          COUNT connections of two processes, each with several messages
 *     limits one-process COUNT   COUNT connections of a process that can start no thread
 *     limits no-netlink PROGRAM ARGUMENTS...       without the system call that makes a netlink socket
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "link.h"
#include "meet.h"

static void forks(int count) {
    struct sockaddr_in at;
    int listener = listen_at(&at), status;
    if (!fork()) {
        for (int i = 0; i < count; i++) {
            int fd = connect_to(ntohs(at.sin_port));
            meet(fd, 0);
            close(fd);
        }
        exit(0);
    }
    for (int i = 0; i < count; i++) {
        int fd = accept(listener, NULL, NULL);
        check(fd >= 0, "accept");
        if (!fork()) {
            close(listener);
            meet(fd, 1);
            check(read(fd, &(char){0}, 1) == 0, "the end");
            exit(0);
        }
        close(fd);
    }
    while (wait(&status) > 0) check(status == 0, "a child");
    printf("%d connections: right\n", count);
}

/* Rounds of messages, so that all connections may come to be carried. */
static void talk(const int *fds, int count, int serves) {
    for (int round = 0; round < 15; round++)
        for (int i = 0; i < count; i++) {
            char byte = 0, mine = 'a' + (i + round) % 23;
            if (!serves) write_all(fds[i], &mine, 1);
            read_all(fds[i], &byte, 1);
            check(byte == mine, "a byte");
            if (serves) write_all(fds[i], &mine, 1);
        }
}

static void many(int count) {
    struct sockaddr_in at;
    int listener = listen_at(&at), status, *fds = malloc(count * sizeof *fds);
    pid_t child = fork();
    for (int i = 0; i < count; i++) {
        fds[i] = child ? accept(listener, NULL, NULL) : connect_to(ntohs(at.sin_port));
        check(fds[i] >= 0, "a connection");
    }
    talk(fds, count, child != 0);
    if (child == 0) exit(0);
    check(wait(&status) == child && status == 0, "the child");
    for (int i = 0; i < count; i++) check(read(fds[i], &(char){0}, 1) == 0, "the end");
    printf("%d connections: right\n", count);
}

static void *nothing(void *of) { return of; }

static void one_process(int count) {
    struct sockaddr_in at;
    pthread_t thread;
    check(!setrlimit(RLIMIT_NPROC, &(struct rlimit){1, 1}), "setrlimit");
    check(pthread_create(&thread, NULL, nothing, NULL) == EAGAIN, "a thread");
    int listener = listen_at(&at);
    for (int i = 0; i < count; i++) {
        int a = connect_to(ntohs(at.sin_port)), b = accept(listener, NULL, NULL);
        char bytes[1000] = {0}, got[1000];
        for (int j = 0; j < 200; j++) {
            memset(bytes, 'a' + (i + j) % 23, sizeof bytes);
            write_all(j % 2 ? a : b, bytes, sizeof bytes);
            read_all(j % 2 ? b : a, got, sizeof got);
            check(!memcmp(bytes, got, sizeof got), "bytes");
        }
        close(a);
        check(read(b, got, 1) == 0, "the end");
        close(b);
    }
    printf("%d connections: right\n", count);
}

static void refuse_netlink(void) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    check(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), "seccomp");
}

int main(int count, char **arguments) {
    check(count > 2, "arguments");
    if (!strcmp(arguments[1], "no-netlink")) {
        refuse_netlink();
        execvp(arguments[2], arguments + 2);
        check(0, "exec");
    }
    alarm(100);
    int number = atoi(arguments[2]);
    if (!strcmp(arguments[1], "many")) many(number);
    else if (!strcmp(arguments[1], "one-process")) one_process(number);
    else forks(number);
    return 0;
}
