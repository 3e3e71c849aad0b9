# Completion for the tw-* commands in fish. What there is to complete is asked from the command.
function __tw_choices       # of the option before, or of the one in --option=..
    set -l cmd (commandline -opc)[1]
    set -l prev (commandline -opc)[-1]
    set -l pre
    set -l cur (string match -r -- '^(--[^=]+)=' (commandline -ct))
    if test -n "$cur[2]"
        set prev $cur[2]
        set pre "$prev="
    end
    for line in ($cmd --help=words 2>/dev/null)
        set -l f (string split \t -- $line)
        if test "$f[1]" = "$prev"; and string match -q '*|*' -- $f[2]
            printf "$pre%s\n" (string split '|' -- $f[2])
        end
    end
end
function __tw_options
    set -l cmd (commandline -opc)[1]
    for line in ($cmd --help=words 2>/dev/null)
        set -l f (string split \t -- $line)
        printf '%s\t%s\n' $f[1] $f[3]
    end
end
for cmd in tw-fetch tw-preprocess tw-encode tw-train tw-sample tw-reward tw-serve
    complete -c $cmd -n 'count (__tw_choices) >/dev/null' -f -a '(__tw_choices)'
    complete -c $cmd -n 'not count (__tw_choices) >/dev/null' -a '(__tw_options)'
end
