# What `postgres.sh` and `redis.sh` share; they source it. A script that does defines
#
#   name            the program, for messages
#   package         what Debian and Ubuntu call it
#   command         what must be on the PATH if a server is there
#   target          where packages are unpacked for users other than root
#   found           returns whether a server is there
#   before_install  what root does before an installation
#
# and then calls `provide "$@"`.

without() {
    echo "$(basename "$0"): no $name server, and $1:" \
        "install one, so that $command is on the PATH" >&2
    [ "$optional" ] && exit 0
    exit 1
}

# The newest server in the package index, and its dependencies that are not installed.
missing() {
    apt-get --simulate --no-install-recommends install "$package" | awk '$1 == "Inst" { print $2 }'
}

install() {
    apt-get -qq update && apt-get -qq --yes --no-install-recommends install "$package" > /dev/null
}

unpack() {
    rm -rf "$target"
    mkdir -p "$target/packages"
    # shellcheck disable=SC2046 # names of packages have no spaces
    (cd "$target/packages" && apt-get -qq download $(missing)) || return 1
    for deb in "$target"/packages/*.deb; do
        dpkg -x "$deb" "$target"
    done
    rm -r "$target/packages"
}

# provide [--if-possible]: returns when a server is there.
provide() {
    optional=
    [ "${1-}" = --if-possible ] && optional=yes
    found && return
    command -v apt-get > /dev/null || without "no apt-get to install it"
    if [ "$(id -u)" = 0 ]; then
        before_install
        install || without "apt-get could not install it"
    else
        unpack || without "apt-get could not download it"
    fi
    found || without "the packages do not contain it"
}
