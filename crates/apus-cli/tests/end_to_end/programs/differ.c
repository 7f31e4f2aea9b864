/*
 * A random program of socket calls, made from a seed, whose results do not depend on time: run plain and carried, it prints the same.
 *
 *   differ SEED STEPS [DROPPED...]
 *
 * Two ends have connections with each other. The first end is in the main thread; the second one in another thread or in another
 * process. They act in turns, which pipes hand over, or one of them acts late while the other one waits. Each step prints a line: the
 * call, its result, errno, and whether the bytes are those of the stream. A step draws from the seed and its own number, so a dropped
 * step leaves the others as they are. How many bytes a call moves is compared only where TCP leaves one answer: all bytes have arrived
 * before a step begins, and the bytes on their way are few enough for any buffer. With CARRIED in the environment, connections have
 * messages at first until TCP carries none of them.
 *
 * Seeds from 1,000,000 on have more kinds of steps: threads of one end that act at once, waits that a signal ends, children that act for
 * an end for several steps, programs that a child becomes and that have the connection, bare system calls, sockets that are put into a set
 * before they are connected, SO_RCVLOWAT, and epoll sets of a parent that a child uses.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
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
#include <linux/sockios.h>
#include <time.h>
#include <unistd.h>

#ifndef TCP_INQ
#define TCP_INQ 36
#define TCP_CM_INQ TCP_INQ
#endif

enum { CONNECTIONS = 3, MOST = 20000, WITHIN_MS = 5000 };

enum what {
    OPEN, MEET, RECEIVE, SEND, POLL, EPOLL_CONTROL, EPOLL_WAIT, WAIT_FRESH, OPTION, DUPLICATE, PASS, ODD, SHUT, CLOSE, SETTLE, SETTLE_END,
    SEND_ALL, RECEIVE_ALL, FILL, OUT, URGENT, URGENT_READ, SPAWN, COUNT, STOP, THREADS, INTERRUPT, HAND_OVER, BECOME, LEAST,
};

/* How a receiving call on an empty socket comes to an end. */
enum how { PLAIN, DONT_WAIT, NONBLOCKING, TIMEOUT, SIGNAL, RESTARTED, HOWS };

struct order {
    enum what what;
    int connection, kind, flags, size, late, in_child;
    enum how how;
    uint64_t draw, position;
};

struct answer {
    long moved;
    char text[1500];
};

/* One end of all connections, and the one that acts for it. */
static struct end {
    int fd[CONNECTIONS], set, outer, orders[2], answers[2], pipe[2], file;
    int is_second;
    /* Members of the set that report changes only, and those that report once, or did so. */
    int is_edge[CONNECTIONS], is_once[CONNECTIONS];
    /* What a member waits for. */
    unsigned wants[CONNECTIONS];
} ends[2];

static int listener;
static volatile int pipes, alarms;
static struct sockaddr_in at;

