# Two machines for a script of tests/shell, simulated by network namespaces joined by a cable (a veth pair): include
# this after checks.sh. Needs permission to make namespaces; otherwise the script is skipped, with a message.
a=lockstep-a-$$
b=lockstep-b-$$
clean_up() {
    end_marked
    ip netns del "$a" 2>/dev/null
    ip netns del "$b" 2>/dev/null
    rm -rf "$scratch"
}

# skip WHY
skip() {
    echo "SKIPPED two machines: $1"
    exit 77
}

# address SPACE DEVICE LAST NET: gives the device 10.NET.0.LAST and fd00:NET::LAST, and brings it up.
address() {
    ip -n "$1" addr add "10.$4.0.$3/24" dev "$2"
    ip -n "$1" addr add "fd00:$4::$3/64" dev "$2" nodad 2>/dev/null
    ip -n "$1" link set lo up
    ip -n "$1" link set "$2" up
}

cable_works() {
    ip -n "$a" link show cable | grep -q LOWER_UP && ip -n "$b" link show cable | grep -q LOWER_UP
}

# After a cut (`ip -n "$a" link set cable down`): restores the cable, and removes failed neighbor entries.
mend() {
    ip -n "$a" link set cable up
    await cable_works
    ip -n "$a" neigh flush dev cable
    ip -n "$b" neigh flush dev cable
}

command -v ip >/dev/null || skip "there is no ip command (Debian: iproute2)"
ip netns add "$a" 2>err || skip "network namespaces may not be made here: $(head -1 err)"
ip netns add "$b"
ip -n "$a" link add cable type veth peer name cable netns "$b" 2>err || skip "no veth devices here: $(head -1 err)"
address "$a" cable 1 77
address "$b" cable 2 77
await cable_works
