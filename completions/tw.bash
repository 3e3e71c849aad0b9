# Completion for the tw-* commands in bash. What there is to complete is asked from the command.
_tw()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} cmd=$1 words meta

    words=$("$cmd" --help=words 2>/dev/null) || return
    if [[ $cur == = ]]; then
        cur=
    elif [[ $prev == = ]]; then
        prev=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    meta=$(awk -F '\t' -v o="$prev" '$1 == o { print $2; exit }' <<<"$words")
    if [[ $meta == *"|"* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "${meta//|/ }" -- "$cur")
    elif [[ -z $meta && $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(cut -f 1 <<<"$words")" -- "$cur")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
}
complete -o filenames -F _tw tw-fetch tw-preprocess tw-encode tw-train tw-sample tw-reward tw-serve
