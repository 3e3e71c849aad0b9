#!/bin/sh
# last-number.sh - a reward for tw-reward --exec: 1 where the last number of the reply is the record's answer.
# It reads a record a line and writes a number a line. Any program that does so is a reward.
while IFS= read -r record; do
    reply=${record#*\"completion\":\{\"text\":\"}
    reply=${reply%%\",\"tokens\"*}
    reply=${reply%.}
    answer=${record#*\"answer\":\"}
    answer=${answer%%\"*}
    if [ "${reply##*[!0-9]}" = "$answer" ]; then echo 1; else echo 0; fi
done
