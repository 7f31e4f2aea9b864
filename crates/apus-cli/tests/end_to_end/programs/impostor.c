/*
 * Two honest ends that wait for each other's calls, and processes that claim to be one of them.
 *
 *     impostor accepts               says its port; accepts a connection, and does what lines of its input say
 *     impostor connects PORT         says its own port before it connects; "go" has it connect; does what lines of its input say
 *     impostor binds HOW PORT CLIENT       has the name of the connection before its ends; then says "bound"
 *     impostor attempts HOW PORT CLIENT      connects to the name as soon as it is there, until there is a line
 *     impostor forwards PORT CLIENT          has the name until the end that connects has come, and passes on what that end has shown
 *
 * HOW is what an impostor shows: own (its own socket), file, nothing, stale (a socket of the server that it has closed).
 * With the variables SERVER_IP, CLIENT_IP and MEETING the ends are in network namespaces of their own and meet at the file MEETING. An
 * impostor then shows a UDP socket and one for sock_diag as well, or those that it was shown.
 *
 * Lines: "send N" and "receive N" move secret bytes; "fill" sends until the socket takes no more, and says how many; "tcp" says how many bytes TCP has carried.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <linux/netlink.h>
#include <stddef.h>
#include <sys/prctl.h>

#include "byhand.h"
#include "meet.h"

static void obey(int fd) {
    static char bytes[1 << 20];
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        int count = 0;
        if (sscanf(line, "send %d", &count) == 1) {
            memset(bytes, 'S', count);
            for (int i = 0; i < count; i++) write_all(fd, bytes + i, 1);
        } else if (sscanf(line, "receive %d", &count) == 1) {
            read_all(fd, bytes, count);
            for (int i = 0; i < count; i++) check(bytes[i] == 'S', "a byte is not the peer's");
        } else if (!strcmp(line, "meet\n")) {
            meet(fd, 0);
        } else if (!strcmp(line, "serve\n")) {
            meet(fd, 1);
        }
        if (!strcmp(line, "fill\n")) {
            /* Bytes that the socket takes although nobody reads them. */
            memset(bytes, 'S', sizeof bytes);
            ssize_t taken, all = 0;
            while ((taken = send(fd, bytes, 4096, MSG_DONTWAIT)) > 0) all += taken;
            printf("%zd\n", all);
        } else if (!strcmp(line, "tcp\n")) printf("%llu\n", (unsigned long long)by_tcp(fd));
        else puts("done");
        fflush(stdout);
    }
}

static int proof(const char *how, int server) {
    if (!strcmp(how, "nothing")) return -1;
    if (!strcmp(how, "file")) return open("/proc/self/exe", O_PATH | O_CLOEXEC);
    int fd = connect_to(server), shown = proof_of(fd);
    if (!strcmp(how, "stale")) close(fd);
    return shown;
}

static int socket_of(int family, int type, int protocol) {
    return socket(family, type | SOCK_CLOEXEC, protocol);
}

static int own;
static volatile unsigned char *memory;

/* Shows the own segment, a proof, and where it is: what it was shown, or the sockets of an address. */
static void show_with(int socket, struct hello hello, int proof, const int *ground, const char *ip) {
    int shown[] = {own, proof, -1, -1}, count = proof < 0 ? 1 : 2;
    if (getenv("MEETING") && proof >= 0) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = ip_of(ip)};
        shown[2] = ground ? ground[0] : socket_of(AF_INET, SOCK_DGRAM, 0);
        shown[3] = ground ? ground[1] : socket_of(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG);
        if (!ground) bind(shown[2], (struct sockaddr *)&at, sizeof at); /* fails in another network namespace */
        count = shown[2] < 0 || shown[3] < 0 ? 2 : 4;
    }
    pass(socket, &hello, sizeof hello, shown, count, 0);
}

static void show(int socket, struct hello hello, const char *how, int server, const char *ip) {
    int shown = proof(how, server);
    show_with(socket, hello, shown, NULL, ip);
    if (shown >= 0) close(shown);
}

/* Whether bytes of the connection are in the segment. */
static int has_secrets(volatile unsigned char *segment) {
    for (int at = RING; segment && at < SIZE; at++)
        if (segment[at] == 'S') return 1;
    return 0;
}

static volatile unsigned char *seen[64];
static int count_seen;

/* Says that it may be looked at, and whether a byte of the connection has come to it. */
static void look(void) {
    int secret = 0;
    for (char line[16]; fgets(line, sizeof line, stdin);) {
        for (int i = 0; i < count_seen; i++) secret |= has_secrets(seen[i]);
        puts(secret ? "read a secret" : "read nothing"), fflush(stdout);
    }
}

