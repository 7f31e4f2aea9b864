/*
 * Processes that share a connection wait for it, in each way, while nothing comes, and use no processor meanwhile. Then all of them are
 * woken for what they wait for.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "link.h"
#include "meet.h"

static void on_alarm(int number) {}

static long processor_time(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

/* Waits until an alarm that comes again and again ends the wait, after half a second. Says how that ended. */
static void wait_idle(const char *who, int way, int fd, int set) {
    static const char *ways[] = {"recv", "poll", "epoll_wait"};
    long before = processor_time(), result;
    char byte;
    struct epoll_event event;
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = on_alarm}, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 100000}, {0, 500000}}, NULL);
    if (way == 0) result = recv(fd, &byte, 1, 0);
    if (way == 1) result = poll(&(struct pollfd){fd, POLLIN, 0}, 1, -1);
    if (way == 2) result = epoll_wait(set, &event, 1, -1);
    int error = errno;
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    printf("%s, %s: %ld %s, %s\n", who, ways[way], result, strerror(error), processor_time() - before < 200 ? "idle" : "BUSY");
    fflush(stdout);
}

static int new_set(int fd) {
    int set = epoll_create1(0);
    check(!epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN}), "epoll_ctl");
    return set;
}

int main(void) {
    struct sockaddr_in at;
    int listener = listen_at(&at), status;
    int a = connect_to(ntohs(at.sin_port)), b = accept(listener, NULL, NULL);
    meet_here(a, b);
    for (int way = 0; way < 3; way++) {
        int turn[2];
        char byte;
        pipe(turn);
        pid_t child = fork();
        if (child == 0) {
            int set = new_set(a);
            wait_idle("a child", way, a, set);
            check(write(turn[1], "x", 1) == 1, "write");
            /* It waits for bytes while the parent waits for room, and takes the wake-up. */
            read_all(a, &byte, 1);
            _exit(byte != 'y');
        }
        read(turn[0], &byte, 1);
        wait_idle("the parent", way, a, new_set(a));
        /* The parent waits for room; the other end reads, and then writes. */
        pid_t other = fork();
        if (other == 0) {
            static char room[1 << 20];
            poll(NULL, 0, 100);
            long all = 0, got;
            while (all < 12 << 20 && (got = recv(b, room, sizeof room, 0)) > 0) all += got;
            write_all(b, "y", 1);
            _exit(all != 12 << 20);
        }
        static char bytes[1 << 20];
        for (int i = 0; i < 12; i++) write_all(a, bytes, sizeof bytes);
        waitpid(other, &status, 0);
        int left = status;
        waitpid(child, &status, 0);
        printf("all have come: %x %x\n", left, status);
        fflush(stdout);
        close(turn[0]), close(turn[1]);
    }
    return 0;
}
