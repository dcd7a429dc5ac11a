#include <arpa/inet.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/status.h"
#include "cli/doctor.h"
#include "comm/rendezvous.h"

enum { NAMES = 1024 };

/* ---- addresses --------------------------------------------------------------------------------------------------- */

/* Formats an address. Returns false if it is not an IP address. */
static bool to_text(const struct sockaddr *address, char text[INET6_ADDRSTRLEN]) {
    if (address == NULL || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) {
        return false;
    }
    const void *bytes = address->sa_family == AF_INET
                            ? (const void *)&((const struct sockaddr_in *)(const void *)address)->sin_addr
                            : (const void *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    return inet_ntop(address->sa_family, bytes, text, INET6_ADDRSTRLEN) != NULL;
}

/* Returns the addresses of all interfaces, or NULL on failure. The caller frees the list with freeifaddrs. */
static struct ifaddrs *list_interfaces(void) {
    struct ifaddrs *interfaces = NULL;
    return getifaddrs(&interfaces) == 0 ? interfaces : NULL;
}

/* Returns the interface with this address (ignoring text after '%'), or NULL. */
static const struct ifaddrs *find_interface(const struct ifaddrs *interfaces, const char *address) {
    const size_t length = strcspn(address, "%");
    for (const struct ifaddrs *at = interfaces; at != NULL; at = at->ifa_next) {
        char text[INET6_ADDRSTRLEN];
        if (to_text(at->ifa_addr, text) && strlen(text) == length && memcmp(text, address, length) == 0) {
            return at;
        }
    }
    return NULL;
}

/* ---- interfaces -------------------------------------------------------------------------------------------------- */

/* Returns the addresses of an interface as JSON, and writes them to `list` as text. */
static json_t *addresses_of(const struct ifaddrs *interfaces, const char *name, char *list, size_t capacity) {
    json_t *addresses = json_array();
    for (const struct ifaddrs *at = interfaces; at != NULL; at = at->ifa_next) {
        char text[INET6_ADDRSTRLEN];
        if (strcmp(at->ifa_name, name) == 0 && to_text(at->ifa_addr, text)) {
            json_array_append_new(addresses, json_string(text));
            ls_report_append(list, capacity, ", ", text);
        }
    }
    return addresses;
}

static void check_interfaces(ls_doctor_report *report, const ls_doctor_check *check) {
    struct ifaddrs *interfaces = list_interfaces();
    json_t *all = json_object();
    char names[NAMES] = "";
    for (const struct ifaddrs *at = interfaces; at != NULL; at = at->ifa_next) {
        if (json_object_get(all, at->ifa_name) != NULL) {
            continue;
        }
        char list[NAMES] = "";
        const bool up = (at->ifa_flags & IFF_UP) != 0;
        json_t *addresses = addresses_of(interfaces, at->ifa_name, list, sizeof list);
        json_object_set_new(all, at->ifa_name, json_pack("{s:b, s:o}", "up", up, "addresses", addresses));
        char line[NAMES + 64];
        snprintf(line, sizeof line, "%s %s%s%s%s", at->ifa_name, up ? "up" : "down", list[0] != '\0' ? " (" : "", list,
                 list[0] != '\0' ? ")" : "");
        ls_report_append(names, sizeof names, ", ", line);
    }
    ls_report_fact(report, check->name, all, "%s", names[0] != '\0' ? names : "none");
    freeifaddrs(interfaces);
}

/* ---- routes ------------------------------------------------------------------------------------------------------ */

static void report_route(ls_doctor_report *report, const char *key, const struct ifaddrs *interfaces,
                         const char *address, const char *when) {
    const struct ifaddrs *interface = find_interface(interfaces, address);
    const char *name = interface != NULL ? interface->ifa_name : "unknown";
    ls_report_fact(report, key, json_pack("{s:s, s:s}", "interface", name, "address", address), "%s (%s)%s", name,
                   address, when);
}

static void check_same_machine(ls_doctor_report *report, const ls_doctor_check *check) {
    struct ifaddrs *interfaces = list_interfaces();
    if (find_interface(interfaces, "127.0.0.1") != NULL) {
        report_route(report, check->name, interfaces, "127.0.0.1", ", where the ranks of lockstep run meet");
    } else {
        ls_report_fact(report, check->name, json_null(), "none: no interface has 127.0.0.1");
        ls_report_problem(report, "no interface has the address 127.0.0.1, where ranks meet: bring up lo");
    }
    freeifaddrs(interfaces);
}

static void check_other_machines(ls_doctor_report *report, const ls_doctor_check *check) {
    char address[LS_ADDRESS_CAPACITY];
    const char *wanted = ls_environment_text("LOCKSTEP_INTERFACE");
    if (ls_interface_address(wanted, -1, false, address) == LS_OK) {
        struct ifaddrs *interfaces = list_interfaces();
        report_route(report, check->name, interfaces, address, wanted != NULL ? ", as LOCKSTEP_INTERFACE says" : "");
        freeifaddrs(interfaces);
        return;
    }
    ls_report_fact(report, check->name, json_null(), "none: %s", ls_error_message());
    if (wanted != NULL) {
        ls_report_problem(report, "LOCKSTEP_INTERFACE: %s", ls_error_message());
    }
}

/* ---- this machine's host name ------------------------------------------------------------------------------------ */

static void judge_host(ls_doctor_report *report, const char *host, int found, int here, int outward) {
    if (found == 0) {
        ls_report_note(
            report,
            "this machine's host name '%s' does not resolve: give MASTER_ADDR as an address, or put the name in "
            "/etc/hosts",
            host);
    } else if (here == 0) {
        ls_report_note(
            report, "this machine's host name '%s' resolves to an address that no interface of this machine has", host);
    } else if (outward == 0) {
        ls_report_note(report,
                       "this machine's host name '%s' resolves only to loopback: as MASTER_ADDR, it works only for "
                       "ranks on this machine",
                       host);
    }
}

static void check_host(ls_doctor_report *report, const ls_doctor_check *check) {
    struct ifaddrs *interfaces = list_interfaces();
    char host[HOST_NAME_MAX + 1] = "";
    char list[NAMES] = "";
    gethostname(host, sizeof host - 1);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *results = NULL;
    const double start = ls_clock_seconds();
    const int failure = getaddrinfo(host, NULL, &hints, &results);
    const double seconds = ls_clock_seconds() - start;
    json_t *addresses = json_array();
    int found = 0;
    int here = 0;
    int outward = 0;
    for (const struct addrinfo *at = results; failure == 0 && at != NULL; at = at->ai_next) {
        char text[INET6_ADDRSTRLEN];
        if (to_text(at->ai_addr, text)) {
            const struct ifaddrs *interface = find_interface(interfaces, text);
            const bool loopback = strncmp(text, "127.", 4) == 0 || strcmp(text, "::1") == 0;
            found++;
            here += interface != NULL || loopback;
            outward += interface != NULL && !loopback;
            json_array_append_new(addresses, json_string(text));
            ls_report_append(list, sizeof list, ", ", text);
        }
    }
    if (failure == 0) {
        freeaddrinfo(results);
    }
    ls_report_fact(
        report, check->name,
        json_pack("{s:o, s:o, s:f}", "name", ls_report_text(host), "addresses", addresses, "seconds", seconds),
        "%s is %s", host,
        found > 0      ? list
        : failure != 0 ? gai_strerror(failure)
                       : "nowhere");
    judge_host(report, host, found, here, outward);
    if (seconds > 1.0) {
        ls_report_note(report, "the lookup of this machine's host name took %.1f s: the name server is slow", seconds);
    }
    freeifaddrs(interfaces);
}

const ls_doctor_check ls_doctor_network[] = {
    {"interfaces", "network", check_interfaces, NULL},
    {"same_machine", "network", check_same_machine, NULL},
    {"other_machines", "network", check_other_machines, NULL},
    {"host", "network", check_host, NULL},
    {NULL, NULL, NULL, NULL},
};
