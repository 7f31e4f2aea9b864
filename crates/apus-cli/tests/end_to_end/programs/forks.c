/*
 * Forks while eight threads use connections, whose two ends are in this process, and checks every byte. A child ends at once, becomes
 * another program, or uses the connection that the main thread has.
 *
 *     forks COUNT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, MOST = 20000 };

static atomic_int over;

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "forks[%d]: %s: %s\n", getpid(), what, strerror(errno));
    exit(1);
}

static void make_pair(int *a, int *b) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(!bind(listener, (struct sockaddr *)&at, sizeof at) && !listen(listener, 5), "listen");
    getsockname(listener, (struct sockaddr *)&at, &length);
    *a = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(*a, (struct sockaddr *)&at, sizeof at) == 0, "connect");
    *b = accept(listener, NULL, NULL);
    check(*b >= 0, "accept");
    close(listener);
}

static void through(int from, int to, unsigned char *bytes, size_t count, unsigned char first) {
    for (size_t i = 0; i < count; i++) bytes[i] = first + i;
    for (size_t done = 0; done < count;) {
        ssize_t now = write(from, bytes + done, count - done);
        check(now > 0, "write");
        done += now;
    }
    memset(bytes, 0, count);
    for (size_t done = 0; done < count;) {
        ssize_t now = read(to, bytes + done, count - done);
        check(now > 0, "read");
        done += now;
    }
    for (size_t i = 0; i < count; i++) check(bytes[i] == (unsigned char)(first + i), "a byte is wrong");
}

static void *busy(void *seed) {
    unsigned state = (unsigned)(size_t)seed;
    unsigned char *bytes = malloc(MOST);
    while (!over) {
        int a, b;
        make_pair(&a, &b);
        for (int i = 0; i < 200 && !over; i++) {
            through(a, b, bytes, 1 + rand_r(&state) % MOST, i);
            through(b, a, bytes, 1 + rand_r(&state) % 100, i);
        }
        close(a);
        close(b);
    }
    free(bytes);
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t threads[THREADS];
    unsigned char bytes[100];
    int a, b, status, forks = count > 1 ? atoi(arguments[1]) : 20;
    alarm(120);
    for (size_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, busy, (void *)(i + 1));
    for (int i = 0; i < forks; i++) {
        make_pair(&a, &b);
        for (int k = 0; k < 12; k++) {
            through(a, b, bytes, sizeof bytes, k);
            if (k > 3 && k < 8) poll(NULL, 0, 2);
        }
        pid_t child = fork();
        check(child >= 0, "fork");
        if (child == 0) {
            if (i % 3 == 0) _exit(0);
            if (i % 3 == 1) execlp("true", "true", NULL);
            through(b, a, bytes, sizeof bytes, 7);
            _exit(0);
        }
        check(waitpid(child, &status, 0) == child && status == 0, "the child");
        through(a, b, bytes, sizeof bytes, 99);
        close(a);
        close(b);
    }
    over = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    printf("%d forks, all bytes right\n", forks);
    return 0;
}
