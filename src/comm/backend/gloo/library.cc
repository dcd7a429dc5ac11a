/* Implements library.h with libgloo. */
#include "comm/backend/gloo/library.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <pthread.h>

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/broadcast.h>
#include <gloo/context.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/scatter.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>

namespace transport = gloo::transport;
using std::chrono::milliseconds;
using Buffer = std::unique_ptr<transport::UnboundBuffer>;

namespace {

constexpr milliseconds forever = std::chrono::hours(24 * 365); /* Gloo adds this to a time: must not overflow */

/* Writes the message of the current exception, without the source position at the beginning of Gloo's messages. */
void keep_current(char *why) noexcept {
    const char *text = "an unknown failure";
    std::string said;
    try {
        throw; /* cppcheck-suppress rethrowNoCurrentException ; callers are handlers */
    } catch (const std::exception &error) {
        said = error.what();
        const size_t end = said.rfind("[", 0) == 0 ? said.find("] ") : std::string::npos;
        text = said.c_str() + (end != std::string::npos ? end + 2 : 0);
    } catch (...) {
    }
    std::snprintf(why, LS_GLOO_WHY, "Gloo: %s", text);
}

/* Blocks all signals during its lifetime, for this thread and for the threads that it creates. Gloo writes to
 * sockets with writev, which raises SIGPIPE if the peer has closed the connection. */
class NoSignals {
  public:
    NoSignals() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~NoSignals() {
        sigset_t pending;
        sigset_t pipe;
        const timespec now = {};
        sigemptyset(&pipe);
        sigaddset(&pipe, SIGPIPE);
        if (sigismember(&before_, SIGPIPE) == 0 && sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1) {
            sigtimedwait(&pipe, nullptr, &now);
        }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    NoSignals(const NoSignals &) = delete;
    NoSignals &operator=(const NoSignals &) = delete;

  private:
    sigset_t before_{};
};

/* A Gloo TCP context in which another thread can end all waits. If a connection breaks, Gloo itself does not end a
 * wait for data that was being received or was about to be sent. */
class Transport final : public transport::Context {
  public:
    explicit Transport(std::shared_ptr<transport::Context> inner)
        : Context(inner->rank, inner->size), inner_(std::move(inner)) {
        setTimeout(forever);
        inner_->setTimeout(forever);
    }

    std::unique_ptr<transport::Pair> &getPair(int peer) override {
        return inner_->getPair(peer);
    }
    std::unique_ptr<transport::Pair> &createPair(int peer) override {
        return inner_->createPair(peer);
    }
    Buffer createUnboundBuffer(void *memory, size_t bytes) override {
        return std::make_unique<Tracked>(*this, inner_->createUnboundBuffer(memory, bytes));
    }
    void end() {
        const std::lock_guard<std::mutex> lock(mutex_of_tracked_);
        ended_ = true;
        for (Tracked *buffer : tracked_) {
            buffer->abortWaitRecv();
            buffer->abortWaitSend();
        }
    }

  private:
    class Tracked final : public transport::UnboundBuffer {
      public:
        Tracked(Transport &owner, Buffer inner)
            : UnboundBuffer(inner->ptr, inner->size), owner_(owner), inner_(std::move(inner)) {
            const std::lock_guard<std::mutex> lock(owner_.mutex_of_tracked_);
            owner_.tracked_.insert(this);
        }
        ~Tracked() override {
            const std::lock_guard<std::mutex> lock(owner_.mutex_of_tracked_);
            owner_.tracked_.erase(this);
        }
        Tracked(const Tracked &) = delete;
        Tracked &operator=(const Tracked &) = delete;

        bool waitRecv(int *peer, milliseconds limit) override {
            return check(!owner_.ended_) && check(inner_->waitRecv(peer, limit));
        }
        bool waitSend(int *peer, milliseconds limit) override {
            return check(!owner_.ended_) && check(inner_->waitSend(peer, limit));
        }
        void abortWaitRecv() override {
            inner_->abortWaitRecv();
        }
        void abortWaitSend() override {
            inner_->abortWaitSend();
        }
        void send(int peer, uint64_t slot, size_t offset, size_t bytes) override {
            inner_->send(peer, slot, offset, bytes);
        }
        void recv(int peer, uint64_t slot, size_t offset, size_t bytes) override {
            inner_->recv(peer, slot, offset, bytes);
        }
        void recv(std::vector<int> peers, uint64_t slot, size_t offset, size_t bytes) override {
            inner_->recv(std::move(peers), slot, offset, bytes);
        }

      private:
        static bool check(bool goes_on) {
            if (!goes_on) {
                throw std::runtime_error("the wait was aborted");
            }
            return true;
        }
        Transport &owner_; /* outlives the buffer: the buffer's creator holds a reference to the owner */
        Buffer inner_;
    };

