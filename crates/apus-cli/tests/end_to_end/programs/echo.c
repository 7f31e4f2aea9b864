/* Echoes over TCP: echo ADDRESS PORT epoll|poll|block|ring. Waits for data in the way that is named. With "probe" it only says,
   by its exit code, whether it may make a ring of io_uring. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 64 };

static int listen_at(const char *address, int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    inet_pton(AF_INET, address, &at.sin_addr);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 16)) {
        perror("listen");
        exit(1);
    }
    return listener;
}

static int accepted(int listener)
{
    int on = 1, connection = accept(listener, NULL, NULL);
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return connection;
}

/* Returns 0 when the connection has ended. */
static int echo(int connection)
{
    char bytes[4096];
    ssize_t length = read(connection, bytes, sizeof bytes);
    return length > 0 && write(connection, bytes, length) == length;
}

static void by_epoll(int listener)
{
    int set = epoll_create1(0);
    struct epoll_event events[CONNECTIONS_MAX], event = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int count = epoll_wait(set, events, CONNECTIONS_MAX, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                event.data.fd = accepted(listener);
                epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event);
            } else if (!echo(fd)) {
                close(fd);
            }
        }
    }
}

static void by_poll(int listener)
{
    struct pollfd fds[CONNECTIONS_MAX] = {{.fd = listener, .events = POLLIN}};
    int count = 1;
    for (;;) {
        poll(fds, count, -1);
        for (int i = count - 1; i > 0; i--)
            if (fds[i].revents && !echo(fds[i].fd)) {
                close(fds[i].fd);
                fds[i] = fds[--count];
            }
        if (fds[0].revents && count < CONNECTIONS_MAX)
            fds[count++] = (struct pollfd){.fd = accepted(listener), .events = POLLIN};
    }
}

static struct io_uring_params ring;
static int ring_fd;

static void *ring_part(size_t bytes, off_t at)
{
    void *part = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd, at);
    if (part == MAP_FAILED) {
        perror("io_uring");
        exit(1);
    }
    return part;
}

/* One request at a time: a receive, and its answer by write. Returns 0 when the connection has ended. */
static int echo_by_ring(int connection)
{
    static char *sq, *cq, bytes[4096];
    static struct io_uring_sqe *sqes;
    if (!sq) {
        sq = ring_part(ring.sq_off.array + ring.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
        cq = ring_part(ring.cq_off.cqes + ring.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
        sqes = ring_part(ring.sq_entries * sizeof *sqes, IORING_OFF_SQES);
    }
    unsigned *tail = (unsigned *)(sq + ring.sq_off.tail), *head = (unsigned *)(cq + ring.cq_off.head);
    unsigned at = *tail & (ring.sq_entries - 1);
    sqes[at] = (struct io_uring_sqe){
        .opcode = IORING_OP_RECV, .fd = connection, .addr = (unsigned long)bytes, .len = sizeof bytes};
    ((unsigned *)(sq + ring.sq_off.array))[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring_fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
        return 0;
    struct io_uring_cqe *cqes = (struct io_uring_cqe *)(cq + ring.cq_off.cqes);
    int length = cqes[*head & (ring.cq_entries - 1)].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return length > 0 && write(connection, bytes, length) == length;
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    int with_ring = !strcmp(arguments[3], "ring"), probe = !strcmp(arguments[3], "probe");
    if (with_ring || probe) {
        ring_fd = syscall(SYS_io_uring_setup, 4, &ring);
        if (ring_fd < 0 || probe)
            return ring_fd < 0;
    }
    int listener = listen_at(arguments[1], atoi(arguments[2]));
    if (!strcmp(arguments[3], "epoll"))
        by_epoll(listener);
    if (!strcmp(arguments[3], "poll"))
        by_poll(listener);
    for (;;) {
        int connection = accepted(listener);
        while (with_ring ? echo_by_ring(connection) : echo(connection))
            ;
        close(connection);
    }
}
