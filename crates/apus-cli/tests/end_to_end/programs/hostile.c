/*
 * A server with one thread, an honest client of it, and clients that join the server's connections by hand and do what no library does.
 *
 *     hostile server             says its port; serves until it is killed
 *     hostile honest PORT        does with the server what lines of its input say: ping, fork, exec, spawn, close; answers "done"
 *     hostile WAY PORT           joins, says "ready" after its attack, and goes on with it until it is killed
 *
 * The server echoes single bytes. It reads nothing more from a client that has said 'z'.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "byhand.h"
#include "meet.h"

enum { MOST = 200, SILENT = 50, TIMEOUT = 90 };

extern char **environ;

static void run_true(int spawns) {
    char *arguments[] = {"true", NULL};
    pid_t child;
    int status;
    if (spawns) check(!posix_spawnp(&child, "true", NULL, NULL, arguments, environ), "posix_spawn");
    else if (!(child = fork())) execvp("true", arguments), _exit(9);
    check(waitpid(child, &status, 0) == child && status == 0, "the program");
}

static void serve(void) {
    static struct pollfd all[MOST];
    struct sockaddr_in at;
    int count = 1, status;
    all[0] = (struct pollfd){listen_at(&at), POLLIN};
    printf("%d\n", ntohs(at.sin_port)), fflush(stdout);
    char is_honest[MOST] = {0}, byte;
    for (;;) {
        check(poll(all, count, -1) > 0, "poll");
        if (all[0].revents && count < MOST) {
            int fd = accept(all[0].fd, NULL, NULL);
            check(fd >= 0, "accept");
            is_honest[count] = 0;
            all[count++] = (struct pollfd){fd, POLLIN};
            continue;
        }
        for (int i = 1; i < count; i++) {
            if (!all[i].revents) continue;
            int got = recv(all[i].fd, &byte, 1, MSG_DONTWAIT);
            if (got < 0 && errno == EAGAIN) continue;
            if (got <= 0) {
                close(all[i].fd);
                all[i] = all[--count];
                is_honest[i] = is_honest[count];
                i--;
                continue;
            }
            if (byte == 'H') is_honest[i] = 1;
            if (byte == 'z') all[i].events = 0;
            if (is_honest[i] && byte == 'f') {
                pid_t child = fork();
                if (child == 0) _exit(0);
                check(waitpid(child, &status, 0) == child && status == 0, "the child");
            }
            if (is_honest[i] && (byte == 'x' || byte == 's')) run_true(byte == 's');
            if (is_honest[i] && byte == 'c') {
                int kept = 1;
                for (int k = 1; k < count; k++) {
                    if (!is_honest[k]) close(all[k].fd);
                    else is_honest[kept] = 1, all[kept++] = all[k];
                }
                int honest = all[i].fd;
                count = kept;
                check(send(honest, &byte, 1, MSG_NOSIGNAL) == 1, "the answer");
                break;
            }
            send(all[i].fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
    }
}

static void call(int fd, char byte) {
    char answer = 0;
    write_all(fd, &byte, 1);
    read_all(fd, &answer, 1);
    check(answer == byte, "another answer");
}

/* Until TCP carries none of them. */
static void be_carried(int fd) {
    for (uint64_t now, before = 0, i = 1;; i++) {
        call(fd, 'H');
        if (i % 100 == 0 && i >= 3000) {
            now = by_tcp(fd);
            if (now == before || i > 300000) return;
            before = now;
        }
    }
}

static void be_honest(int port) {
    char line[32];
    int fd = connect_to(port);
    be_carried(fd);
    puts("carried"), fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        alarm(TIMEOUT);
        for (int i = 0; i < 100; i++) call(fd, 'H');
        if (!strcmp(line, "fork\n")) call(fd, 'f');
        if (!strcmp(line, "exec\n")) call(fd, 'x');
        if (!strcmp(line, "spawn\n")) call(fd, 's');
        if (!strcmp(line, "close\n")) call(fd, 'c');
        for (int i = 0; i < 100; i++) call(fd, 'H');
        puts("done"), fflush(stdout);
    }
}

