// A library whose constructor makes calls before libapus_preload.so has started, from a thread as well.
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *in_thread(void *end) {
    struct pollfd member = {.fd = *(int *)end, .events = POLLIN};
    poll(&member, 1, -1);
    return NULL;
}

__attribute__((constructor)) static void construct(void) {
    int pair[2];
    char text[16] = {0};
    pthread_t thread;
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    pthread_create(&thread, NULL, in_thread, &pair[1]);
    syscall(SYS_write, pair[0], "early", 5L);
    pthread_join(thread, NULL);
    long bytes = recv(pair[1], text, sizeof text, 0);
    close(pair[0]);
    close(pair[1]);
    dprintf(1, "constructor: %ld %s\n", bytes, text);
}
