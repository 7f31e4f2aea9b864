// Makes every call that libapus_preload.so replaces and prints what it returns, so that a plain and a preloaded run can be compared.
// Numbers of descriptors are printed as well: the library must not take any. Ports and process ids are not, since they differ anyway.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __recv_chk(int, void *, size_t, size_t, int);
ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
int __poll_chk(struct pollfd *, nfds_t, int, size_t);
int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);
int __dprintf_chk(int, int, const char *, ...);
int __vdprintf_chk(int, int, const char *, va_list);
ssize_t __read(int, void *, size_t);
ssize_t __write(int, const void *, size_t);
int __close(int);
int __connect(int, const struct sockaddr *, socklen_t);
ssize_t __send(int, const void *, size_t, int);
int __poll(struct pollfd *, nfds_t, int);
int __select(int, fd_set *, fd_set *, fd_set *, struct timeval *);
int __fcntl(int, int, ...);
int __dup2(int, int);
pid_t __vfork(void);

// Runs an expression with errno 0 and prints its value, and errno if it failed.
#define SHOW(expression)                                                          \
    do {                                                                          \
        errno = 0;                                                                \
        long value_ = (long)(expression);                                         \
        if (value_ < 0)                                                           \
            printf("%s = %ld %s\n", #expression, value_, strerrorname_np(errno)); \
        else                                                                      \
            printf("%s = %ld\n", #expression, value_);                            \
    } while (0)

static char buffer[65536];
static int a, b; // a connected pair

// Prints and empties what has arrived at a descriptor.
static void show_arrived(int fd) {
    ssize_t bytes = recv(fd, buffer, sizeof buffer - 1, MSG_DONTWAIT);
    buffer[bytes > 0 ? bytes : 0] = 0;
    printf("  arrived: %zd \"%s\"\n", bytes, buffer);
}

static void tcp_pair(void) {
    int listener;
    SHOW(listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    SHOW(bind(listener, (struct sockaddr *)&at, length));
    SHOW(listen(listener, 4));
    getsockname(listener, (struct sockaddr *)&at, &length);
    SHOW(a = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    SHOW(connect(a, (struct sockaddr *)&at, length));
    SHOW(b = accept4(listener, NULL, NULL, SOCK_CLOEXEC));
    struct pollfd member = {.fd = a, .events = POLLOUT};
    SHOW(poll(&member, 1, -1));
    int error = -1;
    length = sizeof error;
    SHOW(getsockopt(a, SOL_SOCKET, SO_ERROR, &error, &length));
    SHOW(error);
    SHOW(connect(a, (struct sockaddr *)&at, sizeof at));
    SHOW(fcntl(a, F_SETFL, 0));
    int second;
    SHOW(second = socket(AF_INET, SOCK_STREAM, 0));
    SHOW(__connect(second, (struct sockaddr *)&at, sizeof at));
    int accepted;
    SHOW(accepted = accept(listener, NULL, NULL));
    SHOW(close(second));
    SHOW(recv(accepted, buffer, 1, 0));
    SHOW(close(accepted));
    SHOW(close(listener));
    SHOW(accept(listener, NULL, NULL));
    SHOW(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
}

static int show_vdprintf(int fd, int checked, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int result = checked ? __vdprintf_chk(fd, 1, format, arguments) : vdprintf(fd, format, arguments);
    va_end(arguments);
    return result;
}

static void sending(void) {
    void *volatile nowhere = (void *)1;
    struct iovec parts[2] = {{"ab", 2}, {"cde", 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    struct mmsghdr messages[2] = {{.msg_hdr = message}, {.msg_hdr = message}};
    SHOW(write(a, "one", 3));
    SHOW(__write(a, "two", 3));
    SHOW(writev(a, parts, 2));
    SHOW(pwritev2(a, parts, 2, -1, 0));
    SHOW(pwritev64v2(a, parts, 2, -1, 0));
    SHOW(send(a, "four", 4, 0));
    SHOW(__send(a, "five", 4, MSG_NOSIGNAL));
    SHOW(sendto(a, "six", 3, 0, NULL, 0));
    SHOW(sendmsg(a, &message, 0));
    SHOW(sendmmsg(a, messages, 2, 0));
    SHOW(dprintf(a, "<%d %s %.2f %d %d %d %d %.1f>", 1, "x", 2.5, 3, 4, 5, 6, 7.5));
    SHOW(__dprintf_chk(a, 1, "<%d %s %.2f %d %d %d %d %.1f %.1Lf>", 1, "x", 2.5, 3, 4, 5, 6, 7.5, 8.5L));
    SHOW(show_vdprintf(a, 0, "<%d %.1f>", 1, 2.5));
    SHOW(show_vdprintf(a, 1, "<%d %.1f>", 3, 4.5));
    show_arrived(b);
    SHOW(send(a, "!", 1, MSG_OOB));
    SHOW(recv(b, buffer, 1, MSG_OOB));
    SHOW(write(-1, "x", 1));
    SHOW(write(a, nowhere, 1));
    SHOW(sendmsg(a, NULL, 0));
    SHOW(send(a, "x", 1, 1 << 30));

    FILE *file = tmpfile();
    fputs("of a file", file);
    fflush(file);
    off_t offset = 3;
    SHOW(sendfile(a, fileno(file), &offset, 100));
    SHOW(offset);
    SHOW(sendfile64(a, fileno(file), &offset, 100));
    show_arrived(b);
    int ends[2];
    SHOW(pipe(ends));
    SHOW(write(ends[1], "through a pipe", 14));
    SHOW(splice(ends[0], NULL, a, NULL, 14, 0));
    SHOW(splice(b, NULL, ends[1], NULL, 14, 0));
    SHOW(read(ends[0], buffer, 14));
    SHOW(tee(a, b, 1, 0));
    SHOW(close(ends[0]));
    SHOW(close(ends[1]));
    SHOW(pwrite(a, "x", 1, 0));
    fclose(file);
}

static void receiving(void) {
    struct iovec parts[2] = {{buffer, 2}, {buffer + 2, 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    struct mmsghdr messages[2] = {{.msg_hdr = message}, {.msg_hdr = message}};
    struct sockaddr_storage from;
    socklen_t length = sizeof from;
    for (int i = 0; i < 100; i++) send(b, "0123456789", 10, 0);
    SHOW(read(a, buffer, 1));
    SHOW(__read(a, buffer, 2));
    SHOW(__read_chk(a, buffer, 3, sizeof buffer));
    SHOW(readv(a, parts, 2));
    SHOW(preadv2(a, parts, 2, -1, 0));
    SHOW(preadv64v2(a, parts, 2, -1, 0));
    SHOW(recv(a, buffer, 4, MSG_PEEK));
    SHOW(recv(a, buffer, 4, MSG_WAITALL));
    SHOW(__recv_chk(a, buffer, 5, sizeof buffer, 0));
    SHOW(recvfrom(a, buffer, 6, 0, (struct sockaddr *)&from, &length));
    SHOW(length);
    SHOW(__recvfrom_chk(a, buffer, 7, sizeof buffer, 0, NULL, NULL));
    SHOW(recvmsg(a, &message, 0));
    SHOW(recvmmsg(a, messages, 2, 0, NULL));
    SHOW(pread(a, buffer, 1, 0));
    int waiting = -1;
    SHOW(ioctl(a, FIONREAD, &waiting));
    SHOW(waiting);
    SHOW(ioctl(a, FIONBIO, &(int){1}));
    SHOW(fcntl(a, F_GETFL));
    SHOW(fcntl64(a, F_SETFL, 0));
    SHOW(__fcntl(a, F_GETFL));
    SHOW(recv(a, buffer, sizeof buffer, MSG_DONTWAIT) > 0);
    SHOW(recv(a, buffer, sizeof buffer, MSG_DONTWAIT));
    SHOW(read(-1, buffer, 1));
    SHOW(read(a, NULL, 0));
    struct timeval soon = {.tv_usec = 1000};
    SHOW(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon));
    SHOW(read(a, buffer, 1));
    SHOW(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0}, sizeof soon));
}

static void readiness(void) {
    struct pollfd members[3] = {{.fd = a, .events = POLLIN | POLLOUT}, {.fd = 999, .events = POLLIN}, {.fd = -1}};
    struct timespec at_once = {0};
    struct timeval timeout = {.tv_usec = 1500};
    fd_set set;
    SHOW(poll(members, 3, 0));
    printf("  %x %x %x\n", members[0].revents, members[1].revents, members[2].revents);
    SHOW(__poll(members, 1, 0));
    SHOW(__poll_chk(members, 3, 0, sizeof members));
    SHOW(ppoll(members, 3, &at_once, NULL));
    SHOW(__ppoll_chk(members, 3, &at_once, NULL, sizeof members));
    FD_ZERO(&set);
    FD_SET(a, &set);
    SHOW(select(a + 1, &set, NULL, NULL, &timeout));
    printf("  %ld %ld, %d\n", (long)timeout.tv_sec, (long)timeout.tv_usec, FD_ISSET(a, &set));
    FD_SET(a, &set);
    SHOW(__select(a + 1, NULL, &set, NULL, NULL));
    SHOW(pselect(a + 1, NULL, &set, NULL, NULL, NULL));
    SHOW(select(-1, NULL, NULL, NULL, NULL));

    int epoll;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u64 = 77}, events[4];
    SHOW(epoll = epoll_create(1));
    SHOW(close(epoll));
    SHOW(epoll = epoll_create1(EPOLL_CLOEXEC));
    SHOW(epoll_ctl(epoll, EPOLL_CTL_ADD, a, &event));
    SHOW(epoll_ctl(epoll, EPOLL_CTL_ADD, a, &event));
    SHOW(epoll_ctl(epoll, EPOLL_CTL_ADD, 999, &event));
    SHOW(epoll_wait(epoll, events, 4, 0));
    printf("  %x %d\n", events[0].events, (int)events[0].data.u64);
    SHOW(epoll_pwait(epoll, events, 4, 0, NULL));
    SHOW(epoll_ctl(epoll, EPOLL_CTL_MOD, a, &event));
    SHOW(epoll_pwait2(epoll, events, 4, &at_once, NULL));
    SHOW(epoll_wait(epoll, events, 0, 0));
    SHOW(epoll_ctl(epoll, EPOLL_CTL_DEL, a, NULL));
    SHOW(close(epoll));
    SHOW(epoll_create1(-1));
}

static void descriptors(void) {
    int pair[2], none[2], other;
    SHOW(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    SHOW(socketpair(AF_INET, SOCK_STREAM, 0, none));
    SHOW(other = dup(a));
    SHOW(dup2(a, other + 3));
    SHOW(__dup2(a, other + 3));
    SHOW(dup3(a, other + 4, O_CLOEXEC));
    SHOW(dup3(a, a, 0));
    SHOW(dup2(a, a));
    SHOW(dup(999));
    SHOW(fcntl(a, F_DUPFD, 200));
    SHOW(fcntl(a, F_DUPFD_CLOEXEC, 210));
    SHOW(fcntl(210, F_GETFD));
    SHOW(write(200, "dup", 3));
    show_arrived(b);
    SHOW(close_range(205, 215, CLOSE_RANGE_CLOEXEC));
    SHOW(close_range(205, 215, 0));
    SHOW(close(210));
    SHOW(close_range(5, 4, 0));
    closefrom(200);
    SHOW(close(200));
    SHOW(close(other));
    SHOW(__close(other + 3));
    SHOW(close(other + 4));

    // A descriptor passed over the pair, with a byte.
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control = {0};
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &a, sizeof a);
    SHOW(sendmsg(pair[0], &message, 0));
    part.iov_base = buffer;
    SHOW(recvmsg(pair[1], &message, MSG_CMSG_CLOEXEC));
    memcpy(&other, CMSG_DATA(&control.header), sizeof other);
    SHOW(other);
    SHOW(write(other, "passed", 6));
    show_arrived(b);

    FILE *stream = fdopen(other, "r+");
    SHOW(fprintf(stream, "by stdio %d", 5));
    SHOW(fclose(stream));
    show_arrived(b);
    SHOW(fdopen(999, "r") == NULL);
    SHOW(close(pair[0]));
    SHOW(close(pair[1]));
}

static void by_syscall(void) {
    SHOW(syscall(SYS_getpid) == getpid());
    SHOW(syscall(SYS_write, a, "direct", 6L));
    show_arrived(b);
    SHOW(syscall(SYS_sendto, a, "with six", 8L, 0, NULL, 0));
    show_arrived(b);
    SHOW(syscall(SYS_read, -1, buffer, 1L));
    int fd;
    SHOW(fd = syscall(SYS_dup, a));
    SHOW(syscall(SYS_fcntl, fd, F_DUPFD, 100));
    SHOW(syscall(SYS_close, 100));
    SHOW(syscall(SYS_close, fd));
    SHOW(syscall(SYS_close, fd));
    struct timespec at_once = {0};
    struct pollfd member = {.fd = a, .events = POLLOUT};
    SHOW(syscall(SYS_ppoll, &member, 1, &at_once, NULL, 8L));
    SHOW(syscall(SYS_socket, -1, 0, 0));
    SHOW(syscall(-5));
}

static void show_child(pid_t child) {
    int status;
    waitpid(child, &status, 0);
    printf("  child: exited %d with %d, signal %d\n", WIFEXITED(status), WEXITSTATUS(status), WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

// Starts this program as "arguments", which prints them, in a child.
#define SHOW_EXEC(call)                          \
    do {                                         \
        printf("%s\n", #call);                   \
        fflush(stdout);                          \
        pid_t child_ = fork();                   \
        if (child_ == 0) {                       \
            call;                                \
            printf("failed with %d\n", errno);   \
            fflush(stdout);                      \
            _exit(9);                            \
        }                                        \
        show_child(child_);                      \
    } while (0)

static void processes(const char *self) {
    char *list[] = {"x", "arguments", "of", "a list", NULL};
    char *environment[] = {"WORD=of the environment", NULL};
    pid_t child;
    SHOW_EXEC(execl(self, "x", "arguments", NULL));
    SHOW_EXEC(execl(self, "x", "arguments", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", NULL));
    SHOW_EXEC(execl("/nowhere", "x", NULL));
    SHOW_EXEC(execle(self, "x", "arguments", NULL, environment));
    SHOW_EXEC(execle(self, "x", "arguments", "2", "3", "4", "5", "6", "7", "8", NULL, environment));
    SHOW_EXEC(execlp("sh", "sh", "-c", "echo $0 $1 $2 $3 $4 $5", "1", "2", "3", "4", "5", "6", NULL));
    SHOW_EXEC(execlp("no-such-program", "x", NULL));
    SHOW_EXEC(execv(self, list));
    SHOW_EXEC(execve(self, list, environment));
    SHOW_EXEC(execvp(self, list));
    SHOW_EXEC(execvpe(self, list, environment));
    SHOW_EXEC(fexecve(open(self, O_RDONLY | O_CLOEXEC), list, environment));
    SHOW_EXEC(execveat(AT_FDCWD, self, list, environment, 0));
    SHOW_EXEC(_exit(3));
    SHOW_EXEC(_Exit(4));
    SHOW_EXEC(exit(5));
    SHOW_EXEC(raise(SIGKILL));
    SHOW_EXEC(syscall(SYS_exit_group, 6));

    SHOW(posix_spawn(&child, self, NULL, NULL, list, environment));
    show_child(child);
    SHOW(posix_spawnp(&child, "no-such-program", NULL, NULL, list, environment));
    SHOW(posix_spawnp(&child, "true", NULL, NULL, (char *[]){"true", NULL}, environ));
    show_child(child);
    SHOW(system("exit 7"));
    FILE *stream = popen("echo from a pipe", "r");
    SHOW(fgets(buffer, sizeof buffer, stream) != NULL);
    printf("  %s", buffer);
    SHOW(pclose(stream));

    volatile int kept = 42;
    for (int i = 0; i < 2; i++) {
        child = i == 0 ? vfork() : __vfork();
        if (child == 0) {
            close(a);
            execv(self, list);
            _exit(8);
        }
        show_child(child);
    }
    SHOW(kept);
    SHOW(write(a, "after vfork", 11));
    show_arrived(b);
    fflush(stdout);
    if ((child = _Fork()) == 0) {
        write(a, "of a child", 10);
        _exit(0);
    }
    show_child(child);
    show_arrived(b);
}

static void on_signal(int number) { (void)number; }

// A signal ends a call that waits, with and without SA_RESTART. The timer goes on until the call has ended.
static void interrupted(void) {
    struct sigaction action = {.sa_handler = on_signal};
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {0};
    struct epoll_event event;
    struct pollfd member = {.fd = a, .events = POLLIN};
    int epoll = epoll_create1(0);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    SHOW(read(a, buffer, 1));
    SHOW(recv(a, buffer, 1, 0));
    SHOW(poll(&member, 1, -1));
    SHOW(select(0, NULL, NULL, NULL, NULL));
    SHOW(epoll_wait(epoll, &event, 1, -1));
    setitimer(ITIMER_REAL, &never, NULL);
    close(epoll);
    signal(SIGPIPE, on_signal);
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    close(pair[1]);
    SHOW(write(pair[0], "x", 1));
    SHOW(send(pair[0], "x", 1, MSG_NOSIGNAL));
    close(pair[0]);
}

static const char *const waits[] = {"read", "recv", "recvmsg", "accept", "poll", "select", "epoll_wait", "write", "system"};
static int listener, full[2];
static volatile int cleaned;

static void clean(void *unused) {
    (void)unused;
    cleaned = 1;
}

static void *wait_for_ever(void *name) {
    struct pollfd member = {.fd = a, .events = POLLIN};
    struct epoll_event event;
    struct msghdr message = {0};
    int epoll = -1;
    pthread_cleanup_push(clean, NULL);
    if (!strcmp(name, "read")) read(a, buffer, 1);
    if (!strcmp(name, "recv")) recv(a, buffer, 1, 0);
    if (!strcmp(name, "recvmsg")) recvmsg(a, &message, 0);
    if (!strcmp(name, "accept")) accept(listener, NULL, NULL);
    if (!strcmp(name, "poll")) poll(&member, 1, -1);
    if (!strcmp(name, "select")) select(0, NULL, NULL, NULL, NULL);
    if (!strcmp(name, "epoll_wait")) epoll_wait(epoll = epoll_create1(0), &event, 1, -1);
    if (!strcmp(name, "write")) for (;;) write(full[0], buffer, sizeof buffer);
    if (!strcmp(name, "system")) system("exec cat >/dev/null <&0");
    pthread_cleanup_pop(0);
    return NULL;
}

// A thread that is cancelled while it waits in a call unwinds through the library. Cancellation before the call has the same end.
static void cancelled(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (struct sockaddr *)&at, sizeof at);
    listen(listener, 1);
    socketpair(AF_UNIX, SOCK_STREAM, 0, full);
    int input[2];
    pipe(input);
    dup2(input[0], 0); // what `cat` waits for
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        pthread_t thread;
        void *result;
        cleaned = 0;
        pthread_create(&thread, NULL, wait_for_ever, (void *)waits[i]);
        for (int turn = 0; turn < 100; turn++) sched_yield();
        pthread_cancel(thread);
        pthread_join(thread, &result);
        printf("%s: cancelled %d, cleaned up %d\n", waits[i], result == PTHREAD_CANCELED, cleaned);
    }
}

static void ends(void) {
    SHOW(write(a, "the end", 7));
    SHOW(shutdown(a, SHUT_WR));
    SHOW(write(a, "x", 1));
    SHOW(read(b, buffer, 7));
    SHOW(read(b, buffer, 7));
    struct linger at_once = {1, 0};
    SHOW(setsockopt(b, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    SHOW(close(b));
    SHOW(read(a, buffer, 1));
    SHOW(close(a));
    SHOW(close(a));
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "arguments")) {
        const char *word = getenv("WORD");
        for (int i = 0; i < count; i++) printf("  %s", arguments[i]);
        printf(", WORD %s\n", word ? word : "is not set");
        return 11;
    }
    if (count > 1 && !strcmp(arguments[1], "io_uring")) {
        SHOW(syscall(SYS_io_uring_setup, 0, NULL));
        return 0;
    }
    tcp_pair();
    sending();
    receiving();
    readiness();
    descriptors();
    by_syscall();
    processes(arguments[0]);
    interrupted();
    cancelled();
    ends();
    return 37;
}
