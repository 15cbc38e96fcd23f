/* The server inside: one child per request, and the end of all of them on a word from the owner. The child for the next
 * request is forked ahead.
 *
 * A request is a connection. Its child reads fields from it; descriptors come along:
 *   op=exec  uid= gid= cwd= cpu_s= [pids= data= fsize=] arg=... env=...   + stdout, stderr and, if not empty, stdin
 *   op=open  uid= gid= cwd= path= flags= mode= parents=    answers with the open descriptor
 * While a command runs, the owner's shutdown of its side of the connection kills everything inside.
 */
#include "sandbox.h"
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

enum { MAX_RUNNING = 256 };
static const char TAKEN[] = "t";
struct running { pid_t pid; int connection, line; }; /* line: to a child that was forked ahead, or -1 */
static struct running running[MAX_RUNNING];
static int running_count;
static pid_t relays[MAX_PORTS];
static struct { pid_t pid; int line; } next; /* the child that waits for a connection; pid 0: there is none */

static void answer(int connection, uint32_t kind, int value, uint64_t cpu_us) {
    struct result r = {.kind = kind, .value = value, .cpu_us = cpu_us};
    struct statvfs disk;
    if (kind == EXITED && value && statvfs("/", &disk) == 0) r.disk_full = disk.f_bavail == 0 || disk.f_ffree == 0;
    send_with_fds(connection, &r, sizeof r, NULL, 0);
}

static void refuse(int connection) {
    answer(connection, FAILED, errno, 0);
    _exit(127);
}

static long number(struct message *m, const char *key, long otherwise) {
    char *text = find(m, key);
    return text ? strtol(text, NULL, 0) : otherwise;
}

static void limit(int resource, rlim_t value) {
    struct rlimit r = {value, value};
    if (resource == RLIMIT_CPU) r.rlim_max = value + 1;
    setrlimit(resource, &r);
}

static void become_user(struct message *m) {
    give_up_privileges(number(m, "uid", -1), number(m, "gid", -1));
}

static void enter(int connection, struct message *m) {
    char *cwd = find(m, "cwd");
    if (cwd && chdir(cwd)) refuse(connection);
}

static void be_killable(int proc) {
    int fd = openat(proc, "self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (write(fd, "500", 3) != 3) _exit(126);
    close(fd);
}

static void open_file(int connection, struct message *m) {
    char *path = find(m, "path");
    become_user(m);
    enter(connection, m);
    umask(0);
    for (char *slash = path; number(m, "parents", 0) && (slash = strchr(slash + 1, '/'));) {
        *slash = 0;
        if (mkdir(path, 0755) && errno != EEXIST && errno != EROFS && errno != EACCES) refuse(connection);
        *slash = '/';
    }
    int fd = open(path, number(m, "flags", O_RDONLY) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, number(m, "mode", 0644));
    if (fd < 0) refuse(connection);
    char got = 'F';
    _exit(send_with_fds(connection, &got, 1, &fd, 1) != 0);
}

static void run_command(int connection, struct message *m) {
    char **argv = calloc(m->size + 1, sizeof *argv), **envp = calloc(m->size + 1, sizeof *envp);
    int args = 0, variables = 0;
    EACH_FIELD(field, m) {
        char *value;
        if ((value = value_of(field, "arg"))) argv[args++] = value;
        if ((value = value_of(field, "env"))) envp[variables++] = value;
    }
    for (int i = 0; i < m->fd_count && i < 3; i++)
        if (dup2(m->fds[i], (i + 1) % 3) < 0) refuse(connection);
    limit(RLIMIT_CPU, number(m, "cpu_s", 600));
    if (find(m, "pids")) limit(RLIMIT_NPROC, number(m, "pids", 256));
    if (find(m, "fsize")) limit(RLIMIT_FSIZE, number(m, "fsize", 0));
    if (find(m, "data")) limit(RLIMIT_DATA, number(m, "data", 0));
    become_user(m);
    enter(connection, m);
    environ = envp;
    if (args) execvp(argv[0], argv);
    refuse(connection);
}

/* What is the same for every request. */
static void get_ready(int proc) {
    sigset_t none;
    sigemptyset(&none);
    setsid();
    sigprocmask(SIG_SETMASK, &none, NULL);
    be_killable(proc);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_NOFILE, 8192);
    limit(RLIMIT_MEMLOCK, 64 << 20);
    umask(022);
}

static void child(int connection) {
    struct message m;
    if (!receive_request(connection, &m)) _exit(125);
    char *op = find(&m, "op");
    if (op && strcmp(op, "open") == 0) open_file(connection, &m);
    if (op && strcmp(op, "exec") == 0) run_command(connection, &m);
    errno = EINVAL;
    refuse(connection);
}

static void wait_for_connection(int line, int proc) {
    char word[8];
    struct message m;
    for (int i = 0; i < running_count; i++) close(running[i].connection), close(running[i].line);
    get_ready(proc);
    if (!receive_datagram(line, &m, word, sizeof word) || !m.fd_count) _exit(0);
    if (send(line, TAKEN, 1, MSG_NOSIGNAL) != 1) _exit(126);
    child(m.fds[0]);
}

