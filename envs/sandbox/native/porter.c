/* Starts the processes that sandboxes will live in, before they are asked for: with namespaces of their own, in their
 * control groups, waiting for what to build (room.c). They are children of the supervisor, not of the porter.
 */
#include "sandbox.h"
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { ORDERS = 3 };

static void start(struct berth *berth) {
    unsigned long flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET;
    if (berth->rootless) flags |= CLONE_NEWUSER;
    pid_t pid = syscall(SYS_clone, flags | CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        close(ORDERS);
        live_in(berth);
    }
    char word[128];
    int size = pid > 0 ? sprintf(word, "pid %d", pid) : snprintf(word, sizeof word, "clone: %s", strerror(errno));
    send(berth->setup, word, size, MSG_NOSIGNAL);
}

static void carry(int rootless) {
    char word[8];
    struct message m;
    close_from(ORDERS + 1);
    while (receive_datagram(ORDERS, &m, word, sizeof word)) {
        struct berth berth = {.setup = m.fds[0], .cgroup_count = m.fd_count - 1, .rootless = rootless};
        memcpy(berth.cgroups, m.fds + 1, berth.cgroup_count * sizeof(int));
        start(&berth);
        for (int i = 0; i < m.fd_count; i++) close(m.fds[i]);
    }
}

int start_porter(int rootless) {
    int ends[2];
    if (failed(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), "socketpair")) return -1;
    pid_t pid = go(bare_ns) ? -1 : fork();
    if (failed(pid, "start the porter")) return -1;
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(ends[1], ORDERS);
        carry(rootless);
        _exit(0);
    }
    close(ends[1]);
    return ends[0];
}
