/*
 * Connections that end while the other end is looked for, each before one that lasts longer and whose bytes are checked. Eight threads
 * make them, and other connections stay open. The other end of each is in this process. Two threads compute all the time, so that the
 * others are interrupted at any place.
 *
 *     brief COUNT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS = 8, OPEN = 60 };

static int listener, count = 100;
static struct sockaddr_in at;

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "brief: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void start(void *(*run)(void *), void *argument, pthread_t *thread) {
    check(pthread_create(thread, NULL, run, argument) == 0, "pthread_create");
}

static void *compute(void *nothing) {
    for (volatile unsigned i = 0;; i++) {}
    return nothing;
}

static void *answer(void *socket) {
    int fd = (int)(long)socket;
    unsigned word;
    ssize_t got;
    while ((got = read(fd, &word, sizeof word)) == sizeof word)
        check(write(fd, &word, sizeof word) == sizeof word, "write of the server");
    check(got == 0, "read of the server");
    close(fd);
    return NULL;
}

static void *serve(void *nothing) {
    for (pthread_t thread;;) {
        int fd = accept(listener, NULL, NULL);
        check(fd >= 0, "accept");
        start(answer, (void *)(long)fd, &thread);
        pthread_detach(thread);
    }
    return nothing;
}

static int talk(unsigned messages) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(fd, (struct sockaddr *)&at, sizeof at) == 0, "connect");
    for (unsigned i = 0, word; i < messages; i++) {
        word = i;
        check(write(fd, &word, sizeof word) == sizeof word, "write of a client");
        errno = 0;
        check(read(fd, &word, sizeof word) == sizeof word, "read of a client");
        check(word == i, "another word");
    }
    return fd;
}

static void *call(void *number) {
    unsigned state = (unsigned)(long)number;
    for (int i = 0; i < count; i++) {
        int brief = talk(4 + rand_r(&state) % 3);
        struct timespec pause = {0, rand_r(&state) % 2000000};
        if (rand_r(&state) % 2) nanosleep(&pause, NULL);
        close(brief);
        close(talk(40));
    }
    return NULL;
}

int main(int arguments, char **argument) {
    socklen_t length = sizeof at;
    pthread_t thread, clients[CLIENTS];
    if (arguments > 1) count = atoi(argument[1]);
    at.sin_family = AF_INET, at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 100) == 0, "listen");
    getsockname(listener, (struct sockaddr *)&at, &length);
    start(serve, NULL, &thread);
    for (int i = 0; i < OPEN; i++) talk(10);
    for (int i = 0; i < 2; i++) start(compute, NULL, &thread);
    alarm(100);
    for (long i = 0; i < CLIENTS; i++) start(call, (void *)(i + 1), &clients[i]);
    for (int i = 0; i < CLIENTS; i++) pthread_join(clients[i], NULL);
    printf("%d connections, all bytes right\n", 2 * count * CLIENTS);
    return 0;
}
