#!/bin/bash
# Docker Engine for the Docker sandboxes: installs it on Debian and starts the daemon. Does nothing where it runs.
set -u
socket=/var/run/docker.sock
answers() { curl -s -m 5 --unix-socket "$socket" http://localhost/_ping 2>/dev/null | grep -q OK; }

answers && exit 0
if [ "$(id -u)" != 0 ]; then
    echo "docker: no daemon at $socket; start one, or run this as root"
    exit 0
fi
if ! command -v dockerd > /dev/null; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io iptables; } \
        > /dev/null 2>&1 || { echo "docker: cannot install docker.io"; exit 0; }
fi
# No bridge: sandboxes have no network, and a daemon inside a container may not make one.
nohup setsid dockerd --bridge=none --iptables=false --ip-forward=false > /var/log/dockerd.log 2>&1 < /dev/null &
for _ in $(seq 150); do
    answers && exit 0
    sleep 0.2
done
echo "docker: dockerd did not start, see /var/log/dockerd.log"
