/*
 * A peer writes and closes, or ends. Then the other end makes a call that only the kernel can answer, or gives the connection away.
 * All bytes are to be read, and then the end. The first argument says how many there are.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>

#include "link.h"
#include "meet.h"

static int BYTES;
static const char *self = "/proc/self/exe";
extern char **environ;

static char letter(int position) { return 'a' + position % 23; }

/* Reads from a position on to the end, and says what came. */
static int read_to_end(int fd, int position, const char *by) {
    char bytes[1000];
    long got;
    int is_right = 1;
    while ((got = read(fd, bytes, sizeof bytes)) > 0)
        for (long i = 0; i < got; i++) is_right &= bytes[i] == letter(position++);
    printf("%s: %d bytes, %s, then %s\n", by, position, is_right ? "right" : "WRONG", got == 0 ? "the end" : strerror(errno));
    fflush(stdout);
    return 0;
}

static void wait_for(pid_t child) {
    int status;
    check(waitpid(child, &status, 0) == child && status == 0, "a child");
}

static void become_reader(int fd) {
    char number[20];
    sprintf(number, "%d", fd);
    execl(self, "rest", "reader", number, NULL);
    _exit(1);
}

/* Passes a descriptor through a unix socket. */
static void pass_on(int through, int fd) {
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {"", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    control.head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    check(sendmsg(through, &message, 0) == 1, "sendmsg");
}

static int take_over(int through) {
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int fd = -1;
    check(recvmsg(through, &message, 0) == 1, "recvmsg");
    memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
    return fd;
}

static const char *ways[] = {"nothing", "MSG_TRUNC", "a look with MSG_TRUNC", "MSG_WAITALL and a look", "system", "popen", "vfork", "posix_spawn",
                             "setsockopt", "an ioctl", "dprintf", "urgent bytes", "shutdown", "fdopen", "exec", "exec in a child", "passed on",
                             "a duplicate and exec", "exec of a program that reads nothing"};
enum { WAYS = sizeof ways / sizeof *ways };

static int act(int way, int fd) {
    static char bytes[1 << 20];
    int one = 1, pair[2];
    pid_t child;
    switch (way) {
    case 1: return recv(fd, bytes, 1234, MSG_TRUNC);
    case 2: check(recv(fd, NULL, 4321, MSG_TRUNC | MSG_PEEK) == 4321, "recv"); return 0;
    case 3: {
        int most = BYTES < 60000 ? BYTES : 60000; /* The receiver's kernel holds no more than its window. */
        check(recv(fd, bytes, most, MSG_WAITALL | MSG_PEEK) == most && bytes[most - 1] == letter(most - 1), "recv");
        return 0;
    }
    case 4: check(system("exit 0") == 0, "system"); return 0;
    case 5: check(pclose(popen("exit 0", "r")) == 0, "popen"); return 0;
    case 6:
        if ((child = vfork()) == 0) _exit(0);
        wait_for(child);
        return 0;
    case 7: {
        char *arguments[] = {"true", NULL};
        check(!posix_spawnp(&child, "true", NULL, NULL, arguments, environ), "posix_spawnp");
        wait_for(child);
        return 0;
    }
    case 8: setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &one, sizeof one); return 0;
    case 9: ioctl(fd, 0x8905 /* SIOCATMARK */, &one); return 0;
    case 10: dprintf(fd, "%s", "some"); return 0;
    case 11: check(recv(fd, bytes, 1, MSG_OOB) < 0 && errno == EINVAL, "MSG_OOB"); return 0;
    case 12: check(shutdown(fd, SHUT_RD) == 0, "shutdown"); return 0;
    case 13: {
        FILE *file = fdopen(dup(fd), "r");
        int byte, position = 0, is_right = 1;
        while ((byte = fgetc(file)) != EOF) is_right &= byte == letter(position++);
        printf("a file: %d bytes, %s, %s\n", position, is_right ? "right" : "WRONG", feof(file) ? "the end" : "an error");
        fclose(file);
        return position;
    }
    case 14:
        fflush(stdout);
        dup2(fd, 0);
        become_reader(0);
    case 15:
        fflush(stdout);
        if ((child = fork()) == 0) become_reader(fd);
        wait_for(child);
        return -1;
    case 16:
        socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
        fflush(stdout);
        if ((child = fork()) == 0) {
            close(fd);
            _exit(read_to_end(take_over(pair[1]), 0, "a process that got it"));
        }
        pass_on(pair[0], fd);
        close(fd);
        wait_for(child);
        return -1;
    case 17: {
        int other = dup(fd);
        fflush(stdout);
        if ((child = fork()) == 0) {
            close(fd);
            become_reader(other);
        }
        close(other);
        close(fd);
        wait_for(child);
        return -1;
    }
    case 18:
        /* The program has the connection, and this process goes on with it. */
        if ((child = fork()) == 0) {
            execlp("true", "true", NULL);
            _exit(1);
        }
        wait_for(child);
        return 0;
    }
    return 0;
}

static void write_bytes(int fd) {
    static char bytes[1 << 20];
    for (int i = 0; i < BYTES; i++) bytes[i] = letter(i);
    write_all(fd, bytes, BYTES);
}

/* A way in a process of its own, since it may become a program. */
static void try_way(int way, int ends, int listener, int port) {
    int pipes[2], fd;
    char byte;
    pipe(pipes);
    pid_t peer = fork();
    if (peer == 0) {
        int fd = connect_to(port);
        meet(fd, 0);
        write_bytes(fd);
        if (!ends) {
            close(fd);
            poll(NULL, 0, 20);
        }
        _exit(0);
    }
    fd = accept(listener, NULL, NULL);
    meet(fd, 1);
    wait_for(peer);
    printf("%s, %s: ", ends ? "the peer ends" : "the peer closes", ways[way]);
    int position = act(way, fd);
    if (position >= 0) read_to_end(fd, position, "read");
}

int main(int count, char **arguments) {
    if (count > 2 && !strcmp(arguments[1], "reader")) return read_to_end(atoi(arguments[2]), 0, "a program");
    struct sockaddr_in at;
    int listener = listen_at(&at);
    BYTES = count > 1 ? atoi(arguments[1]) : 9000;
    for (int ends = 0; ends < 2; ends++)
        for (int way = 0; way < WAYS; way++) {
            if (count > 2 && atoi(arguments[2]) != way) continue;
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                try_way(way, ends, listener, ntohs(at.sin_port));
                fflush(stdout);
                _exit(0);
            }
            int status;
            check(waitpid(child, &status, 0) == child && status == 0, "a way");
        }
    return 0;
}
