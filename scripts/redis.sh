#!/bin/sh
# Provides the Redis server that the tests start, if the machine has none. On Debian and Ubuntu,
# root installs it from the package index; for other users the packages are unpacked under target/,
# and nothing is installed. The script starts no server.
#
#   scripts/redis.sh                  fails if it cannot provide a server
#   scripts/redis.sh --if-possible    says so and succeeds: tests that need a server are skipped
set -eu
cd "$(dirname "$0")/.."
name=Redis
package=redis-server
command=redis-server
target=${CARGO_TARGET_DIR:-target}/redis

found() {
    command -v redis-server > /dev/null || [ -x "$target/usr/bin/redis-server" ]
}

# Otherwise the package would start its own server; this is how Debian asks whether it may.
before_install() {
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' > "$policy"
        chmod +x "$policy"
    fi
}

# shellcheck source=scripts/debian_packages.sh
. scripts/debian_packages.sh
provide "$@"
