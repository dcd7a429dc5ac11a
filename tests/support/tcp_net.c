#include "tests/support/tcp_net.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/files.h"
#include "tests/support/unit.h"

static int descriptors;

int tcp_net_note_descriptors(void **state) {
    (void)state;
    descriptors = test_descriptors_count();
    return 0;
}

int tcp_net_compare_descriptors(void **state) {
    (void)state;
    return test_descriptors_count() == descriptors ? 0 : -1;
}

void tcp_net_listen(tcp_net *net, int size) {
    tcp_net_listen_on(net, size, size);
}

void tcp_net_listen_on(tcp_net *net, int size, int machines) {
    *net = (tcp_net){.size = size};
    assert_int_equal(ls_key_read(&net->key, "the key of transport tests"), LS_OK);
    for (int rank = 0; rank < size; rank++) {
        const ls_join_context join = {.size = size, .machine = (uint64_t)(rank % machines)};
        assert_int_equal(ls_tcp_listen(&join, &net->peer_infos[rank], &net->listeners[rank]), LS_OK);
    }
}

void tcp_net_open(tcp_net *net, int rank) {
    const ls_tcp_options options = {.rank = rank,
                                    .size = net->size,
                                    .listener = net->listeners[rank],
                                    .peer_infos = net->peer_infos,
                                    .key = &net->key};
    net->ends[rank] = ls_tcp_open(&options);
    net->listeners[rank] = -1;
    assert_non_null(net->ends[rank]);
}

void tcp_net_start(tcp_net *net, int size) {
    tcp_net_listen(net, size);
    for (int rank = 0; rank < size; rank++) {
        tcp_net_open(net, rank);
    }
}

void tcp_net_close(tcp_net *net, int rank) {
    if (net->ends[rank] != NULL) {
        net->ends[rank]->transport->close(net->ends[rank], 0, NULL, NULL);
        net->ends[rank] = NULL;
    }
    if (net->listeners[rank] >= 0) {
        close(net->listeners[rank]);
        net->listeners[rank] = -1;
    }
}

void tcp_net_end(tcp_net *net) {
    for (int rank = 0; rank < net->size; rank++) {
        tcp_net_close(net, rank);
    }
}

void tcp_net_turn(tcp_net *net) {
    for (int rank = 0; rank < net->size; rank++) {
        bool moved;
        ls_endpoint *end = net->ends[rank];
        if (end != NULL && end->transport->progress(end, 0, &moved) != LS_OK) {
            fail_msg("rank %d: %s", rank, ls_error_message());
        }
    }
}

void tcp_net_turn_until(tcp_net *net, double limit) {
    assert_true(ls_clock_seconds() < limit);
    tcp_net_turn(net);
}

ls_transfer tcp_net_message(int peer, int channel, size_t bytes, uint64_t number) {
    ls_transfer send = tcp_net_room(peer, channel, bytes);
    for (size_t i = 0; i < bytes; i++) {
        ((unsigned char *)send.data)[i] = tcp_net_byte(number, i);
    }
    return send;
}

ls_transfer tcp_net_room(int peer, int channel, size_t bytes) {
    ls_transfer receive = {
        .peer = peer, .channel = channel, .data = bytes > 0 ? calloc(1, bytes) : NULL, .bytes = bytes};
    assert_true(bytes == 0 || receive.data != NULL);
    return receive;
}

bool tcp_net_holds(const ls_transfer *receive, uint64_t number, size_t bytes) {
    bool same = receive->ended && receive->bytes == bytes;
    for (size_t i = 0; i < bytes && same; i++) {
        same = ((const unsigned char *)receive->data)[i] == tcp_net_byte(number, i);
    }
    return same;
}

/* ---- a rank driven by hand --------------------------------------------------------------------------------------- */

int tcp_net_call(const tcp_net *net, int rank) {
    const ls_tcp_peer_info *peer_info = &net->peer_infos[rank];
    const int fd = socket(peer_info->address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, &peer_info->address.any, peer_info->length), 0); /* the kernel accepts it */
    assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)), 0);
    return fd;
}

bool tcp_net_hear(tcp_net *net, int socket, void *bytes, size_t size) {
    size_t got = 0;
    ssize_t step = 1;
    TCP_NET_UNTIL(net, got == size || step == 0) {
        step = recv(socket, (char *)bytes + got, size - got, MSG_DONTWAIT);
        if (step < 0 && errno == ECONNRESET) {
            step = 0;
        }
        got += step > 0 ? (size_t)step : 0;
    }
    return got == size;
}

void tcp_net_tell(int socket, const void *bytes, size_t size) {
    assert_int_equal(send(socket, bytes, size, MSG_NOSIGNAL), size);
}

ls_tcp_hello tcp_net_hello(const ls_key *key, const ls_tcp_peer_info *peer_infos, int size, int rank, int other) {
    ls_tcp_hello hello;
    assert_int_equal(ls_tcp_make_hello(key, peer_infos, size, rank, other, &hello), LS_OK);
    return hello;
}

int tcp_net_enter(tcp_net *net, int rank, int as) {
    const ls_tcp_hello hello = tcp_net_hello(&net->key, net->peer_infos, net->size, as, rank);
    const int fd = tcp_net_call(net, rank);
    tcp_net_tell(fd, &hello, sizeof hello);
    return fd;
}

int tcp_net_accept(tcp_net *net, int as, ls_tcp_hello *hello) {
    int fd = -1;
    TCP_NET_UNTIL(net, fd >= 0) {
        fd = accept4(net->listeners[as], NULL, NULL, SOCK_CLOEXEC);
    }
    assert_true(tcp_net_hear(net, fd, hello, sizeof *hello));
    return fd;
}