static void fail(const char *what) {
    printf("cannot %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(1);
}

static uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static uint64_t next(uint64_t *state) { return *state = mixed(*state); }
static int below(uint64_t *state, int n) { return (next(state) >> 16) % n; }

/* The byte of a direction's stream: a letter, so that functions for text can send it. */
static char stream(int direction, int connection, uint64_t position) {
    return 'a' + mixed(position / 7 * 64 + position % 7 * 9 + direction * 8 + connection) % 26;
}

static void say(struct answer *to, const char *format, ...) {
    size_t length = strlen(to->text);
    va_list list;
    va_start(list, format);
    vsnprintf(to->text + length, sizeof to->text - length, format, list);
    va_end(list);
}

static const char *name(int error) { return error ? strerrorname_np(error) : "-"; }

static void say_result(struct answer *to, long result) {
    int error = result < 0 ? errno : 0;
    say(to, " = %ld %s", result, name(error));
}

static void say_events(struct answer *to, unsigned events) {
    static const struct {
        unsigned bit;
        const char *name;
    } names[] = {{POLLIN, "in"}, {POLLPRI, "pri"}, {POLLOUT, "out"}, {POLLERR, "err"}, {POLLHUP, "hup"}, {POLLNVAL, "nval"},
                 {POLLRDNORM, "rdnorm"}, {POLLRDBAND, "rdband"}, {POLLWRNORM, "wrnorm"}, {POLLWRBAND, "wrband"}, {POLLRDHUP, "rdhup"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (events & names[i].bit) say(to, " %s", names[i].name);
}

static void on_pipe(int number) { pipes++; }
static int rescue_fd = -1;
static char rescue_byte;
static void on_alarm(int number) {
    int error = errno;
    /* After some signals a call that is restarted has to end: the bytes that it waits for come. */
    if (++alarms == 3 && rescue_fd >= 0) (void)!write(rescue_fd, &rescue_byte, 1);
    errno = error;
}

static void set_timer(int microseconds) {
    struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void set_option(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

static void make_nonblocking(int fd, int is) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK | (is ? O_NONBLOCK : 0)); }

/* Up to three parts of a buffer. */
static int parts(struct iovec *into, char *bytes, size_t size, uint64_t *draw) {
    int count = 1 + below(draw, 3);
    for (int i = 0; i < count; i++) {
        size_t part = i + 1 == count ? size : below(draw, size + 1);
        into[i] = (struct iovec){bytes, part};
        bytes += part;
        size -= part;
    }
    return count;
}

static const char *receives[] = {"read", "readv", "recv", "recvfrom", "recvmsg", "recvmmsg", "preadv2", "splice", "SYS_read", "SYS_recvfrom", "RWF_NOWAIT"};
static const char *sends[] = {"write", "writev", "send", "sendto", "sendmsg", "sendmmsg", "pwritev2", "sendfile", "splice", "dprintf", "stdio", "SYS_write", "SYS_sendto", "RWF_NOWAIT"};
enum { RECEIVES = 8, SENDS = 11, MORE = 3 };
static int takes_flags(int kind) { return kind >= 2 && kind <= 5 || kind == 9; }
static int sends_flags(int kind) { return kind >= 2 && kind <= 5 || kind == 12; }

static void say_control(struct answer *to, struct msghdr *message) {
    if (message->msg_flags & ~MSG_CMSG_CLOEXEC) say(to, " flags %x", message->msg_flags & ~MSG_CMSG_CLOEXEC);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        say(to, " control %d %d", c->cmsg_level, c->cmsg_type);
        if (c->cmsg_level == IPPROTO_TCP && c->cmsg_type == TCP_CM_INQ) say(to, " inq %d", *(int *)CMSG_DATA(c));
    }
}

static long receive_once(struct end *end, const struct order *o, char *bytes, struct answer *to) {
    int fd = end->fd[o->connection], flags = o->flags;
    uint64_t draw = o->draw;
    struct iovec vector[4];
    char control[200];
    struct msghdr message = {.msg_iov = vector, .msg_control = control, .msg_controllen = sizeof control};
    switch (o->kind) {
    case 0: return read(fd, bytes, o->size);
    case 1: return readv(fd, vector, parts(vector, bytes, o->size, &draw));
    case 2: return recv(fd, bytes, o->size, flags);
    case 3: {
        struct sockaddr_in from = {0};
        socklen_t length = sizeof from;
        long got = recvfrom(fd, bytes, o->size, flags, (struct sockaddr *)&from, &length);
        if (got >= 0) say(to, " address %d", length);
        return got;
    }
    case 4: {
        message.msg_iovlen = parts(vector, bytes, o->size, &draw);
        long got = recvmsg(fd, &message, flags);
        if (got >= 0) say_control(to, &message);
        return got;
    }
    case 5: {
        struct mmsghdr messages[2] = {{message}, {message}};
        struct iovec halves[2] = {{bytes, o->size / 2}, {bytes + o->size / 2, o->size - o->size / 2}};
        for (int i = 0; i < 2; i++) {
            messages[i].msg_hdr = (struct msghdr){.msg_iov = &halves[i], .msg_iovlen = 1};
            messages[i].msg_len = 0;
        }
        int count = recvmmsg(fd, messages, 2, flags | MSG_WAITFORONE, NULL);
        if (count < 0) return count;
        long got = 0;
        for (int i = 0; i < count; i++) got += messages[i].msg_len;
        say(to, " messages %d", count);
        if (count == 2 && messages[0].msg_len < (unsigned)o->size / 2 && messages[1].msg_len > 0 && !(flags & MSG_PEEK))
            memmove(bytes + messages[0].msg_len, bytes + o->size / 2, messages[1].msg_len);
        if (flags & MSG_PEEK) got = messages[0].msg_len;
        return got;
    }
    case 6: return preadv2(fd, vector, parts(vector, bytes, o->size, &draw), -1, 0);
    case 8: return syscall(SYS_read, fd, bytes, o->size);
    case 9: return syscall(SYS_recvfrom, fd, bytes, o->size, flags, NULL, NULL);
    case 10: return preadv2(fd, vector, parts(vector, bytes, o->size, &draw), -1, RWF_NOWAIT);
    default: {
        /* A pipe takes as many bytes at once as it has pages for, so their number is free: the schedule gives a size that is there. */
        long got = 0;
        do {
            long now = splice(fd, NULL, end->pipe[1], NULL, o->size - got, got ? SPLICE_F_NONBLOCK : 0);
            if (now <= 0) return got ? got : now;
            for (long i = 0; i < now;) {
                long part = read(end->pipe[0], bytes + got + i, now - i);
                if (part <= 0) fail("read the pipe");
                i += part;
            }
            got += now;
        } while (got < o->size);
        return got;
    }
    }
}

static void receive(struct end *end, const struct order *o, struct answer *to) {
    static __thread char bytes[400000];
    int fd = end->fd[o->connection];
    say(to, "%s(%d)", receives[o->kind], o->size);
    if (o->flags && takes_flags(o->kind)) say(to, " flags %x", o->flags);
    struct order call = *o;
    struct timeval wait = {0, 15000}, none = {0, 0};
    if (o->how == DONT_WAIT) call.flags |= MSG_DONTWAIT;
    if (o->how == NONBLOCKING) make_nonblocking(fd, 1);
    if (o->how == TIMEOUT) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    if (o->how == SIGNAL || o->how == RESTARTED) {
        alarms = 0;
        sigaction(SIGALRM, &(struct sigaction){.sa_handler = on_alarm, .sa_flags = o->how == RESTARTED ? SA_RESTART : 0}, NULL);
        if (o->how == RESTARTED) rescue_fd = ends[!end->is_second].fd[o->connection], rescue_byte = stream(!end->is_second, o->connection, o->position);
        set_timer(8000);
    }
    memset(bytes, '.', o->size);
    long got = receive_once(end, &call, bytes, to);
    int error = errno;
    if (o->how == SIGNAL || o->how == RESTARTED) {
        set_timer(0);
        rescue_fd = -1;
        say(to, " %s", alarms ? "signal" : "no signal");
    }
    if (o->how == TIMEOUT) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    if (o->how == NONBLOCKING) make_nonblocking(fd, 0);
    errno = error;
    say_result(to, got);
    to->moved = got > 0 && !(o->flags & MSG_PEEK && takes_flags(o->kind)) ? got : 0;
    for (long i = 0; i < got && !(o->flags & MSG_TRUNC && takes_flags(o->kind)); i++)
        if (bytes[i] != stream(!end->is_second, o->connection, o->position + i)) {
            say(to, " WRONG at %ld: %.20s", i, bytes + i);
            break;
        }
}

static long send_once(struct end *end, const struct order *o, char *bytes, struct answer *to) {
    int fd = end->fd[o->connection], flags = o->flags;
    uint64_t draw = o->draw;
    struct iovec vector[4];
    struct msghdr message = {.msg_iov = vector};
    switch (o->kind) {
    case 0: return write(fd, bytes, o->size);
    case 1: return writev(fd, vector, parts(vector, bytes, o->size, &draw));
    case 2: return send(fd, bytes, o->size, flags);
    case 3: return sendto(fd, bytes, o->size, flags, draw & 1 ? (struct sockaddr *)&at : NULL, draw & 1 ? sizeof at : 0);
    case 4: message.msg_iovlen = parts(vector, bytes, o->size, &draw); return sendmsg(fd, &message, flags);
    case 5: {
        struct iovec halves[2] = {{bytes, o->size / 2}, {bytes + o->size / 2, o->size - o->size / 2}};
        struct mmsghdr messages[2] = {{{.msg_iov = &halves[0], .msg_iovlen = 1}}, {{.msg_iov = &halves[1], .msg_iovlen = 1}}};
        int count = sendmmsg(fd, messages, 2, flags);
        if (count < 0) return count;
        long sent = 0;
        for (int i = 0; i < count; i++) sent += messages[i].msg_len;
        say(to, " messages %d", count);
        return sent;
    }
    case 6: return pwritev2(fd, vector, parts(vector, bytes, o->size, &draw), -1, 0);
    case 7: {
        off_t offset = draw % 3000;
        if (ftruncate(end->file, 0) || pwrite(end->file, bytes, o->size, offset) != o->size) fail("write the file");
        if (draw & 1 << 20) return sendfile(fd, end->file, &offset, o->size);
        lseek(end->file, offset, SEEK_SET);
        return sendfile(fd, end->file, NULL, o->size + (draw & 1 << 21 ? 1000 : 0));
    }
    case 8: {
        if (write(end->pipe[1], bytes, o->size) != o->size) fail("write the pipe");
        long sent = 0, now = 1;
        while (sent < o->size && (now = splice(end->pipe[0], NULL, fd, NULL, o->size - sent, 0)) > 0) sent += now;
        int error = errno;
        for (long left = o->size - sent; left > 0;) left -= read(end->pipe[0], bytes, left);
        errno = error;
        return sent ? sent : now;
    }
    case 9: return dprintf(fd, "%.*s", o->size, bytes);
    case 11: return syscall(SYS_write, fd, bytes, o->size);
    case 12: return syscall(SYS_sendto, fd, bytes, o->size, flags, NULL, 0);
    case 13: return pwritev2(fd, vector, parts(vector, bytes, o->size, &draw), -1, RWF_NOWAIT);
    default: {
        FILE *file = fdopen(dup(fd), "w");
        if (!file) return -1;
        long sent = fwrite(bytes, 1, o->size, file);
        int flushed = fflush(file), error = errno;
        fclose(file);
        errno = error;
        return flushed ? -1 : sent;
    }
    }
}

static void send_bytes(struct end *end, const struct order *o, struct answer *to) {
    static __thread char bytes[MOST + 1];
    say(to, "%s(%d)", sends[o->kind], o->size);
    if (o->flags && sends_flags(o->kind)) say(to, " flags %x", o->flags);
    for (int i = 0; i < o->size; i++) bytes[i] = stream(end->is_second, o->connection, o->position + i);
    pipes = 0;
    long sent = send_once(end, o, bytes, to);
    say_result(to, sent);
    if (pipes) say(to, " SIGPIPE");
    to->moved = sent > 0 ? sent : 0;
}

/* All connections of the end, or this one, in a list. */
static void ask_poll(struct end *end, const struct order *o, struct answer *to) {
    struct timespec time = {0, 0};
    struct timeval times = {0, 0};
    int first = o->size ? 0 : o->connection, last = o->size ? CONNECTIONS : o->connection + 1, highest = 0, result;
    if (o->kind < 2) {
        struct pollfd members[CONNECTIONS];
        for (int i = first; i < last; i++) members[i] = (struct pollfd){end->fd[i], o->flags, 0};
        int timeout = o->late ? -1 : 0;
        result = o->kind ? ppoll(members + first, last - first, timeout ? NULL : &time, NULL) : poll(members + first, last - first, timeout);
        say(to, o->kind ? "ppoll" : "poll");
        say_events(to, o->flags);
        say_result(to, result);
        for (int i = first; i < last; i++) {
            say(to, " |");
            say_events(to, members[i].revents);
        }
        return;
    }
    fd_set sets[3];
    for (int i = 0; i < 3; i++) FD_ZERO(&sets[i]);
    for (int i = first; i < last; i++) {
        if (end->fd[i] < 0) continue;
        for (int j = 0; j < 3; j++)
            if (o->flags & (1 << j)) FD_SET(end->fd[i], &sets[j]);
        if (end->fd[i] > highest) highest = end->fd[i];
    }
    if (o->kind == 2)
        result = select(highest + 1, &sets[0], &sets[1], &sets[2], o->late ? NULL : &times);
    else
        result = pselect(highest + 1, &sets[0], &sets[1], &sets[2], o->late ? NULL : &time, NULL);
    say(to, "%s %x", o->kind == 2 ? "select" : "pselect", o->flags & 7);
    say_result(to, result);
    for (int i = first; i < last; i++) {
        if (end->fd[i] < 0) continue;
        say(to, " |");
        for (int j = 0; j < 3; j++)
            if (FD_ISSET(end->fd[i], &sets[j])) say(to, j == 0 ? " in" : j == 1 ? " out" : " pri");
    }
}

/* `quiet`: members that may be reported although nothing has come, or not; above bit 8 those whose end may be. */
static void say_set(struct answer *to, int set, int timeout, int kind, int quiet) {
    struct epoll_event events[2 * CONNECTIONS + 2];
    int count;
    struct timespec time = {0, 0};
    if (kind == 0) count = epoll_wait(set, events, 2 * CONNECTIONS + 2, timeout);
    if (kind == 1) count = epoll_pwait(set, events, 2 * CONNECTIONS + 2, timeout, NULL);
    if (kind == 2) count = epoll_pwait2(set, events, 2 * CONNECTIONS + 2, timeout ? NULL : &time, NULL);
    int reported = 0;
    for (int i = 0; i < count; i++)
        if (events[i].data.u64 < CONNECTIONS && quiet >> events[i].data.u64 & (events[i].events & ~(EPOLLERR | EPOLLHUP) ? 1 : 1 | 1 << 8)) events[i].data.u64 = 99;
        else reported++;
    say_result(to, count < 0 ? count : reported);
    for (int data = 0; data < 99; data++)
        for (int i = 0; i < count; i++)
            if (events[i].data.u64 == (unsigned)data) {
                say(to, " | %d:", data);
                say_events(to, events[i].events);
            }
    for (int i = 0; i < count; i++)
        if (events[i].data.u64 >= 100) say(to, " | strange data");
}

/* Options that do not change where bytes go, and some that the kernel refuses. */
static void option(struct end *end, const struct order *o, struct answer *to) {
    static const struct {
        int level, name, least, most;
        const char *is;
    } all[] = {
        {SOL_SOCKET, SO_KEEPALIVE, 0, 1, "SO_KEEPALIVE"}, {SOL_SOCKET, SO_ERROR, 0, 0, "SO_ERROR"}, {SOL_SOCKET, SO_TYPE, 0, 0, "SO_TYPE"},
        {SOL_SOCKET, SO_REUSEADDR, 0, 1, "SO_REUSEADDR"}, {SOL_SOCKET, SO_OOBINLINE, 0, 0, "SO_OOBINLINE"},
        {SOL_SOCKET, SO_RCVLOWAT, 1, 1, "SO_RCVLOWAT"}, {SOL_SOCKET, SO_PRIORITY, 0, 3, "SO_PRIORITY"},
        {SOL_SOCKET, SO_SNDBUF, 65536, 200000, "SO_SNDBUF"}, {SOL_SOCKET, SO_RCVBUF, 65536, 200000, "SO_RCVBUF"},
        {SOL_SOCKET, SO_ACCEPTCONN, 0, 0, "SO_ACCEPTCONN"}, {SOL_SOCKET, SO_PROTOCOL, 0, 0, "SO_PROTOCOL"}, {SOL_SOCKET, 9999, 0, 1, "9999"},
        {SOL_SOCKET, SO_BUSY_POLL, 0, 0, "SO_BUSY_POLL"}, {SOL_SOCKET, SO_PASSCRED, 0, 0, "SO_PASSCRED"},
        {IPPROTO_TCP, TCP_NODELAY, 1, 1, "TCP_NODELAY"}, {IPPROTO_TCP, TCP_QUICKACK, 0, 1, "TCP_QUICKACK"},
        {IPPROTO_TCP, TCP_INQ, 0, 1, "TCP_INQ"}, {IPPROTO_TCP, TCP_KEEPIDLE, 50, 99, "TCP_KEEPIDLE"}, {IPPROTO_TCP, 9999, 0, 1, "9999"},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, 0, 60000, "TCP_USER_TIMEOUT"}, {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 65536, 1 << 30, "TCP_NOTSENT_LOWAT"},
        {IPPROTO_TCP, TCP_DEFER_ACCEPT, 0, 1, "TCP_DEFER_ACCEPT"}, {IPPROTO_IP, IP_TOS, 0, 16, "IP_TOS"}, {IPPROTO_IP, IP_TTL, 30, 90, "IP_TTL"},
        {SOL_SOCKET, SO_LINGER, 0, 0, "SO_LINGER"}, {IPPROTO_TCP, TCP_LINGER2, 5, 10, "TCP_LINGER2"}, {IPPROTO_IPV6, IPV6_V6ONLY, 0, 1, "IPV6_V6ONLY"},
        {SOL_SOCKET, SO_TIMESTAMP, 0, 0, "SO_TIMESTAMP"}, {IPPROTO_TCP, TCP_MAXSEG, 500, 1400, "TCP_MAXSEG"}, {99, 1, 0, 1, "level 99"},
    };
    uint64_t draw = o->draw;
    int which = below(&draw, sizeof all / sizeof *all), gets = below(&draw, 2), value = all[which].least + below(&draw, all[which].most - all[which].least + 1);
    int fd = end->fd[o->connection], longs[4] = {0};
    socklen_t size = below(&draw, 8) ? sizeof value : below(&draw, 5);
    if (all[which].name == SO_LINGER && all[which].level == SOL_SOCKET && !gets) gets = 1;
    if (gets) {
        int result = getsockopt(fd, all[which].level, all[which].name, longs, &size);
        say(to, "getsockopt(%s)", all[which].is);
        say_result(to, result);
        /* The kernel sizes these by itself. */
        int is_free = all[which].name == TCP_QUICKACK || all[which].name == TCP_MAXSEG || all[which].name == TCP_LINGER2 || all[which].name == SO_SNDBUF || all[which].name == SO_RCVBUF;
        if (result == 0) say(to, " size %d", size);
        if (result == 0 && !is_free) say(to, " value %d", longs[0]);
        return;
    }
    int result = setsockopt(fd, all[which].level, all[which].name, &value, size);
    say(to, "setsockopt(%s, %d, size %d)", all[which].is, value, size);
    say_result(to, result);
}

static void odd(struct end *end, const struct order *o, struct answer *to) {
    int fd = end->fd[o->connection];
    uint64_t draw = o->draw;
    char byte = 0;
    int value = 0;
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
#define CASE(number, call) case number: { long result = (call); say(to, "%s", #call); say_result(to, result); break; }
    switch (below(&draw, 32)) {
        CASE(0, lseek(fd, 0, SEEK_CUR))
        CASE(1, pread(fd, &byte, 1, 0))
        CASE(2, pwrite(fd, &byte, 1, 0))
        CASE(3, ftruncate(fd, 0))
        CASE(4, accept(fd, NULL, NULL))
        CASE(5, connect(fd, (struct sockaddr *)&at, sizeof at))
        CASE(6, fcntl(fd, F_GETFL))
        CASE(7, fcntl(fd, F_GETFD))
        CASE(8, fcntl(fd, F_SETFD, FD_CLOEXEC))
        CASE(9, fcntl(fd, 12345, 0))
        CASE(10, ioctl(fd, 0x12345, &value))
        CASE(11, ioctl(fd, FIONBIO, &value))
        CASE(12, recv(fd, &byte, 1, MSG_OOB))
        CASE(13, recv(fd, &byte, 1, MSG_ERRQUEUE | MSG_DONTWAIT))
        CASE(14, recv(fd, &byte, 0, MSG_DONTWAIT))
        CASE(15, read(fd, &byte, 0))
        CASE(16, write(fd, &byte, 0))
        CASE(17, send(fd, &byte, 0, MSG_NOSIGNAL))
        CASE(18, readv(fd, &vector, -1))
        CASE(19, writev(fd, &vector, 1025))
        CASE(20, readv(fd, &vector, 0))
        CASE(21, writev(fd, &vector, 0))
        CASE(22, shutdown(fd, 3))
        CASE(23, getpeername(fd, (struct sockaddr *)&address, &length))
        CASE(24, getsockname(fd, (struct sockaddr *)&address, &length))
        CASE(25, ioctl(fd, SIOCATMARK, &value))
        CASE(26, fsync(fd))
        CASE(27, recvmmsg(fd, NULL, 0, MSG_DONTWAIT, NULL))
        CASE(28, sendmmsg(fd, NULL, 0, MSG_DONTWAIT))
        CASE(29, preadv2(fd, &vector, 1, 0, 0))
        CASE(30, pwritev2(fd, &vector, 1, -1, 0x4000))
        CASE(31, splice(fd, NULL, fd, NULL, 1, SPLICE_F_NONBLOCK))
    }
}

static void duplicate(struct end *end, const struct order *o, struct answer *to) {
    static const char *names[] = {"dup", "dup2", "dup3", "F_DUPFD", "F_DUPFD_CLOEXEC"};
    int old = end->fd[o->connection], number = 300 + o->connection * 2 + end->is_second + o->size % 50 * 8, fd;
    if (number == old) number += 4;
    switch (o->kind % 5) {
    case 0: fd = dup(old); break;
    case 1: fd = dup2(old, number); break;
    case 2: fd = dup3(old, number, O_CLOEXEC); break;
    case 3: fd = fcntl(old, F_DUPFD, number); break;
    default: fd = fcntl(old, F_DUPFD_CLOEXEC, number);
    }
    say(to, "%s: %s", names[o->kind % 5], fd >= 0 ? "one more" : name(errno));
    if (fd < 0) return;
    if (o->flags & 1) {
        int closed = close(fd);
        say(to, ", close");
        say_result(to, closed);
        return;
    }
    end->fd[o->connection] = fd;
    int closed = close(old);
    say(to, ", close of the old one");
    say_result(to, closed);
}

/* A descriptor goes through a unix socket and comes back as another one. */
static void pass(struct end *end, const struct order *o, struct answer *to) {
    int pair[2], old = end->fd[o->connection];
    char byte = 0;
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) fail("make a pair");
    control.head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.head), &old, sizeof old);
    long sent = sendmsg(pair[0], &message, 0), got = recvmsg(pair[1], &message, 0);
    say(to, "pass: %ld %ld", sent, got);
    close(old);
    memcpy(&end->fd[o->connection], CMSG_DATA(&control.head), sizeof old);
    close(pair[0]);
    close(pair[1]);
}