/* Takes what a peer says: its segment is looked at from now on. Its proof is returned, or -1, and its other sockets. */
static int take_message(int socket, struct hello *hello, int ground[2]) {
    int descriptors[4];
    struct pollfd wait = {socket, POLLIN};
    if (poll(&wait, 1, 2000) != 1 || take_several(socket, hello, sizeof *hello, descriptors, 4) <= 0) return -1;
    ground[0] = descriptors[2], ground[1] = descriptors[3];
    if (descriptors[0] >= 0 && count_seen < 64) seen[count_seen++] = peer_segment(descriptors[0]);
    return descriptors[1];
}

static void agree(void) {
    *word(memory, OFFERED) = 1;
}

static void binds(const char *how, int server, int client) {
    int name = bind_name(client, server);
    check(name >= 0, "the name is taken");
    puts("bound"), fflush(stdout);
    /* Both sockets of the end that connects. */
    struct hello hello;
    int first = accept(name, NULL, NULL), second = accept(name, NULL, NULL), ground[2];
    take_message(first, &hello, ground);
    take_message(second, &(struct hello){0}, ground);
    show(first, hello, how, server, "SERVER_IP");
    agree();
    puts("met"), fflush(stdout);
    look();
}

static void attempts(const char *how, int server, int client) {
    int sockets[2] = {-1, -1};
    puts("ready"), fflush(stdout);
    /* The two ends may have met before this process runs, so the end of its input stops it. */
    struct pollfd stop = {0, POLLIN};
    while ((sockets[0] = attempt(client, server)) < 0 && poll(&stop, 1, 0) == 0) {}
    if (sockets[0] < 0) {
        look();
        return;
    }
    struct hello hello = channel_hello(), answer;
    agree();
    show(sockets[0], hello, how, server, "CLIENT_IP");
    sockets[1] = attempt(client, server);
    hello = bell_hello(hello);
    if (sockets[1] >= 0) pass(sockets[1], &hello, sizeof hello, NULL, 0, 0);
    take_message(sockets[0], &answer, (int[2]){0});
    look();
}

/* Shows to the end that accepts what the end that connects has shown, and the other way round, each with a segment of its own. */
static void forwards(int server, int client) {
    int name = bind_name(client, server);
    check(name >= 0, "the name is taken");
    puts("bound"), fflush(stdout);
    struct hello hello, answer;
    int first = accept(name, NULL, NULL), second = accept(name, NULL, NULL);
    close(name);
    if (getenv("MEETING")) unlink(getenv("MEETING"));
    int of_client[2] = {-1, -1}, of_server[2] = {-1, -1};
    int proof_of_client = take_message(first, &hello, of_client), other = -1, bell;
    take_message(second, &(struct hello){0}, (int[2]){0});
    puts("met"), fflush(stdout);
    for (int tries = 0; (other = attempt(client, server)) < 0 && tries < 3000; tries++) poll(NULL, 0, 1);
    if (other >= 0 && proof_of_client >= 0) {
        show_with(other, hello, proof_of_client, of_client, "CLIENT_IP");
        bell = attempt(client, server);
        struct hello its = bell_hello(hello);
        if (bell >= 0) pass(bell, &its, sizeof its, NULL, 0, 0);
        int proof_of_server = take_message(other, &answer, of_server);
        agree();
        if (proof_of_server >= 0) show_with(first, hello, proof_of_server, of_server, "SERVER_IP");
    }
    puts("relayed"), fflush(stdout);
    look();
}

int main(int count, char **arguments) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(90);
    struct sockaddr_in at;
    if (count == 2) {
        int listener = listen_at(&at);
        printf("%d\n", ntohs(at.sin_port)), fflush(stdout);
        return obey(accept(listener, NULL, NULL)), 0;
    }
    if (count == 3) {
        char line[16];
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = ip_of("CLIENT_IP")};
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        to.sin_port = port_in("CLIENT_PORT");
        check(!bind(fd, (struct sockaddr *)&to, sizeof to), "bind");
        printf("%d\n", port_of(fd, 0)), fflush(stdout);
        check(fgets(line, sizeof line, stdin) != NULL, "go");
        to.sin_addr.s_addr = ip_of("SERVER_IP"), to.sin_port = htons(atoi(arguments[2]));
        check(!connect(fd, (struct sockaddr *)&to, sizeof to), "connect");
        puts("done"), fflush(stdout);
        return obey(fd), 0;
    }
    memory = new_segment(&own);
    if (!strcmp(arguments[1], "forwards")) return forwards(atoi(arguments[2]), atoi(arguments[3])), 0;
    void (*claims)(const char *, int, int) = strcmp(arguments[1], "binds") ? attempts : binds;
    return claims(arguments[2], atoi(arguments[3]), atoi(arguments[4])), 0;
}
