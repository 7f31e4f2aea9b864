/*
 * A signal handler forks while it interrupts a call, and returns in the child, so both processes go on with the call. A page of the
 * call's buffer cannot be touched: the handler of SIGSEGV makes it accessible and forks. If the kernel copies, the call fails with
 * EFAULT, and the program touches the page itself.
 *
 *     forked_calls first    the parent goes on once the child has ended
 *     forked_calls last     the child goes on once the parent has sent and received more
 *     forked_calls writes   the child writes to the connection before it goes on, and so does the parent
 */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "link.h"
#include "meet.h"

/* A message fits into a ring. */
enum { PAGE = 4096, PAGES = 6, MESSAGE = PAGES * PAGE, MORE = 4, NOTE = 300 };

static const char *how;
static char *buffer;
static int connection, go[2];
static volatile pid_t child;
static volatile int is_child;

static char of_stream(long position) { return 'a' + position % 23; }
static char of_child(long position) { return 'A' + position % 23; }

static void let_child_go(void) { check(write(go[1], "x", 1) == 1, "a pipe"); }

static void await_child(void) {
    int status;
    check(waitpid(child, &status, 0) == child, "waitpid");
    errno = 0;
    check(status == 0, "the child");
    child = 0;
}

static void handler(int signal, siginfo_t *about, void *context) {
    (void)signal, (void)context;
    int before = errno;
    char *page = (char *)((uintptr_t)about->si_addr & -PAGE);
    if (page < buffer || page >= buffer + MESSAGE) _exit(9);
    mprotect(page, PAGE, PROT_READ | PROT_WRITE);
    child = fork();
    if (child == 0) {
        char bytes[NOTE];
        is_child = 1;
        if (!strcmp(how, "last")) read(go[0], bytes, 1);
        if (!strcmp(how, "writes")) {
            for (int i = 0; i < NOTE; i++) bytes[i] = of_child(i);
            write_all(connection, bytes, NOTE);
        }
    } else if (!strcmp(how, "first")) {
        await_child();
    }
    errno = before;
}

/* The kernel has found the page that cannot be touched. */
static void touch(const char *at, size_t bytes) {
    check(errno == EFAULT, "a call");
    for (size_t i = 0; i < bytes; i += PAGE) (void)*(volatile const char *)(at + i);
    (void)*(volatile const char *)(at + bytes - 1);
}

/* A child ends after the call. */
static void end_child(int is_right) {
    if (is_child) _exit(!is_right);
}

static void send_message(long *position) {
    for (int i = 0; i < MESSAGE; i++) buffer[i] = of_stream(*position + i);
    *position += MESSAGE;
}

static void write_message(void) {
    for (size_t done = 0; done < MESSAGE;) {
        ssize_t now = write(connection, buffer + done, MESSAGE - done);
        end_child(now > 0);
        if (now < 0) touch(buffer + done, MESSAGE - done);
        end_child(1);
        done += now < 0 ? 0 : now;
    }
}

static int is_right(long position, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (buffer[i] != of_stream(position + i)) return 0;
    return 1;
}

static void read_message(long *position) {
    int there = 0;
    while (ioctl(connection, FIONREAD, &there) == 0 && there < MESSAGE) sched_yield();
    for (size_t done = 0; done < MESSAGE;) {
        ssize_t now = read(connection, buffer + done, MESSAGE - done);
        end_child(now > 0 && is_right(*position, done + now));
        if (now < 0) touch(buffer + done, MESSAGE - done);
        end_child(1);
        done += now < 0 ? 0 : now;
    }
    check(is_right(*position, MESSAGE), "bytes of a message");
    *position += MESSAGE;
}

/* Other messages, before and after the child has gone on. */
static void exchange(long positions[2], int messages) {
    for (int i = 0; i < messages; i++) {
        send_message(&positions[0]);
        write_message();
        check(write(connection, "\n", 1) == 1, "write");
        read_message(&positions[1]);
    }
}

static void end(long positions[2]) {
    exchange(positions, MORE);
    if (!child) return;
    if (!strcmp(how, "last")) let_child_go();
    await_child();
    exchange(positions, MORE);
}

static void forbid(int page) {
    check(!mprotect(buffer + page * PAGE, PAGE, PROT_NONE), "mprotect");
}

static void act(void) {
    long positions[2] = {0, 0};
    exchange(positions, MORE);
    for (int page = 0; page < PAGES; page++) {
        send_message(&positions[0]);
        forbid(page);
        write_message();
        check(write(connection, "\n", 1) == 1, "write");
        read_message(&positions[1]);
        end(positions);
    }
    printf("writes are whole\n");
    for (int page = 0; page < PAGES; page++) {
        send_message(&positions[0]);
        write_message();
        check(write(connection, "\n", 1) == 1, "write");
        forbid(page);
        read_message(&positions[1]);
        end(positions);
    }
    printf("reads are whole\n");
    int set = epoll_create1(0);
    struct epoll_event member = {.events = EPOLLIN, .data.u64 = 7}, *found = (struct epoll_event *)buffer;
    check(!epoll_ctl(set, EPOLL_CTL_ADD, connection, &member), "epoll_ctl");
    for (int turn = 0; turn < 2; turn++) {
        send_message(&positions[0]);
        write_message();
        check(write(connection, "\n", 1) == 1, "write");
        forbid(0);
        int count = epoll_wait(set, found, 1, -1);
        end_child(1);
        if (count < 0) touch(buffer, 1);
        end_child(1);
        if (count < 0) count = epoll_wait(set, found, 1, -1);
        check(count == 1 && found->events == EPOLLIN && found->data.u64 == 7, "epoll_wait");
        read_message(&positions[1]);
        end(positions);
    }
    printf("sets are right\n");
}

/* Answers each message, which a line feed ends, with another one. Bytes of children may be between its bytes. */
static void serve(int fd) {
    static char bytes[MESSAGE], answer[MESSAGE];
    long position = 0, noted = 0, answered = 0;
    for (ssize_t now; (now = read(fd, bytes, sizeof bytes)) > 0;) {
        for (ssize_t i = 0; i < now; i++) {
            errno = 0;
            if (bytes[i] == '\n') {
                check(position % MESSAGE == 0, "a message is not whole");
                for (int k = 0; k < MESSAGE; k++) answer[k] = of_stream(answered + k);
                answered += MESSAGE;
                write_all(fd, answer, MESSAGE);
            } else if (bytes[i] >= 'a') {
                check(bytes[i] == of_stream(position++), "a byte of a message");
            } else {
                check(bytes[i] == of_child(noted++ % NOTE), "a byte of a child");
            }
        }
    }
    int notes = strcmp(how, "writes") ? 0 : 2 * PAGES + 2;
    check(noted == notes * NOTE, "bytes of children");
    exit(0);
}

int main(int count, char **arguments) {
    struct sockaddr_in at;
    int listener = listen_at(&at), status;
    how = arguments[1];
    alarm(100);
    pid_t server = fork();
    if (server == 0) {
        int fd = accept(listener, NULL, NULL);
        check(fd >= 0, "accept");
        meet(fd, 1);
        serve(fd);
    }
    connection = connect_to(ntohs(at.sin_port));
    pipe(go);
    buffer = mmap(NULL, MESSAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    meet(connection, 0);
    act();
    shutdown(connection, SHUT_WR);
    check(waitpid(server, &status, 0) == server, "waitpid");
    errno = 0;
    check(status == 0, "the other end");
    return 0;
}
