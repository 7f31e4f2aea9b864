/*
 * Sends a known stream through a TCP connection in both directions at once, with calls and sizes that a seed chooses, and
 * checks that nothing is lost, repeated or out of order. One thread of each end writes, another one reads. With every third seed both
 * fork now and then, and the child goes on with the stream for a while.
 *
 *     checker server [IP]       prints its port, serves one connection after another until it is killed
 *     checker client PORT SEED BYTES [IP]
 *
 * Bytes of a direction are a function of their offset and of the seed. Each end writes BYTES bytes and then ends its direction.
 * With MEETS in the environment of the client, the stream begins when the connection is carried (meet.h).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "meet.h"

enum { MOST = 200000 };

struct end {
    int fd;
    uint64_t seed;
    uint64_t bytes;
    uint64_t state;
    int is_server;
    int blocks;
    int forks;
};

static void fail(const char *what) {
    fprintf(stderr, "checker[%d]: %s: %s\n", getpid(), what, strerror(errno));
    _exit(1); /* also in a child */
}

static uint64_t next(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static unsigned char at(uint64_t seed, uint64_t offset) {
    uint64_t x = (offset >> 3) * 0xbf58476d1ce4e5b9u ^ seed;
    x ^= x >> 29;
    x *= 0x94d049bb133111ebu;
    return (unsigned char)(x >> 8 * (offset & 7));
}

static size_t some(uint64_t *state) {
    uint64_t kind = next(state) % 8;
    uint64_t most = kind < 3 ? 100 : kind < 6 ? 5000 : kind < 7 ? 40000 : MOST;
    return 1 + next(state) % most;
}

/* Waits by one of the calls that programs wait with. */
static void await(struct end *end, short events) {
    switch (next(&end->state) % 4) {
    case 0: {
        struct pollfd member = {end->fd, events, 0};
        if (poll(&member, 1, -1) < 0 && errno != EINTR) fail("poll");
        break;
    }
    case 1: {
        int set = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event event = {events == POLLIN ? EPOLLIN : EPOLLOUT, {.u64 = 77}}, got = {0};
        if (next(&end->state) % 2) event.events |= EPOLLET;
        if (next(&end->state) % 2) event.events |= EPOLLONESHOT;
        if (epoll_ctl(set, EPOLL_CTL_ADD, end->fd, &event)) fail("epoll_ctl");
        int count = epoll_wait(set, &got, 1, -1);
        if (count < 0 && errno != EINTR) fail("epoll_wait");
        if (count == 1 && got.data.u64 != 77) {
            errno = 0;
            fail("an event has other data than the program's");
        }
        close(set);
        break;
    }
    case 2: {
        fd_set set;
        struct timeval time = {0, 1000};
        FD_ZERO(&set);
        FD_SET(end->fd, &set);
        if (select(end->fd + 1, events == POLLIN ? &set : NULL, events == POLLIN ? NULL : &set, NULL, &time) < 0 && errno != EINTR)
            fail("select");
        break;
    }
    default: {
        struct pollfd member = {end->fd, events, 0};
        struct timespec time = {0, 1000000};
        if (ppoll(&member, 1, &time, NULL) < 0 && errno != EINTR) fail("ppoll");
    }
    }
}

static ssize_t put(struct end *end, unsigned char *bytes, size_t count) {
    int flags = MSG_NOSIGNAL | (end->blocks ? 0 : MSG_DONTWAIT);
    struct iovec parts[3] = {{bytes, count / 3}, {bytes + count / 3, count / 3}, {bytes + count / 3 * 2, count - count / 3 * 2}};
    switch (next(&end->state) % 4) {
    case 0: return end->blocks ? write(end->fd, bytes, count) : send(end->fd, bytes, count, flags);
    case 1: return end->blocks ? writev(end->fd, parts, 3) : send(end->fd, bytes, count, flags);
    case 2: {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
        return sendmsg(end->fd, &message, flags);
    }
    default: return send(end->fd, bytes, count, flags | (next(&end->state) % 8 ? 0 : MSG_MORE));
    }
}

static ssize_t get(struct end *end, unsigned char *bytes, size_t count, int *peeked) {
    int flags = end->blocks ? 0 : MSG_DONTWAIT;
    struct iovec parts[2] = {{bytes, count / 2}, {bytes + count / 2, count - count / 2}};
    switch (next(&end->state) % 6) {
    case 0: return end->blocks ? read(end->fd, bytes, count) : recv(end->fd, bytes, count, flags);
    case 1: return end->blocks ? readv(end->fd, parts, 2) : recv(end->fd, bytes, count, flags);
    case 2: {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        return recvmsg(end->fd, &message, flags);
    }
    case 3: *peeked = 1; return recv(end->fd, bytes, count, flags | MSG_PEEK);
    case 4: return recv(end->fd, bytes, count < 3000 ? count : 3000, flags | (end->blocks ? MSG_WAITALL : 0));
    default: return recv(end->fd, bytes, count, flags);
    }
}

/* Goes on with the stream from the offset `done`, up to `most`, and returns how far it came. */
typedef uint64_t (*part)(struct end *end, unsigned char *bytes, uint64_t done, uint64_t most);

/* A child goes on with the stream; returns how far it came. */
static uint64_t in_a_child(part go_on, struct end *end, unsigned char *bytes, uint64_t done) {
    int pipes[2];
    if (pipe2(pipes, O_CLOEXEC)) fail("pipe");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        end->forks = 0;
        if (next(&end->state) % 4) done = go_on(end, bytes, done, done + some(&end->state));
        _exit(write(pipes[1], &done, sizeof done) != sizeof done);
    }
    close(pipes[1]);
    if (read(pipes[0], &done, sizeof done) != sizeof done) fail("the child");
    close(pipes[0]);
    waitpid(child, NULL, 0);
    return done;
}

