# `lockstep report`: the record of a run on two ranks that is killed and resumes, its page, comparison, and wrong input.
. "$LS_SOURCE/tests/support/checks.sh"

if ! command -v python3 >/dev/null; then
    echo "SKIPPED python3 reads the pages: it is not installed"
    exit 77
fi
program=$LS_BUILD/tests/report_program
reads() { python3 "$LS_SOURCE/tests/shell/report_reads.py" "$1" >read 2>err; }
finds() { is "$(sed -n "s/^$1: //p" read | head -1)" "$2"; } # NAME TEXT
rounded() { awk -v x="$1" 'BEGIN { printf "%.6g", x }'; }
field() { python3 -c 'import json, sys; print(eval(sys.argv[1], {"run": json.load(open("out"))}))' "$1"; }

# ---- a run that is killed in epoch 2, and its report before it resumes ----
RECORD=runs/a KILL_STEP=47 launch run -n 2 "$program" </dev/null
check "killed" says err "$killed"
launch report runs/a </dev/null
check "a killed run has a report" is "$status $(cat out)" "0 runs/a/report.html"
reads runs/a/report.html
check "killed: whole epochs" finds epochs "2 of 4"
check "killed: steps" says read '^steps: 4[67]$' # rank 0 may end before it writes the line of step 47
check "killed: no faults" finds faults ""
printf '{"kind": "step","st' >>runs/a/run.jsonl
launch report --json runs/a </dev/null
check "half of a line" is "$status $(field 'run["incomplete"], run["ended"], len(run["epochs"])')" "0 (True, False, 2)"

# ---- it resumes ----
RECORD=runs/a launch run -n 2 "$program" </dev/null
check "resumed" is "$status" 0
launch report runs/a --json </dev/null
check "resumed once" is "$(field 'run["resumes"], run["ended"], run["incomplete"]')" "(1, True, False)"
check "each step is there once" is "$(field 'run["steps"]["step"] == [float(i + 1) for i in range(80)]')" True
check "each epoch is there once" is "$(field '[e["epoch"] for e in run["epochs"]]')" "[0, 1, 2, 3]"
check "phases of both ranks" is "$(field '[len(p) for e in run["epochs"] for p in [e["phases"]["backward"]] if min(p) > 0]')" \
    "[2, 2, 2, 2]"
check "the seconds of an epoch are its own" is "$(field 'all(0 < e["seconds"] < 100 for e in run["epochs"])')" True
launch report runs/a -o page.html </dev/null
check "a page" is "$status $(cat out)" "0 page.html"
reads page.html
last=$(tail -1 log.csv)
check "the log has all epochs" is "$(wc -l <log.csv)" 5
check "last loss" finds loss "$(rounded "$(echo "$last" | cut -d, -f2)")"
check "last accuracy of validation" finds val_acc "$(rounded "$(echo "$last" | cut -d, -f5)")"
check "epochs" finds epochs "4 of 4"
check "an evaluation with a label of special characters" is "$(grep -c '^<b>&_acc: 0\.' read)" 1
check "curves: steps, loss, acc, throughput, rate" finds figures 5
check "the callback has its name" says page.html 'callback: ls_run_log (every_steps 1)<'
check "the optimizer" says page.html 'ls_adam (.*learning_rate 0.01)'
check "the model" says page.html '2: Linear'
check "the backend" says read '^row: backend | shm$'
check "well-formed, and loads nothing" finds faults ""
RECORD=runs/a launch run -n 2 "$program" </dev/null
launch report runs/a --json </dev/null
check "started again with nothing to do: nothing is lost" is "$(field 'len(run["epochs"]), len(run["steps"]["step"])')" "(4, 80)"
check "the second resume" is "$(field 'run["resumes"]')" 2

# ---- two runs ----
rm -rf run
RECORD='runs/<b>' RATE=0.001 launch run -n 3 "$program" </dev/null
launch report runs/a 'runs/<b>' -o two.html </dev/null
check "two runs on a page" is "$status" 0
reads two.html
check "two: well-formed" finds faults ""
check "two: both rows" is "$(grep -c '^epochs: 4 of 4$' read)" 2
check "two: the number of ranks differs" says two.html '<tr class="differs"><th>ranks</th><td>2</td><td>3</td></tr>'
check "output to standard output" is "$("$lockstep" report -o - runs/a | tail -1)" "</html>"

# ---- wrong input: one sentence, and no page ----
fails() { # STATUS PATTERN ARGUMENTS...
    local wanted=$1 pattern=$2
    shift 2
    launch report -o none.html "$@" </dev/null
    check "report $*: status" is "$status $(wc -l <err) $([ -e none.html ] && echo page)" "$wanted 1 "
    check "report $*: message" says err "$pattern"
}
mkdir empty
fails 2 "^lockstep report: no run given"
fails 1 "^lockstep report: cannot read absent: No such file" absent
launch report runs/a -o runs/../runs/a/run.jsonl </dev/null
check "the record is no output" is "$status $(grep -c '^lockstep report: .*/run.jsonl is the record of runs/a: choose another file' err)" "2 1"
check "the record has not changed" is "$(head -c 8 runs/a/run.jsonl)" '{"kind":'
fails 1 "^lockstep report: empty has no run.jsonl: add ls_run_log(\"empty\", NULL) to the callbacks" empty
: >empty/run.jsonl
fails 1 "^lockstep report: empty/run.jsonl is empty" empty
sed '3s/.$//' runs/a/run.jsonl >damaged.jsonl
fails 1 "^lockstep report: damaged.jsonl: line 3 is damaged" damaged.jsonl
fails 1 "^lockstep report: log.csv: line 1 is damaged" log.csv
mkfifo pipe
fails 1 "^lockstep report: pipe is not a regular file" pipe
fails 1 "^lockstep report: /dev/zero is not a regular file" /dev/zero
{ cat runs/a/run.jsonl; head -c 17000000 /dev/zero | tr '\0' x; echo; } >long.jsonl
fails 1 "^lockstep report: long.jsonl: line [0-9]* is damaged.*too long" long.jsonl
launch report runs/a -o absent/page.html </dev/null
check "a folder that is missing" is "$status $(wc -l <err)" "1 1"

# ---- a browser ----
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
    echo "SKIPPED the page in a browser: chromium is not installed"
    finish
fi
# The script is only in the copy: it reports the widths of the frame and of the content. A window has at least 500 pixels.
sed 's|</body>|<script>parent.postMessage(innerWidth+" "+document.documentElement.scrollWidth,"*")</script></body>|' two.html \
    >measured.html
shows() { # WIDTH
    echo "<script>onmessage=e=>document.title=e.data</script><iframe src=measured.html width=$1 height=800 style=border:0>" \
        >frame.html
    HOME=$scratch timeout 60 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --enable-logging=stderr \
        --user-data-dir="$scratch/browser" --window-size=1400,900 --virtual-time-budget=2000 \
        --dump-dom "file://$scratch/frame.html" >dom 2>log
    sed -n 's|.*<title>\([0-9]* [0-9]*\)</title>.*|\1|p' dom
}
for width in 360 1280; do
    check "browser, $width pixels: no horizontal scrolling" is "$(shows $width)" "$width $width"
    check "browser, $width pixels: no messages" is "$(grep -c CONSOLE log)" 0
done
finish