static int port;

/* Talks over TCP so often that the server wants to be carried. */
static int wanted(void) {
    int fd = connect_to(port);
    for (int i = 0; i < 16; i++) call(fd, 'a');
    return fd;
}

enum step { CONNECTED, SHOWN_CHANNEL, SHOWN_BELL, ANSWERED, AGREED, IN_RING, STEPS };

static void nothing(struct joined *it, enum step step) { (void)it, (void)step; }

static void (*at_step)(struct joined *, enum step) = nothing;

static int received_by_tcp;

/* Reads what is there, by TCP and from the ring. False: the connection has ended. */
static int take_message(struct joined *it) {
    char bytes[4096];
    int got = recv(it->tcp, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) received_by_tcp += got;
    if (it->peer) *word(it->own, READ) = *word(it->peer, WRITTEN);
    return got > 0 || got < 0 && errno == EAGAIN;
}

/* Joins up to a step. Returns whether it came so far: a server may refuse what `at_step` did before. */
static int join(struct joined *it, enum step last) {
    struct hello hello = channel_hello(), bell = bell_hello(hello), answer;
    int descriptors[2], own;
    *it = (struct joined){.tcp = wanted(), .channel = -1, .bell = -1, .peer_segment = -1, .peer_proof = -1};
    received_by_tcp = 16;
    int client = port_of(it->tcp, 0);
    for (int tries = 0; it->channel < 0; tries++) {
        it->channel = attempt(client, port);
        if (it->channel < 0) poll(NULL, 0, 1);
        check(tries < 3000, "the server looks for no peer");
    }
    at_step(it, CONNECTED);
    if (last == CONNECTED) return 1;
    it->own = new_segment(&own);
    int proof = proof_of(it->tcp), shown[] = {own, proof};
    pass(it->channel, &hello, sizeof hello, shown, 2, 0);
    close(own), close(proof);
    at_step(it, SHOWN_CHANNEL);
    if (last == SHOWN_CHANNEL) return 1;
    it->bell = attempt(client, port);
    if (it->bell < 0) return 0;
    pass(it->bell, &bell, sizeof bell, NULL, 0, 0);
    at_step(it, SHOWN_BELL);
    if (last == SHOWN_BELL) return 1;
    struct pollfd wait = {it->channel, POLLIN};
    if (poll(&wait, 1, 3000) != 1 || take(it->channel, &answer, sizeof answer, descriptors) != sizeof answer) return 0;
    it->peer_segment = descriptors[0], it->peer_proof = descriptors[1];
    it->peer = peer_segment(descriptors[0]);
    at_step(it, ANSWERED);
    if (last == ANSWERED || !it->peer) return 1;
    *word(it->own, OFFERED) = 1;
    at_step(it, AGREED);
    if (last == AGREED) return 1;
    for (int tries = 0; *word(it->peer, EPOCH) == 0 && tries < 3000; tries++) {
        send(it->tcp, "b", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        take_message(it);
        poll(NULL, 0, 1);
    }
    if (*word(it->peer, EPOCH) == 0) return 0;
    *word(it->own, DRAINED) = 1;
    at_step(it, IN_RING);
    return 1;
}

static void leave(struct joined *it) {
    int all[] = {it->tcp, it->channel, it->bell, it->peer_segment, it->peer_proof};
    for (int i = 0; i < 5; i++)
        if (all[i] >= 0) close(all[i]);
    if (it->own) munmap((void *)it->own, SIZE);
    if (it->peer) munmap((void *)it->peer, SIZE);
}

/* Asks for a wake-up once more, and has the server send a byte. */
static int have_it_ring(struct joined *it) {
    *word(it->own, BELL_OF_BYTES) = (*word(it->own, BELL_OF_BYTES) + 2) | 1;
    *word(it->own, BELL_OF_ROOM) = (*word(it->own, BELL_OF_ROOM) + 2) | 1;
    send(it->tcp, "d", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    return take_message(it);
}

static void never_read(struct joined *it) {
    check(join(it, IN_RING), "it does not join");
    for (int i = 0; i < 3000 && have_it_ring(it); i++) usleep(200);
}

static void fill(struct joined *it) {
    check(join(it, IN_RING), "it does not join");
    for (int fd = it->channel, i = 0; i < 2; fd = it->bell, i++)
        while (send(fd, "A", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) {}
}

static enum step chosen;

static void close_at(struct joined *it, enum step step) {
    if (step != chosen) return;
    if (it->channel >= 0) close(it->channel);
    if (it->bell >= 0) close(it->bell);
    it->channel = it->bell = -1;
}

static void close_each(struct joined *it) {
    at_step = close_at;
    for (chosen = CONNECTED; chosen < STEPS; chosen++) {
        check(join(it, chosen), "it does not join");
        for (int i = 0; i < 50; i++) send(it->tcp, "c", 1, MSG_NOSIGNAL | MSG_DONTWAIT), take_message(it);
        if (chosen + 1 < STEPS) leave(it);
    }
}

/* A socket whose last descriptor closes after a long time: its peer, which stays here, does not read. */
static int lingering(void) {
    struct sockaddr_in at;
    static char bytes[1 << 16];
    int listener = listen_at(&at), fd = connect_to(ntohs(at.sin_port));
    check(accept(listener, NULL, NULL) >= 0, "accept");
    close(listener);
    while (send(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {}
    struct linger linger = {1, 10000};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    return fd;
}

static void *close_it(void *fd) {
    close((int)(long)fd);
    return NULL;
}

/* This end may have the last descriptor, so a thread of its own closes it. */
static void let_go(int fd) {
    pthread_t thread;
    check(!pthread_create(&thread, NULL, close_it, (void *)(long)fd) && !pthread_detach(thread), "a thread");
}

static int with_hello;

static void pass_at(struct joined *it, enum step step) {
    if (step != chosen) return;
    struct hello hello = channel_hello();
    if (with_hello == 2) hello = bell_hello(hello);
    int given[3], several = 3;
    for (int i = 0; i < several; i++) given[i] = lingering();
    size_t count = with_hello ? sizeof hello : 1;
    pass(it->channel, &hello, count, given, several, MSG_DONTWAIT);
    if (it->bell >= 0) pass(it->bell, &hello, count, given, several, MSG_DONTWAIT);
    for (int i = 0; i < several; i++) let_go(given[i]);
}

/* To sockets that the server has perhaps not accepted when the connection ends. */
static void pass_unaccepted(struct joined *it) {
    for (int round = 0; round < 10; round++) {
        join(it, CONNECTED);
        for (int i = 0, fd; i < 6 && (fd = attempt(port_of(it->tcp, 0), port)) >= 0; i++) {
            int given = lingering();
            if (i == 4) shutdown(it->tcp, SHUT_RDWR);
            pass(fd, "p", 1, &given, 1, MSG_DONTWAIT);
            let_go(given);
        }
        leave(it);
    }
}

static void pass_each(struct joined *it) {
    pass_unaccepted(it);
    at_step = pass_at;
    for (with_hello = 0; with_hello < 3; with_hello++)
        for (chosen = CONNECTED; chosen < STEPS; chosen++) {
            join(it, chosen);
            for (int i = 0; i < 50; i++) send(it->tcp, "p", 1, MSG_NOSIGNAL | MSG_DONTWAIT), take_message(it);
            leave(it);
        }
    /* Such sockets instead of the segment, of the proof, and of both. */
    at_step = nothing;
    for (int which = 0; which < 3; which++) {
        check(join(it, CONNECTED), "it does not join");
        int segment;
        struct hello hello = channel_hello();
        it->own = new_segment(&segment);
        int given[2] = {which != 1 ? lingering() : segment, which != 0 ? lingering() : proof_of(it->tcp)};
        pass(it->channel, &hello, sizeof hello, given, 2, 0);
        let_go(given[0]), let_go(given[1]);
        for (int i = 0; i < 50; i++) send(it->tcp, "p", 1, MSG_NOSIGNAL | MSG_DONTWAIT), take_message(it);
        if (which < 2) leave(it);
    }
}

static void lie(struct joined *it) {
    const int words[] = {0, EPOCH, OFFSET, ENDED, END, REFILLED, WRITTEN, OFFERED, RECALLED, DRAINED, CLOSED, SHUT, LEFT, DIED, FORK, READ,
                         BELL_OF_BYTES, BELL_OF_ROOM, PROCESSOR};
    const unsigned long long lies[] = {1, 3, 1ull << 40, ~0ull};
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        for (unsigned k = 0; k < sizeof lies / sizeof *lies; k++) {
            check(join(it, IN_RING), "it does not join");
            *word(it->own, EPOCH) = k % 2;
            *word(it->own, words[i]) = lies[k];
            for (int round = 0; round < 5; round++) {
                send(it->tcp, "l", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
                send(it->bell, "A", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
                send(it->channel, "A", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
                char bytes[64];
                poll(&(struct pollfd){it->tcp, POLLIN}, 1, 1);
                recv(it->tcp, bytes, sizeof bytes, MSG_DONTWAIT);
            }
            leave(it);
        }
    check(join(it, IN_RING), "it does not join");
}

static void say_leave(struct joined *it) {
    check(join(it, IN_RING), "it does not join");
    for (int i = 0; i < 100; i++) {
        send(it->channel, "L", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        send(it->bell, "L", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        send(it->tcp, "v", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (!take_message(it)) break;
    }
}

/* Bytes lie in the ring of each connection, the server does not read them, and nobody answers when it recalls. */
static void be_silent(struct joined *it) {
    for (int i = 0; i < SILENT; i++) {
        check(join(it, IN_RING), "it does not join");
        struct { uint64_t words[32]; } info;
        socklen_t size = sizeof info;
        send(it->tcp, "z", 1, MSG_NOSIGNAL);
        for (int tries = 0; *word(it->peer, OFFERED) == 0 && tries < 1000; tries++) poll(NULL, 0, 1);
        check(*word(it->peer, OFFERED) > 0, "the server agrees to nothing");
        getsockopt(it->tcp, IPPROTO_TCP, TCP_INFO, &info, &size);
        *word(it->own, OFFSET) = info.words[25];
        *word(it->own, WRITTEN) = 1000;
        *word(it->own, EPOCH) = 1;
        if (i + 1 < SILENT) memset(it, 0, sizeof *it);
    }
}

int main(int count, char **arguments) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (count == 2 && !strcmp(arguments[1], "server")) return serve(), 0;
    alarm(TIMEOUT);
    check(count == 3, "arguments");
    port = atoi(arguments[2]);
    if (!strcmp(arguments[1], "honest")) return be_honest(port), 0;
    const struct { const char *name; void (*attack)(struct joined *); } ways[] = {
        {"deaf", never_read}, {"fills", fill}, {"closes", close_each}, {"passes", pass_each}, {"lies", lie}, {"leaves", say_leave},
        {"silent", be_silent},
    };
    struct joined it;
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(ways[i].name, arguments[1])) continue;
        ways[i].attack(&it);
        puts("ready"), fflush(stdout);
        for (int i = 0;; i++) {
            if (!strcmp(arguments[1], "deaf") && !have_it_ring(&it)) break;
            if (!strcmp(arguments[1], "fills")) send(it.bell, "A", 1, MSG_NOSIGNAL | MSG_DONTWAIT), have_it_ring(&it);
            usleep(200);
            if (i == 0) alarm(TIMEOUT);
        }
        pause();
    }
    check(0, "no such way");
}
