/* An echo server, or a client that sends a known stream through one: by the C library, so that it can be preloaded. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int fd;
static size_t all;

static unsigned char at(size_t offset) { return offset * 31 >> 3; }

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void put(int to, const unsigned char *bytes, size_t count) {
    for (size_t done = 0; done < count;) {
        ssize_t now = write(to, bytes + done, count - done);
        if (now <= 0) fail("write");
        done += now;
    }
}

static void *echo(void *argument) {
    int connection = (int)(size_t)argument;
    unsigned char *bytes = malloc(50000);
    ssize_t now;
    while ((now = read(connection, bytes, 50000)) > 0) put(connection, bytes, now);
    free(bytes);
    close(connection);
    return NULL;
}

static void *send_all(void *nothing) {
    unsigned char *bytes = malloc(70001);
    for (size_t done = 0, size = 1; done < all; size = size * 7 % 70000 + 1) {
        size_t count = size < all - done ? size : all - done;
        for (size_t i = 0; i < count; i++) bytes[i] = at(done + i);
        put(fd, bytes, count);
        done += count;
    }
    shutdown(fd, SHUT_WR);
    free(bytes);
    return nothing;
}

int main(int count, char **arguments) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    pthread_t thread;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (count == 2 && !strcmp(arguments[1], "server")) {
        if (bind(fd, (struct sockaddr *)&address, size) || listen(fd, 5)) fail("listen");
        getsockname(fd, (struct sockaddr *)&address, &size);
        printf("%d\n", ntohs(address.sin_port));
        fflush(stdout);
        for (;;) pthread_create(&thread, NULL, echo, (void *)(size_t)accept(fd, NULL, NULL));
    }
    if (count != 4) return 2;
    address.sin_port = htons(atoi(arguments[2]));
    all = strtoul(arguments[3], NULL, 10);
    if (connect(fd, (struct sockaddr *)&address, size)) fail("connect");
    pthread_create(&thread, NULL, send_all, NULL);
    unsigned char *bytes = malloc(50000);
    size_t got = 0;
    for (ssize_t now; (now = read(fd, bytes, 50000)) > 0;)
        for (ssize_t i = 0; i < now; i++)
            if (bytes[i] != at(got++)) return fprintf(stderr, "the byte at %zu is wrong\n", got - 1), 1;
    if (got != all) return fprintf(stderr, "%zu of %zu bytes\n", got, all), 1;
    return 0;
}
