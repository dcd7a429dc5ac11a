/* wire.h over libgloo. */
#include "comm/backend/gloo/wire.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <pthread.h>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/scatter.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>

namespace tcp = gloo::transport::tcp;
using std::chrono::milliseconds;
using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

namespace {

/* Who calls has a timeout of its own, and ends all that waits: a timeout of Gloo's would do so by itself. */
constexpr milliseconds forever = std::chrono::hours(24 * 365);
constexpr milliseconds look(50);
constexpr size_t inbox_size = 8;
constexpr size_t card_most = 1 << 20;                 /* what a rank may tell the others: a store's limit */
constexpr uint64_t message_slot = UINT64_C(1) << 62;  /* beyond those of Gloo's collectives, */
constexpr uint64_t exchange_slot = UINT64_C(3) << 61; /* and of messages */

/* Gloo's sentences begin with a place in its source. */
void keep(char *why, const char *text) {
    const char *end = text[0] == '[' ? std::strstr(text, "] ") : nullptr;
    std::snprintf(why, LS_GLOO_WHY, "%s", end != nullptr ? end + 2 : text);
}

void keep_current(char *why) noexcept {
    try {
        throw;
    } catch (const std::exception &error) {
        keep(why, error.what());
    } catch (...) {
        keep(why, "an unknown failure in Gloo");
    }
}

/* Gloo writes to sockets by writev, which raises SIGPIPE where nobody reads any more; its thread, and others that begin
 * while this lives, have no signals at all. */
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

class Store final : public gloo::rendezvous::Store {
  public:
    explicit Store(const ls_gloo_meeting &meeting) : meeting_(meeting) {
    }

    void set(const std::string &key, const std::vector<char> &data) override {
        check(meeting_.set(meeting_.context, key.c_str(), data.data(), data.size()));
    }
    std::vector<char> get(const std::string &key) override {
        std::vector<char> data(card_most);
        size_t size = 0;
        check(meeting_.get(meeting_.context, key.c_str(), data.data(), data.size(), &size));
        data.resize(size);
        return data;
    }
    void wait(const std::vector<std::string> & /*keys*/) override {
    } /* get does */
    void wait(const std::vector<std::string> & /*keys*/, const milliseconds & /*timeout*/) override {
    }

  private:
    static void check(bool done) {
        if (!done) {
            throw std::runtime_error("the store failed");
        }
    }
    const ls_gloo_meeting &meeting_;
};

/*
 * Gloo's context for TCP, of which all waits can be ended. Gloo itself ends none whose data was arriving, or about to
 * be sent, when its connection broke.
 */
class Transport final : public gloo::transport::Context {
  public:
    explicit Transport(std::shared_ptr<gloo::transport::Context> inner)
        : Context(inner->rank, inner->size), inner_(std::move(inner)) {
    }

    std::unique_ptr<gloo::transport::Pair> &getPair(int peer) override {
        return inner_->getPair(peer);
    }
    std::unique_ptr<gloo::transport::Pair> &createPair(int peer) override {
        inner_->setTimeout(getTimeout());
        return inner_->createPair(peer);
    }
    Buffer createUnboundBuffer(void *memory, size_t bytes) override {
        return std::make_unique<Tracked>(*this, inner_->createUnboundBuffer(memory, bytes));
    }
    void end() {
        const std::lock_guard<std::mutex> lock(tracked_mutex_);
        ended_ = true;
        for (Tracked *buffer : tracked_) {
            buffer->abortWaitRecv();
            buffer->abortWaitSend();
        }
    }

  private:
    class Tracked final : public gloo::transport::UnboundBuffer {
      public:
        Tracked(Transport &transport, Buffer inner)
            : UnboundBuffer(inner->ptr, inner->size), transport_(transport), inner_(std::move(inner)) {
            const std::lock_guard<std::mutex> lock(transport_.tracked_mutex_);
            transport_.tracked_.insert(this);
        }
        ~Tracked() override {
            const std::lock_guard<std::mutex> lock(transport_.tracked_mutex_);
            transport_.tracked_.erase(this);
        }
        Tracked(const Tracked &) = delete;
        Tracked &operator=(const Tracked &) = delete;

