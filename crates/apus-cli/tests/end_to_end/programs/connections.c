// Makes connections of each kind that the report of `apus run --explain` distinguishes. The argument says how the program ends.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_in at = {.sin_family = AF_INET};

static int connected(int flags) {
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    connect(fd, (struct sockaddr *)&at, sizeof at);
    return fd;
}

static int port_of(int fd) {
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    getsockname(fd, (struct sockaddr *)&name, &length);
    return ntohs(name.sin_port);
}

int main(int count, char **arguments) {
    const char *end = count > 1 ? arguments[1] : "return";
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), pair[2];
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bind(listener, (struct sockaddr *)&at, sizeof at);
    listen(listener, 4);
    getsockname(listener, (struct sockaddr *)&at, &length);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);

    int one = connected(0), other = accept(listener, NULL, NULL);
    int pending = connected(SOCK_NONBLOCK);
    int accepted = accept4(listener, NULL, NULL, 0);
    struct pollfd member = {.fd = pending, .events = POLLOUT};
    poll(&member, 1, -1);
    // Closed by duplicates only: the connection is known all the same.
    int copy = dup(pending);
    printf("%d %d %d\n", ntohs(at.sin_port), port_of(one), port_of(copy));
    fflush(stdout);
    close(pending);
    dup2(pair[0], copy);
    close(other);
    close(accepted);

    // Nobody listens there any more.
    close(listener);
    int refused = connected(SOCK_NONBLOCK);
    poll(&(struct pollfd){.fd = refused, .events = POLLOUT}, 1, -1);
    close(refused);

    if (fork() == 0) return 0; // the connections are those of the parent
    wait(NULL);
    if (!strcmp(end, "_exit")) _exit(0);
    if (!strcmp(end, "exec")) execl("/bin/true", "true", NULL);
    if (!strcmp(end, "vfork")) {
        if (vfork() == 0) {
            close(one);
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        wait(NULL);
    }
    if (!strcmp(end, "daemon")) {
        close(2);
        dup(pair[1]); // is standard error now, and carries data
    }
    return 0;
}
