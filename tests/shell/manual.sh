# Man pages and shell completion, which are written from the option tables: all options are there, man and mandoc have no
# warnings, bash and fish complete command lines, and zsh can read its script.
. "$LS_SOURCE/tests/support/checks.sh"
manual=$LS_BUILD/manual
[ -e "$manual/lockstep.1" ] || { echo "skipped: $manual is missing: build the target lockstep_pages" && exit 77; }

commands=$("$lockstep" --help | sed -n 's/^  \([a-z]\+\) .*/\1/p')
check "lockstep --help lists commands" test "$(wc -w <<<"$commands")" -ge 4
options_of() { # COMMAND: the long options of its --help
    "$lockstep" "$1" --help | sed -n '/^options:/,/^$/s/^  \(-.,\|   \) \(--[a-z0-9-]*\).*/\2/p'
}

# ---- man pages ----
without_warnings() { # COMMAND...
    "$@" 2>&1 >/dev/null | tee err
    [ ! -s err ]
}
lints() { # PAGE
    mandoc -Tlint -Wwarning "$1"
}
for page in lockstep $(sed 's/^/lockstep-/' <<<"$commands"); do
    check "$page(1) exists" test -s "$manual/$page.1"
    ! command -v man >/dev/null || check "$page(1): man has no warnings" without_warnings man --warnings -l "$manual/$page.1"
    ! command -v mandoc >/dev/null || check "$page(1): mandoc has no warnings" lints "$manual/$page.1"
done
for program in man mandoc zsh fish; do
    command -v $program >/dev/null || echo "skipped: the checks with $program, which is not installed"
done
for command in $commands; do
    for option in $(options_of "$command"); do
        check "lockstep-$command(1) has $option" says "$manual/lockstep-$command.1" "^.B .*$(sed 's/-/\\\\-/g' <<<"$option")\b"
    done
done

# ---- bash ----
# complete WORD...: the suggestions for the last word, in file out.
cat >complete.bash <<'END'
shopt -s progcomp
. "$1" || exit 1
[ ! -e "$2" ] || . "$2" || exit 1
COMP_WORDS=("${@:3}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
COMP_LINE="${COMP_WORDS[*]}"
COMP_POINT=${#COMP_LINE}
_lockstep lockstep "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
[ ${#COMPREPLY[@]} = 0 ] || printf '%s\n' "${COMPREPLY[@]}"
END
package=/usr/share/bash-completion/bash_completion
suggest() {
    bash complete.bash "$manual/lockstep" "$package" "$@" >out 2>err
}
suggests() { # SUGGESTIONS WORD...
    suggest "${@:2}"
    is "$(sort out | tr '\n' ' ')" "$1" && [ ! -s err ]
}
check "bash: no error of syntax" bash -n "$manual/lockstep"
check "bash: commands" suggests "$(sort <<<"--help"$'\n'"--version"$'\n'"$commands" | tr '\n' ' ')" lockstep ''
for command in $commands; do
    suggest lockstep "$command" --
    for option in $(options_of "$command"); do
        check "bash: $command $option" grep -qxe "$option" out
    done
done
mkdir folder && touch file.key trainer && chmod +x trainer
check "bash: an option by its beginning" suggests "--gpus --grace " lockstep run --g
check "bash: values of an option" suggests "each none " lockstep run --gpus ''
check "bash: values after =" suggests "none " lockstep run --gpus = n
check "bash: values directly after =" suggests "each none " lockstep run --gpus =
check "bash: collectives" suggests "reduce reduce_scatter " lockstep bench re
check "bash: values after the collective" suggests "max maxloc " lockstep bench allreduce -n 4 --op ma
check "bash: options after the collective" suggests "--in-place " lockstep bench allreduce --in
check "bash: a number has no suggestions" suggests "" lockstep run -n ''
check "bash: files" suggests "file.key " lockstep run --key-file fi
check "bash: folders only" suggests "folder " lockstep run --output-dir f
check "bash: PROGRAM" suggests "./trainer " lockstep run -n 2 ./tr
check "bash: actions" suggests "show " lockstep checkpoint s
check "bash: checkpoints" suggests "folder " lockstep checkpoint show fo
check "bash: runs" suggests "folder " lockstep report fo
check "bash: nothing after doctor" suggests "" lockstep doctor ''
if [ -e "$package" ]; then
    check "bash: arguments of PROGRAM" suggests "file.key " lockstep run -n 2 ./trainer fi
    check "bash: options of PROGRAM, not of run" suggests "" lockstep run ./trainer --gp
else
    echo "skipped: arguments of PROGRAM in bash, as the package bash-completion is not installed"
fi

# ---- fish and zsh ----
fish_suggests() { # SUGGESTIONS LINE
    HOME=$scratch fish --no-config -c "source $manual/lockstep.fish; complete -C '$2'" 2>err | cut -f 1 | sort | tr '\n' ' ' >out
    is "$(cat out)" "$1" && [ ! -s err ]
}
if command -v fish >/dev/null; then
    check "fish: commands" fish_suggests "$(sort <<<"$commands" | tr '\n' ' ')" "lockstep "
    check "fish: an option by its beginning" fish_suggests "--gpus --grace " "lockstep run --g"
    check "fish: values of an option" fish_suggests "each none " "lockstep run --gpus "
    check "fish: collectives" fish_suggests "reduce reduce_scatter " "lockstep bench re"
    check "fish: PROGRAM" fish_suggests "./trainer " "lockstep run -n 2 ./tr"
    check "fish: arguments of PROGRAM" fish_suggests "file.key " "lockstep run -n 2 ./trainer file"
    check "fish: actions" fish_suggests "show " "lockstep checkpoint s"
fi

if command -v zsh >/dev/null; then
    check "zsh: no error of syntax" zsh -n "$manual/_lockstep"
fi
finish
