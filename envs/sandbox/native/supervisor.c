/* Makes and ends namespace sandboxes. One request at a time:
 *   prepare id= cgroup=...                         start a process for a sandbox to come; not answered
 *   layer   id= path=                              know a directory of the host, read-only
 *   create  id= berth= disk= inodes= layer=... port=... socket=... name=... shared=...  + the owner's socket;
 *           builds a sandbox in the process that was prepared as `berth`; answers its pid and what it is mounted in
 *   end     id= pid= mounts= keep=                 kill all of it; keep=1: its files stay, as layer `id`/u
 *   drop    id=                                    forget the files of an ended sandbox
 *   export  id= path=                              copy what was written to a new directory of the host
 *
 * Files of a sandbox (overlayfs upper) live on a tmpfs of their own, so that wiping them is one unmount and freezing
 * them into a layer is nothing at all. Mounts are taken down by the porter: nobody waits for that.
 */
#include "sandbox.h"
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { MAX_BERTHS = 1024, NAME_SIZE = 64 };
static struct { char id[NAME_SIZE]; int setup; } berths[MAX_BERTHS];
static int porter;

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

/* Has the porter unmount the files of a sandbox, where `id` is not NULL, and let go of its mount namespace. */
static void discard(const char *id, int mounts) {
    char order[NAME_SIZE + 8];
    int size = id ? snprintf(order, sizeof order, "drop /h/%s", id) : sprintf(order, "drop");
    failed(send_with_fds(porter, order, size, &mounts, mounts >= 0), "ask the porter");
    if (mounts >= 0) close(mounts);
}

/* Has the porter start a process; what goes wrong is read by the request that wants it. */
static void prepare(struct message *m) {
    int free = 0, ends[2], passed[MAX_CGROUPS + 1], count = 1;
    while (free < MAX_BERTHS && *berths[free].id) free++;
    if (free == MAX_BERTHS || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) return;
    snprintf(berths[free].id, NAME_SIZE, "%s", find(m, "id"));
    berths[free].setup = ends[0];
    passed[0] = ends[1];
    failed(go(host_ns), "setns");
    EACH_FIELD(field, m) {
        char *door = value_of(field, "cgroup");
        if (!door || *problem || count > MAX_CGROUPS) continue;
        passed[count] = open(door, O_WRONLY | O_CLOEXEC);
        if (!failed(passed[count], "%s", door)) count++;
    }
    if (!*problem) failed(send_with_fds(porter, "berth", 5, passed, count), "ask the porter");
    if (*problem) send(ends[1], problem, strlen(problem), MSG_NOSIGNAL);
    for (int i = 0; i < count; i++) close(passed[i]);
}

static int take_berth(const char *id) {
    for (int i = 0; i < MAX_BERTHS; i++) {
        if (strcmp(berths[i].id, id)) continue;
        *berths[i].id = 0;
        return berths[i].setup;
    }
    return errno = ENOENT, -1;
}

/* The next word of a process to be, with a descriptor or -1; no word where it has ended. */
static int hear(int setup, char *word, size_t size, int *passed) {
    struct message m;
    *passed = -1;
    if (!receive_datagram(setup, &m, word, size)) return 0;
    if (m.fd_count) *passed = m.fds[0];
    return 1;
}

/* Host files that the sandbox sees: detached mounts of them. */
static int fetch_outlet(struct room *room, char *field) {
    char *value;
    if ((value = value_of(field, "port")) && room->port_count < MAX_PORTS) room->ports[room->port_count] = atoi(value);
    if ((value = value_of(field, "name")) && room->shared_count < MAX_SHARED)
        snprintf(room->shared_names[room->shared_count], MAX_NAME, "%s", value);
    if ((value = value_of(field, "socket")) && room->port_count < MAX_PORTS)
        return (room->sockets[room->port_count++] = clone_mount(value, 0)) >= 0;
    if ((value = value_of(field, "shared")) && room->shared_count < MAX_SHARED) {
        int fd = room->shared[room->shared_count++] = clone_mount(value, 0);
        return fd >= 0 && !failed(protect(fd), "protect %s", value);
    }
    return 1;
}

static int fetch_layer(struct room *room, const char *layer) {
    char path[256];
    if (room->layer_count == MAX_LAYERS) return errno = E2BIG, !failed(-1, "layers");
    stored(path, sizeof path, layer, "");
    return (room->layers[room->layer_count++] = clone_mount(path, 0)) >= 0;
}

