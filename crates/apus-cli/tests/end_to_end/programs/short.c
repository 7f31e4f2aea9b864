/*
 * A connection with both ends in this process, of which each sends one byte: too few calls to be carried, unless the other end is looked
 * for before them (APUS_SOCKETS=early).
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void check(int holds, const char *what) {
    if (holds) return;
    perror(what);
    exit(1);
}

int main(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0, "listen");
    check(getsockname(listener, (struct sockaddr *)&at, &length) == 0, "getsockname");
    check(connect(client, (struct sockaddr *)&at, sizeof at) == 0, "connect");
    int server = accept(listener, NULL, NULL);
    check(server >= 0, "accept");
    char byte = 'a';
    check(write(client, &byte, 1) == 1 && read(server, &byte, 1) == 1, "there");
    check(write(server, &byte, 1) == 1 && read(client, &byte, 1) == 1, "back");
    check(byte == 'a', "the byte");
    puts("there and back");
}
