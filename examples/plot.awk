# plot.awk - a curve in the terminal: awk -f plot.awk [-v key=reward_mean] [-v min=0 -v max=1] RUN/metrics.jsonl
# In 73 columns; where there are more steps than columns, a column is the mean of some. Block characters where the
# locale is UTF-8, # where it is not. The ends of the axis are those of the data, if not given.
BEGIN {
    if (!key) key = "loss"
    if (!wide) wide = 64
    if (!high) high = 10
}
index($0, "\"event\":\"step\"") && match($0, "\"" key "\":-?[0-9][-+.0-9eE]*") {
    y[n++] = substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) + 0
}
END {
    if (!n) { print "plot.awk: no step has \"" key "\"" >"/dev/stderr"; exit 1 }
    locale = ENVIRON["LC_ALL"]
    if (locale == "") locale = ENVIRON["LC_CTYPE"]
    if (locale == "") locale = ENVIRON["LANG"]
    levels = split(locale ~ /[Uu][Tt][Ff]-?8/ ? "▁ ▂ ▃ ▄ ▅ ▆ ▇ █" : "#", block, " ")
    for (c = 0; c < wide; c++) {
        i = int(c * n / wide)
        do { sum[c] += y[i++]; many[c]++ } while (i < int((c + 1) * n / wide))
    }
    low = top = sum[0] / many[0]
    for (c = 0; c < wide; c++) {
        sum[c] /= many[c]
        if (sum[c] < low) low = sum[c]
        if (sum[c] > top) top = sum[c]
    }
    if (min != "") low = min
    if (max != "") top = max
    if (top <= low) top = low + 1
    print "  " key
    for (r = high; r >= 1; r--) {
        line = ""
        for (c = 0; c < wide; c++) {
            # eighths (or wholes) of this row that the column fills; the lowest row is never empty
            f = int(((sum[c] - low) / (top - low) * high - (r - 1)) * levels + 0.5)
            if (r == 1 && f < 1) f = 1
            line = line (f < 1 ? " " : block[f < levels ? f : levels])
        }
        label = r == high ? sprintf("%.3g", top) : r == 1 ? sprintf("%.3g", low) : ""
        if (r == int(high / 2) + 1) label = sprintf("%.3g", low + (top - low) * (r - 1) / high)
        sub(/ +$/, "", line)
        printf "%7s |%s\n", label, line
    }
    line = ""
    for (c = 0; c < wide; c++) line = line "-"
    printf "%7s +%s\n%7s  step 1%" (wide - 6) "d\n", "", line, "", n
}
