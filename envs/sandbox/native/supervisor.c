/* Makes and ends namespace sandboxes. One request at a time:
 *   layer   id= path=                              know a directory of the host, read-only
 *   create  id= disk= inodes= layer=... cgroup=... port=... socket=... name=... shared=...  + the owner's socket;
 *           answers the pid
 *   end     id= pid= keep=                         kill all of it; keep=1: its files stay, as layer `id`
 *   drop    id=                                    forget a layer, or the files of an ended sandbox
 *   export  id= path=                              copy what was written to a new directory of the host
 *
 * Three mount namespaces, none of them the host's: `host` is a private copy of it, to look things up in; `store`
 * holds one mount per layer and per sandbox's files; `bare` holds nothing, which makes it cheap to copy for every
 * new sandbox. Mounts go from one to another as detached clones. Files of a sandbox (overlayfs upper) live on a
 * tmpfs of their own, so that wiping them is one unmount and freezing them into a layer copies nothing.
 */
#include "sandbox.h"
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

static int control_fd, host_ns, store_ns, bare_ns, rootless;
static char problem[512];

/* Keeps the first problem; a request stops there. */
static int failed(int result, const char *format, ...) {
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

static int go(int mount_namespace) { return setns(mount_namespace, CLONE_NEWNS); }

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

static int clone_mount(const char *path, int recursive) {
    int fd = open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (recursive ? AT_RECURSIVE : 0));
    return failed(fd, "open %s", path) ? -1 : fd;
}

static int stored(char *path, size_t size, const char *id, const char *below) {
    snprintf(path, size, "/h/%s%s", id, below);
    return 0;
}

static int protect(int mount) {
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    return syscall(SYS_mount_setattr, mount, "", AT_EMPTY_PATH, &attributes, sizeof attributes);
}

static void add_layer(struct message *m) {
    char path[256];
    if (failed(go(host_ns), "setns")) return;
    int fd = clone_mount(find(m, "path"), 0);
    stored(path, sizeof path, find(m, "id"), "");
    if (fd < 0 || failed(go(store_ns), "setns") || failed(mkdir(path, 0755), "%s", path)) return;
    if (failed(protect(fd), "protect layer")) return;
    failed(move_mount(fd, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH), "attach layer");
    close(fd);
}

static int make_scratch(const char *id, const char *disk, const char *inodes) {
    static const struct { const char *name; mode_t mode; } dirs[] = {
        {"/u", 0755}, {"/w", 0755}, {"/run", 0755}, {"/run/palestra", 0755}, {"/shm", 01777}};
    char path[256], options[128];
    stored(path, sizeof path, id, "");
    snprintf(options, sizeof options, "mode=755,size=%s,nr_inodes=%s", disk, inodes);
    if (failed(mkdir(path, 0755), "%s", path)) return -1;
    if (failed(mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options), "mount tmpfs")) return -1;
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        stored(path, sizeof path, id, dirs[i].name);
        if (failed(mkdir(path, dirs[i].mode), "%s", path)) return -1;
    }
    stored(path, sizeof path, id, "");
    return clone_mount(path, 0);
}

static void drop(const char *id) {
    char path[256];
    stored(path, sizeof path, id, "");
    if (failed(go(store_ns), "setns") || failed(umount2(path, MNT_DETACH), "%s", path)) return;
    failed(rmdir(path), "%s", path);
}

/* Fills `room` with detached mounts and open files; returns 0 on the first problem. */
static int furnish(struct room *room, struct message *m) {
    char path[256];
    if (failed(go(host_ns), "setns")) return 0;
    EACH_FIELD(field, m) {
        char *value;
        if ((value = value_of(field, "port")) && room->port_count < MAX_PORTS) room->ports[room->port_count] = atoi(value);
        if ((value = value_of(field, "socket")) && room->port_count < MAX_PORTS)
            if ((room->sockets[room->port_count++] = clone_mount(value, 0)) < 0) return 0;
        if ((value = value_of(field, "name")) && room->shared_count < MAX_SHARED) room->shared_names[room->shared_count] = value;
        if ((value = value_of(field, "shared")) && room->shared_count < MAX_SHARED) {
            if ((room->shared[room->shared_count++] = clone_mount(value, 0)) < 0) return 0;
            if (failed(protect(room->shared[room->shared_count - 1]), "protect %s", value)) return 0;
        }
        if ((value = value_of(field, "cgroup")) && room->cgroup_count < MAX_CGROUPS) {
            int fd = open(value, O_WRONLY | O_CLOEXEC);
            if (failed(fd, "%s", value)) return 0;
            room->cgroups[room->cgroup_count++] = fd;
        }
    }
    if (failed(go(store_ns), "setns")) return 0;
    EACH_FIELD(field, m) {
        char *layer = value_of(field, "layer");
        if (!layer) continue;
        if (room->layer_count == MAX_LAYERS) return errno = E2BIG, !failed(-1, "layers");
        stored(path, sizeof path, layer, "");
        if ((room->layers[room->layer_count++] = clone_mount(path, 0)) < 0) return 0;
    }
    if ((room->scratch = make_scratch(find(m, "id"), find(m, "disk"), find(m, "inodes"))) < 0) return 0;
    return (room->dev = clone_mount("/dev", 1)) >= 0;
}

