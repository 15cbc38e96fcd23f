/* palestra-sandbox: one small program in two roles.
 *
 *   supervise FD           one per Palestra process. Makes and ends namespace sandboxes on request (supervisor.c);
 *                          each is a child that builds its own machine (room.c) and then serves it as its process 1.
 *                          Children are started ahead (porter.c): what the kernel makes callers wait for, new
 *                          network namespaces and moves between control groups, is then behind them.
 *   agent PATH [PORT...]   process 1 of a Docker container: the same server behind a unix socket.
 *
 * The server (agent.c) never looks at what it is asked. For every request it forks a child, which reads the request
 * from its own connection, gives up all privileges (jail.c) and executes a command or opens a file. Output goes
 * through pipes whose other ends the owner holds; files go out as open descriptors. Nothing untrusted is parsed by
 * anything privileged, and an idle sandbox is one process of a few pages.
 *
 * Everything ends with its owner: sandboxes when the supervisor's or the owner's socket closes, the supervisor when
 * its own does. Mounts live in namespaces that die with the last process; only control groups need removing.
 *
 * Messages are NUL-terminated fields "key=value"; descriptors travel beside them (SCM_RIGHTS).
 */
#ifndef PALESTRA_SANDBOX_H
#define PALESTRA_SANDBOX_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { MAX_LAYERS = 128, MAX_PORTS = 16, MAX_SHARED = 16, MAX_CGROUPS = 3, MAX_NAME = 128, MAX_MESSAGE = 8 << 20 };
enum { MAX_FDS = MAX_LAYERS + MAX_PORTS + MAX_SHARED + 3 };

struct message {
    char *data;
    size_t size;
    int fds[MAX_FDS];
    int fd_count;
};

/* The answer to one request. A request that fails inside its child is answered FAILED (value: errno), every
 * request ends with EXITED (value: wait status). */
struct result {
    uint32_t kind;
    int32_t value;
    uint64_t cpu_us;
    uint32_t disk_full;
    uint32_t reserved;
};
enum { EXITED = 1, FAILED = 2, UNFORKED = 3 };

#define EACH_FIELD(field, m) \
    for (char *field = (m)->data; field < (m)->data + (m)->size; field += strlen(field) + 1)

/* wire.c */
char *value_of(char *field, const char *key);                     /* NULL where the key is another */
char *find(struct message *m, const char *key);
int receive_datagram(int fd, struct message *m, char *buffer, size_t room); /* 1 got one, 0 closed */
int receive_request(int fd, struct message *m);                   /* length-prefixed; same result */
void close_from(int first);
int send_with_fds(int fd, const void *data, size_t size, const int *passed, int count);

/* jail.c: both end the process with a FAILED result rather than go on with less protection. */
void keep_agent_capabilities(void);
void give_up_privileges(uid_t uid, gid_t gid);
void install_seccomp_filter(void);

/* relay.c */
pid_t start_relay(int port, const char *socket_path);

/* agent.c */
struct agent {
    int source;    /* where connections come from: a socket that passes them, or one that listens */
    int listening; /* which of the two */
    int proc;      /* a writable /proc */
    int ports[MAX_PORTS];
    int port_count;
};
void serve(struct agent *agent) __attribute__((noreturn));

/* room.c */
struct berth { /* what a process is given that waits for its room */
    int setup; /* the supervisor at the other end: the room comes from there, and "built" or a problem goes back */
    int cgroups[MAX_CGROUPS];
    int cgroup_count;
    int rootless;
};
struct room { /* what a machine is built of; sent as it is, with the descriptors beside it in the order of slots_of */
    int control;
    int scratch; /* detached mount of the tmpfs with u(pper), w(ork), run, shm */
    int dev;
    int layers[MAX_LAYERS]; /* detached mounts, the highest first */
    int layer_count;
    int ports[MAX_PORTS], sockets[MAX_PORTS];
    int port_count;
    int shared[MAX_SHARED]; /* detached read-only mounts, and their names in /run/palestra */
    char shared_names[MAX_SHARED][MAX_NAME];
    int shared_count;
};
int slots_of(struct room *room, int *slots[MAX_FDS]); /* where its descriptors are; how many */
void live_in(struct berth *berth) __attribute__((noreturn));

/* porter.c */
int start_porter(int rootless); /* a socket: every datagram with a setup socket and doors of cgroups is a berth */

/* places.c: failed() keeps the first problem, at which a request stops; must() ends the supervisor. */
extern char problem[512];
extern int host_ns, store_ns, bare_ns;
int failed(int result, const char *format, ...) __attribute__((format(printf, 2, 3)));
int go(int mount_namespace);
void make_places(int control, int rootless);

/* supervisor.c */
int supervise(int control);

#endif
