/*
 * A signal handler writes records to a connection while it interrupts calls that write other records there. The reader, another thread,
 * checks that all records are whole, and that those of each writer are in order.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { RECORDS = 400000 };

/* Of 24 bytes: a ring has room for a part of one now and then. */
struct record {
    uint64_t writer, number, check;
};

static int a, b;
static volatile uint64_t handled, failed;
static volatile int why;
static uint64_t seen[2];

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "handlers: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Writes a record. */
static int put(uint64_t writer, uint64_t number) {
    struct record record = {writer, number, ~number};
    return write(a, &record, sizeof record) == sizeof record;
}

static void handler(int signal) {
    (void)signal;
    int before = errno;
    int done = put(1, handled);
    handled += done;
    failed += !done;
    if (!done) why = errno;
    errno = before;
}

static void *reader(void *nothing) {
    struct record record;
    for (;;) {
        size_t done = 0;
        while (done < sizeof record) {
            ssize_t now = read(b, (char *)&record + done, sizeof record - done);
            if (now < 0 && errno == EINTR) continue;
            check(now >= 0 && (now > 0 || done == 0), "read");
            if (now == 0) return nothing;
            done += now;
        }
        check(record.check == ~record.number, "a record is not whole");
        check(record.writer < 2 && record.number == seen[record.writer], "a record is out of order");
        seen[record.writer]++;
    }
}

int main(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(!bind(listener, (struct sockaddr *)&at, sizeof at) && !listen(listener, 5), "listen");
    getsockname(listener, (struct sockaddr *)&at, &length);
    a = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(a, (struct sockaddr *)&at, sizeof at) == 0, "connect");
    b = accept(listener, NULL, NULL);
    check(b >= 0, "accept");
    alarm(60);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGVTALRM);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, reader, NULL);
    sigaction(SIGVTALRM, &action, NULL);
    sigprocmask(SIG_UNBLOCK, &signals, NULL);
    setitimer(ITIMER_VIRTUAL, &(struct itimerval){{0, 500}, {0, 500}}, NULL);
    for (uint64_t i = 0; i < RECORDS; i++) {
        while (!put(0, i)) check(errno == EINTR || errno == EAGAIN, "write");
        if (i < 20) poll(NULL, 0, 1);
    }
    uint64_t more = handled + 3;
    for (uint64_t i = RECORDS; handled < more; i++) check(put(0, i), "write");
    setitimer(ITIMER_VIRTUAL, &(struct itimerval){0}, NULL);
    shutdown(a, SHUT_WR);
    pthread_join(thread, NULL);
    check(seen[0] >= RECORDS, "records are missing");
    errno = why;
    check(failed == 0, "a handler could not write");
    check(seen[1] == handled, "records of the handler are missing");
    printf("all records arrived in order\n");
    return 0;
}
