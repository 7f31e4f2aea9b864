/* Many answers to a thread that never sleeps for them, and then some to a thread that sleeps in an epoll set. */
#include <poll.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include "link.h"
#include "meet.h"

enum { BYTES = 200, EXCHANGES = 4000, WAITS = 10 };

int main(void) {
    struct sockaddr_in at;
    int listener = listen_at(&at), status;
    char bytes[BYTES] = {0};
    alarm(100);
    pid_t server = fork();
    if (server == 0) {
        int fd = accept(listener, NULL, NULL);
        meet(fd, 1);
        for (int i = 0; i < EXCHANGES + WAITS; i++) {
            read_all(fd, bytes, BYTES);
            if (i >= EXCHANGES) poll(NULL, 0, 10); /* The other end is asleep by then, or need not be woken. */
            write_all(fd, bytes, BYTES);
        }
        return 0;
    }
    int fd = connect_to(ntohs(at.sin_port));
    meet(fd, 0);
    for (int i = 0; i < EXCHANGES; i++) {
        write_all(fd, bytes, BYTES);
        for (int there = 0; there < BYTES;) {
            int now = recv(fd, bytes, BYTES - there, MSG_DONTWAIT);
            check(now > 0 || errno == EAGAIN, "recv");
            there += now > 0 ? now : 0;
        }
    }
    int set = epoll_create1(0);
    struct epoll_event member = {.events = EPOLLIN}, found;
    check(!epoll_ctl(set, EPOLL_CTL_ADD, fd, &member), "epoll_ctl");
    for (int i = 0; i < WAITS; i++) {
        write_all(fd, bytes, BYTES);
        check(epoll_wait(set, &found, 1, 20000) == 1, "a wait");
        read_all(fd, bytes, BYTES);
    }
    check(waitpid(server, &status, 0) == server && status == 0, "the server");
    printf("%d waits: woken\n", WAITS);
    return 0;
}
