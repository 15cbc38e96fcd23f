# Runs as root in the new root file system.
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* /usr/share/doc/* /usr/share/man/* /usr/share/locale/*