/* Where there is no room for another process, the next request is the one to hear of it. */
static void fork_ahead(int proc) {
    int ends[2];
    if (next.pid || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) return;
    next.pid = fork();
    if (next.pid == 0) {
        close(ends[0]);
        wait_for_connection(ends[1], proc);
    }
    close(ends[1]);
    next.line = ends[0];
    if (next.pid > 0) return;
    next.pid = 0;
    close(ends[0]);
}

static void forget_next(void) {
    if (next.pid) close(next.line);
    next.pid = 0;
}

/* Gives the connection to the child that waits for one, where there is one. */
static int hand_over(struct running *r) {
    if (!next.pid || send_with_fds(next.line, "c", 1, &r->connection, 1)) return 0;
    kill(next.pid, SIGCONT); /* somebody inside may have stopped it */
    r->pid = next.pid, r->line = next.line;
    next.pid = 0;
    return 1;
}

static int fork_for(struct running *r, int proc) {
    r->line = -1;
    r->pid = running_count < MAX_RUNNING ? fork() : (errno = EAGAIN, -1);
    if (r->pid == 0) {
        get_ready(proc);
        child(r->connection);
    }
    if (r->pid > 0) return 1;
    answer(r->connection, UNFORKED, errno, 0);
    close(r->connection);
    return 0;
}

static void begin(int connection, int proc) {
    struct running r = {.connection = connection};
    if ((running_count < MAX_RUNNING && hand_over(&r)) || fork_for(&r, proc)) running[running_count++] = r;
}

/* Whether a child has read its request; one that was killed before is replaced. */
static int has_begun(struct running *r) {
    char word;
    if (r->line < 0) return 1;
    int taken = recv(r->line, &word, 1, MSG_DONTWAIT) == 1;
    close(r->line);
    return taken;
}

/* The child of a request has ended. */
static void finish(int i, int status, struct rusage *used, int proc) {
    struct running r = running[i];
    running[i] = running[--running_count];
    if (!has_begun(&r)) {
        if (fork_for(&r, proc)) running[running_count++] = r;
        return;
    }
    uint64_t seconds = used->ru_utime.tv_sec + used->ru_stime.tv_sec;
    answer(r.connection, EXITED, status, seconds * 1000000 + used->ru_utime.tv_usec + used->ru_stime.tv_usec);
    close(r.connection);
}

static void start_relays(struct agent *agent, pid_t ended) {
    char path[64];
    for (int i = 0; i < agent->port_count; i++) {
        if (relays[i] != ended) continue;
        snprintf(path, sizeof path, "/run/palestra/%d.sock", agent->ports[i]);
        relays[i] = start_relay(agent->ports[i], path);
    }
}

static void reap(struct agent *agent) {
    struct rusage used;
    int status;
    for (pid_t pid; (pid = wait4(-1, &status, WNOHANG, &used)) > 0;) {
        start_relays(agent, pid);
        if (pid == next.pid) forget_next();
        int i = 0;
        while (i < running_count && running[i].pid != pid) i++;
        if (i < running_count) finish(i, status, &used, agent->proc);
    }
}

/* A new request, or nothing; ends the process once the owner is gone. */
static int next_connection(struct agent *agent) {
    if (agent->listening) {
        int fd = accept4(agent->source, NULL, NULL, SOCK_CLOEXEC);
        struct ucred peer;
        socklen_t size = sizeof peer;
        if (fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid == 0) return fd;
        if (fd >= 0) close(fd); /* it has a process id here, so it comes from inside */
        return -1;
    }
    char buffer[8];
    struct message m;
    if (!receive_datagram(agent->source, &m, buffer, sizeof buffer)) _exit(0);
    return m.fd_count ? m.fds[0] : -1;
}

void serve(struct agent *agent) {
    sigset_t chld;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    sigprocmask(SIG_SETMASK, &chld, NULL);
    int signals = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
    int owner = agent->source;
    while (agent->listening && ((owner = next_connection(agent)) < 0)) {}
    start_relays(agent, 0);
    fork_ahead(agent->proc);
    for (int killed = 0;; killed = 0) {
        struct pollfd polled[MAX_RUNNING + 3] = {{agent->source, POLLIN, 0}, {signals, POLLIN, 0},
                                                 {agent->listening ? owner : -1, POLLIN, 0}};
        int count = running_count;
        for (int i = 0; i < count; i++) polled[3 + i] = (struct pollfd){running[i].connection, POLLRDHUP, 0};
        if (poll(polled, 3 + count, -1) < 0) continue;
        for (int i = 0; i < count; i++)
            if (polled[3 + i].revents) {
                kill(-1, SIGKILL);
                forget_next();
                killed = 1;
                polled[1].revents = POLLIN;
                break;
            }
        if (polled[2].revents) _exit(0);
        if (polled[1].revents) {
            struct signalfd_siginfo info;
            while (read(signals, &info, sizeof info) > 0) {}
            reap(agent);
        }
        int connection = polled[0].revents ? next_connection(agent) : -1;
        if (connection >= 0) begin(connection, agent->proc);
        if (!killed) fork_ahead(agent->proc);
    }
}
