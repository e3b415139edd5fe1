#!/bin/sh
# Make or refresh the development environment: tools/make_venv.sh DIRECTORY EXTRA
#
# EXTRA is test (for `make test`), docs (for `make docs`), launchers (for `make launchers`) or dev (for the other targets).
# CONSTRAINTS names the file of versions, constraints.txt by default.
# PYTHON names the interpreter; without it the first Python 3.10 or newer found is taken. An
# environment whose interpreter still works is kept and only brought up to date.
set -eu

fail() {
    echo "make: $1" >&2
    exit 1
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

find_python() {
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
}

create() {
    python=$(find_python)
    [ -n "$python" ] || fail "${PYTHON:-python3} is not Python 3.10 or newer; name one with PYTHON=/path/to/python"
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv"
    if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ]; then
        fail "$venv exists and is not a virtual environment; move it away or set VENV=FOLDER"
    fi
    "$python" -m venv --clear "$venv" || fail "$venv could not be created for the reason above"
}

venv=$1 extra=$2
echo "Installing what 'make' needs into $venv (this may take some minutes) ..."
is_new_enough "$venv/bin/python" || create

# An unpacked source distribution holds checks/ without the link under which it is imported.
[ -e ddp_doctor/checks ] || ln -s ../checks ddp_doctor/checks

"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-compile \
    --editable ".[$extra]" --constraint "${CONSTRAINTS:-constraints.txt}" ||
    fail "the packages could not be installed for the reason above; run make again when it is solved"
# pip compiles on one processor only, and no editable package. Each of the many processes would compile its own modules.
"$venv/bin/python" -m compileall -qq -j 0 -x "/transformers/models/" "$venv/lib" ddp_doctor checks || true
touch "$venv/.installed"
[ "$extra" = test ] || touch "$venv/.installed-$extra"
