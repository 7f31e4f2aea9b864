/*
 * A child of fork fills the ring of a connection, and its parent waits in an epoll set until a write has room. The peer reads nothing
 * meanwhile, so the room is in TCP. The parent has written before, and has found room.
 */
#define _GNU_SOURCE
#include <sys/epoll.h>
#include <sys/wait.h>

#include "link.h"
#include "meet.h"

enum { BYTES = 100000 };

/* Writes until a write has no room, or all bytes are written. Returns how many. */
static int fill(int fd) {
    static char bytes[BYTES];
    int done = 0;
    while (done < BYTES) {
        int count = BYTES - done < 5000 ? BYTES - done : 5000;
        ssize_t now = send(fd, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (now < 0 && errno == EAGAIN) break;
        check(now > 0, "send");
        done += now;
    }
    return done;
}

static void parent(int fd, unsigned flags, const char *name) {
    int filled[2], goes_on[2], done;
    check(!pipe(filled) && !pipe(goes_on), "pipe");
    pid_t child = fork();
    check(child >= 0, "fork");
    if (!child) {
        close(goes_on[1]);
        done = fill(fd);
        check(write(filled[1], &done, sizeof done) == sizeof done, "write");
        _exit(read(goes_on[0], &(char){0}, 1) != 0); /* The library's thread of this process goes on. */
    }
    close(goes_on[0]);
    check(read(filled[0], &done, sizeof done) == sizeof done, "read");
    struct epoll_event event = {EPOLLOUT | flags, {.u64 = 77}}, got = {0};
    int set = epoll_create1(EPOLL_CLOEXEC);
    check(!epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
    int count = epoll_wait(set, &got, 1, 10000);
    printf("%s: %s\n", name, count == 1 && got.events == EPOLLOUT && got.data.u64 == 77 ? "room" : "NO ROOM");
    fflush(stdout);
    close(set);
    close(goes_on[1]);
    check(waitpid(child, NULL, 0) == child, "waitpid");
    static char rest[BYTES];
    write_all(fd, rest, BYTES - done);
}

int main(void) {
    static const struct {
        unsigned flags;
        const char *name;
    } ways[] = {{0, "level"}, {EPOLLONESHOT, "once"}, {EPOLLET, "edge"}, {EPOLLET | EPOLLONESHOT, "edge, once"}};
    static char bytes[BYTES];
    struct sockaddr_in at;
    int listener = listen_at(&at);
    for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++) {
        int said[2];
        check(!pipe(said), "pipe");
        pid_t peer = fork();
        check(peer >= 0, "fork");
        if (!peer) {
            close(said[1]);
            int fd = connect_to(ntohs(at.sin_port));
            meet(fd, 0);
            check(read(said[0], bytes, 1) == 0, "read");
            read_all(fd, bytes, BYTES);
            _exit(0);
        }
        close(said[0]);
        int fd = accept(listener, NULL, NULL);
        meet(fd, 1);
        parent(fd, ways[way].flags, ways[way].name);
        close(said[1]);
        int status;
        check(waitpid(peer, &status, 0) == peer && !status, "the peer");
        close(fd);
    }
    return 0;
}
