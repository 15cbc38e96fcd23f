# Runs as root in the new root file system.
useradd --create-home --uid 1000 --shell /bin/bash agent
install -d -o agent -g agent /work
printf '127.0.0.1 localhost sandbox\n::1 localhost\n' > /etc/hosts
printf '[safe]\n\tdirectory = *\n[user]\n\tname = agent\n\temail = agent@sandbox\n[init]\n\tdefaultBranch = main\n[advice]\n\tdetachedHead = false\n' > /etc/gitconfig
rm -f /etc/resolv.conf /usr/lib/python3*/EXTERNALLY-MANAGED
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* /usr/share/doc/* /usr/share/man/* /usr/share/locale/*
