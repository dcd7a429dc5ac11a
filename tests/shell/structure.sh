# scripts/structure accepts a valid source tree and reports each planted fault.
. "$LS_SOURCE/tests/support/checks.sh"
for tool in python3 nm cc; do
    command -v $tool >/dev/null || {
        echo "SKIPPED there is no $tool"
        exit 77
    }
done

# The tree: two files of each layer base and tensor.
fresh() {
    rm -rf tree && mkdir -p tree/src/base tree/src/tensor tree/include/lockstep
    printf '#pragma once\ntypedef struct ls_low { int value; } ls_low; int ls_low_function(void);\n' >tree/src/base/low.h
    printf '#include "base/low.h"\nint ls_low_function(void) { return 1; }\n' >tree/src/base/low.c
    cat >tree/src/tensor/high.h <<'END'
#pragma once
#include "base/low.h"
typedef struct ls_high { ls_low low; } ls_high; int ls_high_function(void);
END
    printf '#include "tensor/high.h"\nint ls_high_function(void) { return ls_low_function(); }\n' >tree/src/tensor/high.c
}

# Builds the tree and checks it, with the messages in file err and the exit status in $status.
examine() {
    local file separator='[' source
    for source in $(cd tree && find src -name "*.c" | sort); do
        file=${source//\//_}.o
        cc -c -w -Itree/src "tree/$source" -o "tree/$file" || exit 1
        printf '%s{"directory": "%s", "file": "%s", "command": "cc -I%s -o %s -c %s"}' "$separator" "$PWD/tree" \
            "$source" "$PWD/tree/src" "$file" "$source"
        separator=,
    done >tree/compile_commands.json
    echo ']' >>tree/compile_commands.json
    "$LS_SOURCE/scripts/structure" --source tree --build tree >out 2>err
    status=$?
}

# planted WHAT SENTENCE: the tree has one fault, which the message names.
planted() {
    examine
    check "$1 makes it fail" is $status 1
    check "$1 is the only fault" lines err 1
    check "$1 is named" says err "$2"
}

fresh
examine
check "a sound tree passes" is "$status $(cat err)" "0 "

fresh
echo 'typedef enum ls_low { NONE } ls_low; int ls_other;' >tree/src/tensor/other.c
planted "a type name used twice" 'type ls_low is defined in src/base/low.h:2 and src/tensor/other.c:1: give each type'

fresh
echo 'struct local { int a; };' | tee tree/src/base/one.c >tree/src/tensor/two.c
planted "a type name of two single files" 'type local is defined in src/base/one.c:1 and src/tensor/two.c:1'

fresh
echo 'void ls_low_function(double x);' >tree/src/tensor/pair.h
examine
check "a pair of headers that clash makes it fail" is $status 1
check "the pair is named" says err 'do not compile together: .*pair.h.*low.h'
check "the pair is named in the other order, too" says err 'do not compile together: .*low.h.*pair.h'

fresh
echo 'extern ls_unknown thing;' >tree/src/tensor/needy.h
planted "a header that lacks an include" 'src/tensor/needy.h does not compile by itself: .*include what it needs'

fresh
echo '#include "tensor/renamed.h"' >tree/src/tensor/stale.h
planted "a header with an include of a missing file" 'src/tensor/stale.h does not compile by itself: .*renamed.h'

fresh
echo '#include <absent/library.h>' >tree/src/tensor/optional.h
examine
check "a header of a library that is not installed passes" is "$status $(cat err)" "0 "

fresh
printf '#include "tensor/high.h"\nint ls_upwards;\n' >tree/src/base/upwards.c
planted "an include of a higher layer" 'src/base/upwards.c:1: layer base includes tensor/high.h of layer tensor'

fresh
cat >tree/src/tensor/a.c <<'END'
int ls_a(void); int ls_b(void);
int ls_a(void) { return ls_b(); }
END
echo 'int ls_b(void); int ls_c(void); int ls_b(void) { return ls_c(); }' >tree/src/tensor/b.c
echo 'int ls_c(void); int ls_a(void); int ls_c(void) { return ls_a(); }' >tree/src/tensor/c.c
planted "a cycle of three files" 'cycle: src/tensor/a.c calls ls_b of src/tensor/b.c, .* ls_a of src/tensor/a.c: move the'

# refused CALL: no file of the tree may make this call.
refused() {
    fresh
    printf '%s\n' "void ls_wrong(void); void ls_wrong(void) { $1; }" >tree/src/tensor/wrong.c
    planted "$1" "src/tensor/wrong.c:1: [a-z0-9_]*: only .* may call it"
}
for call in 'sleep(1)' 'usleep(1)' 'pause()' 'uv_sleep(1)' 'ppoll(0, 0, 0, 0)' 'select(0, 0, 0, 0, 0)' 'epoll_wait(0, 0, 0, 0)' \
    'epoll_pwait2(0, 0, 0, 0, 0)' 'sem_wait(0)' 'sem_timedwait(0, 0)' 'sigtimedwait(0, 0, 0)' 'clock_nanosleep(0, 0, 0, 0)' \
    'pthread_cond_timedwait(0, 0, 0)' 'pthread_cond_wait(0, 0)' 'waitpid(1, 0, 0)' 'crypto_auth(0, 0, 0, 0)'; do
    refused "$call"
done
fresh
echo 'enum { WNOHANG = 1 }; int ls_right(int pid) { return waitpid(pid, 0, WNOHANG); }' >tree/src/tensor/right.c
examine
check "waitpid that does not wait passes" is "$status $(cat err)" "0 "

both='int ls_a(void); int ls_b(void);'
# cycle FOLDER: two files that call each other.
cycle() {
    fresh
    mkdir -p "tree/src/$1"
    echo "$both int ls_a(void) { return ls_b(); }" >"tree/src/$1/a.c"
    echo "$both int ls_b(void) { return ls_a(); }" >"tree/src/$1/b.c"
}
cycle comm
planted "a cycle in src/comm" 'cycle: src/comm/a.c calls ls_b of src/comm/b.c, .* ls_a of src/comm/a.c: move the'
cycle comm/engine
planted "a cycle in src/comm/engine" 'cycle: src/comm/engine/a.c calls ls_b of src/comm/engine/b.c, .* move the'
cycle comm/backend
examine
check "a cycle in src/comm/backend passes" is "$status $(cat err)" "0 "

# owned STATEMENT MEMBER: a file that does not own the member of the engine has this statement.
owned() {
    fresh
    mkdir -p tree/src/comm
    cat >tree/src/comm/wrong.c <<END
struct engine { int rank; struct { int levels; } shape; struct { int ended; } failure; };
void ls_wrong(struct engine *engine); void ls_wrong(struct engine *engine) { $1; }
END
    planted "$1" "src/comm/wrong.c:2: engine->$2 belongs to src/comm/engine/"
}
owned 'engine->rank = 1' rank
owned 'engine->shape.levels++' shape
owned '(void)engine->failure.ended' failure
finish
