/*
 * Ends that write a whole message before they read one: two ends of a connection, or three programs in a ring.
 *
 *     exchange pair|ring blocking|poll|epoll BYTES...
 *     exchange pipes COUNT         a server that writes back what it has read, and a client that reads after it has written 100,000 bytes
 *     exchange post PORT COUNT     such a client of an HTTP server
 */
#define _GNU_SOURCE
#include <poll.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include "link.h"
#include "meet.h"

enum { BODY = 100000, ROUNDS = 4 };

static const char *way;

/* Waits until the descriptor is ready, if it does not block. */
static void wait_for(int fd, int events) {
    static int set = -1;
    if (strcmp(way, "epoll")) {
        check(poll(&(struct pollfd){.fd = fd, .events = events}, 1, -1) == 1, "poll");
        return;
    }
    if (set < 0) set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = events, .data.fd = fd};
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) check(!epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), "epoll_ctl");
    check(epoll_wait(set, &event, 1, -1) == 1 && event.data.fd == fd, "epoll_wait");
    check(!epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL), "epoll_ctl");
}

static void move(int fd, unsigned char *bytes, size_t count, int writes) {
    for (size_t done = 0; done < count;) {
        ssize_t now = writes ? write(fd, bytes + done, count - done) : read(fd, bytes + done, count - done);
        if (now < 0 && errno == EAGAIN && strcmp(way, "blocking")) {
            wait_for(fd, writes ? POLLOUT : POLLIN);
            continue;
        }
        check(now > 0, writes ? "write" : "read");
        done += now;
    }
}

static unsigned char byte_of(int end, int round, size_t at) {
    return end * 77 + round * 13 + at + at / 251;
}

/* Writes to one neighbour and reads from the other one, in rounds. */
static void exchange(int out, int in, int own, int neighbour, size_t size) {
    unsigned char *bytes = malloc(size);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < size; i++) bytes[i] = byte_of(own, round, i);
        move(out, bytes, size, 1);
        memset(bytes, 0, size);
        move(in, bytes, size, 0);
        for (size_t i = 0; i < size; i++) check(bytes[i] == byte_of(neighbour, round, i), "a byte is wrong");
    }
    free(bytes);
}

static void all_sizes(int out, int in, int own, int neighbour, char **sizes) {
    if (strcmp(way, "blocking")) {
        fcntl(out, F_SETFL, O_NONBLOCK);
        fcntl(in, F_SETFL, O_NONBLOCK);
    }
    for (; *sizes; sizes++) {
        exchange(out, in, own, neighbour, atoi(*sizes));
        if (own == 0) printf("%s bytes: right\n", *sizes), fflush(stdout);
    }
}

static void ends(int children) {
    int status;
    for (; children > 0; children--) check(wait(&status) > 0 && status == 0, "a child");
}

static void pair(char **sizes) {
    struct sockaddr_in at;
    int listener = listen_at(&at);
    int own = !fork();
    int fd = own ? connect_to(ntohs(at.sin_port)) : accept(listener, NULL, NULL);
    meet(fd, !own);
    all_sizes(fd, fd, own, !own, sizes);
    if (own) exit(0);
    ends(1);
}

static void ring(char **sizes) {
    struct sockaddr_in at[3];
    int listeners[3], own = 0;
    for (int i = 0; i < 3; i++) listeners[i] = listen_at(&at[i]);
    for (int i = 1; i < 3 && own == 0; i++)
        if (!fork()) own = i;
    int out = connect_to(ntohs(at[(own + 1) % 3].sin_port)), in = accept(listeners[own], NULL, NULL);
    if (own == 0) meet(out, 0);
    meet(in, 1);
    if (own != 0) meet(out, 0);
    all_sizes(out, in, own, (own + 2) % 3, sizes);
    if (own) exit(0);
    ends(2);
}

static void pipes(int count) {
    static unsigned char bytes[BODY], back[16384];
    struct sockaddr_in at;
    int listener = listen_at(&at);
    way = "blocking";
    if (!fork()) {
        int fd = accept(listener, NULL, NULL);
        meet(fd, 1);
        for (ssize_t now; (now = read(fd, back, sizeof back)) > 0;) move(fd, back, now, 1);
        exit(0);
    }
    int fd = connect_to(ntohs(at.sin_port));
    meet(fd, 0);
    for (int round = 0; round < count; round++) exchange(fd, fd, 1, 1, BODY);
    shutdown(fd, SHUT_WR);
    ends(1);
    printf("%d bodies: right\n", count * ROUNDS);
}

static void post(int port, int count) {
    static char body[BODY], head[4096];
    int fd = connect_to(port), length;
    for (int round = 0; round < count; round++) {
        length = sprintf(head, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n", BODY);
        write_all(fd, head, length);
        memset(body, 'a' + round % 26, BODY);
        write_all(fd, body, BODY);
        memset(head, 0, sizeof head);
        for (length = 0; !strstr(head, "\r\n\r\n"); length++) read_all(fd, head + length, 1);
        memset(body, 0, BODY);
        read_all(fd, body, BODY);
        for (int i = 0; i < BODY; i++) check(body[i] == 'a' + round % 26, "a byte is wrong");
    }
    printf("%d bodies: right\n", count);
}

int main(int count, char **arguments) {
    alarm(100);
    if (count > 3 && !strcmp(arguments[1], "post")) return post(atoi(arguments[2]), atoi(arguments[3])), 0;
    if (count > 2 && !strcmp(arguments[1], "pipes")) return pipes(atoi(arguments[2])), 0;
    check(count > 3, "arguments");
    way = arguments[2];
    (strcmp(arguments[1], "ring") ? pair : ring)(arguments + 3);
    return 0;
}
