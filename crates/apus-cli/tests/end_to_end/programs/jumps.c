/*
 * Leaves calls by siglongjmp from the handler of an alarm, as programs do that have no other time limit: JUMPS times each. Then the same
 * calls do what they do plain, connections close, children go on with them, and programs have them.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "link.h"
#include "meet.h"

static sigjmp_buf back;
static volatile sig_atomic_t is_armed;
static int jumps;

static void on_alarm(int number) {
    if (is_armed) siglongjmp(back, 1);
}

static void set_timer(int microseconds) {
    struct itimerval timer = {{0, microseconds ? 300 : 0}, {0, microseconds}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

struct call {
    const char *name;
    int fd, set;
};

static long make(const struct call *of) {
    char bytes[100] = {0};
    fd_set read;
    struct epoll_event event;
    switch (of->name[0] == 's' ? of->name[2] : of->name[0]) {
    case 'r': return of->name[2] == 'c' ? recv(of->fd, bytes, 1, 0) : recv(of->fd, bytes, 100, MSG_WAITALL);
    case 'p': return poll(&(struct pollfd){of->fd, POLLIN, 0}, 1, -1);
    case 'l':
        FD_ZERO(&read);
        FD_SET(of->fd, &read);
        return select(of->fd + 1, &read, NULL, NULL, NULL);
    case 'e': return epoll_wait(of->set, &event, 1, -1);
    case 'm': {
        /* More members than fit on a small stack. */
        struct pollfd members[200];
        for (int i = 0; i < 200; i++) members[i] = (struct pollfd){i % 3 ? -1 : of->fd, POLLIN, 0};
        return poll(members, 200, -1);
    }
    default: return send(of->fd, bytes, 1, MSG_NOSIGNAL);
    }
}

/* The same from deeper down the stack. */
static __attribute__((noinline)) long make_deeper(const struct call *of, int bytes) {
    volatile char *room = alloca(bytes + 1);
    room[0] = room[bytes] = 1;
    long result = make(of);
    return result + (room[0] - room[bytes]);
}

/* Leaves a call `times` times, from any depth and after any time. Returns the number of calls that returned a result instead. */
static int leave(const struct call *call, int times) {
    static int results;
    static volatile int left;
    static unsigned random;
    results = 0;
    for (left = times; left > 0; left--) {
        if (sigsetjmp(back, 1) == 0) {
            random = random * 1103515245 + 12345;
            is_armed = 1;
            set_timer(20 + (random >> 16) % 180);
            long result = random >> 30 ? make(call) : make_deeper(call, (random >> 8) % 5000);
            is_armed = 0;
            results++;
        }
        is_armed = 0;
    }
    set_timer(0);
    return results;
}

static void *write_late(void *of) {
    poll(NULL, 0, 5);
    write_all(*(int *)of, "x", 1);
    return NULL;
}

static void open_pair(int listener, struct sockaddr_in *at, int ends[2]) {
    ends[0] = connect_to(ntohs(at->sin_port));
    ends[1] = accept(listener, NULL, NULL);
    check(ends[1] >= 0, "accept");
    meet_here(ends[0], ends[1]);
}

static int count_descriptors(void) {
    DIR *all = opendir("/proc/self/fd");
    int count = 0;
    check(all != NULL, "/proc/self/fd");
    while (readdir(all)) count++;
    closedir(all);
    return count;
}

/* A call that waits gets what comes late, and one that does not wait says so. */
static void use(const char *when, int fd, int peer, int set) {
    pthread_t thread;
    char byte = 0;
    struct epoll_event event = {0};
    fd_set read;
    long none = recv(fd, &byte, 1, MSG_DONTWAIT);
    printf("%s: %ld %s", when, none, none < 0 && errno == EAGAIN ? "EAGAIN" : "");
    pthread_create(&thread, NULL, write_late, &peer);
    long polled = poll(&(struct pollfd){fd, POLLIN, 0}, 1, -1);
    pthread_join(thread, NULL);
    FD_ZERO(&read);
    FD_SET(fd, &read);
    long selected = select(fd + 1, &read, NULL, NULL, NULL), waited = set < 0 ? 0 : epoll_wait(set, &event, 1, -1);
    long got = recv(fd, &byte, 1, 0);
    pthread_create(&thread, NULL, write_late, &peer);
    long late = recv(fd, &byte, 1, 0);
    pthread_join(thread, NULL);
    printf(", poll %ld, select %ld, epoll %ld %d, recv %ld %ld\n", polled, selected, waited, (int)event.data.u64, got, late);
    fflush(stdout);
}

int main(int count, char **arguments) {
    if (count > 2 && !strcmp(arguments[1], "program")) {
        char byte = 0;
        long got = recv(atoi(arguments[2]), &byte, 1, 0);
        printf("a program: %ld %c, ", got, byte);
        printf("sent %ld\n", (long)send(atoi(arguments[2]), "y", 1, MSG_NOSIGNAL));
        return 0;
    }
    jumps = count > 1 ? atoi(arguments[1]) : 5000;
    static int ends[2], set, before, status;
    static char full[1 << 16], byte;
    struct sockaddr_in at;
    int listener = listen_at(&at);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = on_alarm}, NULL);

    /* What the library has once it has carried a connection. */
    open_pair(listener, &at, ends);
    close(ends[0]), close(ends[1]);
    set = epoll_create1(0);
    poll(NULL, 0, 300);
    before = count_descriptors();

    static const char *names[] = {"recv", "read all", "poll", "select", "many", "epoll_wait", "send"};
    for (int i = 0; i < 7; i++) {
        open_pair(listener, &at, ends);
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
        epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event);
        static struct call call;
        call = (struct call){names[i], ends[0], set};
        if (i == 6) {
            while (send(ends[0], full, sizeof full, MSG_DONTWAIT | MSG_NOSIGNAL) > 0 || poll(&(struct pollfd){ends[0], POLLOUT, 0}, 1, 100) > 0) {}
            int sent = leave(&call, jumps);
            /* All bytes are read until none comes. */
            for (int idle = 0; idle < 3;) {
                long got = recv(ends[1], full, sizeof full, MSG_DONTWAIT);
                if (got > 0) idle = 0;
                else poll(NULL, 0, 30), idle++;
            }
            use("send, the way back", ends[0], ends[1], set);
            use("send", ends[1], ends[0], -1);
        } else {
            int results = leave(&call, jumps);
            printf("%s: %d results, ", names[i], results);
            use("then", ends[0], ends[1], set);
        }
        /* A child leaves calls as well, and goes on with the connection. */
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            call.name = i % 2 ? "recv" : "poll";
            int results = leave(&call, 20);
            printf("a child: %d results, ", results);
            use("then", ends[0], ends[1], -1);
            _exit(0);
        }
        waitpid(child, &status, 0);
        check(status == 0, "the child's status");
        /* A program that the child becomes has it. */
        child = fork();
        if (child == 0) {
            char number[20];
            sprintf(number, "%d", ends[0]);
            execl("/proc/self/exe", "jumps", "program", number, NULL);
            _exit(1);
        }
        write_all(ends[1], "z", 1);
        read_all(ends[1], &byte, 1);
        waitpid(child, &status, 0);
        check(status == 0, "the program's status");
        close(ends[0]);
        check(recv(ends[1], &byte, 1, 0) == 0, "the end");
        close(ends[1]);
    }
    int now = 0;
    for (int i = 0; i < 100 && (now = count_descriptors()) != before; i++) poll(NULL, 0, 50);
    printf("descriptors: %d too many\n", now - before);
    return 0;
}