static void spawn(struct end *end, const struct order *o, struct answer *to) {
    if (o->kind % 3 == 0) say(to, "system: %d", system("exit 3"));
    if (o->kind % 3 == 1) {
        FILE *output = popen("echo hello", "r");
        char text[20] = {0};
        say(to, "popen: %s", output && fgets(text, sizeof text, output) ? "hello" : "nothing");
        say(to, " %d", output ? pclose(output) : -1);
    }
    if (o->kind % 3 == 2) {
        pid_t child = vfork();
        if (child == 0) _exit(4);
        int status = 0;
        waitpid(child, &status, 0);
        say(to, "vfork: %d", WEXITSTATUS(status));
    }
}

/* Bytes that TCP has received and sent, as linux/tcp.h has them. */
static uint64_t by_tcp(int fd) {
    uint64_t info[32] = {0};
    socklen_t size = sizeof info;
    enum { INFO = 11, RECEIVED = 16, SENT = 25 };
    getsockopt(fd, IPPROTO_TCP, INFO, info, &size);
    return info[RECEIVED] + info[SENT];
}

/* Messages of one byte; the first end's last one is 1. */
static void meet(struct end *end, const struct order *o) {
    int fd = end->fd[o->connection];
    char byte = 0;
    if (end->is_second) {
        while (!byte)
            if (read(fd, &byte, 1) != 1 || write(fd, &byte, 1) != 1) fail("meet");
        return;
    }
    uint64_t before = 0;
    time_t until = time(NULL) + 5;
    for (int i = 1; !byte; i++) {
        if (i == o->size) byte = 1;
        if (o->size > 10 && i % 40 == 0) {
            uint64_t now = by_tcp(fd);
            byte = !getenv("CARRIED") || now == before || time(NULL) > until;
            before = now;
        } else if (o->size > 10 && i % 40 < 10)
            poll(NULL, 0, 1);
        if (write(fd, &byte, 1) != 1 || read(fd, &(char){0}, 1) != 1) fail("meet");
    }
}

