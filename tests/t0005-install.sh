#!/bin/sh
# make install, make uninstall, and what make says where packages are missing.
. "$(dirname "$0")/lib.sh"

test_case 'what is installed works from where it is, and goes away again' '
	make -C "$TOP" -q B="$TW_BUILD" all 2>/dev/null || test_skip "the build is of other flags"
	mk() { make -s -C "$TOP" B="$TW_BUILD" DESTDIR="$PWD/root" PREFIX=/opt/twinkle "$@" 2>/dev/null; }
	mk install
	for c in $(ls "$TW_BUILD/bin"); do
	    root/opt/twinkle/bin/$c -V >>out
	    [ -s root/opt/twinkle/share/bash-completion/completions/$c ]
	    [ -s root/opt/twinkle/share/fish/vendor_completions.d/$c.fish ]
	done
	[ -s root/opt/twinkle/share/zsh/site-functions/_tw ]
	for p in "$TOP"/man/*.[157]; do
	    [ -s root/opt/twinkle/share/man/man${p##*.}/$(basename "$p") ]
	done
	for d in "$TOP"/share/*; do
	    [ ! -e "$d" ] || [ -e root/opt/twinkle/share/twinkle/$(basename "$d") ]
	done
	mk uninstall
	find root -type f >left
	cat left
	[ ! -s left ]
'
test_case 'without root the missing packages are named in one line' '
	as=
	if [ "$(id -u)" = 0 ]; then
	    as="setpriv --reuid=65534 --regid=65534 --clear-groups"
	    $as test -r "$TOP/Makefile" 2>/dev/null || test_skip "nobody cannot read the source"
	fi
	test_exit 2 $as make -s -C "$TOP" deps HEADERS=no/such.h 2>err
	test_equal "$(grep -c "sudo apt-get install .*libjsmn-dev" err)" 1
'
test_done
