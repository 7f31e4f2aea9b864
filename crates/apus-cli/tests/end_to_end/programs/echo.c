/* Echoes lines over TCP: echo ADDRESS PORT epoll|poll|block. Waits for data in the way that is named. */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
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

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    int listener = listen_at(arguments[1], atoi(arguments[2]));
    if (!strcmp(arguments[3], "epoll"))
        by_epoll(listener);
    if (!strcmp(arguments[3], "poll"))
        by_poll(listener);
    for (;;) {
        int connection = accepted(listener);
        while (echo(connection))
            ;
        close(connection);
    }
}
