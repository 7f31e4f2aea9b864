// A server and a client in one program, by the objects of apus.hpp (C++17).

#include <apus/apus.hpp>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

// The value of a result, or the end of the program.
template <class T>
static T expect(apus::Result<T> result) {
    if (!result) {
        std::fprintf(stderr, "%s\n", result.error().text().c_str());
        std::exit(1);
    }
    return std::move(*result);
}

static void expect(apus::Result<void> result) {
    if (!result) {
        std::fprintf(stderr, "%s\n", result.error().text().c_str());
        std::exit(1);
    }
}

int main() {
    apus::Config config;
    expect(config.set("listen", "127.0.0.1:0"));
    expect(config.apply_environment());
    apus::Node server = expect(apus::Node::start(config));
    apus::Port port = expect(server.bind(4000));
    const apus::Address to = expect(server.address()).with_port(4000);
    std::thread serving([&port] {
        expect(port.serve([](apus::Request request) {
            // These nodes have no certificates, and the client sends no trace.
            if (!expect(request.peer()).empty() || request.trace()) return;
            std::string answer = "hello, ";
            answer += request.body();
            // The library has the bytes of the answer until they are sent. The client may have gone.
            static_cast<void>(request.reply_owned(std::move(answer)));
        }));
    });

    apus::Node node = expect(apus::Node::start(config));
    apus::Client client = expect(node.client());
    const apus::Message response = expect(client.call(to, "world", apus::CallOptions().deadline(5s)));
    std::printf("%.*s\n", static_cast<int>(response.size()), response.text().data());

    // Many calls at once. The library has the bytes of a vector until they are sent.
    for (std::uint64_t tag = 0; tag < 100; tag++)
        expect(client.send_owned(to, std::vector<char>(1000, 'x'), tag));
    std::vector<apus::Completion> completions;
    while (completions.size() < 100)
        expect(client.recv_many(completions));
    std::size_t bytes = 0;
    for (apus::Completion &completion : completions)
        bytes += expect(std::move(completion.result)).size();
    std::printf("%zu bytes in %zu responses\n", bytes, completions.size());

    // Rules are about the names of certificates.
    if (client.expect({"*.example.org"}) || port.allow({"*.example.org"})) return 1;

    // No service has this port: the request was not executed, and could be repeated.
    const apus::Result<apus::Message> refused = client.call(to.with_port(5), "anybody?");
    if (refused || refused.error().number() != APUS_ENO_SUCH_PORT) return 1;
    std::printf("%s\n", refused.error().text().c_str());

    expect(server.close(10s));
    serving.join();
    return 0;
}
