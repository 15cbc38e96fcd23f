#include "sandbox.h"
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static int agent_main(int argc, char **argv) {
    int null = open("/dev/null", O_RDONLY);
    if (null > 0) dup2(null, 0), close(null);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct agent agent = {.listening = 1, .proc = open("/proc", O_PATH | O_CLOEXEC)};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", argv[2]);
    agent.source = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    umask(077);
    if (bind(agent.source, (void *)&address, sizeof address) || listen(agent.source, 256)) {
        perror(argv[2]);
        return 1;
    }
    umask(022);
    for (int i = 3; i < argc && agent.port_count < MAX_PORTS; i++) agent.ports[agent.port_count++] = atoi(argv[i]);
    keep_agent_capabilities();
    install_seccomp_filter();
    serve(&agent);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "supervise") == 0) return supervise(atoi(argv[2]));
    if (argc >= 3 && strcmp(argv[1], "agent") == 0) return agent_main(argc, argv);
    fprintf(stderr, "usage: palestra-sandbox supervise FD | agent SOCKET [PORT...]\n");
    return 2;
}