static pid_t start(struct room *room) {
    unsigned long flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET;
    if (rootless) flags |= CLONE_NEWUSER;
    if (failed(go(bare_ns), "setns")) return -1;
    pid_t pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) _exit(live_in(room));
    failed(pid, "clone");
    return pid;
}

static void close_room(struct room *room) {
    for (int i = 0; i < room->layer_count; i++) close(room->layers[i]);
    for (int i = 0; i < room->port_count; i++) close(room->sockets[i]);
    for (int i = 0; i < room->shared_count; i++) close(room->shared[i]);
    for (int i = 0; i < room->cgroup_count; i++) close(room->cgroups[i]);
    if (room->scratch > 0) close(room->scratch);
    if (room->dev > 0) close(room->dev);
    close(room->control);
}

static void create(struct message *m) {
    int ready[2];
    struct room room = {.control = m->fd_count ? m->fds[0] : -1, .rootless = rootless};
    if (failed(pipe2(ready, O_CLOEXEC), "pipe")) return;
    room.report = ready[1];
    pid_t pid = furnish(&room, m) ? start(&room) : -1;
    close(ready[1]);
    close_room(&room);
    ssize_t told = pid > 0 ? read(ready[0], problem, sizeof problem - 1) : 0;
    close(ready[0]);
    if (told > 0) problem[told] = 0;
    if (!*problem) {
        snprintf(problem, sizeof problem, "ok %d", pid);
        return;
    }
    char first[sizeof problem];
    strcpy(first, problem);
    if (pid > 0) waitpid(pid, NULL, 0);
    drop(find(m, "id"));
    strcpy(problem, first);
}

static void end(struct message *m) {
    pid_t pid = atoi(find(m, "pid"));
    char *keep = find(m, "keep"), path[256];
    if (pid > 1 && !failed(kill(pid, SIGKILL), "kill")) failed(waitpid(pid, NULL, 0), "wait");
    if (!keep || *keep != '1') {
        drop(find(m, "id"));
        return;
    }
    /* What was written becomes the root of the mount, as in any other layer. */
    stored(path, sizeof path, find(m, "id"), "/u");
    if (failed(go(store_ns), "setns")) return;
    int fd = clone_mount(path, 0);
    stored(path, sizeof path, find(m, "id"), "");
    if (fd < 0 || failed(umount2(path, MNT_DETACH), "%s", path)) return;
    failed(move_mount(fd, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH), "freeze %s", path);
    close(fd);
}

static void export(struct message *m) {
    char path[256], source[64];
    stored(path, sizeof path, find(m, "id"), "");
    if (failed(go(store_ns), "setns")) return;
    int fd = open(path, O_PATH | O_DIRECTORY);
    if (failed(fd, "%s", path) || failed(go(host_ns), "setns")) return;
    snprintf(source, sizeof source, "/proc/self/fd/%d/.", fd);
    pid_t pid = fork();
    if (pid == 0) {
        execlp("cp", "cp", "-a", "--sparse=always", source, find(m, "path"), NULL);
        _exit(127);
    }
    int status = -1;
    close(fd);
    if (failed(pid, "fork") || failed(waitpid(pid, &status, 0), "wait")) return;
    if (status) errno = EIO, failed(-1, "cp -a to %s", find(m, "path"));
}

static void obey(struct message *m) {
    const char *verb = m->data;
    *problem = 0;
    if (strcmp(verb, "create") == 0) create(m);
    else if (strcmp(verb, "end") == 0) end(m);
    else if (strcmp(verb, "layer") == 0) add_layer(m);
    else if (strcmp(verb, "drop") == 0) drop(find(m, "id"));
    else if (strcmp(verb, "export") == 0) export(m);
    else snprintf(problem, sizeof problem, "no such request: %s", verb);
}

int supervise(int control) {
    static char buffer[65536];
    char reply[600];
    struct message m;
    control_fd = control;
    fcntl(control, F_SETFD, FD_CLOEXEC);
    rootless = geteuid() != 0;
    setsid();
    signal(SIGINT, SIG_IGN);
    umask(0);
    if (rootless) become_root_of_a_user_namespace();
    must(unshare(CLONE_NEWNS), "unshare mounts");
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private");
    host_ns = own_namespace();
    make_store();
    make_bare();
    must(send(control, "ok", 2, MSG_NOSIGNAL), "greet");
    while (receive_datagram(control, &m, buffer, sizeof buffer)) {
        obey(&m);
        const char *word = !*problem ? "ok" : strncmp(problem, "ok ", 3) == 0 ? "" : "error ";
        int size = snprintf(reply, sizeof reply, "%s%s", word, problem);
        if (send(control, reply, size, MSG_NOSIGNAL) < 0) break;
    }
    return 0; /* the sandboxes die with their parent */
}
