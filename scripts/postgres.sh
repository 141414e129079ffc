#!/bin/sh
# Brings the PostgreSQL server that the tests start, where the machine has none. On Debian and
# Ubuntu: as root from the package index; else the packages are unpacked below target/, and nothing
# is installed. Nothing is started.
#
#   scripts/postgres.sh                  fails where there is no way scripts/postgres.sh
#   --if-possible    says so, and ends well: the tests that need a server are skipped
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}/postgres

found() {
    command -v initdb > /dev/null && return
    for initdb in /usr/lib/postgresql/*/bin/initdb "$target"/usr/lib/postgresql/*/bin/initdb; do
        [ -x "$initdb" ] && return
    done
    return 1
}

without() {
    echo "postgres.sh: no PostgreSQL server, and $1: install one, so that initdb is on the PATH" >&2
    [ "$optional" ] && exit 0
    exit 1
}

# The newest server that the package index has, and what it needs that is not installed.
missing() {
    apt-get --simulate --no-install-recommends install postgresql | awk '$1 == "Inst" { print $2 }'
}

optional=
[ "${1-}" = --if-possible ] && optional=yes
found && exit 0
command -v apt-get > /dev/null || without "no apt-get to bring it"

if [ "$(id -u)" = 0 ]; then
    # The package would make and start a server of its own.
    mkdir -p /etc/postgresql-common/createcluster.d
    echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.d/batchqueue.conf
    { apt-get -qq update && apt-get -qq --yes --no-install-recommends install postgresql > /dev/null; } \
        || without "apt-get could not install it"
else
    rm -rf "$target"
    mkdir -p "$target/packages"
    # shellcheck disable=SC2046 # names of packages have no spaces
    (cd "$target/packages" && apt-get -qq download $(missing)) || without "apt-get could not download it"
    for package in "$target"/packages/*.deb; do
        dpkg -x "$package" "$target"
    done
    rm -r "$target/packages"
fi
found || without "the packages did not bring it"
