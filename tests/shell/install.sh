# `make install`: everything that users need lies below PREFIX, or below DESTDIR and PREFIX. A PREFIX that cannot be
# written gives one sentence. What is installed there works: see consumer.sh.
. "$LS_SOURCE/tests/support/checks.sh"
export BUILD=$LS_BUILD HOME=$scratch/home
mkdir home

# install VARIABLE=VALUE...: installs; the output is in out and err, the exit status in $status.
install() {
    env "$@" "$LS_SOURCE/scripts/install" >out 2>err
    status=$?
}
files='include/lockstep/lockstep.h bin/lockstep share/man/man1/lockstep.1 share/man/man1/lockstep-run.1
    share/bash-completion/completions/lockstep share/zsh/site-functions/_lockstep share/fish/vendor_completions.d/lockstep.fish'
complete_in() { # PREFIX
    local file
    for file in $files; do
        [ -s "$1/$file" ] || { echo "        $1/$file is missing" && return 1; }
    done
    [ -n "$(find "$1" -name lockstep.pc)" ]
}

install PREFIX="$scratch/a prefix"
check "PREFIX with a blank: exit status 0" is "$status" 0
check "PREFIX with a blank: all files" complete_in "$scratch/a prefix"
check "PREFIX: says where" says out "^Lockstep is installed in $scratch/a prefix\$"
check "PREFIX: says what to set" says out "^Add $scratch/a prefix/bin to PATH.*pkgconfig\$"
install PREFIX=/opt/lockstep DESTDIR="$scratch/stage"
check "DESTDIR: exit status 0" is "$status" 0
check "DESTDIR: all files" complete_in "$scratch/stage/opt/lockstep"
check "DESTDIR: nothing elsewhere" is "$(ls stage stage/opt)" "stage:
opt

stage/opt:
lockstep"
install PREFIX='~/.local'
check "PREFIX=~/.local: the home folder" complete_in "$HOME/.local"

# refuses NAME SENTENCE VARIABLE=VALUE...
refuses() {
    install "${@:3}"
    check "$1: exit status 1" is "$status" 1
    check "$1: says so" says err "^make install: cannot install into $2; choose another PREFIX, .* or use sudo\$"
    check "$1: in one line" lines err 1
    check "$1: nothing on standard output" is "$(cat out)" ""
}
touch file
refuses "a file" "$scratch/file/x: $scratch/file is not a folder" PREFIX="$scratch/file/x"
refuses "no such file system" "/proc/x: .*cannot create directory.*" PREFIX=/proc/x
mkdir closed && chmod 555 closed
if [ "$(id -u)" = 0 ]; then
    echo "skipped: a folder without permission, which root can write to"
else
    refuses "no permission" "$scratch/closed/x: no permission to write to $scratch/closed" PREFIX="$scratch/closed/x"
fi
finish
