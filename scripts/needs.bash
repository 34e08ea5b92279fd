# Programs and files that the tests use, and their packages in Debian and Ubuntu. Sourced by .ci/run and
# scripts/deep.

# What the tests of `cargo test --workspace` use, a program or a file, and the package that has it.
needs=(
    fusermount3:fuse3 fio:fio sqlite3:sqlite3 getfacl:acl getfattr:attr git:git cc:gcc
    nm:binutils "/usr/lib/gcc/*/*/libasan.so:gcc"
    /usr/include/stdlib.h:libc6-dev setpriv:util-linux unshare:util-linux flock:util-linux
    fallocate:util-linux rsync:rsync tar:tar losetup:mount mkfs.ext4:e2fsprogs
    /usr/share/zoneinfo/Asia/Kolkata:tzdata file:file systemd-analyze:systemd
    /usr/bin/python3:python3 "/usr/lib/python3*/ensurepip/__init__.py:python3-venv"
)

# The same of the programs that only deep tests run.
deep_needs=(
    borg:borgbackup restic:restic npm:npm node:nodejs go:golang-go
    "/usr/lib/postgresql/*/bin/pgbench:postgresql"
    "/usr/lib/python3*/test/test_os.py:^libpython3[.][0-9]+-testsuite$"
    podman:podman runc:runc
)

# Installs the packages of needs that are missing.
install() {
    local need packages=()
    for need in "$@"; do
        command -v "${need%:*}" >/dev/null || compgen -G "${need%:*}" >/dev/null || packages+=("${need##*:}")
    done
    if [ ${#packages[@]} -gt 0 ]; then
        echo "== installing what the tests use: ${packages[*]}"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq &&
            apt-get install -y -qq --no-install-recommends "${packages[@]}"
    fi
}
