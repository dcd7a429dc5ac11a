#include "comm/interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/store_socket.h"

/* Returns true if the address stands for all addresses of the machine, as a listening socket's address may. */
static bool is_any(const struct sockaddr_storage *address) {
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    const struct sockaddr_in *four = (const struct sockaddr_in *)address;
    return address->ss_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&six->sin6_addr)
                                          : four->sin_addr.s_addr == htonl(INADDR_ANY);
}

/* Writes the address as text. Returns false if it is not a single IP address. Writes an IPv4-mapped IPv6 address as
 * IPv4. */
static bool to_text(const struct sockaddr *from, char text[LS_ADDRESS_CAPACITY]) {
    struct sockaddr_storage address = {0};
    if (from == NULL || (from->sa_family != AF_INET && from->sa_family != AF_INET6)) {
        return false;
    }
    socklen_t size = from->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    memcpy(&address, from, size);
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&address;
    if (from->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
        struct sockaddr_in four = {.sin_family = AF_INET};
        memcpy(&four.sin_addr, &six->sin6_addr.s6_addr[12], 4);
        memcpy(&address, &four, sizeof four);
        size = sizeof four;
    }
    return !is_any(&address) && getnameinfo((const struct sockaddr *)&address, size, text, LS_ADDRESS_CAPACITY, NULL, 0,
                                            NI_NUMERICHOST) == 0;
}

/* Lists the available interfaces: "eth0 (10.0.0.3), lo (127.0.0.1)". */
static void list_interfaces(const struct ifaddrs *interfaces, char *list, size_t capacity) {
    size_t used = 0;
    list[0] = '\0';
    for (const struct ifaddrs *at = interfaces; at != NULL && used < capacity; at = at->ifa_next) {
        char text[LS_ADDRESS_CAPACITY];
        if ((at->ifa_flags & IFF_UP) != 0 && to_text(at->ifa_addr, text)) {
            used +=
                (size_t)snprintf(list + used, capacity - used, "%s%s (%s)", used > 0 ? ", " : "", at->ifa_name, text);
        }
    }
}

/* Finds an address of the wanted interface. An interface may have addresses of both families; IPv4 is preferred,
 * because all other code supports it, too. */
static bool find_wanted(const struct ifaddrs *interfaces, const char *wanted, char address[LS_ADDRESS_CAPACITY]) {
    int best = 0;
    for (const struct ifaddrs *at = interfaces; at != NULL; at = at->ifa_next) {
        char text[LS_ADDRESS_CAPACITY];
        if ((at->ifa_flags & IFF_UP) == 0 || !to_text(at->ifa_addr, text)) {
            continue;
        }
        const bool four = at->ifa_addr->sa_family == AF_INET;
        const int worth = strcmp(text, wanted) == 0           ? 4
                          : strcmp(at->ifa_name, wanted) != 0 ? 0
                          : four                              ? 3
                          : strchr(text, '%') == NULL         ? 2
                                                              : 1;
        if (worth > best) {
            best = worth;
            memcpy(address, text, sizeof text);
        }
    }
    return best > 0;
}

static ls_status take_wanted(const char *wanted, char address[LS_ADDRESS_CAPACITY]) {
    struct ifaddrs *interfaces = NULL;
    char list[512];
    if (getifaddrs(&interfaces) != 0) {
        return ls_fail(LS_ERR_IO, "the system cannot list the network interfaces of this machine");
    }
    const bool found = find_wanted(interfaces, wanted, address);
    list_interfaces(interfaces, list, sizeof list);
    freeifaddrs(interfaces);
    return found ? LS_OK
                 : ls_fail(LS_ERR_ARGUMENT,
                           "'%s' is neither a network interface of this machine that is up nor an address of one; "
                           "available: %s",
                           wanted, list);
}

/* Finds the source address that packets from this machine to `host`, a different machine, would have. Sends nothing. */
static bool find_source(const char *host, int family, char address[LS_ADDRESS_CAPACITY]) {
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    struct addrinfo *to = NULL;
    const struct addrinfo hints = {
        .ai_family = family, .ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    if (getaddrinfo(host, "9", &hints, &to) != 0) {
        return false;
    }
    const int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool found = fd >= 0 && connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
                       getsockname(fd, (struct sockaddr *)&own, &size) == 0 &&
                       to_text((const struct sockaddr *)&own, address);
    if (fd >= 0) {
        close(fd);
    }
    freeaddrinfo(to);
    return found;
}

/* Returns how useful the address of an interface is to other machines; 0 if it is useless to them. A scoped IPv6
 * address, which names an interface of this machine, is meaningless on other machines. */
static int usefulness(const struct ifaddrs *interface, char text[LS_ADDRESS_CAPACITY]) {
    const unsigned all = IFF_UP | IFF_RUNNING | IFF_LOOPBACK;
    if ((interface->ifa_flags & all) != (IFF_UP | IFF_RUNNING) || !to_text(interface->ifa_addr, text) ||
        strchr(text, '%') != NULL) {
        return 0;
    }
    const bool four = interface->ifa_addr->sa_family == AF_INET;
    return !four ? 2 : strncmp(text, "169.254.", 8) == 0 ? 1 : 3; /* link-local: not assigned by an administrator */
}

/* Finds the most useful address of an interface that is up. */
static bool find_connected(char address[LS_ADDRESS_CAPACITY]) {
    struct ifaddrs *interfaces = NULL;
    int best = 0;
    if (getifaddrs(&interfaces) != 0) {
        return false;
    }
    for (const struct ifaddrs *at = interfaces; at != NULL; at = at->ifa_next) {
        char text[LS_ADDRESS_CAPACITY];
        const int useful = usefulness(at, text);
        if (useful > best) {
            best = useful;
            memcpy(address, text, sizeof text);
        }
    }
    freeifaddrs(interfaces);
    return best > 0;
}

ls_status ls_interface_address(const char *wanted, int connection, bool local, char address[LS_ADDRESS_CAPACITY]) {
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    if (wanted != NULL) {
        return take_wanted(wanted, address);
    }
    if (local) {
        snprintf(address, LS_ADDRESS_CAPACITY, "127.0.0.1");
        return LS_OK;
    }
    if (connection >= 0 && getsockname(connection, (struct sockaddr *)&own, &size) == 0 &&
        !ls_socket_is_loopback((const struct sockaddr *)&own) && to_text((const struct sockaddr *)&own, address)) {
        return LS_OK;
    }
    /* Documentation addresses stand for an arbitrary other machine. Without a default route, there is no route to
     * them, but other machines may be on the network of an interface. */
    if (find_source("192.0.2.1", AF_INET, address) || find_source("2001:db8::1", AF_INET6, address) ||
        find_connected(address)) {
        return LS_OK;
    }
    return ls_fail(LS_ERR_IO, "no network interface of this machine except loopback is up: bring one up, or set "
                              "LOCKSTEP_INTERFACE to the interface through which the other ranks reach this machine");
}