static void send_all(struct end *end, const struct order *o, struct answer *to) {
    struct order part = *o;
    uint64_t draw = o->draw;
    for (int done = 0; done < o->size;) {
        struct answer ignored = {0};
        part.kind = below(&draw, 9);
        part.flags = MSG_NOSIGNAL;
        part.size = 1 + below(&draw, below(&draw, 2) ? 300 : MOST);
        if (part.size > o->size - done) part.size = o->size - done;
        part.position = o->position + done;
        part.draw = next(&draw);
        send_bytes(end, &part, &ignored);
        if (ignored.moved == 0) {
            say(to, "a part of all: %s", ignored.text);
            return;
        }
        done += ignored.moved;
    }
    say(to, "sent all %d", o->size);
    to->moved = o->size;
}

static void receive_all(struct end *end, const struct order *o, struct answer *to) {
    struct order part = *o;
    uint64_t draw = o->draw;
    for (int done = 0; done < o->size;) {
        struct answer ignored = {0};
        part.kind = below(&draw, 7);
        part.flags = below(&draw, 4) ? 0 : MSG_WAITALL;
        part.size = 1 + below(&draw, below(&draw, 2) ? 300 : 3 * MOST);
        if (part.size > o->size - done) part.size = o->size - done;
        part.position = o->position + done;
        part.draw = next(&draw);
        part.how = PLAIN;
        /* Of two messages the second one may not be there. */
        receive(end, &part, &ignored);
        if (ignored.moved == 0 || strstr(ignored.text, "WRONG")) {
            say(to, "a part of all: %s", ignored.text);
            return;
        }
        done += ignored.moved;
    }
    say(to, "received all %d", o->size);
    to->moved = o->size;
}

/* Writes until there is no room, also after the peer has acknowledged all that it takes. */
static void fill(struct end *end, const struct order *o, struct answer *to) {
    static __thread char bytes[MOST];
    int fd = end->fd[o->connection];
    long sent = 0, now = 1;
    struct pollfd member = {fd, POLLOUT, 0};
    do {
        for (;;) {
            int size = 1 + (mixed(o->draw + sent) % MOST);
            for (int i = 0; i < size; i++) bytes[i] = stream(end->is_second, o->connection, o->position + sent + i);
            now = send(fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (now <= 0) break;
            sent += now;
        }
    } while (now < 0 && errno == EAGAIN && poll(&member, 1, 60) == 1 && !(member.revents & (POLLERR | POLLHUP)));
    if (now < 0 && errno == EAGAIN || member.revents == 0) say(to, "full");
    else say(to, "filled: %s", name(errno));
    to->moved = sent;
}

/* Another thread of the end, and what it does while the end's own thread changes something. */
struct helper {
    struct end *end;
    struct order order;
    struct answer answer;
    int set;
};

static void *help(void *of) {
    struct helper *helper = of;
    const struct order *o = &helper->order;
    struct answer *to = &helper->answer;
    int fd = helper->end->fd[o->connection];
    if (o->kind < 2) receive(helper->end, o, to);
    if (o->kind == 2) {
        struct epoll_event event = {0};
        say(to, "a thread waits for a set");
        say_result(to, epoll_wait(helper->set, &event, 1, WITHIN_MS));
        say_events(to, event.events);
    }
    if (o->kind == 3) {
        struct pollfd member = {fd, POLLIN | POLLRDHUP, 0};
        say(to, "a thread waits by poll");
        say_result(to, poll(&member, 1, WITHIN_MS));
        say_events(to, member.revents);
    }
    return NULL;
}

static void threads(struct end *end, const struct order *o, struct answer *to) {
    static __thread char bytes[MOST];
    int fd = end->fd[o->connection];
    struct helper helper = {.end = end, .order = *o, .set = epoll_create1(0)};
    pthread_t thread;
    helper.order.kind = o->kind == 1 ? 0 : o->kind == 0 ? 0 : o->kind;
    if (pthread_create(&thread, NULL, help, &helper)) fail("start a thread");
    nanosleep(&(struct timespec){0, 2000000}, NULL);
    long result = 0;
    if (o->kind == 0) {
        result = shutdown(fd, SHUT_RD);
        say(to, "shutdown(0)");
    } else if (o->kind == 1) {
        for (int i = 0; i < o->late; i++) bytes[i] = stream(end->is_second, o->connection, o->draw + i);
        result = send(fd, bytes, o->late, MSG_NOSIGNAL);
        say(to, "send(%d)", o->late);
    } else if (o->kind == 2) {
        struct epoll_event event = {.events = EPOLLOUT | (o->flags ? EPOLLET : 0)};
        result = epoll_ctl(helper.set, EPOLL_CTL_ADD, fd, &event);
        say(to, "add");
    } else {
        result = shutdown(fd, SHUT_RDWR);
        say(to, "shutdown(2)");
    }
    say_result(to, result);
    pthread_join(thread, NULL);
    close(helper.set);
    say(to, ", %s", helper.answer.text);
    to->moved = helper.answer.moved;
}

/* A wait that only a signal ends. */
static void interrupt(struct end *end, const struct order *o, struct answer *to) {
    static const char *names[] = {"poll", "ppoll", "select", "pselect", "epoll_wait", "epoll_pwait2", "epoll_wait for the outer of two sets"};
    int fd = end->fd[o->connection], set = epoll_create1(0), outer = epoll_create1(0), kind = o->kind % 7;
    struct pollfd member = {fd, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN | (o->flags ? EPOLLET : 0)};
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(fd, &reads);
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    epoll_ctl(outer, EPOLL_CTL_ADD, set, &event);
    alarms = 0;
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = on_alarm, .sa_flags = o->size ? SA_RESTART : 0}, NULL);
    set_timer(6000);
    int result = kind == 0 ? poll(&member, 1, -1) : kind == 1 ? ppoll(&member, 1, NULL, NULL) : kind == 2 ? select(fd + 1, &reads, NULL, NULL, NULL) : kind == 3 ? pselect(fd + 1, &reads, NULL, NULL, NULL, NULL) : kind == 4 ? epoll_wait(set, &event, 1, -1) : kind == 5 ? epoll_pwait2(set, &event, 1, NULL, NULL) : epoll_wait(outer, &event, 1, -1);
    int error = errno;
    set_timer(0);
    close(outer);
    close(set);
    errno = error;
    say(to, "%s, until a signal", names[kind]);
    say_result(to, result);
}

