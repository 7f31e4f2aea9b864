// Coroutines that await calls, on one thread (C++20).

#define APUS_COROUTINES
#include <apus/apus.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <poll.h>
#include <string>
#include <thread>

// A coroutine that begins at once, and that nobody waits for.
struct Task {
    struct promise_type {
        Task get_return_object() { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
};

template <class T>
static T expect(apus::Result<T> result) {
    if (!result) {
        std::fprintf(stderr, "%s\n", result.error().text().c_str());
        std::exit(1);
    }
    return std::move(*result);
}

// Counts to ten by the server, one call after the other.
static Task count(apus::Dispatcher &dispatcher, apus::Address to, int &ended) {
    std::string number = "0";
    while (number != "10") {
        apus::Result<apus::Message> next = co_await dispatcher.call(to, number);
        number = expect(std::move(next)).text();
    }
    ended++;
}

// Makes a call that has no answer before its node is closed.
static Task wait(apus::Dispatcher &dispatcher, apus::Address to, int &closed) {
    const apus::Result<apus::Message> result = co_await dispatcher.call(to, "silence");
    if (!result && result.error().number() == APUS_ECLOSED && result.error().may_have_executed()) closed++;
}

int main() {
    apus::Config config;
    if (!config.set("listen", "127.0.0.1:0") || !config.apply_environment()) return 1;
    apus::Node server = expect(apus::Node::start(config));
    apus::Port port = expect(server.bind(4000));
    const apus::Address to = expect(server.address()).with_port(4000);
    std::thread serving([&port] {
        const apus::Result<void> served = port.serve([](apus::Request request) {
            const int number = std::atoi(std::string(request.body()).c_str());
            static_cast<void>(request.reply(std::to_string(number + 1))); // The client may have gone.
        });
        if (!served) std::exit(1);
    });

    apus::Node node = expect(apus::Node::start(config));
    apus::Client client = expect(node.client());
    apus::Dispatcher dispatcher(node, client);
    pollfd watched{expect(dispatcher.fd()), POLLIN, 0};
    int ended = 0;
    for (int i = 0; i < 100; i++) count(dispatcher, to, ended);
    while (dispatcher.waiting() > 0) {
        // A program watches its other descriptors here as well.
        poll(&watched, 1, -1);
        if (!dispatcher.dispatch()) return 1;
    }
    std::printf("%d coroutines have counted to ten\n", ended);

    // With the node all calls end, and so do the coroutines that await them.
    apus::Port silent = expect(server.bind(4001));
    int closed = 0;
    for (int i = 0; i < 10; i++) wait(dispatcher, to.with_port(4001), closed);
    static_cast<void>(node.close(apus::Nanoseconds(0))); // Calls are outstanding.
    const apus::Result<void> dispatched = dispatcher.dispatch();
    if (dispatched || dispatched.error().number() != APUS_ECLOSED || dispatcher.waiting() > 0) return 1;
    std::printf("%d coroutines have ended with their node\n", closed);
    if (!port.shutdown()) return 1;
    serving.join();
    return ended == 100 && closed == 10 ? 0 : 1;
}
