# sums.awk - sums of two-digit numbers, as records: what the examples and their tests learn from.
#
#     awk -f sums.awk -v n=300 [-v seed=1] [-v part=train|test] [-v as=prompt|chat|pair|label] [-v ask=QUESTION]
#
# part    a fifth of the sums is for testing: no sum of one part is in the other
# as      prompt: the question, with the number ("answer") and the whole reply ("reply") for a reward; chat: with the
#         reply to learn from; pair: a short reply chosen, a long one rejected; label: one of the two, with "label"
# ask     the question, a %d for each number
# The generator of random numbers is ours: every awk writes the same.
function random(n) { x = x * 16807 % 2147483647; return int(x / 2147483647 * n) }
function user() { return sprintf("{\"role\":\"user\",\"content\":\"" ask "\"}", a, b) }
function reply(text) { return "{\"role\":\"assistant\",\"content\":\"" text "\"}" }
BEGIN {
    if (!n) n = 100
    if (!seed) seed = 1
    if (!part) part = "train"
    if (!as) as = "prompt"
    if (!ask) ask = "I had %d and found %d more. How many?"
    if (part !~ /^(train|test)$/ || as !~ /^(prompt|chat|pair|label)$/) {
        print "sums.awk: no such part or form: " part ", " as >"/dev/stderr"
        exit 2
    }
    x = seed * 7919 % 2147483646 + 1
    for (i = 0; i < 10; i++) random(1)
    for (i = 0; i < n;) {
        a = 10 + random(90); b = 10 + random(90)
        if (((a * 7 + b * 13) % 5 == 0) != (part == "test")) continue
        i++
        short = sprintf("%d + %d = %d.", a, b, a + b)
        long = "The answer is " short
        if (as == "prompt")
            printf "{\"messages\":[%s],\"answer\":\"%d\",\"reply\":\"%s\"}\n", user(), a + b, short
        else if (as == "chat")
            printf "{\"messages\":[%s,%s]}\n", user(), reply(short)
        else if (as == "pair")
            printf "{\"messages\":[%s],\"chosen\":\"%s\",\"rejected\":\"%s\"}\n", user(), short, long
        else if (random(2))
            printf "{\"messages\":[%s,%s],\"label\":true}\n", user(), reply(short)
        else
            printf "{\"messages\":[%s,%s],\"label\":false}\n", user(), reply(long)
    }
}