/* A child becomes a program that has the connection as its standard input or output. */
static void become(struct end *end, const struct order *o, struct answer *to) {
    static __thread char bytes[MOST + 1];
    int fd = end->fd[o->connection], pair[2], status;
    char count[20];
    if (pipe(pair)) fail("make a pipe");
    for (int i = 0; i < o->size; i++) bytes[i] = stream(end->is_second, o->connection, o->position + i);
    snprintf(count, sizeof count, "%d", o->size);
    pid_t child = fork();
    if (child == 0) {
        if (o->kind) {
            dup2(fd, 1);
            bytes[o->size] = 0;
            execlp("printf", "printf", "%s", bytes, NULL);
        } else {
            dup2(fd, 0);
            dup2(pair[1], 1);
            execlp("head", "head", "-c", count, NULL);
        }
        _exit(9);
    }
    close(pair[1]);
    long got = 0, now;
    while ((now = read(pair[0], bytes, sizeof bytes)) > 0) {
        for (long i = 0; i < now; i++)
            if (bytes[i] != stream(!end->is_second, o->connection, o->position + got + i)) {
                say(to, "WRONG at %ld ", got + i);
                break;
            }
        got += now;
    }
    close(pair[0]);
    waitpid(child, &status, 0);
    say(to, o->kind ? "a program writes %d: %x" : "a program reads %d: %x", o->kind ? o->size : (int)got, status);
    to->moved = o->kind ? o->size : got;
}

static void act(struct end *end, const struct order *o, struct answer *to) {
    int fd = end->fd[o->connection], value = -1;
    struct epoll_event event = {.events = o->flags, .data.u64 = o->connection};
    if (o->late) {
        struct timespec wait = {0, 2000000};
        if (o->what != POLL) nanosleep(&wait, NULL);
    }
    switch (o->what) {
    case OPEN:
        if (fd >= 0) close(fd);
        if (end->is_second) fd = accept(listener, NULL, NULL);
        else {
            fd = socket(AF_INET, SOCK_STREAM, 0);
            if (o->kind) {
                /* It is a member of the set before it is connected. */
                event.events = o->kind == 1 ? EPOLLIN : EPOLLIN | EPOLLOUT;
                make_nonblocking(fd, 1);
                if (epoll_ctl(end->set, EPOLL_CTL_ADD, fd, &event)) fail("add a socket");
                if (connect(fd, (struct sockaddr *)&at, sizeof at) && errno != EINPROGRESS) fail("connect");
                struct pollfd member = {fd, POLLOUT, 0};
                if (poll(&member, 1, WITHIN_MS) != 1 || !(member.revents & POLLOUT)) fail("connect in time");
                make_nonblocking(fd, 0);
            } else if (connect(fd, (struct sockaddr *)&at, sizeof at))
                fail("connect");
        }
        if (fd < 0) fail("accept");
        set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
        end->fd[o->connection] = fd;
        end->is_once[o->connection] = end->is_edge[o->connection] = 0;
        end->wants[o->connection] = event.events;
        break;
    case MEET: meet(end, o); break;
    case RECEIVE: receive(end, o, to); break;
    case SEND: send_bytes(end, o, to); break;
    case POLL: ask_poll(end, o, to); break;
    case EPOLL_CONTROL: {
        static const char *names[] = {"add", "del", "mod"};
        int result = epoll_ctl(end->set, o->kind, fd, o->kind == EPOLL_CTL_DEL ? NULL : &event);
        if (result == 0 && o->kind != EPOLL_CTL_DEL) {
            end->wants[o->connection] = o->flags;
            end->is_edge[o->connection] = (o->flags & EPOLLET) != 0;
            /* A descriptor that was closed while a duplicate is open may still be a member. */
            end->is_once[o->connection] |= (o->flags & EPOLLONESHOT) != 0;
        }
        say(to, "%s %x", names[o->kind - 1], o->kind == EPOLL_CTL_DEL ? 0 : o->flags);
        say_result(to, result);
        break;
    }
    case EPOLL_WAIT:
        say(to, o->size ? "wait for the outer set" : "wait for the set");
        /* Within 50 us after a wait, rings may be reported without a look at the kernel. */
        nanosleep(&(struct timespec){0, 100000}, NULL);
        {
            /* A member that reports changes only may report what it has reported once more. Bytes are no change for all of them. */
            int quiet = 0;
            for (int i = 0; i < CONNECTIONS; i++) {
                int waits_for_bytes = (end->wants[i] & (EPOLLIN | EPOLLPRI | EPOLLRDNORM | EPOLLRDBAND)) != 0;
                int has_news = o->flags >> i & 1 && waits_for_bytes || o->flags >> i + 8 & 1;
                quiet |= (end->is_edge[i] && !has_news) << i | end->is_once[i] << i + 8 | (end->is_once[i] && o->flags >> 16) << i;
            }
            if (o->size && quiet) {
                struct epoll_event event;
                epoll_wait(end->outer, &event, 1, 0);
            } else
                say_set(to, o->size ? end->outer : end->set, 0, o->kind % 3, quiet);
        }
        break;
    case WAIT_FRESH: {
        int set = epoll_create1(0);
        epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
        say(to, "wait for a new set %x", o->flags);
        say_set(to, set, -1, o->kind % 3, 0);
        close(set);
        break;
    }
    case OPTION: option(end, o, to); break;
    case DUPLICATE: duplicate(end, o, to); break;
    case PASS: pass(end, o, to); break;
    case ODD: odd(end, o, to); break;
    case SHUT: {
        int result = shutdown(fd, o->kind);
        say(to, "shutdown(%d)", o->kind);
        say_result(to, result);
        break;
    }
    case CLOSE: {
        struct linger linger = {1, 0};
        if (o->kind) setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        /* A descriptor is closed in several ways. */
        int result = o->flags == 1 ? close_range(fd, fd, 0) : o->flags == 2 ? -(dup2(end->file, fd) != fd) : close(fd);
        if (o->flags == 2) close(fd);
        say(to, o->kind ? "close with a reset" : "close");
        say_result(to, result);
        end->fd[o->connection] = -1;
        break;
    }
    case SETTLE:
        for (int i = 0; i < WITHIN_MS && value != o->size; i++) {
            if (i > 50) poll(NULL, 0, 1);
            if (ioctl(fd, FIONREAD, &value)) break;
        }
        if (value != o->size) say(to, "%d bytes are there instead of %d", value, o->size);
        break;
    case SETTLE_END: {
        struct pollfd member = {fd, o->flags, 0};
        if (poll(&member, 1, WITHIN_MS) != 1) say(to, "no end is seen");
        break;
    }
    case SEND_ALL: send_all(end, o, to); break;
    case RECEIVE_ALL: receive_all(end, o, to); break;
    case FILL: fill(end, o, to); break;
    case OUT: {
        struct pollfd member = {fd, POLLOUT, 0};
        say(to, "room");
        say_result(to, poll(&member, 1, o->size));
        say_events(to, member.revents);
        break;
    }
    case URGENT: {
        long sent = send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL);
        say(to, "urgent byte sent");
        say_result(to, sent);
        break;
    }
    case URGENT_READ: {
        struct pollfd member = {fd, POLLPRI, 0};
        int ready = poll(&member, 1, WITHIN_MS);
        char byte = 0;
        long got = recv(fd, &byte, 1, MSG_OOB | MSG_DONTWAIT);
        say(to, "urgent byte: poll %d", ready);
        say_result(to, got);
        say(to, " %d", byte);
        break;
    }
    case SPAWN: spawn(end, o, to); break;
    case COUNT: {
        int result = ioctl(fd, FIONREAD, &value);
        say(to, "FIONREAD");
        say_result(to, result);
        say(to, " %d", value);
        break;
    }
    case THREADS: threads(end, o, to); break;
    case INTERRUPT: interrupt(end, o, to); break;
    case BECOME: become(end, o, to); break;
    case LEAST:
        set_option(fd, SOL_SOCKET, SO_RCVLOWAT, o->size);
        say(to, "SO_RCVLOWAT %d", o->size);
        break;
    case HAND_OVER:
    case STOP: break;
    }
}

