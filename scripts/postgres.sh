#!/bin/sh
# Provides the PostgreSQL server that the tests start, if the machine has none. On Debian and
# Ubuntu, root installs it from the package index; for other users the packages are unpacked under
# target/, and nothing is installed. The script starts no server.
#
#   scripts/postgres.sh                  fails if it cannot provide a server
#   scripts/postgres.sh --if-possible    says so and succeeds: tests that need a server are skipped
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

# The newest server in the package index, and its dependencies that are not installed.
missing() {
    apt-get --simulate --no-install-recommends install postgresql | awk '$1 == "Inst" { print $2 }'
}

optional=
[ "${1-}" = --if-possible ] && optional=yes
found && exit 0
command -v apt-get > /dev/null || without "no apt-get to install it"

if [ "$(id -u)" = 0 ]; then
    # Otherwise the package would create and start its own server.
    mkdir -p /etc/postgresql-common/createcluster.d
    echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.d/batchqueue.conf
    { apt-get -qq update \
        && apt-get -qq --yes --no-install-recommends install postgresql > /dev/null; } \
        || without "apt-get could not install it"
else
    rm -rf "$target"
    mkdir -p "$target/packages"
    # shellcheck disable=SC2046 # names of packages have no spaces
    (cd "$target/packages" && apt-get -qq download $(missing)) \
        || without "apt-get could not download it"
    for package in "$target"/packages/*.deb; do
        dpkg -x "$package" "$target"
    done
    rm -r "$target/packages"
fi
found || without "the packages do not contain it"
