/* A closed-loop HTTP/1.1 client that costs little: one thread, epoll, keep-alive.
 *
 *   load HOST PORT CONNECTIONS FILE
 *
 * FILE holds conversations: u32 number of conversations; per conversation u32 number of requests; per request
 * u32 length and the bytes to send, little-endian. A connection takes the next conversation and sends its
 * requests one after the other, each when the reply to the one before is complete. Prints one JSON object:
 * requests, errors (any status but 200), seconds, and the latencies in microseconds, sorted.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BUFFER (1 << 20)

typedef struct { uint32_t size; const char *bytes; } request_t;
typedef struct { uint32_t count; request_t *requests; } conversation_t;
typedef struct {
    int fd;
    conversation_t *talk;
    uint32_t next, sent;
    size_t got;
    double started;
    char *in;
} connection_t;

static conversation_t *talks;
static uint32_t talk_count, next_talk;
static double *latencies;
static uint32_t done, errors, running;
static int poller;

static void die(const char *what) { perror(what); exit(1); }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static uint32_t take(const char **at) {
    uint32_t value;
    memcpy(&value, *at, 4);
    *at += 4;
    return value;
}

static uint32_t load(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    fseek(file, 0, SEEK_END);
    size_t size = ftell(file);
    rewind(file);
    char *bytes = malloc(size);
    if (fread(bytes, 1, size, file) != size) die("fread");
    fclose(file);
    const char *at = bytes;
    uint32_t total = 0;
    talk_count = take(&at);
    talks = calloc(talk_count, sizeof *talks);
    for (uint32_t t = 0; t < talk_count; t++) {
        talks[t].count = take(&at);
        total += talks[t].count;
        talks[t].requests = calloc(talks[t].count, sizeof(request_t));
        for (uint32_t r = 0; r < talks[t].count; r++) {
            talks[t].requests[r].size = take(&at);
            talks[t].requests[r].bytes = at;
            at += talks[t].requests[r].size;
        }
    }
    return total;
}

static void push(connection_t *c) {
    request_t *r = &c->talk->requests[c->next];
    while (c->sent < r->size) {
        ssize_t n = send(c->fd, r->bytes + c->sent, r->size - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) die("send");
        c->sent += n;
    }
    struct epoll_event e = {.events = c->sent < r->size ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static void begin(connection_t *c) {
    if (c->talk == NULL || c->next == c->talk->count) {
        if (next_talk == talk_count) { running--; epoll_ctl(poller, EPOLL_CTL_DEL, c->fd, NULL); return; }
        c->talk = &talks[next_talk++];
        c->next = 0;
    }
    c->sent = 0;
    c->got = 0;
    c->started = now();
    push(c);
}

/* Whether c->in holds a whole response. */
static int complete(connection_t *c) {
    c->in[c->got] = 0;
    char *end = strstr(c->in, "\r\n\r\n");
    if (!end) return 0;
    size_t head = end + 4 - c->in;
    char *length = strcasestr(c->in, "\r\ncontent-length:");
    if (length && length < end) return c->got >= head + strtoul(length + 17, NULL, 10);
    return c->got >= head + 5 && memcmp(c->in + c->got - 5, "0\r\n\r\n", 5) == 0;
}

static void pull(connection_t *c) {
    for (;;) {
        ssize_t n = recv(c->fd, c->in + c->got, BUFFER - 1 - c->got, 0);
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) die("recv");
        if (n == 0) { fprintf(stderr, "the server hung up after %zu bytes: %.*s\n", c->got, 300, c->in); exit(1); }
        c->got += n;
        if (!complete(c)) continue;
        latencies[done++] = 1e6 * (now() - c->started);
        if (memcmp(c->in + 9, "200", 3) != 0 && errors++ == 0) fprintf(stderr, "%.*s\n", 600, c->in);
        c->next++;
        begin(c);
        return;
    }
}

static connection_t *dial(const char *host, int port) {
    connection_t *c = calloc(1, sizeof *c);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &address.sin_addr);
    c->in = malloc(BUFFER);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e);
    return c;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 5) { fprintf(stderr, "usage: load HOST PORT CONNECTIONS FILE\n"); return 2; }
    int connections = atoi(argv[3]);
    latencies = calloc(load(argv[4]), sizeof *latencies);
    poller = epoll_create1(0);
    connection_t **all = calloc(connections, sizeof *all);
    for (int i = 0; i < connections; i++) all[i] = dial(argv[1], atoi(argv[2]));
    double started = now();
    running = connections;
    for (int i = 0; i < connections; i++) begin(all[i]);
    struct epoll_event events[64];
    while (running) {
        int n = epoll_wait(poller, events, 64, 60000);
        if (n == 0) { fprintf(stderr, "no reply for 60 s\n"); return 1; }
        for (int i = 0; i < n; i++) {
            connection_t *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) push(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) pull(c);
        }
    }
    double seconds = now() - started;
    qsort(latencies, done, sizeof *latencies, by_value);
    printf("{\"requests\": %u, \"errors\": %u, \"seconds\": %.6f, \"latencies_us\": [", done, errors, seconds);
    for (uint32_t i = 0; i < done; i++) printf(i ? ", %.1f" : "%.1f", latencies[i]);
    printf("]}\n");
    return 0;
}
