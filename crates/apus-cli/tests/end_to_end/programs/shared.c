/*
 * A connection that a process and its child have together, in the midst of streams.
 *
 *     shared kill-child|kill-parent    one of them is killed while it writes, and the other one goes on
 *     shared turns                     they write and read in turns
 *     shared at-once                   they write bytes at the same time
 *     shared namespace                 the same, and the child is in a namespace of its own for processes
 *     shared kept|closed               the child becomes a program, which has the descriptor or has it not
 */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include "link.h"
#include "meet.h"

enum { REST = 100000, CHUNK = 1000, TURNS = 200, BYTES = 20000 };

static char small(long position) { return 'a' + position % 23; }
static char large(long position) { return 'A' + position % 23; }

/* Writes until it is killed. */
static void write_on(int fd) {
    static char bytes[3000];
    for (long position = 0;; position += sizeof bytes) {
        for (int i = 0; i < sizeof bytes; i++) bytes[i] = small(position + i);
        write_all(fd, bytes, sizeof bytes);
    }
}

static void write_rest(int fd) {
    static char bytes[REST];
    for (int i = 0; i < REST; i++) bytes[i] = large(i);
    write_all(fd, bytes, REST);
}

static void read_byte(int fd) {
    char byte;
    check(read(fd, &byte, 1) == 1, "a pipe");
}

static void write_byte(int fd) { check(write(fd, "x", 1) == 1, "a pipe"); }

/* In turns: each writes a part of one stream, and reads a byte of the other one. */
static void take_turns(int fd, int first, int own, int other) {
    static char bytes[CHUNK];
    char byte;
    for (int turn = first; turn < TURNS; turn += 2) {
        if (turn > 0) read_byte(own);
        for (int i = 0; i < CHUNK; i++) bytes[i] = small((long)turn * CHUNK + i);
        write_all(fd, bytes, CHUNK);
        read_all(fd, &byte, 1);
        check(byte == large(turn), "a byte of the turn");
        if (turn + 1 < TURNS) write_byte(other);
    }
}

static void write_bytes(int fd, char byte) {
    for (int i = 0; i < BYTES; i++) write_all(fd, &byte, 1);
}

/* The process and its child. Reports the PIDs of both. The process that goes on waits for a byte in the pipe `go`. */
static void serve(const char *how, int listener, int numbers, int go) {
    int fd = accept(listener, NULL, NULL), turns[2][2], status;
    check(fd >= 0, "accept");
    meet(fd, 1);
    pipe(turns[0]), pipe(turns[1]);
    fflush(stdout);
    if (!strcmp(how, "namespace") && unshare(CLONE_NEWPID)) {
        printf("no namespace\n");
        exit(0);
    }
    pid_t pids[2] = {getpid(), fork()};
    int is_child = pids[1] == 0;
    if (!is_child) check(write(numbers, pids, sizeof pids) == sizeof pids, "a pipe");
    if (!strncmp(how, "kill", 4)) {
        int writes = is_child == !strcmp(how, "kill-child");
        if (writes) write_on(fd);
        read_byte(go);
        write_rest(fd);
        exit(0);
    }
    if (!strcmp(how, "turns")) take_turns(fd, is_child, turns[is_child][0], turns[!is_child][1]);
    if (!strcmp(how, "at-once") || !strcmp(how, "namespace")) write_bytes(fd, is_child ? 'c' : 'p');
    if (!strcmp(how, "kept") || !strcmp(how, "closed")) {
        char number[20];
        sprintf(number, "%d", how[0] == 'k' ? fd : -1);
        if (how[0] == 'c') fcntl(fd, F_SETFD, FD_CLOEXEC);
        if (is_child) {
            execl("/proc/self/exe", "shared", "program", number, NULL);
            _exit(1);
        }
        check(waitpid(pids[1], &status, 0) == pids[1] && status == 0, "the program");
        write_rest(fd);
    }
    if (!is_child && how[0] != 'k' && how[0] != 'c') check(waitpid(pids[1], &status, 0) == pids[1] && status == 0, "the child");
    exit(0);
}

int main(int count, char **arguments) {
    const char *how = arguments[1];
    if (!strcmp(how, "program")) {
        int fd = atoi(arguments[2]);
        char byte;
        if (fd < 0) return 0;
        write_all(fd, "from a program", 14);
        read_all(fd, &byte, 1);
        return byte != '!';
    }
    struct sockaddr_in at;
    int listener = listen_at(&at), numbers[2], go[2], status;
    pid_t pids[2];
    alarm(100);
    pipe(numbers), pipe(go);
    pid_t server = fork();
    if (server == 0) serve(how, listener, numbers[1], go[0]);
    int fd = connect_to(ntohs(at.sin_port));
    meet(fd, 0);
    close(numbers[1]);
    long got, all = 0, smalls = 0, larges = 0, ps = 0, cs = 0, wrong = 0;
    static char bytes[10000];
    if (read(numbers[0], pids, sizeof pids) != sizeof pids) return 0;
    if (!strcmp(how, "kept")) {
        read_all(fd, bytes, 14);
        check(!memcmp(bytes, "from a program", 14), "what the program says");
        write_all(fd, "!", 1);
    }
    if (!strcmp(how, "turns"))
        for (int turn = 0; turn < TURNS; turn++) {
            char byte = large(turn);
            write_all(fd, &byte, 1);
        }
    int is_killed = 0;
    while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0) {
        for (long i = 0; i < got; i++) {
            ps += bytes[i] == 'p', cs += bytes[i] == 'c';
            if (strstr(how, "at-once") || strstr(how, "namespace")) continue;
            if (!larges && bytes[i] == small(smalls)) smalls++;
            else wrong += bytes[i] != large(larges++);
        }
        all += got;
        if (!strncmp(how, "kill", 4) && !is_killed && all > 1000000) {
            is_killed = 1;
            kill(pids[!strcmp(how, "kill-child")], SIGKILL);
            poll(NULL, 0, 20);
            write_byte(go[1]);
        }
    }
    if (got < 0) printf("%s\n", strerror(errno));
    if (!strcmp(how, "at-once") || !strcmp(how, "namespace")) printf("%ld of one and %ld of the other\n", ps, cs);
    else if (!strcmp(how, "turns")) printf("%ld bytes, %ld wrong\n", smalls, wrong + larges);
    else printf("%s of the one, %ld of the other, %ld wrong\n", smalls > 0 ? "some" : "nothing", larges, wrong);
    waitpid(server, &status, 0);
    if (strncmp(how, "kill", 4)) check(status == 0, "the process");
    return 0;
}