        bool waitRecv(int *peer, milliseconds limit) override {
            return check(!transport_.ended_) && check(inner_->waitRecv(peer, limit));
        }
        bool waitSend(int *peer, milliseconds limit) override {
            return check(!transport_.ended_) && check(inner_->waitSend(peer, limit));
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
                throw std::runtime_error("the wait was ended");
            }
            return true;
        }
        Transport &transport_; /* which the context, and so whoever makes buffers, holds for longer */
        Buffer inner_;
    };

    std::shared_ptr<gloo::transport::Context> inner_;
    std::mutex tracked_mutex_;
    std::set<Tracked *> tracked_;
    std::atomic<bool> ended_{false};
};

/* Gloo's device for TCP, which shows what it is asked to make: while ranks connect nothing else leads to the pairs. */
class Device final : public gloo::transport::Device {
  public:
    explicit Device(const char *host) : device_(tcp::CreateDevice(tcp::attr(host))) {
    }

    std::string str() const override {
        return device_->str();
    }
    const std::string &getPCIBusID() const override {
        return device_->getPCIBusID();
    }
    int getInterfaceSpeed() const override {
        return device_->getInterfaceSpeed();
    }
    std::shared_ptr<gloo::transport::Context> createContext(int rank, int size) override {
        made = std::make_shared<Transport>(device_->createContext(rank, size));
        return made;
    }

  private:
    std::shared_ptr<gloo::transport::Device> device_;

  public:
    std::shared_ptr<Transport> made;
};

/* A wait that ends at once makes Gloo close all connections of the context, with an error for all that waits. */
void close_all(gloo::transport::Context &context) {
    char nothing = 0;
    try {
        const NoSignals quiet;
        const Buffer buffer = context.createUnboundBuffer(&nothing, sizeof nothing);
        buffer->waitRecv(milliseconds(1));
    } catch (...) { /* that is what it is for */
    }
}

struct Copy {
    std::vector<char> bytes;
    Buffer buffer; /* the first to go */
};

struct Outbox {
    std::mutex mutex;
    std::deque<Copy> copies;                              /* the oldest first */
    std::vector<gloo::transport::UnboundBuffer *> waited; /* those that somebody waits for are no more among them */
    bool closed = false;
};

} // namespace

struct ls_gloo_loan {
    Buffer buffer;
};

struct ls_gloo_wire {
    std::shared_ptr<Device> device; /* the last to go */
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::vector<Outbox> outboxes;

    explicit ls_gloo_wire(const ls_gloo_meeting &meeting)
        : device(std::make_shared<Device>(meeting.host)),
          context(std::make_shared<gloo::rendezvous::Context>(meeting.rank, meeting.size)),
          outboxes(static_cast<size_t>(meeting.size)) {
    }
};

/* ---- opening and ending ------------------------------------------------------------------------------------------ */

/* Gloo waits without looking up, so it does on a thread of its own. */
static void connect(ls_gloo_wire &wire, const ls_gloo_meeting &meeting) {
    Store store(meeting);
    std::shared_ptr<gloo::transport::Device> device = wire.device;
    wire.context->setTimeout(milliseconds(static_cast<int64_t>(meeting.timeout * 1e3 / 5) + 1)); /* Gloo takes five */
    std::future<void> connected = std::async(std::launch::async, [&] { wire.context->connectFullMesh(store, device); });
    while (connected.wait_for(look) != std::future_status::ready) {
        if (meeting.is_vain(meeting.context)) {
            close_all(*wire.device->made);
            break;
        }
    }
    connected.get();
    wire.context->setTimeout(forever);
}

ls_gloo_wire *ls_gloo_wire_open(const ls_gloo_meeting *meeting, char *why) {
    try {
        const NoSignals quiet;
        auto wire = std::make_unique<ls_gloo_wire>(*meeting);
        connect(*wire, *meeting);
        return wire.release();
    } catch (...) {
        keep_current(why);
        return nullptr;
    }
}

void ls_gloo_wire_end(ls_gloo_wire *wire) {
    close_all(*wire->device->made);
    wire->device->made->end();
    for (size_t peer = 0; peer < wire->outboxes.size(); peer++) {
        ls_gloo_wire_close(wire, static_cast<int>(peer));
    }
}

