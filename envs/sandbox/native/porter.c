/* Does what the supervisor need not wait for, in the order in which it was told:
 *   berth        + setup socket and doors of control groups: start a process that a sandbox will live in, with
 *                namespaces of its own, in its groups, waiting for what to build (room.c). It is a child of the
 *                supervisor, not of the porter.
 *   drop [PATH]  + mount namespace of an ended sandbox, if any: take down its mounts, and that of its files
 * A berth in a control group is begun after what was written in that group before has been wiped.
 */
#include "sandbox.h"
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { ORDERS = 3 };

static void start(struct berth *berth) {
    unsigned long flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET;
    if (berth->rootless) flags |= CLONE_NEWUSER;
    pid_t pid = syscall(SYS_clone, flags | CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        close(ORDERS), close(bare_ns), close(store_ns);
        live_in(berth);
    }
    char word[128];
    int size = pid > 0 ? sprintf(word, "pid %d", pid) : snprintf(word, sizeof word, "clone: %s", strerror(errno));
    send(berth->setup, word, size, MSG_NOSIGNAL);
}

static void begin(struct message *m, int rootless) {
    struct berth berth = {.setup = m->fds[0], .cgroup_count = m->fd_count - 1, .rootless = rootless};
    memcpy(berth.cgroups, m->fds + 1, berth.cgroup_count * sizeof(int));
    if (go(bare_ns)) perror("setns");
    else start(&berth);
}

/* Of a sandbox that could not be made there may be nothing. */
static void drop(const char *path) {
    if (go(store_ns)) perror("setns");
    umount2(path, MNT_DETACH);
    if (rmdir(path) && errno != ENOENT) perror(path);
}

static void carry(int rootless) {
    char order[256];
    struct message m;
    while (receive_datagram(ORDERS, &m, order, sizeof order)) {
        if (strcmp(order, "berth") == 0) begin(&m, rootless);
        else if (strncmp(order, "drop /", 6) == 0) drop(order + 5);
        for (int i = 0; i < m.fd_count; i++) close(m.fds[i]);
    }
}

int start_porter(int rootless) {
    int ends[2];
    if (failed(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), "socketpair")) return -1;
    pid_t pid = fork();
    if (failed(pid, "start the porter")) return -1;
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int kept[] = {fcntl(ends[1], F_DUPFD, 64), fcntl(bare_ns, F_DUPFD, 64), fcntl(store_ns, F_DUPFD, 64)};
        for (int i = 0; i < 3; i++) dup2(kept[i], ORDERS + i);
        bare_ns = ORDERS + 1, store_ns = ORDERS + 2;
        close_from(ORDERS + 3);
        carry(rootless);
        _exit(0);
    }
    close(ends[1]);
    return ends[0];
}
