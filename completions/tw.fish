# Completion for the tw-* commands in fish. What there is to complete is asked from the command.
function __tw_words
    set -l cmd (commandline -opc)[1]
    set -l prev (commandline -opc)[-1]
    for line in ($cmd --help=words 2>/dev/null)
        set -l f (string split \t -- $line)
        if test "$f[1]" = "$prev"; and test -n "$f[2]"
            string match -q '*|*' -- $f[2]; and string split '|' -- $f[2]
            return
        end
    end
    for line in ($cmd --help=words 2>/dev/null)
        set -l f (string split \t -- $line)
        printf '%s\t%s\n' $f[1] $f[3]
    end
end
for cmd in tw-fetch tw-preprocess tw-encode tw-train tw-sample tw-reward tw-serve
    complete -c $cmd -a '(__tw_words)'
end