void ls_gloo_wire_free(ls_gloo_wire *wire) {
    delete wire;
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

namespace {

char *at(const void *memory, size_t bytes) {
    return static_cast<char *>(const_cast<void *>(memory)) + bytes;
}

/* What Gloo's templates say of elements, for elements of any width. */
template <typename Options> struct Sized : Options {
    explicit Sized(const ls_gloo_wire &wire) : Options(wire.context) {
        this->setTimeout(forever);
    }
    void set_sizes(size_t count, size_t width) {
        this->elements = count;
        this->elementSize = width;
    }
};
template <> struct Sized<gloo::AllreduceOptions> : gloo::AllreduceOptions {
    explicit Sized(const ls_gloo_wire &wire) : gloo::AllreduceOptions(wire.context) {
        setTimeout(forever);
    }
    void set_sizes(size_t count, size_t width) {
        impl_.elements = count;
        impl_.elementSize = width;
    }
};

template <typename Options> void set_reduction(Options &options, const ls_gloo_work &work, void *result) {
    const size_t bytes = work.count * work.width;
    if (work.send != result) {
        options.setInput(at(work.send, 0), bytes);
    }
    options.setOutput(at(result, 0), bytes);
    options.set_sizes(work.count, work.width);
    options.setReduceFunction(
        [&work](void *to, const void *a, const void *b, size_t count) { work.reduce(work.argument, to, a, b, count); });
    options.setTag(work.tag);
}

void allreduce(const ls_gloo_wire &wire, const ls_gloo_work &work) {
    Sized<gloo::AllreduceOptions> options(wire);
    set_reduction(options, work, work.receive);
    gloo::allreduce(options);
}

/* Every rank needs memory for it, which only the root has of its caller. */
void reduce(const ls_gloo_wire &wire, const ls_gloo_work &work) {
    Sized<gloo::ReduceOptions> options(wire);
    std::vector<char> scratch(wire.context->rank != work.root ? work.count * work.width : 0);
    set_reduction(options, work, wire.context->rank == work.root ? work.receive : scratch.data());
    options.setRoot(work.root);
    gloo::reduce(options);
}

void barrier(const ls_gloo_wire &wire, const ls_gloo_work &work) {
    gloo::BarrierOptions options(wire.context);
    options.setTag(work.tag);
    options.setTimeout(forever);
    gloo::barrier(options);
}

void broadcast(const ls_gloo_wire &wire, const ls_gloo_work &work) {
    gloo::BroadcastOptions options(wire.context);
    options.setOutput(at(work.receive, 0), work.count * work.width);
    options.setRoot(work.root);
    options.setTag(work.tag);
    options.setTimeout(forever);
    gloo::broadcast(options);
}

void gather(const ls_gloo_wire &wire, const ls_gloo_work &work) {
    gloo::GatherOptions options(wire.context);
    const size_t bytes = work.count * work.width;
    options.setInput(at(work.send, 0), bytes);
    if (wire.context->rank == work.root) {
        options.setOutput(at(work.receive, 0), bytes * wire.outboxes.size());
    }
    options.setRoot(work.root);
    options.setTag(work.tag);
    options.setTimeout(forever);
    gloo::gather(options);
}

void allgather(const ls_gloo_wire &wire, const ls_gloo_work &work) {
    gloo::AllgatherOptions options(wire.context);
    const size_t bytes = work.count * work.width;
    options.setInput(at(work.send, 0), bytes);
    options.setOutput(at(work.receive, 0), bytes * wire.outboxes.size());
    options.setTag(work.tag);
    options.setTimeout(forever);
    gloo::allgather(options);
}

void scatter(const ls_gloo_wire &wire, const ls_gloo_work &work) {
    gloo::ScatterOptions options(wire.context);
    const size_t bytes = work.count * work.width;
    std::vector<char *> parts;
    for (size_t rank = 0; rank < wire.outboxes.size() && wire.context->rank == work.root; rank++) {
        parts.push_back(at(work.send, rank * bytes));
    }
    options.setInputs(parts, bytes);
    options.setOutput(at(work.receive, 0), bytes);
    options.setRoot(work.root);
    options.setTag(work.tag);
    options.setTimeout(forever);
    gloo::scatter(options);
}

void alltoall(const ls_gloo_wire &wire, const ls_gloo_work &work) {
    gloo::AlltoallOptions options(wire.context);
    const size_t bytes = work.count * work.width * wire.outboxes.size();
    options.setInput(at(work.send, 0), bytes);
    options.setOutput(at(work.receive, 0), bytes);
    options.setTag(work.tag);
    options.setTimeout(forever);
    gloo::alltoall(options);
}

/* As gloo::alltoallv, whose parts follow each other; these may lie anywhere. */
void exchange(const ls_gloo_wire &wire, const ls_gloo_work &work) {
    const size_t size = wire.outboxes.size();
    const auto rank = static_cast<size_t>(wire.context->rank);
    const uint64_t slot = exchange_slot | work.tag;
    std::vector<Buffer> buffers(2 * size);
    if (work.received[rank].bytes != 0 &&
        at(work.receive, work.received[rank].at) != at(work.send, work.sent[rank].at)) {
        std::memcpy(at(work.receive, work.received[rank].at), at(work.send, work.sent[rank].at),
                    work.received[rank].bytes);
    }
    for (size_t i = 1; i < size; i++) {
        const size_t to = (rank + i) % size;
        const size_t from = (rank + size - i) % size;
        if (work.received[from].bytes != 0) {
            buffers[from] =
                wire.context->createUnboundBuffer(at(work.receive, work.received[from].at), work.received[from].bytes);
            buffers[from]->recv(static_cast<int>(from), slot);
        }
        if (work.sent[to].bytes != 0) {
            buffers[size + to] =
                wire.context->createUnboundBuffer(at(work.send, work.sent[to].at), work.sent[to].bytes);
            buffers[size + to]->send(static_cast<int>(to), slot);
        }
    }
    for (size_t i = 0; i < buffers.size(); i++) {
        if (buffers[i]) {
            (void)(i < size ? buffers[i]->waitRecv(forever) : buffers[i]->waitSend(forever));
        }
    }
}

using Function = void(const ls_gloo_wire &, const ls_gloo_work &);
constexpr Function *functions[] = {broadcast, allreduce, reduce,  gather,  allgather,
                                   scatter,   alltoall,  barrier, exchange};

} // namespace

bool ls_gloo_wire_work(ls_gloo_wire *wire, const ls_gloo_work *work, char *why) {
    try {
        functions[work->kind](*wire, *work);
        return true;
    } catch (...) {
        keep_current(why);
        return false;
    }
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

bool ls_gloo_wire_send(ls_gloo_wire *wire, int peer, uint64_t number, const void *head, size_t head_bytes,
                       const void *data, size_t bytes) {
    const NoSignals quiet;
    Outbox &outbox = wire->outboxes[static_cast<size_t>(peer)];
    const std::lock_guard<std::mutex> lock(outbox.mutex);
    try {
        outbox.copies.emplace_back();
        Copy &copy = outbox.copies.back();
        copy.bytes.assign(at(head, 0), at(head, head_bytes));
        copy.bytes.insert(copy.bytes.end(), at(data, 0), at(data, bytes));
        copy.buffer = wire->context->createUnboundBuffer(copy.bytes.data(), copy.bytes.size());
    } catch (...) {
        return false;
    }
    try {
        outbox.copies.back().buffer->send(peer, message_slot | number);
    } catch (...) { /* it will never be taken, and nothing would end a wait for that */
        outbox.copies.back().buffer.reset();
    }
    return true;
}

/* Takes the oldest copy out, to wait for it, where there are more than `most`. */
static bool take_copy(Outbox &outbox, size_t most, Copy &copy) {
    const std::lock_guard<std::mutex> lock(outbox.mutex);
    if (outbox.closed) {
        outbox.copies.clear();
    }
    if (outbox.copies.size() <= most) {
        return false;
    }
    copy = std::move(outbox.copies.front());
    outbox.copies.pop_front();
    if (copy.buffer) {
        outbox.waited.push_back(copy.buffer.get());
    }
    return true;
}

static void await_copy(Outbox &outbox, const Copy &copy, milliseconds limit) {
    try {
        if (copy.buffer) {
            copy.buffer->waitSend(limit);
        }
    } catch (...) { /* it was not taken */
    }
    const std::lock_guard<std::mutex> lock(outbox.mutex);
    outbox.waited.erase(std::remove(outbox.waited.begin(), outbox.waited.end(), copy.buffer.get()),
                        outbox.waited.end());
}

void ls_gloo_wire_flush(ls_gloo_wire *wire, int peer, size_t most, double seconds) {
    const NoSignals quiet;
    const milliseconds limit = seconds > 0 ? milliseconds(static_cast<int64_t>(seconds * 1e3) + 1) : forever;
    Outbox &outbox = wire->outboxes[static_cast<size_t>(peer)];
    for (Copy copy; take_copy(outbox, most, copy); copy.buffer.reset()) {
        await_copy(outbox, copy, limit);
    }
}

void ls_gloo_wire_close(ls_gloo_wire *wire, int peer) {
    Outbox &outbox = wire->outboxes[static_cast<size_t>(peer)];
    const std::lock_guard<std::mutex> lock(outbox.mutex);
    outbox.closed = true;
    for (gloo::transport::UnboundBuffer *buffer : outbox.waited) {
        buffer->abortWaitSend();
    }
}

ls_gloo_loan *ls_gloo_wire_lend(ls_gloo_wire *wire, int peer, uint64_t number, const void *data, size_t bytes) {
    const NoSignals quiet;
    std::unique_ptr<ls_gloo_loan> loan;
    try {
        loan = std::make_unique<ls_gloo_loan>();
        loan->buffer = wire->context->createUnboundBuffer(at(data, 0), bytes);
        loan->buffer->send(peer, message_slot | number);
    } catch (const std::bad_alloc &) {
        return nullptr;
    } catch (...) { /* who receives from there meets it */
    }
    return loan.release();
}

void ls_gloo_wire_return(ls_gloo_loan *loan) {
    delete loan;
}

bool ls_gloo_wire_receive(ls_gloo_wire *wire, int peer, uint64_t number, void *memory, size_t bytes, char *why) {
    try {
        const Buffer buffer = wire->context->createUnboundBuffer(memory, bytes);
        buffer->recv(peer, message_slot | number);
        buffer->waitRecv(forever);
        return true;
    } catch (...) {
        keep_current(why);
        return false;
    }
}

struct ls_gloo_inbox {
    struct Place {
        std::vector<char> bytes;
        Buffer buffer;
    };
    int peer;
    std::deque<Place> places; /* the one that is filled next is the first */
    bool lends = false;       /* it is the last */
};

ls_gloo_inbox *ls_gloo_wire_inbox(ls_gloo_wire *wire, int peer, size_t bytes, char *why) {
    try {
        const NoSignals quiet;
        auto inbox = std::make_unique<ls_gloo_inbox>();
        inbox->peer = peer;
        for (size_t i = 0; i < inbox_size; i++) {
            inbox->places.emplace_back();
            ls_gloo_inbox::Place &place = inbox->places.back();
            place.bytes.resize(bytes);
            place.buffer = wire->context->createUnboundBuffer(place.bytes.data(), bytes);
            place.buffer->recv(peer, message_slot);
        }
        return inbox.release();
    } catch (...) {
        keep_current(why);
        return nullptr;
    }
}

const void *ls_gloo_inbox_next(ls_gloo_inbox *inbox, char *why) {
    try {
        if (inbox->lends) {
            inbox->places.back().buffer->recv(inbox->peer, message_slot);
        }
    } catch (...) { /* the connection has ended, and what came before is still here */
    }
    try {
        inbox->places.front().buffer->waitRecv(forever);
        inbox->places.push_back(std::move(inbox->places.front()));
        inbox->places.pop_front();
        inbox->lends = true;
        return inbox->places.back().bytes.data();
    } catch (...) {
        keep_current(why);
        return nullptr;
    }
}

void ls_gloo_inbox_free(ls_gloo_inbox *inbox) {
    delete inbox;
}
