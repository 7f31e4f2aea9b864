/*
 * Connections of programs whose limits are tight.
 *
 *     limits forks COUNT         a process for each connection, as postgres has it; connections are used until they are carried
 *     limits no-netlink PROGRAM ARGUMENTS...       without the system call that makes a netlink socket
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
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
    forks(atoi(arguments[2]));
    return 0;
}