    std::shared_ptr<transport::Context> inner_;
    std::mutex mutex_of_tracked_;
    std::set<Tracked *> tracked_;
    std::atomic<bool> ended_{false};
};

/* Returns the device, with its one Gloo thread, that all communicators of the process share if they listen at the
 * same address. */
std::shared_ptr<transport::Device> device_at(const std::string &host) {
    static std::mutex mutex;
    static std::map<std::string, std::weak_ptr<transport::Device>> devices;
    const std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<transport::Device> device = devices[host].lock();
    if (!device) {
        device = transport::tcp::CreateDevice(transport::tcp::attr(host.c_str()));
        devices[host] = device;
    }
    return device;
}

class Mesh final : public gloo::Context {
  public:
    Mesh(const char *host, int own, int ranks) : Context(own, ranks) {
        device_ = device_at(host);
        made_ = std::make_shared<Transport>(device_->createContext(own, ranks));
        transportContext_ = made_;
        setTimeout(forever);
        for (int peer = 0; peer < ranks; peer++) {
            if (peer != own) {
                made_->createPair(peer);
            }
        }
    }
    Transport &made() {
        return *made_;
    }

  private:
    std::shared_ptr<Transport> made_;
};

} // namespace

struct ls_gloo_context {
    std::shared_ptr<Mesh> mesh;
    uint32_t tag = 0; /* tag of the latest collective */
};

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

ls_gloo_context *ls_gloo_new(const char *host, int rank, int size, char *why) {
    try {
        const NoSignals quiet;
        auto context = std::make_unique<ls_gloo_context>();
        context->mesh = std::make_shared<Mesh>(host, rank, size);
        return context.release();
    } catch (...) {
        keep_current(why);
        return nullptr;
    }
}

size_t ls_gloo_address(ls_gloo_context *context, int peer, char address[LS_GLOO_ADDRESS]) {
    const std::vector<char> bytes = context->mesh->made().getPair(peer)->address().bytes();
    if (bytes.size() > LS_GLOO_ADDRESS) {
        return 0;
    }
    std::copy(bytes.begin(), bytes.end(), address);
    return bytes.size();
}

bool ls_gloo_connect(ls_gloo_context *context, int peer, const char *address, size_t bytes, char *why) {
    try {
        if (bytes > LS_GLOO_ADDRESS) {
            throw std::runtime_error("rank " + std::to_string(peer) +
                                     " has sent an address that this version cannot read");
        }
        context->mesh->made().getPair(peer)->connect(std::vector<char>(address, address + bytes));
        return true;
    } catch (...) {
        keep_current(why);
        return false;
    }
}

void ls_gloo_end(ls_gloo_context *context) {
    char nothing = 0;
    try { /* if a wait times out, Gloo closes all connections and fails all other waits */
        const NoSignals quiet;
        const Buffer buffer = context->mesh->createUnboundBuffer(&nothing, sizeof nothing);
        buffer->waitRecv(milliseconds(1));
    } catch (...) { /* the wait always fails */
    }
    context->mesh->made().end();
}

void ls_gloo_free(ls_gloo_context *context) {
    delete context;
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

namespace {

char *bytes_of(const void *memory) {
    return static_cast<char *>(const_cast<void *>(memory));
}

/* Sets the number and size of elements. Gloo's templates derive them from a type; this struct supports elements of
 * any width. */
template <typename Options> struct Sized : Options {
    explicit Sized(const std::shared_ptr<gloo::Context> &mesh) : Options(mesh) {
    }
    void set_sizes(size_t count, size_t width) {
        this->elements = count;
        this->elementSize = width;
    }
};
template <> struct Sized<gloo::AllreduceOptions> : gloo::AllreduceOptions {
    explicit Sized(const std::shared_ptr<gloo::Context> &mesh) : gloo::AllreduceOptions(mesh) {
    }
    void set_sizes(size_t count, size_t width) {
        impl_.elements = count;
        impl_.elementSize = width;
    }
};

template <typename Options> void set_reduction(Options &options, const ls_call &call, void *result) {
    const size_t bytes = call.count * call.width;
    if (call.send != result) { /* otherwise the output buffer contains the input */
        options.setInput(bytes_of(call.send), bytes);
    }
    options.setOutput(bytes_of(result), bytes);
    options.set_sizes(call.count, call.width);
    options.setReduceFunction(
        [&call](void *to, const void *a, const void *b, size_t count) { ls_gloo_reduce(&call, to, a, b, count); });
}

void allreduce(ls_gloo_context &context, const ls_call &call) {
    Sized<gloo::AllreduceOptions> options(context.mesh);
    set_reduction(options, call, call.receive);
    options.setTag(context.tag);
    gloo::allreduce(options);
}

/* Reduces to the root. Every rank needs memory for the result, but only the root's caller provides this memory. */
void reduce(ls_gloo_context &context, const ls_call &call) {
    Sized<gloo::ReduceOptions> options(context.mesh);
    const bool root = context.mesh->rank == call.root;
    std::vector<char> scratch(root ? 0 : call.count * call.width);
    set_reduction(options, call, root ? call.receive : scratch.data());
    options.setRoot(call.root);
    options.setTag(context.tag);
    gloo::reduce(options);
}

void broadcast(ls_gloo_context &context, const ls_call &call) {
    gloo::BroadcastOptions options(context.mesh);
    options.setOutput(bytes_of(call.receive), call.count * call.width);
    options.setRoot(call.root);
    options.setTag(context.tag);
    gloo::broadcast(options);
}

void gather(ls_gloo_context &context, const ls_call &call) {
    gloo::GatherOptions options(context.mesh);
    const size_t bytes = call.count * call.width;
    options.setInput(bytes_of(call.send), bytes);
    if (context.mesh->rank == call.root) {
        options.setOutput(bytes_of(call.receive), bytes * static_cast<size_t>(context.mesh->size));
    }
    options.setRoot(call.root);
    options.setTag(context.tag);
    gloo::gather(options);
}

void allgather(ls_gloo_context &context, const ls_call &call) {
    gloo::AllgatherOptions options(context.mesh);
    const size_t bytes = call.count * call.width;
    if (call.send != nullptr) {
        options.setInput(bytes_of(call.send), bytes);
    }
    options.setOutput(bytes_of(call.receive), bytes * static_cast<size_t>(context.mesh->size));
    options.setTag(context.tag);
    gloo::allgather(options);
}

/* Returns the size of each rank's part in bytes. */
template <typename Integer>
std::vector<Integer> bytes_of_parts(const ls_gloo_context &context, const size_t *counts, size_t width) {
    std::vector<Integer> bytes;
    for (int rank = 0; rank < context.mesh->size; rank++) {
        bytes.push_back(static_cast<Integer>(counts[rank] * width));
    }
    return bytes;
}

void allgatherv(ls_gloo_context &context, const ls_call &call) {
    gloo::AllgathervOptions options(context.mesh);
    const std::vector<size_t> parts = bytes_of_parts<size_t>(context, call.receive_counts, call.width);
    if (call.send != nullptr) {
        options.setInput(bytes_of(call.send), parts[static_cast<size_t>(context.mesh->rank)]);
    }
    options.setOutput(bytes_of(call.receive), parts);
    options.setTag(context.tag);
    gloo::allgatherv(options);
}

void scatter(ls_gloo_context &context, const ls_call &call) {
    gloo::ScatterOptions options(context.mesh);
    const size_t bytes = call.count * call.width;
    std::vector<char *> parts;
    for (int rank = 0; rank < context.mesh->size && context.mesh->rank == call.root; rank++) {
        parts.push_back(bytes_of(call.send) + static_cast<size_t>(rank) * bytes);
    }
    options.setInputs(parts, bytes);
    options.setOutput(bytes_of(call.receive), bytes);
    options.setRoot(call.root);
    options.setTag(context.tag);
    gloo::scatter(options);
}

void alltoall(ls_gloo_context &context, const ls_call &call) {
    gloo::AlltoallOptions options(context.mesh);
    const size_t bytes = call.count * call.width * static_cast<size_t>(context.mesh->size);
    options.setInput(bytes_of(call.send), bytes);
    options.setOutput(bytes_of(call.receive), bytes);
    options.setTag(context.tag);
    gloo::alltoall(options);
}

void alltoallv(ls_gloo_context &context, const ls_call &call) {
    gloo::AlltoallvOptions options(context.mesh);
    options.setInput(bytes_of(call.send), bytes_of_parts<int64_t>(context, call.send_counts, call.width));
    options.setOutput(bytes_of(call.receive), bytes_of_parts<int64_t>(context, call.receive_counts, call.width));
    options.setTag(context.tag);
    gloo::alltoallv(options);
}

struct Maker {
    ls_operation operation;
    void (*make)(ls_gloo_context &, const ls_call &);
};
constexpr Maker makers[] = {{LS_OP_BROADCAST, broadcast}, {LS_OP_ALLREDUCE, allreduce}, {LS_OP_REDUCE, reduce},
                            {LS_OP_GATHER, gather},       {LS_OP_ALLGATHER, allgather}, {LS_OP_ALLGATHERV, allgatherv},
                            {LS_OP_SCATTER, scatter},     {LS_OP_ALLTOALL, alltoall},   {LS_OP_ALLTOALLV, alltoallv}};

} // namespace

bool ls_gloo_make(ls_gloo_context *context, const ls_call *call, char *why) {
    try {
        context->tag++;
        for (const Maker &maker : makers) {
            if (maker.operation == call->operation) {
                maker.make(*context, *call);
            }
        }
        return true;
    } catch (...) {
        keep_current(why);
        return false;
    }
}
