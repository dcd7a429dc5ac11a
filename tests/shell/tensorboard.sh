# TensorBoard's own reader on files written by ls_events.
. "$LS_SOURCE/tests/support/checks.sh"

if ! python3 -c 'import tensorboard' 2>/dev/null; then
    echo "SKIPPED python3 has no tensorboard (pip install tensorboard pillow)"
    exit 77
fi

finds() { # NAME TEXT: the line of that name has the text
    is "$(sed -n "s/^$1: //p" out)" "$2"
}

LS_TEST_MARK=$mark "$LS_BUILD/tests/events_program" "$scratch/logs/run" >out 2>err </dev/null
check "written" is "$?" 0
file=$(ls logs/run)
check "one file" is "$(echo "$file" | wc -w)" 1
python3 "$LS_SOURCE/tests/shell/tensorboard_reads.py" logs/run "logs/run/$file" >out 2>err
check "read" is "$?" 0
check "without complaint" is "$(cat err)" ""
check "tags" finds tags "scalars ['loss/train'] histograms ['weights'] images ['picture'] tensors ['note'] graph True"
for name in steps values times; do
    check "scalars: $name" finds $name True
done
check "histogram: numbers" finds histogram "3 -3.0 1024.0 10.0 2022.2509765625 2048587.5625009537"
check "histogram: buckets" finds buckets "10.0 True True"
check "image: size" finds image "4 4 2"
check "text" finds text "5 some *text*, ä"
check "graph" finds graph "[('input', 'Input', []), ('a/product', 'Linear', ['input'])]"
check "plugins" finds plugins \
    "__run_graph__ graphs loss/train scalars note text picture images weights histograms"
if python3 -c 'import PIL' 2>/dev/null; then
    check "image: pixels" finds pixels "RGB 4 2 0 8 16 1 9 17 2 10 18 3 11 19 4 12 20 5 13 21 6 14 22 7 15 23"
else
    echo "SKIPPED the pixels of the image: python3 has no PIL (pip install pillow)"
fi
finish
