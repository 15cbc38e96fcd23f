/* A sandbox's first process waits for its room, builds the machine, drops everything that it needed for that, and
 * serves. */
#include "sandbox.h"
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static int setup_fd;

static void must(int result, const char *what) {
    if (result >= 0) return;
    char problem[512];
    int size = snprintf(problem, sizeof problem, "%s: %s", what, strerror(errno));
    send(setup_fd, problem, size, MSG_NOSIGNAL);
    _exit(1);
}

int slots_of(struct room *room, int *slots[MAX_FDS]) {
    int n = 0;
    slots[n++] = &room->control, slots[n++] = &room->scratch, slots[n++] = &room->dev;
    for (int i = 0; i < room->layer_count; i++) slots[n++] = &room->layers[i];
    for (int i = 0; i < room->port_count; i++) slots[n++] = &room->sockets[i];
    for (int i = 0; i < room->shared_count; i++) slots[n++] = &room->shared[i];
    return n;
}

static void receive_room(struct room *room) {
    char data[sizeof *room + 1];
    int *slots[MAX_FDS];
    struct message m;
    if (!receive_datagram(setup_fd, &m, data, sizeof data)) _exit(0); /* not needed any more */
    if (m.size != sizeof *room) must((errno = EPROTO, -1), "receive the room");
    memcpy(room, data, sizeof *room);
    if (slots_of(room, slots) != m.fd_count) must((errno = EMFILE, -1), "receive the room");
    for (int i = 0; i < m.fd_count; i++) *slots[i] = m.fds[i];
}

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    must(fd, path);
    must(write(fd, text, strlen(text)), path);
    close(fd);
}

static void attach(int detached_mount, const char *path) {
    must(move_mount(detached_mount, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH), path);
    close(detached_mount);
}

/* With a user namespace of its own, RLIMIT_NPROC counts this sandbox's processes alone. */
static void be_the_only_user(void) {
    write_file("/proc/self/uid_map", "1000 0 1");
    write_file("/proc/self/gid_map", "1000 0 1");
}

static void join_cgroups(struct berth *berth) {
    for (int i = 0; i < berth->cgroup_count; i++) must(write(berth->cgroups[i], "0", 1), "join cgroup");
}

/* The OOM killer is to take the command, not the server. Where lowering is not permitted, what agent.c adds to the
 * commands is all there is, and enough: it counts more than anything the server could ever use. */
static void be_spared(void) {
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || (write(fd, "-1000", 5) < 0 && errno != EACCES)) must(-1, "oom_score_adj");
    close(fd);
}

static void loopback_up(void) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    must(fd, "socket");
    must(ioctl(fd, SIOCSIFFLAGS, &request), "bring up the loopback");
    close(fd);
}

static void mount_files(struct room *room, int rootless) {
    char options[MAX_LAYERS * 8 + 64], *end = options, path[16];
    end += sprintf(end, "upperdir=/t/u,workdir=/t/w,%s,lowerdir=", rootless ? "userxattr" : "redirect_dir=on");
    for (int i = 0; i < room->layer_count; i++) {
        sprintf(path, "/r/%d", i);
        attach(room->layers[i], path);
        end += sprintf(end, "%s%s", i ? ":" : "", path);
    }
    attach(room->scratch, "/t");
    must(mount("overlay", "/o", "overlay", MS_NOSUID | MS_NODEV, options), "mount overlay");
    must(mount("/t/run", "/o/run", NULL, MS_BIND, NULL), "mount /run");
}

static void mount_system(struct room *room) {
    /* Read-only as a whole: what /proc lets root write belongs to the kernel, not to the sandbox. */
    must(mount("proc", "/o/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL), "mount /proc");
    attach(room->dev, "/o/dev");
    must(mount("/t/shm", "/o/dev/shm", NULL, MS_BIND, NULL), "mount /dev/shm");
    const char *pts = "newinstance,ptmxmode=0666,mode=620";
    must(mount("devpts", "/o/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, pts), "mount /dev/pts");
}

static void mount_sockets(struct room *room) {
    char path[64];
    for (int i = 0; i < room->port_count; i++) {
        sprintf(path, "/o/run/palestra/%d.sock", room->ports[i]);
        must(mknod(path, S_IFREG | 0600, 0), path);
        attach(room->sockets[i], path);
    }
}

static void mount_shared(struct room *room) {
    char path[512];
    struct stat info;
    for (int i = 0; i < room->shared_count; i++) {
        snprintf(path, sizeof path, "/o/run/palestra/%s", room->shared_names[i]);
        must(fstat(room->shared[i], &info), path);
        must(S_ISDIR(info.st_mode) ? mkdir(path, 0755) : mknod(path, S_IFREG | 0600, 0), path);
        attach(room->shared[i], path);
    }
}

static void enter_root(void) {
    must(chdir("/o"), "chdir");
    must(syscall(SYS_pivot_root, ".", "."), "pivot_root");
    must(umount2(".", MNT_DETACH), "leave the old root");
    must(chdir("/"), "chdir");
}

/* Only these descriptors survive: 0-2 nothing, 3 the owner's, 4 /proc, 5 the supervisor's, 6 the mount namespace. */
static void keep_descriptors(int control, int proc, int mounts) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    must(null, "/dev/null");
    int kept[] = {control, proc, setup_fd, mounts};
    for (int i = 0; i < 4; i++) must(kept[i] = fcntl(kept[i], F_DUPFD_CLOEXEC, 64), "fcntl");
    for (int i = 0; i < 3; i++) must(dup2(null, i), "dup2");
    for (int i = 0; i < 4; i++) must(dup3(kept[i], 3 + i, O_CLOEXEC), "dup3");
    setup_fd = 5;
    close_from(7);
}

/* What takes long and needs nothing of the room. Answers the mount namespace: while somebody holds it, this process
 * can end without waiting for its mounts to be taken down. */
static int settle(struct berth *berth) {
    must(prctl(PR_SET_PDEATHSIG, SIGKILL), "pdeathsig");
    if (berth->rootless) be_the_only_user();
    join_cgroups(berth);
    be_spared();
    must(sethostname("sandbox", 7), "sethostname");
    loopback_up();
    int mounts = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    must(mounts, "open the mount namespace");
    return mounts;
}

void live_in(struct berth *berth) {
    static struct room room;
    setup_fd = berth->setup;
    int mounts = settle(berth);
    receive_room(&room);
    int proc = open("/proc", O_PATH | O_CLOEXEC);
    mount_files(&room, berth->rootless);
    mount_system(&room);
    mount_sockets(&room);
    mount_shared(&room);
    enter_root();
    keep_descriptors(room.control, proc, mounts);
    keep_agent_capabilities();
    install_seccomp_filter();
    struct agent agent = {.source = 3, .proc = 4, .port_count = room.port_count};
    memcpy(agent.ports, room.ports, sizeof agent.ports);
    mounts = 6;
    must(send_with_fds(setup_fd, "built", 5, &mounts, 1), "report");
    close_from(5);
    serve(&agent);
}
