# The plug-ins of this build can be opened, and `lockstep doctor` distinguishes a broken plug-in from a plug-in whose
# library is not installed, and refuses a plug-in that another user may have written.
. "$LS_SOURCE/tests/support/checks.sh"
unset LOCKSTEP_MODULE_PATH
export OMPI_COMM_WORLD_RANK=0 # no self-tests of backend mpi, which take seconds

# ---- every plug-in opens ----
cat >open.c <<'END'
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **files) {
    return count == 2 && dlopen(files[1], RTLD_NOW | RTLD_LOCAL) != NULL ? 0 : (puts(dlerror()), 1);
}
END
check "a program that opens plug-ins builds" cc open.c -ldl -o open
plugins=$(ls "$LS_BUILD"/lib/lockstep-*.so 2>/dev/null)
for plugin in $plugins; do
    check "$(basename "$plugin") opens" ./open "$plugin"
done
[ -n "$plugins" ] || echo "SKIPPED opening plug-ins: this build has none"

# ---- plug-ins that do not open ----
names="cuda onednn hdf5 netcdf gloo nccl mpi_openmpi"
# make_plugins FOLDER CC-ARGUMENTS...: one for each name, each a library with a call of missing().
make_plugins() {
    local folder=$1 name
    shift
    mkdir "$folder"
    for name in $names; do
        echo 'void missing(void); void call(void) { missing(); }' | cc -shared -fPIC -x c - -x none "$@" \
            -o "$folder/lockstep-$name.so" || return 1
    done
}
# doctor FOLDER: with the folder's plug-ins.
doctor() {
    LOCKSTEP_MODULE_PATH=$PWD/$1 launch doctor </dev/null
}

check "plug-ins with an undefined symbol build" make_plugins undefined
doctor undefined
check "an undefined symbol: exit status 1" is "$status" 1
for key in cuda onednn hdf5 netcdf gloo nccl mpi; do
    check "an undefined symbol: $key is broken" says out "^  $key  *broken: .*lockstep-.*undefined symbol: missing"
    check "an undefined symbol: a problem with $key" says out "^  PROBLEM: .*plug-in for $key is broken"
done

echo 'void missing(void) {}' | cc -shared -fPIC -x c - -o libgone.so
check "plug-ins that need a library build" make_plugins needy "$PWD/libgone.so" -Wl,-rpath,"$PWD"
doctor needy
check "another version of Lockstep: exit status 1" is "$status" 1
check "another version of Lockstep: broken" says out "^  cuda  *broken: lockstep-cuda.so belongs to a different version of Lockstep"
rm libgone.so
doctor needy
check "a library that is not installed: exit status 0" is "$status" 0
for key in cuda onednn hdf5 netcdf; do
    check "a library that is not installed: $key names it" says out \
        "^  $key  *not here: lockstep-$key.so needs [^ ]*libgone.so, which is not installed"
done
check "a library that is not installed: nothing is broken" is "$(grep -c broken out)" 0

# ---- plug-ins that are refused ----
# text FOLDER NAME: a plug-in that is not a library. The check of owners and permissions comes first.
text() {
    mkdir -p "$1" && echo 'not a library' >"$1/lockstep-$2.so"
}
text file onednn && chmod o+w file/lockstep-onednn.so
text folder cuda && chmod o+w folder
text linked gloo && ln -s "$PWD/linked" link && chmod o+w linked
text plain nccl
doctor "file:$PWD/folder:$PWD/link:$PWD/plain"
check "plug-ins that all may write to: exit status 1" is "$status" 1
check "a file that all may write to is refused" says out \
    "^  onednn  *broken: plug-in .*/file/lockstep-onednn.so is refused, because all users may write to it: run chmod o-w"
check "a folder that all may write to is refused" says out "^  cuda  *broken: folder .*/folder is refused, because all users"
check "and a link to it" says out "^  gloo  *broken: .*folder .*/linked is refused, because all users"
check "a file that is not a library is broken" says out "^  nccl  *broken: .*lockstep-nccl.so cannot be opened: "
if [ "$(id -u)" = 0 ]; then
    other=12345
    chmod o-w file/* folder
    chown $other file/*
    chown $other folder
    doctor "file:$PWD/folder"
    check "another user's file is refused" says out \
        "^  onednn  *broken: plug-in .*/file/lockstep-onednn.so is refused, because its owner (user $other) is neither root"
    check "another user's folder is refused" says out "^  cuda  *broken: folder .*/folder is refused, because its owner (user $other)"
    # The owner of the core may own plug-ins, unless the core runs setuid: then the variable does not count.
    chmod 755 .
    mkdir bin && cp "$lockstep" bin && chown $other bin/lockstep
    lockstep=$PWD/bin/lockstep doctor file
    check "the owner of the core may own plug-ins" says out "^  onednn  *broken: lockstep-onednn.so cannot be opened: "
    cp "$(command -v id)" bin && chown $other bin/id && chmod u+s bin/*
    if [ "$(bin/id -u)" = $other ]; then
        lockstep=$PWD/bin/lockstep doctor file
        check "a setuid program ignores LOCKSTEP_MODULE_PATH" says out "^  onednn  *not here: no lockstep-onednn.so was found"
    else
        echo "SKIPPED a setuid program: this file system has none"
    fi
else
    echo "SKIPPED plug-ins of other users, and setuid programs: that takes root"
fi
finish
