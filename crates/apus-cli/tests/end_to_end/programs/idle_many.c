/*
 * Connections between two processes that are carried and then idle: the memory that they take, and whether any thread wakes up.
 *
 *     idle_many COUNT
 *
 * Prints the KiB of segments of this library, the KiB that both processes have grown by since the first of these connections was
 * carried, and wake-ups of a third of a second in which the server waits in epoll for all of them and the client in read. The server
 * looks again until there are none, 100 times at most.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "meet.h"

static int count;

static void fail(const char *what) {
    fprintf(stderr, "idle_many[%d]: %s: %s\n", getpid(), what, strerror(errno));
    exit(1);
}

/* The sum of a number that follows a name in a file, of lines behind one that has `after` until the next mapping; all if it is NULL. */
static long sum(const char *path, const char *name, const char *after) {
    char line[512];
    long all = 0;
    int counts = !after;
    FILE *file = fopen(path, "r");
    if (!file) return 0; /* A thread has ended. */
    while (fgets(line, sizeof line, file)) {
        if (after && strchr(line, '-') && strchr(line, ' ') > strchr(line, '-')) counts = strstr(line, after) != NULL;
        if (counts && !strncmp(line, name, strlen(name))) all += atol(line + strlen(name));
    }
    fclose(file);
    return all;
}

static long memory(pid_t pid, const char *after) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/smaps", pid);
    return sum(path, "Pss:", after);
}

static long segments_of(pid_t child) { return memory(getpid(), "memfd:apus") + memory(child, "memfd:apus"); }

/* How often threads of a process began to sleep. */
static long sleeps(pid_t pid) {
    char path[300];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    long all = 0;
    DIR *threads = opendir(path);
    if (!threads) fail(path);
    for (struct dirent *thread; (thread = readdir(threads));) {
        if (thread->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/status", pid, thread->d_name);
        all += sum(path, "voluntary_ctxt_switches:", NULL);
    }
    closedir(threads);
    return all;
}

static void round_trip(int fd) {
    char bytes[100] = {1};
    if (write(fd, bytes, sizeof bytes) != sizeof bytes) fail("write");
    if (recv(fd, bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes) fail("recv");
}

static void client(const struct sockaddr_in *address, int ready, int end) {
    for (int i = 0; i <= count; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (const void *)address, sizeof *address)) fail("connect");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        uint64_t before = 0, now = 1;
        time_t until = time(NULL) + 20;
        for (int turn = 0; turn < 6; turn++) round_trip(fd);
        /* Until TCP carries none of them. */
        while (getenv("MEETS") && now != before && time(NULL) < until) {
            poll(NULL, 0, 1);
            before = by_tcp(fd);
            round_trip(fd);
            now = by_tcp(fd);
        }
        /* The server has looked at the memory of both when it answers. */
        if (i == 0 && (write(ready, "f", 1) != 1 || read(end, &(char){0}, 1) != 1)) fail("the first");
    }
    if (write(ready, "r", 1) != 1) fail("write");
    if (read(end, &(char){0}, 1) != 0) fail("read");
}

int main(int argc, char **argv) {
    count = argc > 1 ? atoi(argv[1]) : 1000;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    struct sockaddr_in address = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), ready[2], end[2];
    if (bind(listener, (void *)&address, size) || listen(listener, 128)) fail("listen");
    getsockname(listener, (void *)&address, &size);
    if (pipe(ready) || pipe(end)) fail("pipe");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (!child) {
        close(listener);
        close(end[1]);
        client(&address, ready[1], end[0]);
        return 0;
    }
    close(end[0]);
    long segments = 0, grown = 0;
    int set = epoll_create1(EPOLL_CLOEXEC);
    int others[] = {listener, ready[0]};
    for (int i = 0; i < 2; i++)
        epoll_ctl(set, EPOLL_CTL_ADD, others[i], &(struct epoll_event){EPOLLIN, {.fd = others[i]}});
    struct epoll_event events[64];
    char bytes[100];
    for (int goes = 1; goes;) {
        int there = epoll_wait(set, events, 64, -1);
        for (int i = 0; i < there; i++) {
            int fd = events[i].data.fd;
            if (fd == ready[0]) {
                if (read(fd, bytes, 1) != 1) fail("read");
                goes = bytes[0] == 'f';
                if (!goes) break;
                segments = segments_of(child);
                grown = memory(getpid(), NULL) + memory(child, NULL);
                if (write(end[1], "f", 1) != 1) fail("write");
            } else if (fd == listener) {
                fd = accept(listener, NULL, NULL);
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
                epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event){EPOLLIN, {.fd = fd}});
            } else {
                ssize_t got = read(fd, bytes, sizeof bytes);
                if (got > 0 && write(fd, bytes, got) != got) fail("write");
            }
        }
    }
    epoll_ctl(set, EPOLL_CTL_DEL, ready[0], NULL);
    long woken = -1;
    for (int look = 0; look < 100 && woken; look++) {
        long before = sleeps(getpid()) + sleeps(child);
        if (epoll_wait(set, events, 64, 333) != 0) fail("something came");
        woken = sleeps(getpid()) + sleeps(child) - before - 1; /* This thread slept once. */
    }
    grown = memory(getpid(), NULL) + memory(child, NULL) - grown;
    segments = segments_of(child) - segments;
    printf("%ld KiB of segments, %ld KiB in all, %ld wake-ups\n", segments, grown, woken);
    close(end[1]);
    waitpid(child, NULL, 0);
    return 0;
}
