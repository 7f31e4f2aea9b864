/*
 * An end of a connection that meets the preloaded library of the other end by hand: it says what the library says (`meeting.rs`,
 * `introduction.rs`), and has the words of a segment (`layout.rs`) to write as it likes.
 */
#ifndef BYHAND_H
#define BYHAND_H
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "link.h"

enum {
    EPOCH = 64, OFFSET = 72, ENDED = 88, END = 96, REFILLED = 104, WRITTEN = 128, OFFERED = 192, RECALLED = 200, DRAINED = 208,
    CLOSED = 216, SHUT = 224, LEFT = 232, DIED = 240, FORK = 248, READ = 256, BELL_OF_BYTES = 320, BELL_OF_ROOM = 328, PROCESSOR = 336,
    RING = 512, SIZE = 28 << 10, CAPACITY = SIZE - RING
};

#define MAGIC 0x3470637473757061ull /* apustcp4 */

struct hello {
    unsigned long long kind, number[2];
};

/* What an end has. Descriptors that it does not have are -1. */
struct joined {
    int tcp, channel, bell;
    volatile unsigned char *own, *peer;
    int peer_segment, peer_proof;
};

static volatile unsigned long long *word(volatile unsigned char *segment, int at) {
    return (volatile unsigned long long *)(segment + at);
}

/* The abstract name of the connection between two ports, or the path MEETING. */
static socklen_t name_of(int client, int server, struct sockaddr_un *name) {
    memset(name, 0, sizeof *name);
    name->sun_family = AF_UNIX;
    if (getenv("MEETING")) {
        strncpy(name->sun_path, getenv("MEETING"), sizeof name->sun_path - 1);
        return sizeof *name;
    }
    int length = sprintf(name->sun_path + 1, "apus-tcp/127.0.0.1:%d/127.0.0.1:%d", client, server);
    return offsetof(struct sockaddr_un, sun_path) + 1 + length;
}

static int port_of(int fd, int of_peer) {
    struct sockaddr_in at;
    socklen_t size = sizeof at;
    check(!(of_peer ? getpeername : getsockname)(fd, (struct sockaddr *)&at, &size), "an address");
    return ntohs(at.sin_port);
}

/* Connects to the name; -1 if nobody listens. */
static int attempt(int client, int server) {
    struct sockaddr_un name;
    socklen_t size = name_of(client, server, &name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    check(fd >= 0, "socket");
    if (!connect(fd, (struct sockaddr *)&name, size)) return fd;
    close(fd);
    return -1;
}

/* Binds the name and listens; -1 if somebody has it. */
static int bind_name(int client, int server) {
    struct sockaddr_un name;
    socklen_t size = name_of(client, server, &name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    check(fd >= 0, "socket");
    umask(0); /* others may connect to a file as well */
    if (!bind(fd, (struct sockaddr *)&name, size) && !listen(fd, 8)) return fd;
    close(fd);
    return -1;
}

static int pass(int fd, const void *bytes, size_t count, const int *descriptors, int several, int flags) {
    char room[CMSG_SPACE(16 * sizeof(int))] = {0};
    struct iovec part = {(void *)bytes, count};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (several > 0) {
        message.msg_control = room;
        message.msg_controllen = CMSG_SPACE(several * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(several * sizeof(int))};
        memcpy(CMSG_DATA(head), descriptors, several * sizeof(int));
    }
    return sendmsg(fd, &message, flags | MSG_NOSIGNAL);
}

/* Takes a message and at most the given number of descriptors with it, which are -1 if there are none. */
static int take_several(int fd, void *bytes, size_t count, int *descriptors, int most) {
    char room[CMSG_SPACE(16 * sizeof(int))] = {0};
    struct iovec part = {bytes, count};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = CMSG_SPACE(most * sizeof(int))};
    for (int i = 0; i < most; i++) descriptors[i] = -1;
    int length = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (length >= 0 && head && head->cmsg_type == SCM_RIGHTS) memcpy(descriptors, CMSG_DATA(head), head->cmsg_len - CMSG_LEN(0));
    return length;
}

static int take(int fd, void *bytes, size_t count, int descriptors[2]) {
    return take_several(fd, bytes, count, descriptors, 2);
}

/* A descriptor that names the file of another one and nothing more. */
static int proof_of(int fd) {
    char path[64];
    sprintf(path, "/proc/thread-self/fd/%d", fd);
    int proof = open(path, O_PATH | O_CLOEXEC);
    check(proof >= 0, "a proof");
    return proof;
}

/* The memory of a segment, and its descriptor. */
static volatile unsigned char *new_segment(int *fd) {
    *fd = memfd_create("by hand", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    check(*fd >= 0 && !ftruncate(*fd, SIZE) && !fallocate(*fd, 0, 0, SIZE), "memory");
    volatile unsigned char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    check(memory != MAP_FAILED, "memory");
    *word(memory, 0) = MAGIC;
    enum { SHRINK = 2, GROW = 4, FUTURE_WRITE = 16, SEAL = 1 };
    check(!fcntl(*fd, F_ADD_SEALS, SHRINK | GROW | FUTURE_WRITE | SEAL), "seals");
    return memory;
}

static volatile unsigned char *peer_segment(int fd) {
    volatile unsigned char *memory = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static struct hello channel_hello(void) {
    struct hello hello = {.kind = MAGIC, .number = {rand() + 1ull, getpid()}};
    return hello;
}

static struct hello bell_hello(struct hello channel) {
    channel.kind = MAGIC ^ ~0ull;
    return channel;
}
#endif
