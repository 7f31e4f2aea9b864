/*
 * Small calls beside bulk transfers between hosts, over plain TCP sockets. One process runs on each host.
 *
 *     sockets-between-hosts HOST HOSTS PREFIX PORT START WARMUP SECONDS BULK_KBPS CALLS
 *
 * The process is host number HOST of HOSTS, whose addresses are PREFIX followed by 1, 2, ... It accepts at PORT. From second START of
 * the clock on, it
 *
 * - calls the other hosts, all together CALLS times a second on average, with 100 bytes each way;
 * - sends messages of 500,000 bytes to each other host, BULK_KBPS kilobits a second to all together on average. The receiver answers each
 *   with a byte.
 *
 * Calls and messages are due at random moments (Poisson) and count from the moment at which they are due. Those that are due after WARMUP
 * and within SECONDS seconds are printed: a line `call MICROSECONDS` or `bulk MICROSECONDS` for each.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CALL = 100, BULK = 500000 };

static int host, hosts, port;
static const char *prefix;
static double start, warmup, seconds, bulk_rate, call_rate;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void until(double moment) {
    struct timespec time = {(time_t)moment, (long)((moment - floor(moment)) * 1e9)};
    while (clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &time, NULL) == EINTR) {}
}

static double gap(unsigned short *state, double rate) { return -log(1 - erand48(state)) / rate; }

static int all(int fd, char *bytes, size_t count, int writes) {
    for (size_t done = 0; done < count;) {
        ssize_t now = writes ? write(fd, bytes + done, count - done) : read(fd, bytes + done, count - done);
        if (now <= 0) return 0;
        done += now;
    }
    return 1;
}

static void *serve(void *argument) {
    int fd = (int)(intptr_t)argument;
    char kind, *bytes = malloc(BULK);
    if (all(fd, &kind, 1, 0)) {
        size_t count = kind == 'c' ? CALL : BULK;
        while (all(fd, bytes, count, 0) && all(fd, bytes, kind == 'c' ? CALL : 1, 1)) {}
    }
    free(bytes);
    close(fd);
    return NULL;
}

static void *accept_all(void *argument) {
    int listener = (int)(intptr_t)argument;
    for (;;) {
        int fd = accept(listener, NULL, NULL), on = 1;
        pthread_t thread;
        if (fd < 0) continue;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd);
        pthread_detach(thread);
    }
}

static int connected(int to, char kind) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    char text[32];
    snprintf(text, sizeof text, "%s%d", prefix, to + 1);
    address.sin_addr.s_addr = inet_addr(text);
    for (int tries = 0; tries < 200; tries++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
        if (!connect(fd, (void *)&address, sizeof address)) {
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            if (all(fd, &kind, 1, 1)) return fd;
        }
        close(fd);
        usleep(50000);
    }
    fprintf(stderr, "host %d: cannot reach %s\n", host, text);
    exit(1);
}

static void report(const char *kind, double due) {
    if (due >= start + warmup && due < start + warmup + seconds) printf("%s %.0f\n", kind, (now() - due) * 1e6);
}

/* Those that are late may find that the other end has gone. */
static int is_over(const char *what, int to) {
    if (now() > start + warmup + seconds) return 1;
    fprintf(stderr, "host %d: the %s to %d has ended: %s\n", host, what, to, strerror(errno));
    exit(1);
}

static void *send_bulk(void *argument) {
    int to = (int)(intptr_t)argument, fd = connected(to, 'b');
    unsigned short state[3] = {host, to, 1};
    char *bytes = calloc(1, BULK);
    for (double due = start; (due += gap(state, bulk_rate)) < start + warmup + seconds;) {
        until(due);
        if ((!all(fd, bytes, BULK, 1) || !all(fd, bytes, 1, 0)) && is_over("stream", to)) break;
        report("bulk", due);
    }
    return NULL;
}

static void *call(void *argument) {
    int to = (int)(intptr_t)argument, fd = connected(to, 'c');
    unsigned short state[3] = {host, to, 2};
    char bytes[CALL] = {0};
    for (double due = start; (due += gap(state, call_rate)) < start + warmup + seconds;) {
        until(due);
        if ((!all(fd, bytes, CALL, 1) || !all(fd, bytes, CALL, 0)) && is_over("connection", to)) break;
        report("call", due);
    }
    return NULL;
}

int main(int count, char **arguments) {
    struct sockaddr_in any = {.sin_family = AF_INET};
    pthread_t thread, acceptor;
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (count != 10) return 2;
    signal(SIGPIPE, SIG_IGN);
    host = atoi(arguments[1]), hosts = atoi(arguments[2]), prefix = arguments[3], port = atoi(arguments[4]);
    start = atof(arguments[5]), warmup = atof(arguments[6]), seconds = atof(arguments[7]);
    bulk_rate = atof(arguments[8]) * 1000 / 8 / BULK / (hosts - 1), call_rate = atof(arguments[9]) / (hosts - 1);
    any.sin_port = htons(port);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&any, sizeof any) || listen(listener, 100)) return perror("listen"), 1;
    pthread_create(&acceptor, NULL, accept_all, (void *)(intptr_t)listener);
    for (int to = 0; to < hosts; to++) {
        if (to == host) continue;
        pthread_create(&thread, NULL, send_bulk, (void *)(intptr_t)to);
        pthread_create(&thread, NULL, call, (void *)(intptr_t)to);
    }
    until(start + warmup + seconds + 2); /* What is not done by then is not counted. */
    fflush(stdout);
    _exit(0);
}
