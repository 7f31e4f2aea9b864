/* Waits in an epoll set, and says how each wait ended. `stay`: afterwards it stays until its input ends.

   Each line of a wait has its result, errno if it failed, and whether it lasted at least as long as it should. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t signals;
static atomic_int is_over;
static pthread_t waiter;

static void on_signal(int number) { signals += number == SIGUSR1; }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void *send_signal(void *argument) {
    (void)argument;
    do {
        usleep(30000); /* Many waits of 1 ms are over then. A signal that came before the wait is followed by another one. */
        pthread_kill(waiter, SIGUSR1);
    } while (!is_over);
    return NULL;
}

static void *send_byte(void *argument) {
    usleep(30000);
    if (write(*(int *)argument, "x", 1) != 1) perror("write");
    return NULL;
}

static void ended(const char *what, int result, double since, double at_least) {
    int number = errno;
    double time = now() - since;
    printf("%s: %d %s %s\n", what, result, result < 0 ? strerrorname_np(number) : number == 4711 ? "kept" : "changed",
           time >= at_least ? "late enough" : "too early");
}

int main(int argc, char **argv) {
    int set = epoll_create1(EPOLL_CLOEXEC), old = epoll_create(1), ends[2];
    struct epoll_event event = {.events = EPOLLIN}, found;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigset_t usr1, none;
    pthread_t thread;
    double since;
    if (pipe(ends) || epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) || old < 0) return 1;
    sigaction(SIGUSR1, &action, NULL);
    sigemptyset(&none);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    waiter = pthread_self();

#define WAIT(what, at_least, call) (errno = 4711, since = now(), ended(what, call, since, at_least))
    WAIT("no time", 0, epoll_wait(set, &found, 1, 0));
    WAIT("20 ms", 20, epoll_wait(set, &found, 1, 20));
    WAIT("2.5 ms", 2.5, epoll_pwait2(set, &found, 1, &(struct timespec){0, 2500000}, NULL));
    WAIT("0.3 ms", 0.3, epoll_pwait2(set, &found, 1, &(struct timespec){0, 300000}, NULL));
    WAIT("no time at all", 0, epoll_pwait2(set, &found, 1, &(struct timespec){0, -1}, NULL));
    WAIT("no room", 0, epoll_wait(set, &found, 0, -1));
    WAIT("no set", 0, epoll_wait(ends[0], &found, 1, -1));

    pthread_create(&thread, NULL, send_signal, NULL);
    WAIT("signal", 0, epoll_wait(set, &found, 1, -1));
    is_over = 1;
    pthread_join(thread, NULL);
    printf("signals came: %d\n", signals > 0);

    signals = 0;
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    pthread_create(&thread, NULL, send_signal, NULL);
    WAIT("signal that is blocked", 60, epoll_wait(set, &found, 1, 60));
    pthread_join(thread, NULL);
    printf("signals: %d\n", (int)signals);
    WAIT("signal that waits", 0, epoll_pwait(set, &found, 1, -1, &none));
    printf("signals: %d\n", (int)signals);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    printf("mask: usr1 %d usr2 %d\n", sigismember(&mask, SIGUSR1), sigismember(&mask, SIGUSR2));

    pthread_create(&thread, NULL, send_byte, &ends[1]);
    WAIT("event", 0, epoll_wait(set, &found, 1, -1));
    pthread_join(thread, NULL);
    fflush(stdout);
    if (argc > 1 && !strcmp(argv[1], "stay")) {
        char byte;
        while (read(0, &byte, 1) > 0) {}
    }
    return 0;
}
