# Included by scripts that check damaged checkpoints.

# flip FILE INDEX: inverts the bits of one byte.
flip() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\x$(printf %02x $((byte ^ 255)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# flips_are_found CHECKPOINT FILES: the first byte, one in the middle and the last byte of each file are inverted, one at a
# time. `lockstep checkpoint verify` and export name the file. The checkpoint has this number of files.
flips_are_found() {
    local file size at
    check "$1: the number of files" is "$(ls -A "$1" | wc -l)" "$2"
    rm -rf flipped
    cp -rL "$1" flipped
    for file in $(ls -A "$1"); do
        size=$(stat -c %s "flipped/$file")
        for at in 0 $((size / 2)) $((size - 1)); do
            flip "flipped/$file" "$at"
            launch checkpoint verify flipped
            check "byte $at of $1/$file: verify names the file" is "$status $(grep -c "flipped/$file is damaged: " out)" "1 1"
            launch checkpoint export flipped never
            check "byte $at of $1/$file: export names the file" is "$status $(grep -c "flipped/$file is damaged: " err)" "1 1"
            flip "flipped/$file" "$at"
        done
    done
    launch checkpoint verify flipped
    check "$1: whole again" is "$status $(ls -d never 2>/dev/null)" "0 "
}