static uint64_t write_part(struct end *end, unsigned char *bytes, uint64_t done, uint64_t most) {
    uint64_t seed = end->seed * 2 + end->is_server;
    if (most > end->bytes) most = end->bytes;
    while (done < most) {
        if (end->forks && next(&end->state) % 64 == 0) {
            done = in_a_child(write_part, end, bytes, done);
            continue;
        }
        size_t count = some(&end->state);
        if (count > most - done) count = most - done;
        for (size_t i = 0; i < count; i++) bytes[i] = at(seed, done + i);
        ssize_t put_now = put(end, bytes, count);
        if (put_now > 0) done += put_now;
        else if (errno == EAGAIN) await(end, POLLOUT);
        else if (errno != EINTR) fail("write");
    }
    return done;
}

static void *writer(void *argument) {
    struct end end = *(struct end *)argument;
    unsigned char *bytes = malloc(MOST);
    end.state = (end.seed * 2 + end.is_server) ^ 0x5555;
    write_part(&end, bytes, 0, end.bytes);
    if (shutdown(end.fd, SHUT_WR)) fail("shutdown");
    free(bytes);
    return NULL;
}

/* Also ends at the end of the stream. */
static uint64_t read_part(struct end *end, unsigned char *bytes, uint64_t done, uint64_t most) {
    uint64_t seed = end->seed * 2 + !end->is_server;
    while (done < most) {
        if (end->forks && next(&end->state) % 64 == 0) {
            done = in_a_child(read_part, end, bytes, done);
            continue;
        }
        int peeked = 0;
        ssize_t got = get(end, bytes, some(&end->state), &peeked);
        if (got == 0) break;
        if (got < 0) {
            if (errno == EAGAIN) await(end, POLLIN);
            else if (errno != EINTR) fail("read");
            continue;
        }
        for (ssize_t i = 0; i < got; i++)
            if (bytes[i] != at(seed, done + i)) {
                fprintf(stderr, "checker[%d]: the byte at %llu is wrong (seed %llu)\n", getpid(), (unsigned long long)(done + i),
                        (unsigned long long)end->seed);
                _exit(1);
            }
        if (!peeked) done += got;
    }
    return done;
}

