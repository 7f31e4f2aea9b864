/*
 * Kills one end of a connection at a random moment, COUNT times, and checks what the other end sees: whole messages in order, then the
 * end of the stream or a reset, and nothing else. Half of the killed ends have accepted their connection, the others have made it.
 *
 *     kills COUNT SEED [times]
 *
 * Prints whether descriptors or mappings were left; with "times" also how the connections ended, and how long it took to see that.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 4096, SOME = 20 };

static uint64_t state;
static uint64_t words[WORDS];
static double killed_at;

static uint64_t next(void) {
    uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void fail(const char *what) {
    fprintf(stderr, "kills: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int listener(struct sockaddr_in *at) {
    socklen_t length = sizeof *at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(fd, (struct sockaddr *)at, length) || listen(fd, 5)) fail("listen");
    getsockname(fd, (struct sockaddr *)at, &length);
    return fd;
}

static int connected(const struct sockaddr_in *at) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (const struct sockaddr *)at, sizeof *at)) fail("connect");
    return fd;
}

/* Reads or writes all words of a message. 0: the other end is gone. */
static int whole(int fd, size_t count, int writes) {
    char *bytes = (char *)words;
    for (size_t done = 0, all = count * sizeof *words; done < all;) {
        ssize_t moved = writes ? send(fd, bytes + done, all - done, MSG_NOSIGNAL) : recv(fd, bytes + done, all - done, 0);
        if (moved <= 0) return 0;
        done += moved;
    }
    return 1;
}

/* Answers each message with a message of as many words, until it is killed. */
static void serve(int fd) {
    for (uint64_t number = 0; whole(fd, 2, 0); number++) {
        uint64_t count = words[1];
        if (words[0] != number || !whole(fd, count - 2, 0)) break;
        words[0] = number;
        for (uint64_t i = 1; i < count; i++) words[i] = number + i;
        if (!whole(fd, count, 1)) break;
    }
    _exit(9);
}

static void *killer(void *child) {
    struct timespec pause = {0, next() % 3000000};
    nanosleep(&pause, NULL);
    killed_at = now();
    kill(*(pid_t *)child, SIGKILL);
    return NULL;
}

/* Talks until the end. 0: the stream ended, or the error. */
static int talk(int fd, pid_t child) {
    pthread_t thread;
    int kills = 0;
    for (uint64_t number = 0;; number++) {
        uint64_t count = 2 + next() % (next() % 8 ? 100 : WORDS - 2);
        words[0] = number;
        words[1] = count;
        int sent = whole(fd, count, 1);
        if (number == SOME) kills = !pthread_create(&thread, NULL, killer, &child);
        errno = 0;
        if (!sent || !whole(fd, count, 0)) {
            int error = errno;
            if (!sent) { // What it has answered before can be read.
                errno = 0;
                while (recv(fd, words, sizeof words, 0) > 0) {
                }
                error = errno;
            }
            if (!kills) fail("the end came too early");
            pthread_join(thread, NULL);
            return error;
        }
        if (words[0] != number) fail("a message is out of order");
        for (uint64_t i = 1; i < count; i++)
            if (words[i] != number + i) fail("a message has other words");
        if (number < SOME && number % 4 == 3) poll(NULL, 0, 1);
    }
}

static int count_of(const char *path) {
    DIR *directory = opendir(path);
    int count = 0;
    while (readdir(directory)) count++;
    closedir(directory);
    return count;
}

static int mapped(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;
    while (fgets(line, sizeof line, maps)) count += strstr(line, "memfd") != NULL;
    fclose(maps);
    return count;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a - *(const double *)b;
    return x < 0 ? -1 : x > 0;
}

int main(int count, char **arguments) {
    int kills = count > 1 ? atoi(arguments[1]) : 100, ended = 0, reset = 0;
    state = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    double *took = calloc(kills, sizeof *took);
    int descriptors = 0;
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < kills; i++) {
        if (i == 10) descriptors = count_of("/proc/self/fd");
        struct sockaddr_in at;
        int listens = listener(&at), accepts = next() % 2;
        pid_t child = fork();
        if (child == 0) {
            serve(accepts ? accept(listens, NULL, NULL) : connected(&at));
        }
        int fd = accepts ? connected(&at) : accept(listens, NULL, NULL);
        if (fd < 0) fail("accept");
        int error = talk(fd, child);
        took[i] = now() - killed_at;
        if (error != 0 && error != ECONNRESET) {
            errno = error;
            fail("another error than a reset");
        }
        ended += error == 0;
        reset += error != 0;
        close(fd);
        close(listens);
        waitpid(child, NULL, 0);
    }
    for (int tries = 0; tries < 100 && (mapped() > 0 || count_of("/proc/self/fd") > descriptors); tries++) poll(NULL, 0, 10);
    qsort(took, kills, sizeof *took, by_size);
    if (count > 3)
        printf("%d ended, %d reset; seen after %.2f ms (median), %.2f (99.9 %%), %.2f at most\n", ended, reset, took[kills / 2] * 1e3,
               took[kills * 999 / 1000] * 1e3, took[kills - 1] * 1e3);
    printf("%d killed, %d descriptors too many, %d mappings left\n", kills,
           kills > 10 && count_of("/proc/self/fd") > descriptors ? count_of("/proc/self/fd") - descriptors : 0, mapped());
    return 0;
}
