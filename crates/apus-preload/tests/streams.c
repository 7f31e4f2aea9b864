/* Streams and round trips of 1 byte on a machine with other work: medians over parts of a run, so that parts in which another program had
 * a processor do not count. Client and server are processes of their own, on processors 0 and 1.
 *
 *     streams SECONDS SIZE...      prints `line NS`, the time that a cache line takes from processor to processor and back;
 *                                  `rr NS`; and for each size of writes `SIZE GBPS`
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TIMES_MAX = 1 << 18, TURNS = 20000, PART = 512 << 10, WRITES_MAX = 2000, ROUND_TRIPS = 50, WARM = 20 };

static double times[TIMES_MAX];
static _Alignas(128) atomic_int line;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static void pin(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror("sched_setaffinity");
        exit(1);
    }
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double median(int count) {
    qsort(times, count, sizeof *times, by_size);
    return count > 0 ? times[count / 2] : 0;
}

static void *answer_line(void *nothing) {
    pin(1);
    for (int turn = 0; turn < TURNS; turn++) {
        while (atomic_load(&line) != 2 * turn + 1) {}
        atomic_store(&line, 2 * turn + 2);
    }
    return nothing;
}

static double line_there_and_back(void) {
    pthread_t other;
    pthread_create(&other, NULL, answer_line, NULL);
    int count = 0;
    double last = now();
    for (int turn = 0; turn < TURNS; turn++) {
        atomic_store(&line, 2 * turn + 1);
        while (atomic_load(&line) != 2 * turn + 2) {}
        if (turn % 100 == 99) {
            double next = now();
            times[count++] = (next - last) / 100;
            last = next;
        }
    }
    pthread_join(other, NULL);
    return median(count);
}

/* Reads streams; the first byte of a connection of round trips is 1. */
static int serve(int listener) {
    static char bytes[128 << 10];
    pin(1);
    for (;;) {
        int socket = accept(listener, NULL, NULL);
        ssize_t count;
        while ((count = read(socket, bytes, sizeof bytes)) > 0)
            if (bytes[0] == 1 && write(socket, bytes, count) != count) return 1;
        close(socket);
    }
}

static int connect_to(const struct sockaddr_in *address) {
    int socket_ = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(socket_, (const struct sockaddr *)address, sizeof *address) != 0) {
        perror("connect");
        exit(1);
    }
    return socket_;
}

static void finish(int socket_) {
    char byte;
    shutdown(socket_, SHUT_WR);
    if (read(socket_, &byte, 1) != 0) exit(1);
    close(socket_);
}

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[1], "server") == 0) return serve(atoi(arguments[2]));
    double length = atof(count > 1 ? arguments[1] : "0.15") * 1e9;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (struct sockaddr *)&address, sizeof address);
    getsockname(listener, (struct sockaddr *)&address, &size);
    listen(listener, 8);
    pid_t server = fork();
    if (server == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", listener);
        execl("/proc/self/exe", arguments[0], "server", number, (char *)NULL);
        _exit(1);
    }
    pin(0);
    printf("line %.0f", line_there_and_back());

    int socket_ = connect_to(&address), parts = 0;
    char byte = 1;
    double last = now(), end = last + length;
    while (last < end && parts < TIMES_MAX) {
        for (int trip = 0; trip < ROUND_TRIPS; trip++)
            if (write(socket_, &byte, 1) != 1 || read(socket_, &byte, 1) != 1) return 1;
        double next = now();
        times[parts++] = (next - last) / ROUND_TRIPS;
        last = next;
    }
    finish(socket_);
    printf("  rr %.0f", median(parts));

    for (int argument = 2; argument < count; argument++) {
        size_t bytes = strtoul(arguments[argument], NULL, 10), writes = PART / bytes;
        writes = writes < 1 ? 1 : writes > WRITES_MAX ? WRITES_MAX : writes;
        char *buffer = calloc(1, bytes);
        socket_ = connect_to(&address);
        int warm = 0;
        parts = 0;
        last = end = now();
        while (parts < TIMES_MAX && (warm < WARM || last < end)) {
            for (size_t write_ = 0; write_ < writes; write_++)
                for (size_t done = 0; done < bytes;) {
                    ssize_t result = write(socket_, buffer + done, bytes - done);
                    if (result < 0) return 1;
                    done += result;
                }
            double next = now();
            if (warm >= WARM)
                times[parts++] = next - last;
            else if (++warm == WARM)
                end = next + length;
            last = next;
        }
        finish(socket_);
        double middle = median(parts);
        printf("  %zu %.1f", bytes, middle > 0 ? 8.0 * bytes * writes / middle : 0);
        free(buffer);
    }
    printf("\n");
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    return 0;
}
