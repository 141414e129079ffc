#!/bin/sh
# Provides the PostgreSQL server that the tests start, if the machine has none. On Debian and
# Ubuntu, root installs it from the package index; for other users the packages are unpacked under
# target/, and nothing is installed. The script starts no server.
#
#   scripts/postgres.sh                  fails if it cannot provide a server
#   scripts/postgres.sh --if-possible    says so and succeeds: tests that need a server are skipped
set -eu
cd "$(dirname "$0")/.."
name=PostgreSQL
package=postgresql
command=initdb
target=${CARGO_TARGET_DIR:-target}/postgres

found() {
    command -v initdb > /dev/null && return
    for initdb in /usr/lib/postgresql/*/bin/initdb "$target"/usr/lib/postgresql/*/bin/initdb; do
        [ -x "$initdb" ] && return
    done
    return 1
}

# Otherwise the package would create and start its own server.
before_install() {
    mkdir -p /etc/postgresql-common/createcluster.d
    echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.d/batchqueue.conf
}

# shellcheck source=scripts/debian_packages.sh
. scripts/debian_packages.sh
provide "$@"