/* In a child of fork, if the order says so. */
static void act_somewhere(struct end *end, const struct order *o, struct answer *to) {
    int pair[2], status;
    if (!o->in_child) return act(end, o, to);
    if (pipe(pair)) fail("make a pipe");
    pid_t child = fork();
    if (child == 0) {
        struct answer answer = {0};
        act(end, o, &answer);
        if (write(pair[1], &answer, sizeof answer) != sizeof answer) _exit(1);
        _exit(0);
    }
    close(pair[1]);
    for (size_t got = 0; got < sizeof *to;) {
        long now = read(pair[0], (char *)to + got, sizeof *to - got);
        if (now <= 0) {
            *to = (struct answer){0};
            say(to, "the child says nothing");
            break;
        }
        got += now;
    }
    close(pair[0]);
    waitpid(child, &status, 0);
    if (status) say(to, ", child %x", status);
}

static void *serve(void *of) {
    struct end *end = of;
    struct order order;
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    for (;;) {
        if (read(end->orders[0], &order, sizeof order) != sizeof order) fail("get an order");
        struct answer answer = {0};
        if (order.what == HAND_OVER && order.size > 0) {
            /* A child of fork acts for the end until an order ends it. */
            int status;
            pid_t child = fork();
            if (child < 0) fail("fork");
            if (child > 0) {
                waitpid(child, &status, 0);
                if (status) say(&answer, "the child has ended by %x", status);
                if (write(end->answers[1], &answer, sizeof answer) != sizeof answer) fail("answer");
                continue;
            }
            if (write(end->answers[1], &answer, sizeof answer) != sizeof answer) fail("answer");
            continue;
        }
        if (order.what == HAND_OVER) _exit(0);
        /* Of two threads, the one that waits gets the signal. */
        int gets_signal = order.what == INTERRUPT || order.what == RECEIVE && (order.how == SIGNAL || order.how == RESTARTED);
        pthread_sigmask(gets_signal ? SIG_UNBLOCK : SIG_BLOCK, &alarm_only, NULL);
        act_somewhere(end, &order, &answer);
        pthread_sigmask(SIG_BLOCK, &alarm_only, NULL);
        if (write(end->answers[1], &answer, sizeof answer) != sizeof answer) fail("answer");
        if (order.what == STOP) return NULL;
    }
}

static void begin_order(int who, const struct order *o) {
    if (write(ends[who].orders[1], o, sizeof *o) != sizeof *o) fail("give an order");
}

static long step_number;
static int is_wide;
static int receive_kinds(void) { return RECEIVES + (is_wide ? MORE : 0); }
static int send_kinds(void) { return SENDS + (is_wide ? MORE : 0); }
static long end_order(int who, const struct order *o) {
    struct answer answer = {0};
    for (size_t got = 0; got < sizeof answer;) {
        long now = read(ends[who].answers[0], (char *)&answer + got, sizeof answer - got);
        if (now <= 0) fail("get an answer");
        got += now;
    }
    if (answer.text[0]) printf("%ld %c%d %s%s\n", step_number, "AB"[who], o->connection, o->in_child ? "in a child: " : "", answer.text);
    fflush(stdout);
    return answer.moved;
}

static long order(int who, const struct order *o) {
    begin_order(who, o);
    return end_order(who, o);
}

/* The state of each connection, as TCP has it. */
static struct state {
    uint64_t sent[2], read[2];      /* of each direction; direction 0 is from the first end */
    int is_shut[2], is_closed[2], is_over, is_shut_for_reading[2];
    uint64_t seen[2], seen_end[2];  /* What had come for an end when it waited for its set last. */
} states[CONNECTIONS];

static int on_way(struct state *s, int direction) { return s->sent[direction] - s->read[direction]; }

static void open_connection(int connection, int messages, int kind) {
    struct order o = {.what = OPEN, .connection = connection, .kind = kind};
    order(0, &o);
    o.kind = 0;
    order(1, &o);
    states[connection] = (struct state){0};
    o.what = MEET;
    o.size = messages;
    if (messages == 0) return;
    begin_order(1, &o);
    order(0, &o);
    end_order(1, &o);
}

static void settle(int connection, int direction) {
    struct state *s = &states[connection];
    struct order o = {.what = SETTLE, .connection = connection, .size = on_way(s, direction)};
    if (!s->is_closed[!direction] && !s->is_over) order(!direction, &o);
}

/* An end is expected at `who`: of the stream, or of everything. */
static void settle_end(int connection, int who, int of_all) {
    struct order o = {.what = SETTLE_END, .connection = connection, .flags = of_all ? 0 : POLLRDHUP};
    if (!states[connection].is_closed[who]) order(who, &o);
}

/* Bytes of this end's peer, or for it, are in memory and can be in no socket any more. */
static int is_left_alone(struct state *s, int who) {
    return s->is_shut_for_reading[who] || s->is_closed[!who] || s->is_shut[!who] && s->is_shut_for_reading[!who];
}

/* Steps for which an end has a child that acts for it. */
static int handed[2];
/* A child has used the set of an end: what is put there before it is connected stays with TCP, and members that report once may do so again. */
static int is_set_used[2];

static void take_back(int who) {
    struct order o = {.what = HAND_OVER};
    handed[who] = 0;
    order(who, &o);
}

static void wide_step(int c, int who, uint64_t *draw) {
    struct state *s = &states[c];
    int peer = !who, in = peer, out = who, there = on_way(s, in);
    int is_open = !s->is_closed[0] && !s->is_closed[1] && !s->is_over;
    int may_send = is_open && !s->is_shut[out] && !s->is_shut_for_reading[peer];
    int may_get = is_open && !s->is_shut[in] && !s->is_shut_for_reading[who];
    struct order o = {.connection = c, .draw = next(draw), .position = s->read[in], .flags = below(draw, 3) == 0, .in_child = below(draw, 12) == 0};
    switch (below(draw, 8)) {
    case 0:
        /* One thread reads; another one sends, or ends the reading. */
        if (there || !may_get || !may_send) return;
        o.what = THREADS;
        o.kind = below(draw, 6) != 0;
        o.size = 1 + below(draw, 3000);
        o.flags = 0;
        if (o.kind) {
            struct order late = {.what = SEND, .connection = c, .kind = below(draw, send_kinds()), .size = 1 + below(draw, 3000), .late = 1, .position = s->sent[in], .flags = MSG_NOSIGNAL, .draw = next(draw)};
            o.size = 1;
            o.late = 1 + below(draw, 3000);
            o.draw = s->sent[out];
            begin_order(peer, &late);
            s->read[in] += order(who, &o);
            s->sent[out] += o.late;
            s->sent[in] += end_order(peer, &late);
            settle(c, in);
            settle(c, out);
        } else {
            order(who, &o);
            s->is_shut_for_reading[who] = 1;
        }
        return;
    case 1:
        if (there || !may_get) return;
        o.what = INTERRUPT;
        o.kind = below(draw, 7);
        o.size = below(draw, 2);
        order(who, &o);
        return;
    case 2:
        if (handed[who]) return;
        o.what = HAND_OVER;
        o.size = 1;
        o.in_child = 0;
        printf("%ld %c is a child from now on\n", step_number, "AB"[who]);
        order(who, &o);
        handed[who] = 2 + below(draw, 12);
        return;
    case 3:
        if (!there || is_left_alone(s, who)) return;
        o.what = BECOME;
        o.size = 1 + below(draw, there);
        s->read[in] += order(who, &o);
        return;
    case 4:
        if (!may_send || is_left_alone(s, who)) return;
        o.what = BECOME;
        o.kind = 1;
        o.size = 1 + below(draw, 300);
        o.position = s->sent[out];
        if (on_way(s, out) + o.size > MOST) return;
        s->sent[out] += order(who, &o);
        settle(c, out);
        return;
    case 5: {
        /* A part of what the end waits for, and then the rest. */
        if (there || !may_get) return;
        int least = 2 + below(draw, 2000), first = 1 + below(draw, least - 1);
        struct order part = {.what = SEND, .connection = c, .kind = below(draw, send_kinds()), .flags = MSG_NOSIGNAL};
        struct order ask = {.what = POLL, .connection = c, .kind = below(draw, 4)};
        struct order look = {.what = RECEIVE, .connection = c, .kind = 2, .size = 3000, .flags = MSG_PEEK, .how = DONT_WAIT, .position = s->read[in]};
        ask.flags = ask.kind >= 2 ? 1 : POLLIN | POLLRDNORM;
        o.what = LEAST;
        o.size = least;
        order(who, &o);
        for (int i = 0; i < 2; i++) {
            part.size = i ? least - first : first;
            part.draw = next(draw);
            part.position = s->sent[in];
            s->sent[in] += order(peer, &part);
            settle(c, in);
            order(who, &ask);
            order(who, &look);
        }
        o.size = 1;
        order(who, &o);
        return;
    }
    case 6:
        if (!is_open) return;
        o.what = THREADS;
        o.kind = 2;
        order(who, &o);
        return;
    default:
        if (there || !may_get || !may_send || below(draw, 4)) return;
        o.what = THREADS;
        o.kind = 3;
        order(who, &o);
        s->is_shut_for_reading[who] = s->is_shut[out] = 1;
        settle_end(c, peer, 0);
    }
}

