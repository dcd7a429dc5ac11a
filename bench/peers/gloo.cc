/*
 * Gloo itself, over TCP on the loopback interface, measured as `lockstep bench` measures Lockstep. `lockstep run`
 * starts its ranks, which find each other through a folder:
 *
 *     build-bench/bin/lockstep run -n 2 build-bench/bench/peers_gloo ALGORITHM FOLDER COLLECTIVE [--sizes 4,1K]
 *     [--fresh]
 *
 * ALGORITHM is `new` (the functions with options, which PyTorch calls), or for all-reduce one of the older classes:
 * ring, ring_chunked, halving_doubling, bcube. `classes` selects the older classes for the other collectives.
 * All-to-all and messages have no older classes, so it uses the buffers of which the classes are made. With the suffix
 * `-poll`, the ranks poll their sockets, which is much faster, but hangs on large messages (both sides in writev). An
 * alarm ends a
 * process that hangs.
 */
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allgather_ring.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>

#include "measure.h"

namespace {

enum { MOST_SECONDS = 100 };
std::shared_ptr<gloo::rendezvous::Context> plain;  // for barriers, and for the new functions
std::shared_ptr<gloo::rendezvous::Context> paired; // for the older classes
std::string algorithm;
std::unique_ptr<gloo::Algorithm> older;
std::vector<float> scattered;

/* All-to-all, or with `turns` a message and a reply, with the buffers of the older classes. */
class Exchange : public gloo::Algorithm {
  public:
    Exchange(const peer_call *call, bool turns) : gloo::Algorithm(paired), call_(*call), turns_(turns) {
        const size_t bytes = call->count * sizeof(float);
        const int slot = context_->nextSlot(2);
        for (int i = 0; i < contextSize_; i++) {
            const size_t at = turns ? 0 : call->count * static_cast<size_t>(i);
            if (i != contextRank_ && (!turns || i == (contextRank_ ^ 1))) {
                const int here =
                    slot + (contextRank_ < i
                                ? 0
                                : 1); /* separate slots, because a new buffer replaces the earlier buffer of its slot */
                sent_.push_back(getPair(i)->createSendBuffer(2 * slot + 1 - here, call->send + at, bytes));
                received_.push_back(getPair(i)->createRecvBuffer(here, call->receive + at, bytes));
            }
        }
    }
    void run() override {
        if (!turns_) {
            const size_t own = call_.count * static_cast<size_t>(contextRank_);
            memcpy(call_.receive + own, call_.send + own, call_.count * sizeof(float));
        }
        for (const auto &buffer : sent_) {
            if (!turns_ || contextRank_ % 2 == 0) {
                buffer->send();
            }
        }
        for (const auto &buffer : received_) {
            buffer->waitRecv();
        }
        for (const auto &buffer : sent_) {
            if (turns_ && contextRank_ % 2 == 1) {
                buffer->send();
            }
            buffer->waitSend();
        }
    }

