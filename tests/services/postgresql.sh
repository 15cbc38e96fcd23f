#!/usr/bin/env bash
# A PostgreSQL server of the tests' own, on a unix socket in .cache/postgresql; tests find it there.
set -euo pipefail
cd "$(dirname "$0")/../.."
root="$PWD/.cache/postgresql"
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1 || true)
if [ -z "$bin" ]; then
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "postgresql: install it for its tests"; exit 0; }
  apt-get update -qq && apt-get install -y -qq postgresql >/dev/null || { echo "postgresql: cannot be installed"; exit 0; }
  bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)
fi
# The server refuses to run as root, and the socket's path has to be short.
as() { if [ "$(id -u)" = 0 ]; then su postgres -s /bin/bash -c "$1"; else bash -c "$1"; fi; }
home=/tmp/palestra-postgresql-$(id -u)
mkdir -p "$root" "$home"
[ "$(id -u)" != 0 ] || chown postgres "$home"
as "cd / && '$bin/pg_isready' -q -h '$home'" && { echo "$home" >"$root/socket"; exit 0; }
[ -e "$home/data/PG_VERSION" ] || as "cd / && '$bin/initdb' -D '$home/data' -U postgres -A trust --no-sync >/dev/null"
as "cd / && '$bin/pg_ctl' -D '$home/data' -w -l '$home/log' -o \"-k '$home' -c listen_addresses= -c fsync=off -c full_page_writes=off -c synchronous_commit=off\" start >/dev/null" ||
  { echo "postgresql: does not start, see $home/log"; exit 0; }
echo "$home" >"$root/socket"
