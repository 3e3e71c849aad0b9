#!/bin/sh
# The template engine against reference answers: real chat templates, a public suite, and what
# Python's Jinja2 makes of the corners of the language.
. "$(dirname "$0")/lib.sh"

test_case 'real chat templates, byte for byte' '
	cd "$TOP"
	golden-templates "$DATA/templates"
'
test_case 'a public suite of template cases' '
	golden-jinja "$DATA/jinja/unit.jsonl" "$DATA/jinja/chat.jsonl"
'
test_case 'the corners of the language, in the dialect of Python alone' '
	golden-jinja "$DATA/jinja/python.jsonl" >out
	test_text out "0 of them in the JSON dialect"
'
test_case 'a wrong text is found' '
	sed "s/\"target\": \"/&x/" "$DATA/jinja/python.jsonl" | head -n 3 >wrong
	test_exit 1 golden-jinja wrong
'
test_done