  private:
    peer_call call_;
    bool turns_;
    std::vector<std::unique_ptr<gloo::transport::Buffer>> sent_;
    std::vector<std::unique_ptr<gloo::transport::Buffer>> received_;
};

bool supports(peer_collective collective) {
    return algorithm == "new"       ? collective != PEER_REDUCE_SCATTER
           : algorithm == "classes" ? collective != PEER_ALLREDUCE
                                    : collective == PEER_ALLREDUCE;
}

/* Creates the older class for the call. */
void open_class(const peer_call *call) {
    const int count = static_cast<int>(call->count);
    const std::vector<int> parts(static_cast<size_t>(paired->size), count);
    switch (call->collective) {
    case PEER_BROADCAST:
        older.reset(new gloo::BroadcastOneToAll<float>(paired, {call->receive}, call->count));
        break;
    case PEER_ALLGATHER:
        older.reset(new gloo::AllgatherRing<float>(paired, {call->send}, call->receive, count));
        break;
    case PEER_REDUCE_SCATTER: /* it works in place, so users too need the copy that saves the input */
        scattered.resize(call->count * parts.size());
        older.reset(
            new gloo::ReduceScatterHalvingDoubling<float>(paired, {scattered.data()}, count * paired->size, parts));
        break;
    case PEER_BARRIER:
        older.reset(new gloo::BarrierAllToAll(paired));
        break;
    default:
        older.reset(new Exchange(call, call->collective == PEER_PINGPONG));
        break;
    }
}

void open(const peer_call *call) {
    const std::vector<float *> buffers = {call->receive};
    const int count = static_cast<int>(call->count);
    if (algorithm == "classes") {
        open_class(call);
    } else if (algorithm == "ring") {
        older.reset(new gloo::AllreduceRing<float>(paired, buffers, count));
    } else if (algorithm == "ring_chunked") {
        older.reset(new gloo::AllreduceRingChunked<float>(paired, buffers, count));
    } else if (algorithm == "halving_doubling") {
        older.reset(new gloo::AllreduceHalvingDoubling<float>(paired, buffers, count));
    } else if (algorithm == "bcube") {
        older.reset(new gloo::AllreduceBcube<float>(paired, buffers, count));
    }
}

void close() {
    older.reset();
}

template <typename T>
void allreduce(T *values, size_t count, void (*reduce)(void *, const void *, const void *, size_t)) {
    gloo::AllreduceOptions options(plain);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setOutput(values, count);
    options.setReduceFunction(reduce);
    gloo::allreduce(options);
}

void pingpong(const peer_call *call) {
    const int other = plain->rank ^ 1;
    if (other >= plain->size) {
        return;
    }
    auto sent = plain->createUnboundBuffer(call->send, call->count * sizeof(float));
    auto received = plain->createUnboundBuffer(call->receive, call->count * sizeof(float));
    if (plain->rank < other) {
        sent->send(other, 1);
        sent->waitSend();
    }
    received->recv(other, 1);
    received->waitRecv();
    if (plain->rank > other) {
        sent->send(other, 1);
        sent->waitSend();
    }
}

void barrier() {
    gloo::BarrierOptions options(plain);
    gloo::barrier(options);
}

void run(const peer_call *call) {
    const size_t count = call->count;
    const size_t all = count * static_cast<size_t>(plain->size);
    if (older && call->collective == PEER_REDUCE_SCATTER) {
        memcpy(scattered.data(), call->send, all * sizeof(float));
        older->run();
        memcpy(call->receive, scattered.data(), count * sizeof(float));
        return;
    }
    if (older) {
        older->run();
        return;
    }
    switch (call->collective) {
    case PEER_ALLREDUCE:
        allreduce(call->receive, count, &gloo::sum<float>);
        break;
    case PEER_BROADCAST: {
        gloo::BroadcastOptions options(plain);
        options.setOutput(call->receive, count);
        options.setRoot(0);
        gloo::broadcast(options);
        break;
    }
    case PEER_ALLGATHER: {
        gloo::AllgatherOptions options(plain);
        options.setInput(call->send, count);
        options.setOutput(call->receive, all);
        gloo::allgather(options);
        break;
    }
    case PEER_ALLTOALL: {
        gloo::AlltoallOptions options(plain);
        options.setInput(call->send, all);
        options.setOutput(call->receive, all);
        gloo::alltoall(options);
        break;
    }
    case PEER_PINGPONG:
        pingpong(call);
        break;
    default:
        barrier();
        break;
    }
}

void most(double *values, size_t count) {
    allreduce(values, count, &gloo::max<double>);
}

std::shared_ptr<gloo::rendezvous::Context> connect(int rank, int ranks, const char *folder, const char *purpose) {
    gloo::transport::tcp::attr attributes;
    attributes.iface = "lo";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore files(folder);
    gloo::rendezvous::PrefixStore store(purpose, files);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
    context->connectFullMesh(store, device);
    return context;
}

int measure(int argc, char **argv) {
    const char *rank_text = getenv("RANK");
    const char *ranks_text = getenv("WORLD_SIZE");
    if (argc < 4 || rank_text == nullptr || ranks_text == nullptr) {
        fprintf(stderr, "usage: lockstep run -n N %s ALGORITHM FOLDER COLLECTIVE [options]\n", argv[0]);
        return 2;
    }
    const int rank = atoi(rank_text);
    const int ranks = atoi(ranks_text);
    algorithm = argv[1];
    const std::string name = "Gloo " + algorithm;
    const size_t tail = algorithm.rfind("-poll");
    const bool poll = tail != std::string::npos;
    algorithm.resize(poll ? tail : algorithm.size());
    plain = connect(rank, ranks, argv[2], "plain");
    if (algorithm != "new") {
        paired = connect(rank, ranks, argv[2], "paired");
        for (int i = 0; i < ranks && poll; i++) {
            if (i != rank) {
                paired->getPair(i)->setSync(true, true);
            }
        }
    }
    peer self = {};
    self.name = name.c_str();
    self.rank = rank;
    self.ranks = ranks;
    self.supports = supports;
    self.open = open;
    self.run = run;
    self.close = close;
    self.barrier = barrier;
    self.most = most;
    const int exit_status = peer_measure(&self, argc - 2, argv + 2);
    barrier(); // no rank closes connections that others still use
    return exit_status;
}

} // namespace

int main(int argc, char **argv) {
    alarm(MOST_SECONDS);
    try {
        return measure(argc, argv);
    } catch (const std::exception &error) {
        fprintf(stderr, "Gloo: %s\n", error.what());
        return 1;
    }
}