static void one_step(uint64_t draw, int two_processes, int messages) {
    int c = below(&draw, CONNECTIONS), who = below(&draw, 2), peer = !who;
    struct state *s = &states[c];
    struct order o = {.connection = c, .draw = next(&draw), .kind = next(&draw) % 1000, .in_child = below(&draw, 40) == 0};
    int is_dead = s->is_closed[0] || s->is_closed[1] || s->is_over;
    int choice = below(&draw, 100);
    if (is_dead && below(&draw, 6) == 0 || s->is_closed[0] && s->is_closed[1]) {
        if (handed[0] || handed[1]) return;
        open_connection(c, messages, is_wide && !is_set_used[0] ? below(&draw, 3) : 0);
        printf("%ld %d opened\n", step_number, c);
        return;
    }
    if (s->is_closed[who]) who = !who, peer = !peer;
    int in = peer, out = who;      /* Directions are named by their sender. */
    int there = on_way(s, in), has_end = s->is_shut[in] || s->is_closed[peer] || s->is_over || s->is_shut_for_reading[who];
    if (is_wide) {
        for (int i = 0; i < 2; i++)
            if (handed[i] && --handed[i] == 0) take_back(i);
        if (below(&draw, 5) == 0) return wide_step(c, who, &draw);
    }
    /* What an end has changed of itself in a child, it does not know afterwards. */
    int changes_end = choice >= 66 && choice < 73 || choice >= 88 && choice < 90 || choice >= 99;
    if (changes_end && (handed[0] || handed[1])) return;
    if (choice < 34) {
        o.what = RECEIVE;
        o.kind %= receive_kinds();
        static const int flags[] = {0, 0, 0, MSG_PEEK, MSG_WAITALL, MSG_TRUNC, MSG_PEEK | MSG_WAITALL, MSG_NOSIGNAL, MSG_PEEK | MSG_TRUNC, MSG_CMSG_CLOEXEC};
        o.flags = flags[below(&draw, 10)];
        o.position = s->read[in];
        o.size = 1 + below(&draw, below(&draw, 2) ? 100 : 12000);
        if (o.kind == 10 && !there && !has_end) o.kind = 8;
        if (o.kind == 7 && there > 0 && o.size > there) o.size = there;
        if (o.kind == 5 && o.size < 2) o.size = 2;
        if (o.kind == 5) o.flags &= ~MSG_WAITALL;
        if (there > 0 || has_end) {
            if (o.flags & MSG_WAITALL && takes_flags(o.kind) && o.size > there && !has_end) o.size = there;
            if (takes_flags(o.kind) && below(&draw, 2)) o.how = DONT_WAIT;
            s->read[in] += order(who, &o);
            return;
        }
        o.how = 1 + below(&draw, HOWS - 1);
        if (o.how == DONT_WAIT && !takes_flags(o.kind)) o.how = NONBLOCKING;
        int can_send = !s->is_closed[peer] && !s->is_shut[in];
        if (o.how == RESTARTED && (two_processes || s->is_shut[in] || o.in_child)) o.how = SIGNAL;
        if (o.how == RESTARTED) o.size = 1, o.flags = 0, o.kind = o.kind == 5 ? 4 : o.kind;
        if (can_send && below(&draw, 2) && !o.in_child) {
            /* The peer's bytes come while the call waits. */
            o.how = PLAIN;
            if (o.kind == 5 || o.kind == 7) o.kind = 4;
            struct order late = {.what = SEND, .connection = c, .kind = below(&draw, SENDS), .size = 1 + below(&draw, 3000), .late = 1, .position = s->sent[in], .flags = MSG_NOSIGNAL, .draw = next(&draw)};
            if (o.size > 1 && !(o.flags & MSG_WAITALL && takes_flags(o.kind))) {
                o.size = 1;
            } else if (late.size < o.size)
                o.size = late.size;
            begin_order(peer, &late);
            s->read[in] += order(who, &o);
            s->sent[in] += end_order(peer, &late);
            settle(c, in);
            return;
        }
        long got = order(who, &o);
        if (o.how == RESTARTED && got) s->sent[in] += got;
        s->read[in] += got;
        settle(c, in);
    } else if (choice < 56) {
        o.what = SEND;
        o.kind %= send_kinds();
        static const int flags[] = {0, MSG_NOSIGNAL, MSG_NOSIGNAL, MSG_DONTWAIT, MSG_EOR, MSG_DONTROUTE, MSG_MORE, MSG_CONFIRM};
        o.flags = flags[below(&draw, 8)];
        o.position = s->sent[out];
        o.size = 1 + below(&draw, below(&draw, 2) ? 100 : 6000);
        if (o.kind == 5 && o.size < 2) o.size = 2;
        /* A socket that is given away with bytes that TCP would refuse is another one then. */
        if (o.kind == 10 && is_left_alone(s, who)) o.kind = 0;
        if (on_way(s, out) + o.size + 1 > MOST) return;
        /* Bytes that such an end has not read come before its refusal. */
        if (s->is_shut[in] && s->is_shut_for_reading[peer] && on_way(s, out)) return;
        s->sent[out] += order(who, &o);
        if (o.flags == MSG_MORE && sends_flags(o.kind)) {
            struct order last = {.what = SEND, .connection = c, .kind = 2, .size = 1, .position = s->sent[out], .flags = MSG_NOSIGNAL};
            s->sent[out] += order(who, &last);
        }
        /* An end that has shut both directions takes no bytes either. */
        int refuses = s->is_closed[peer] || s->is_shut[in] && s->is_shut_for_reading[peer];
        if (refuses && !s->is_shut[out] && !s->is_over) {
            s->is_over = 1;
            settle_end(c, who, 1);
        } else
            settle(c, out);
    } else if (choice < 66) {
        o.what = POLL;
        o.kind %= 4;
        o.size = below(&draw, 2);
        static const int all[] = {POLLIN, POLLOUT, POLLRDHUP, POLLPRI, POLLRDNORM, POLLWRNORM, POLLRDBAND};
        for (int i = 0; i < 3; i++) o.flags |= all[below(&draw, 7)];
        if (o.kind >= 2) o.flags = 1 + below(&draw, 7);
        if (!has_end && there == 0 && !s->is_closed[peer] && below(&draw, 3) == 0 && !o.in_child) {
            /* Nothing but the late bytes ends this wait. */
            struct order late = {.what = SEND, .connection = c, .kind = below(&draw, SENDS), .size = 1 + below(&draw, 3000), .late = 1, .position = s->sent[in], .flags = MSG_NOSIGNAL, .draw = next(&draw)};
            o.flags = o.kind >= 2 ? 1 : POLLIN;
            o.size = 0;
            o.late = 1;
            begin_order(peer, &late);
            order(who, &o);
            s->sent[in] += end_order(peer, &late);
            settle(c, in);
            return;
        }
        order(who, &o);
    } else if (choice < 73) {
        o.what = EPOLL_CONTROL;
        o.in_child = 0;
        o.kind = 1 + below(&draw, 3);
        static const unsigned all[] = {EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLPRI, EPOLLIN, EPOLLIN};
        static const unsigned modes[] = {0, 0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT, EPOLLEXCLUSIVE};
        for (int i = 0; i < 2; i++) o.flags |= all[below(&draw, 6)];
        o.flags |= modes[below(&draw, 6)];
        order(who, &o);
    } else if (choice < 82) {
        o.what = EPOLL_WAIT;
        o.in_child = is_wide && below(&draw, 6) == 0;
        is_set_used[who] |= o.in_child || handed[who];
        o.flags |= is_set_used[who] << 16;
        o.size = below(&draw, 5) == 0;
        for (int i = 0; i < CONNECTIONS; i++) {
            uint64_t now = states[i].sent[!who], end = 1 + states[i].is_shut[!who] + 2 * (states[i].is_closed[!who] | states[i].is_over);
            o.flags |= (now != states[i].seen[who]) << i | (end != states[i].seen_end[who]) << i + 8;
            if (!o.size) states[i].seen[who] = now, states[i].seen_end[who] = end;
        }
        order(who, &o);
    } else if (choice < 84) {
        if (has_end || there || s->is_closed[peer]) return;
        o.what = WAIT_FRESH;
        o.in_child = 0;
        static const unsigned modes[] = {0, EPOLLET, EPOLLONESHOT, EPOLLEXCLUSIVE, EPOLLRDHUP};
        o.flags = EPOLLIN | modes[below(&draw, 5)];
        struct order late = {.what = SEND, .connection = c, .kind = below(&draw, SENDS), .size = 1 + below(&draw, 3000), .late = 1, .position = s->sent[in], .flags = MSG_NOSIGNAL, .draw = next(&draw)};
        begin_order(peer, &late);
        order(who, &o);
        s->sent[in] += end_order(peer, &late);
        settle(c, in);
    } else if (choice < 88) {
        o.what = OPTION;
        order(who, &o);
    } else if (choice < 90) {
        o.what = below(&draw, 4) || is_left_alone(s, who) ? DUPLICATE : PASS;
        o.in_child = 0;
        o.size = below(&draw, 1000);
        o.flags = below(&draw, 3) == 0;
        order(who, &o);
    } else if (choice < 94) {
        o.what = below(&draw, 4) ? ODD : COUNT;
        order(who, &o);
        if (s->is_over) return;
        settle(c, out);
    } else if (choice < 96) {
        if (s->is_closed[peer] || s->is_over || s->is_shut[out] || s->is_shut_for_reading[peer]) return;
        o.what = SEND_ALL;
        o.size = 1 + below(&draw, 300000);
        o.position = s->sent[out];
        struct order all = {.what = RECEIVE_ALL, .connection = c, .size = on_way(s, out) + o.size, .position = s->read[out], .draw = next(&draw)};
        begin_order(who, &o);
        s->read[out] += order(peer, &all);
        s->sent[out] += end_order(who, &o);
    } else if (choice < 97) {
        if (s->is_closed[peer] || s->is_over || s->is_shut[out] || s->is_shut_for_reading[peer]) return;
        o.what = FILL;
        o.in_child = 0;
        o.position = s->sent[out];
        s->sent[out] += order(who, &o);
        struct order room = {.what = OUT, .connection = c};
        order(who, &room);
        struct order all = {.what = RECEIVE_ALL, .connection = c, .size = on_way(s, out), .position = s->read[out], .draw = next(&draw)};
        begin_order(peer, &all);
        struct answer answer = {0};
        if (read(ends[peer].answers[0], &answer, sizeof answer) != sizeof answer) fail("get an answer");
        s->read[out] += answer.moved;
        if (strstr(answer.text, "a part")) printf("%ld %s\n", step_number, answer.text);
        printf("%ld drained: %s\n", step_number, on_way(s, out) ? "not all" : "all");
        room.size = WITHIN_MS;
        order(who, &room);
    } else if (choice < 98) {
        if (there || on_way(s, out) || s->is_closed[peer] || s->is_over || s->is_shut[out] || s->is_shut_for_reading[peer]) return;
        if (below(&draw, 2)) {
            o.what = SPAWN;
            order(who, &o);
            return;
        }
        o.what = URGENT;
        order(who, &o);
        o.what = URGENT_READ;
        order(peer, &o);
        struct order last = {.what = SEND, .connection = c, .kind = 2, .size = 1, .position = s->sent[out], .flags = MSG_NOSIGNAL};
        struct order read = {.what = RECEIVE, .connection = c, .kind = 2, .size = 1, .position = s->read[out]};
        s->sent[out] += order(who, &last);
        s->read[out] += order(peer, &read);
    } else if (choice < 99) {
        o.what = SHUT;
        o.kind %= 3;
        if (o.kind == SHUT_RD && s->is_over) return;
        order(who, &o);
        if (o.kind != SHUT_WR) s->is_shut_for_reading[who] = 1;
        if (o.kind != SHUT_RD && !s->is_shut[out]) {
            s->is_shut[out] = 1;
            if (!s->is_over) settle_end(c, peer, 0);
        }
    } else {
        o.what = CLOSE;
        o.in_child = 0;
        o.kind = below(&draw, 3) == 0;
        o.flags = is_wide ? below(&draw, 3) : 0;
        order(who, &o);
        int resets = o.kind || there > 0;
        s->is_closed[who] = 1;
        if (s->is_over) return;
        s->is_over = resets;
        settle_end(c, peer, resets);
    }
}

