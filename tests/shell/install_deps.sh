# CMake's findings determine the build requirements: on a system without apt, and with a library missing. Users' builds
# have no tests.
. "$LS_SOURCE/tests/support/checks.sh"
deps=$LS_SOURCE/scripts/install-deps

# All programs in PATH, except Debian's package manager.
mkdir programs pkgconfig
IFS=: read -r -a folders <<<"$PATH"
for folder in "${folders[@]}"; do # names that are there already are left
    [ "${folder##*/}" != ccache ] || continue # its compilers look for the real ones in PATH
    find -H "$folder" -mindepth 1 -maxdepth 1 ! -name 'apt*' ! -name 'dpkg*' ! -name sudo -exec ln -st programs {} + 2>/dev/null
done
# The pkg-config files of all libraries except jansson.
for folder in $(pkg-config --variable pc_path pkg-config | tr : ' '); do
    [ ! -d "$folder" ] || find "$folder" -name '*.pc' ! -name jansson.pc -exec ln -sft pkgconfig {} +
done

# ask COMMAND...: runs it without apt; its output is in out and err.
ask() {
    PATH=$scratch/programs "$@" >out 2>err
    status=$?
}
names_packages() {
    says "$1" "^ *apt install libjansson-dev\$" && says "$1" "^ *dnf install jansson-devel\$" &&
        says "$1" "^ *pacman -S jansson\$" && says "$1" "^ *zypper install libjansson-devel\$"
}

ask "$deps"
check "without apt, with all libraries: goes on" is "$status" 0
check "without apt, with all libraries: asks for none" is "$(cat err)" ""
# A copy that does not find the data sets and munge.
mkdir -p copy/scripts
find "$LS_SOURCE" -mindepth 1 -maxdepth 1 ! -name scripts ! -name 'build*' -exec ln -st copy {} +
sed -e 's|/usr/share/|/absent/|' -e 's/|munged|/|absent|/' "$deps" >copy/scripts/install-deps && chmod +x copy/scripts/install-deps
ask copy/scripts/install-deps
check "without apt, without the data sets that only apt has: goes on" is "$status" 0
check "without apt, without the data sets that only apt has: asks for none" is "$(cat err)" ""
ask copy/scripts/install-deps --slurm
check "without apt and Slurm: goes on" is "$status" 0
check "without apt and Slurm: names the packages" says err "^  zypper install munge"
check "without apt and Slurm: no line without a package" is "$(grep -c 'pacman' err)" 0
ask env CC=false "$deps"
check "CMake fails for another reason: stops" is "$status" 1
check "CMake fails for another reason: says why" says err "C compiler"
export PKG_CONFIG_LIBDIR=$scratch/pkgconfig
ask "$deps"
check "without apt and jansson: stops" is "$status" 1
check "without apt and jansson: says what is missing" says err "^install-deps: jansson: not found"
check "without apt and jansson: names the packages" names_packages err
ask cmake -S "$LS_SOURCE" -B build -DLS_CUDA=off
check "plain cmake without jansson: stops" test "$status" != 0
check "plain cmake without jansson: says what is missing" says err "did not find: jansson"
check "plain cmake without jansson: names the packages" names_packages err
unset PKG_CONFIG_LIBDIR
ask cmake -S "$LS_SOURCE" -B build -DLS_CUDA=off
check "plain cmake: ends well" is "$status" 0
cmake --build build --target help >targets
check "plain cmake: builds the library and the examples" says targets " example_perceptron\$"
check "plain cmake: builds no tests and no benchmarks" is "$(grep -cE ' (unit|ranks|mistake|bench|peers)_[a-z_]*$' targets)" 0
rm programs/ninja
ask "$deps"
check "without apt and Ninja: names the package" says err "^  apt install ninja-build\$"
ask "$deps" --telepathy
check "an unknown option: exit status 2" is "$status" 2
finish
