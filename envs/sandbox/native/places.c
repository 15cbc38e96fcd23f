/* Three mount namespaces, none of them the host's: `host` is a private copy of it, to look things up in; `store`
 * holds one mount per layer and per sandbox's files; `bare` holds nothing, which makes it cheap to copy for every
 * new sandbox. Mounts go from one to another as detached clones.
 */
#include "sandbox.h"
#include <sched.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

char problem[512];
int host_ns, store_ns, bare_ns;
static int control_fd, rootless;

int failed(int result, const char *format, ...) {
    if (result >= 0) return 0;
    int error = errno;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(problem, sizeof problem - 64, format, args);
    va_end(args);
    snprintf(problem + n, 64, ": %s", strerror(error));
    return 1;
}

static void must(int result, const char *what) {
    if (!failed(result, "%s", what)) return;
    char reply[600];
    send(control_fd, reply, snprintf(reply, sizeof reply, "error %s", problem), MSG_NOSIGNAL);
    _exit(1);
}

static void write_map(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    must(fd, path);
    must(write(fd, text, strlen(text)), path);
    close(fd);
}

static void become_root_of_a_user_namespace(void) {
    char map[64];
    uid_t uid = getuid();
    gid_t gid = getgid();
    must(unshare(CLONE_NEWUSER), "make a user namespace (unprivileged user namespaces are off)");
    write_map("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "0 %u 1", uid);
    write_map("/proc/self/uid_map", map);
    snprintf(map, sizeof map, "0 %u 1", gid);
    write_map("/proc/self/gid_map", map);
}

static int own_namespace(void) {
    int fd = open("/proc/thread-self/ns/mnt", O_RDONLY | O_CLOEXEC);
    must(fd, "open the mount namespace");
    return fd;
}

int go(int mount_namespace) { return setns(mount_namespace, CLONE_NEWNS); }

static void leave_for(const char *root) {
    must(chdir(root), root);
    must(syscall(SYS_pivot_root, ".", "."), "pivot_root");
    must(umount2(".", MNT_DETACH), "leave the old root");
    must(chdir("/"), "chdir");
}

static void make_device(const char *name, int major, int minor) {
    char path[64], host[64];
    snprintf(path, sizeof path, "/tmp/dev/%s", name);
    snprintf(host, sizeof host, "/dev/%s", name);
    if (!rootless) {
        must(mknod(path, S_IFCHR | 0666, makedev(major, minor)), path);
        return;
    }
    must(mknod(path, S_IFREG | 0666, 0), path);
    must(mount(host, path, NULL, MS_BIND, NULL), host);
}

static void make_dev(void) {
    static const char *const links[][2] = {{"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"},
        {"/proc/self/fd/1", "stdout"}, {"/proc/self/fd/2", "stderr"}, {"pts/ptmx", "ptmx"}};
    char path[64];
    must(mkdir("/tmp/dev", 0755), "/tmp/dev");
    must(mount("tmpfs", "/tmp/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k"), "mount the devices");
    make_device("null", 1, 3), make_device("zero", 1, 5), make_device("full", 1, 7);
    make_device("random", 1, 8), make_device("urandom", 1, 9), make_device("tty", 5, 0);
    must(mkdir("/tmp/dev/pts", 0755) | mkdir("/tmp/dev/shm", 0755), "/tmp/dev");
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        snprintf(path, sizeof path, "/tmp/dev/%s", links[i][1]);
        must(symlink(links[i][0], path), path);
    }
    must(mount(NULL, "/tmp/dev", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC, NULL), "protect /dev");
}

static void make_store(void) {
    must(unshare(CLONE_NEWNS), "unshare mounts");
    must(mount("tmpfs", "/tmp", "tmpfs", 0, "mode=755,size=16m,nr_inodes=200k"), "mount tmpfs");
    make_dev();
    must(mkdir("/tmp/h", 0755), "mkdir");
    store_ns = own_namespace();
    leave_for("/tmp");
}

static void make_bare(void) {
    char path[32];
    must(go(host_ns), "setns");
    must(unshare(CLONE_NEWNS), "unshare mounts");
    must(mount("tmpfs", "/tmp", "tmpfs", 0, "mode=755,size=1m"), "mount tmpfs");
    must(mkdir("/tmp/r", 0755) | mkdir("/tmp/t", 0755) | mkdir("/tmp/o", 0755) | mkdir("/tmp/proc", 0755), "mkdir");
    for (int i = 0; i < MAX_LAYERS; i++) {
        snprintf(path, sizeof path, "/tmp/r/%d", i);
        must(mkdir(path, 0755), path);
    }
    must(mount("/proc", "/tmp/proc", NULL, MS_BIND | MS_REC, NULL), "mount /proc");
    bare_ns = own_namespace();
    leave_for("/tmp");
}

void make_places(int control, int without_root) {
    control_fd = control;
    rootless = without_root;
    if (rootless) become_root_of_a_user_namespace();
    must(unshare(CLONE_NEWNS), "unshare mounts");
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private");
    host_ns = own_namespace();
    make_store();
    make_bare();
}