/* Fills `room` with detached mounts, up to the first problem. */
static void furnish(struct room *room, struct message *m) {
    if (find(m, "port") || find(m, "name")) {
        if (failed(go(host_ns), "setns")) return;
        EACH_FIELD(field, m) if (!fetch_outlet(room, field)) return;
    }
    if (failed(go(store_ns), "setns")) return;
    EACH_FIELD(field, m) {
        char *layer = value_of(field, "layer");
        if (layer && !fetch_layer(room, layer)) return;
    }
    if ((room->scratch = make_scratch(find(m, "id"), find(m, "disk"), find(m, "inodes"))) < 0) return;
    room->dev = clone_mount("/dev", 1);
}

static int hand_over(struct room *room, int setup) {
    int *slots[MAX_FDS], passed[MAX_FDS], count = slots_of(room, slots);
    for (int i = 0; i < count; i++) passed[i] = *slots[i];
    return !failed(send_with_fds(setup, room, sizeof *room, passed, count), "hand over the room");
}

static void close_room(struct room *room) {
    int *slots[MAX_FDS], count = slots_of(room, slots);
    for (int i = 0; i < count; i++)
        if (*slots[i] >= 0) close(*slots[i]);
}

/* The pid of the process in the berth, once its room is built; 0 and a problem otherwise, also where there is one
 * already. */
static pid_t move_in(struct room *room, int setup, int *mounts) {
    char word[sizeof problem];
    int pid;
    if (!hear(setup, word, sizeof word, mounts)) strcpy(word, "the porter has ended");
    if (sscanf(word, "pid %d", &pid) == 1) {
        if (!*problem && hand_over(room, setup) && !hear(setup, word, sizeof word, mounts)) strcpy(word, "it ended");
        if (!*problem && strcmp(word, "built") == 0) return pid;
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    if (!*problem) strcpy(problem, word);
    return 0;
}

static void create(struct message *m) {
    static struct room room;
    int setup = take_berth(find(m, "berth")), mounts = -1;
    room = (struct room){.control = m->fd_count ? m->fds[0] : -1, .scratch = -1, .dev = -1};
    pid_t pid = 0;
    if (!failed(setup, "berth %s", find(m, "berth"))) {
        furnish(&room, m);
        pid = move_in(&room, setup, &mounts);
        close(setup);
    }
    close_room(&room);
    if (pid) snprintf(problem, sizeof problem, "ok %d %d", pid, mounts);
    else discard(find(m, "id"), mounts);
}

static void end(struct message *m) {
    pid_t pid = atoi(find(m, "pid"));
    if (pid > 1 && !failed(kill(pid, SIGKILL), "kill")) failed(waitpid(pid, NULL, 0), "wait");
    discard(*find(m, "keep") == '1' ? NULL : find(m, "id"), atoi(find(m, "mounts")));
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
    else if (strcmp(verb, "prepare") == 0) prepare(m);
    else if (strcmp(verb, "end") == 0) end(m);
    else if (strcmp(verb, "layer") == 0) add_layer(m);
    else if (strcmp(verb, "drop") == 0) discard(find(m, "id"), -1);
    else if (strcmp(verb, "export") == 0) export(m);
    else snprintf(problem, sizeof problem, "no such request: %s", verb);
}

static void reply(int control) {
    char text[sizeof problem + 16];
    const char *word = !*problem ? "ok" : strncmp(problem, "ok ", 3) == 0 ? "" : "error ";
    send(control, text, snprintf(text, sizeof text, "%s%s", word, problem), MSG_NOSIGNAL);
}

int supervise(int control) {
    static char buffer[65536];
    struct message m;
    int rootless = geteuid() != 0;
    fcntl(control, F_SETFD, FD_CLOEXEC);
    setsid();
    signal(SIGINT, SIG_IGN);
    umask(0);
    make_places(control, rootless);
    porter = start_porter(rootless);
    reply(control);
    if (porter < 0) return 1;
    while (receive_datagram(control, &m, buffer, sizeof buffer)) {
        obey(&m);
        if (strcmp(m.data, "prepare")) reply(control);
    }
    return 0; /* the sandboxes die with their parent */
}