static void reader(struct end end) {
    unsigned char *bytes = malloc(MOST);
    end.state = (end.seed * 2 + !end.is_server) ^ 0xaaaa;
    uint64_t done = read_part(&end, bytes, 0, UINT64_MAX);
    if (done != end.bytes) {
        fprintf(stderr, "checker[%d]: %llu of %llu bytes (seed %llu)\n", getpid(), (unsigned long long)done,
                (unsigned long long)end.bytes, (unsigned long long)end.seed);
        exit(1);
    }
    free(bytes);
}

static void both(struct end end) {
    pthread_t thread;
    end.blocks = (end.seed + end.is_server) % 3 != 0;
    end.forks = end.seed / 20 % 3 == 2;
    if (!end.blocks && end.seed % 2) {
        int on = fcntl(end.fd, F_GETFL);
        if (fcntl(end.fd, F_SETFL, on | O_NONBLOCK)) fail("fcntl");
    }
    if (pthread_create(&thread, NULL, writer, &end)) fail("pthread_create");
    reader(end);
    pthread_join(thread, NULL);
    close(end.fd);
}

static void exactly(int fd, void *bytes, size_t count, int writes) {
    for (size_t done = 0; done < count;) {
        ssize_t now = writes ? write(fd, (char *)bytes + done, count - done) : read(fd, (char *)bytes + done, count - done);
        if (now <= 0) fail("the beginning");
        done += now;
    }
}

/* The address that a text is, of either family. */
static socklen_t address_of(const char *text, struct sockaddr_in6 *address) {
    struct sockaddr_in *v4 = (void *)address;
    memset(address, 0, sizeof *address);
    address->sin6_family = strchr(text, ':') ? AF_INET6 : AF_INET;
    if (strchr(text, ':')) {
        if (inet_pton(AF_INET6, text, &address->sin6_addr) != 1) fail(text);
        return sizeof *address;
    }
    if (inet_pton(AF_INET, text, &v4->sin_addr) != 1) fail(text);
    return sizeof *v4;
}

int main(int count, char **arguments) {
    struct sockaddr_in6 address; /* large enough for both families; the port is at the same place */
    socklen_t size = address_of("127.0.0.1", &address);
    uint64_t words[3]; /* the seed, the bytes, and whether both ends meet first */
    if (count > 1) {
        int is_server = !strcmp(arguments[1], "server");
        if (count == (is_server ? 3 : 6)) size = address_of(arguments[--count], &address);
    }
    if (count == 2 && !strcmp(arguments[1], "server")) {
        int listener = socket(address.sin6_family, SOCK_STREAM, 0);
        if (bind(listener, (void *)&address, size) || listen(listener, 5)) fail("listen");
        getsockname(listener, (void *)&address, &size);
        printf("%d\n", ntohs(address.sin6_port));
        fflush(stdout);
        for (;;) {
            int fd = accept(listener, NULL, NULL);
            if (fd < 0) fail("accept");
            exactly(fd, words, sizeof words, 0);
            if (words[2]) meet(fd, 1);
            both((struct end){.fd = fd, .seed = words[0], .bytes = words[1], .is_server = 1});
        }
    }
    if (count != 5 || strcmp(arguments[1], "client")) {
        fprintf(stderr, "usage: checker server [IP] | checker client PORT SEED BYTES [IP]\n");
        return 2;
    }
    address.sin6_port = htons(atoi(arguments[2]));
    int fd = socket(address.sin6_family, SOCK_STREAM, 0);
    if (connect(fd, (void *)&address, size)) fail("connect");
    words[0] = strtoull(arguments[3], NULL, 10);
    words[1] = strtoull(arguments[4], NULL, 10);
    words[2] = getenv("MEETS") != NULL;
    exactly(fd, words, sizeof words, 1);
    if (words[2]) meet(fd, 0);
    both((struct end){.fd = fd, .seed = words[0], .bytes = words[1]});
    return 0;
}