int main(int count, char **arguments) {
    uint64_t seed = count > 1 ? strtoull(arguments[1], NULL, 0) : 1, draw = mixed(seed * 3 + 1);
    int steps = count > 2 ? atoi(arguments[2]) : 100, two_processes = below(&draw, 2), is_cold = below(&draw, 4) == 0;
    is_wide = seed >= 1000000;
    int messages = is_cold ? below(&draw, 7) : 1000;
    socklen_t length = sizeof at;
    at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    /* Nobody but the executor that waits for it gets the alarm. */
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarm_only, NULL);
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = on_pipe, .sa_flags = SA_RESTART}, NULL);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 64)) fail("listen");
    getsockname(listener, (struct sockaddr *)&at, &length);
    for (int i = 0; i < 2; i++) {
        struct end *end = &ends[i];
        end->is_second = i;
        for (int c = 0; c < CONNECTIONS; c++) end->fd[c] = -1;
        char path[] = "/tmp/differ-XXXXXX";
        end->file = mkstemp(path);
        unlink(path);
        if (pipe(end->orders) || pipe(end->answers) || pipe(end->pipe)) fail("make pipes");
        end->set = epoll_create1(0);
        end->outer = epoll_create1(0);
        if (epoll_ctl(end->outer, EPOLL_CTL_ADD, end->set, &(struct epoll_event){.events = EPOLLIN, .data.u64 = 77})) fail("nest sets");
    }
    pthread_t threads[2];
    if (two_processes) {
        pid_t parent = getpid(), child = fork();
        if (child == 0) {
            /* The sets of the parent are not the child's. */
            for (int i = 0; i < 2; i++) close(ends[i].outer), close(ends[i].set);
            ends[1].set = epoll_create1(0);
            ends[1].outer = epoll_create1(0);
            epoll_ctl(ends[1].outer, EPOLL_CTL_ADD, ends[1].set, &(struct epoll_event){.events = EPOLLIN, .data.u64 = 77});
            for (int i = 0; i < 2; i++)
                if (i == 0) close(ends[0].orders[1]), close(ends[0].answers[0]), close(ends[1].orders[1]);
            serve(&ends[1]);
            _exit(0);
        }
        close(ends[1].orders[0]);
        close(ends[1].answers[1]);
    } else
        pthread_create(&threads[1], NULL, serve, &ends[1]);
    pthread_create(&threads[0], NULL, serve, &ends[0]);
    for (int c = 0; c < CONNECTIONS; c++) open_connection(c, messages, 0);
    for (step_number = 0; step_number < steps; step_number++) {
        int is_dropped = 0;
        for (int i = 3; i < count; i++) is_dropped |= atoi(arguments[i]) == step_number;
        if (!is_dropped) one_step(mixed(seed * 1000003 + step_number), two_processes, messages);
    }
    for (int i = 0; i < 2; i++)
        if (handed[i]) take_back(i);
    struct order stop = {.what = STOP};
    for (int i = 0; i < 2; i++) order(i, &stop);
    printf("done\n");
    return 0;
}
