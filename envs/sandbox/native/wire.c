/* Messages and descriptors over unix sockets. */
#include "sandbox.h"
#include <sys/socket.h>

char *value_of(char *field, const char *key) {
    size_t length = strlen(key);
    return strncmp(field, key, length) == 0 && field[length] == '=' ? field + length + 1 : NULL;
}

char *find(struct message *m, const char *key) {
    EACH_FIELD(field, m) {
        char *value = value_of(field, key);
        if (value) return value;
    }
    return NULL;
}

void close_from(int first) {
    if (close_range(first, ~0u, 0) == 0) return;
    for (int fd = first; fd < 4096; fd++) close(fd); /* a seccomp profile that does not know the call */
}

static ssize_t receive(int fd, void *data, size_t room, struct message *m) {
    char control[CMSG_SPACE(sizeof(int) * MAX_FDS)];
    struct iovec io = {data, room};
    struct msghdr header = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got;
    do got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0) return got;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        int count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (int i = 0; i < count && m->fd_count < MAX_FDS; i++)
            memcpy(&m->fds[m->fd_count++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
    return got;
}

int receive_datagram(int fd, struct message *m, char *buffer, size_t room) {
    *m = (struct message){.data = buffer};
    ssize_t got = receive(fd, buffer, room - 1, m);
    if (got <= 0) return 0;
    buffer[got] = 0;
    m->size = got;
    return 1;
}

int receive_request(int fd, struct message *m) {
    uint32_t size;
    *m = (struct message){0};
    if (receive(fd, &size, sizeof size, m) != sizeof size || size > MAX_MESSAGE) return 0;
    m->data = calloc(1, (size_t)size + 1);
    if (!m->data) return 0;
    while (m->size < size) {
        ssize_t got = read(fd, m->data + m->size, size - m->size);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        m->size += got;
    }
    return 1;
}

int send_with_fds(int fd, const void *data, size_t size, const int *passed, int count) {
    char control[CMSG_SPACE(sizeof(int) * MAX_FDS)] = {0};
    struct iovec io = {(void *)data, size};
    struct msghdr header = {.msg_iov = &io, .msg_iovlen = 1};
    if (count > 0) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * count);
        memcpy(CMSG_DATA(c), passed, sizeof(int) * count);
    }
    return sendmsg(fd, &header, MSG_NOSIGNAL) == (ssize_t)size ? 0 : -1;
}
