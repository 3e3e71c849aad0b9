# sdk.sh - official clients for scripts that test the server with them; source it after lib.sh.
#
# sdk_python NAME PACKAGE..: prints the python of an environment NAME that has these packages from PyPI. It is
# made once, in $TW_TEST_SDK (default: sdk in the build folder); without a network the case is skipped and says so.
# The environments "cookbook" and "twinkle" also take what TW_TEST_SDK_SITE (a site-packages folder) has, such as torch.
sdk_python()
{
    dir_=${TW_TEST_SDK:-$TW_BUILD/sdk}/$1
    mkdir -p "${dir_%/*}"
    exec 8>"$dir_.lock"
    flock 8                             # two scripts may want it at once
    if [ ! -e "$dir_/ready" ]; then     # uncompiled: that takes longer than all the rest, for what nobody imports
        rm -rf "$dir_"
        python3 -m venv "$dir_" >&2 || { echo none; return; }
        case $1 in
        cookbook | twinkle)
            [ -z "${TW_TEST_SDK_SITE:-}" ] ||
                echo "$TW_TEST_SDK_SITE" >"$(echo "$dir_"/lib/python3*/site-packages)/also.pth"
        esac
        shift
        "$dir_/bin/pip" install -q --no-compile --disable-pip-version-check $* >&2 || { echo none; return; }
        : >"$dir_/ready"
    fi
    echo "$dir_/bin/python"
}
# Needs Python 3.11, the oldest that all of them run on.
sdk_or_skip()
{
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || test_skip 'no python3.11'
    PY=$(sdk_python "$@" 2>sdk.err)
    [ "$PY" != none ] || test_skip "cannot install $2 (no network?): $(tail -n 1 sdk.err)"
}
# sdk_also MODULE PACKAGE..: adds packages without what they need, unless $PY has MODULE.
sdk_also()
{
    (
        exec 8>"${PY%/bin/python}.lock"
        flock 8
        "$PY" -c "import importlib.util, sys; sys.exit(not importlib.util.find_spec('$1'))" && exit
        shift
        "${PY%python}pip" install -q --no-deps "$@"
    ) 2>sdk.err || test_skip "cannot install $2 (no network?): $(tail -n 1 sdk.err)"
}
