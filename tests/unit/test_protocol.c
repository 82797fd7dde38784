// SPDX-License-Identifier: MIT
//
// Proves: a message of every type passes its own check, hostile ones do not, and datagrams carry their descriptors.
// How: one good message a type, changed in one field at a time; socket pairs, with the descriptor limit lowered.
// Cannot see: whether the engine checks what only it can know (whose chunk, whose file).

#include "core/protocol.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static struct msg good(unsigned type) {
    struct msg m;
    memset(&m, 0, sizeof m);
    m.magic = MSG_MAGIC;
    m.type = (uint16_t)type;
    m.number = 1;
    switch (type) {
    case MSG_HELLO:
        m.u.hello.magic = MSG_MAGIC;
        break;
    case MSG_OPEN:
        strcpy(m.u.open.name, "mod\xc3\xa8le.pt");
        break;
    case MSG_BORROW:
    case MSG_RETURN:
        m.u.chunks.n = BORROW_MAX;
        break;
    case MSG_HAND_OVER:
        m.u.hand_over.n = 2;
        m.u.hand_over.extent[0] = (struct extent){0, 10};
        m.u.hand_over.extent[1] = (struct extent){20, CHUNK_SIZE - 20};
        break;
    case MSG_REFER:
        m.u.refer.extent = (struct extent){20, CHUNK_SIZE - 20};
        break;
    case MSG_LEND:
        strcpy(m.u.lend.name, "x");
        break;
    case MSG_REMOVE:
    case MSG_RENAME:
        strcpy(m.u.change.name, "x");
        strcpy(m.u.change.to, "y");
        break;
    default:
        break;
    }
    return m;
}

static int check(const struct msg *m) {
    return msg_check(m, msg_bytes(m->type));
}

Test(protocol, sizes) {
    cr_expect_eq(msg_bytes(MSG_NONE), 0);
    cr_expect_eq(msg_bytes(MSG_TYPES), 0);
    cr_expect_eq(msg_bytes(65535), 0);
    for (unsigned t = MSG_NONE + 1; t < MSG_TYPES; t++) {
        cr_expect_geq(msg_bytes(t), offsetof(struct msg, u));
        cr_expect_leq(msg_bytes(t), sizeof(struct msg));
    }
    cr_expect_eq(msg_bytes(MSG_SETTLE), offsetof(struct msg, u));
    cr_expect_eq(msg_bytes(MSG_FAILURES), offsetof(struct msg, u) + FAILURE_CAP);
}

Test(protocol, every_type_passes_at_its_length_only) {
    for (unsigned t = MSG_NONE + 1; t < MSG_TYPES; t++) {
        struct msg m = good(t);
        for (size_t len = 0; len <= sizeof m + 8; len++) {
            cr_assert_eq(msg_check(&m, len), len == msg_bytes(t) ? 0 : -EPROTO, "type %u, %zu bytes", t, len);
        }
        m.magic++;
        cr_expect_eq(check(&m), -EPROTO);
        m = good(t);
        m.slot = FILES_MAX;
        cr_expect_eq(check(&m), -EPROTO);
    }
    struct msg m = good(MSG_SETTLE);
    m.type = MSG_NONE;
    cr_expect_eq(msg_check(&m, offsetof(struct msg, u)), -EPROTO);
    m.type = MSG_TYPES;
    cr_expect_eq(msg_check(&m, offsetof(struct msg, u)), -EPROTO);
}

// One field of a good message changed; `want` is what the check must then say.
#define CHANGED(type, want, change)                                                                                    \
    do {                                                                                                               \
        struct msg m = good(type);                                                                                     \
        change;                                                                                                        \
        cr_expect_eq(check(&m), want, "%s: %s", #type, #change);                                                       \
    } while (0)

Test(protocol, hostile_hello_and_heads) {
    CHANGED(MSG_HELLO, -EPROTO, m.u.hello.magic = 0);
    CHANGED(MSG_HELLO, -EPROTO, m.u.hello.tool = 2);
    CHANGED(MSG_HELLO, -EPROTO, m.u.hello.client = CLIENTS_MAX);
    CHANGED(MSG_HELLO, 0, m.u.hello.client = CLIENTS_MAX - 1);
    CHANGED(MSG_RESERVE, 0, m.value = INT64_MAX);
    CHANGED(MSG_RESERVE, -EPROTO, m.value = 1ull << 63);
    CHANGED(MSG_SYNC, 0, m.scope = SYNC_PUBLISH);
    CHANGED(MSG_SYNC, 0, m.scope = SYNC_PUBLISH | SYNC_SPAWNED | SYNC_QUIET | SYNC_LOG);
    CHANGED(MSG_SYNC, 0, m.scope = SYNC_INODE | SYNC_SAFE | SYNC_KEEP);
    CHANGED(MSG_SYNC, -EPROTO, m.scope = 128);
    CHANGED(MSG_WAIT, 0, m.scope = WAIT_SPACE);
    CHANGED(MSG_WAIT, -EPROTO, m.scope = WAIT_DIR_SAFE + 1);
    CHANGED(MSG_STATUS, -EPROTO, memset(m.u.status.backend, 'x', sizeof m.u.status.backend));
    CHANGED(MSG_STATUS, -EPROTO, memset(m.u.status.note, 'x', sizeof m.u.status.note));
    CHANGED(MSG_FAILURES, -EPROTO, memset(m.u.text, 'x', sizeof m.u.text));
}

Test(protocol, hostile_names) {
    static const char *const bad[] = {"", "/", "a/b", "a/", "/a", ".", "..", "../x"};
    static const char *const fine[] = {"...", ".a", "..a", "-", "\xff", "a b", "\n"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        CHANGED(MSG_OPEN, -EPROTO, strcpy(m.u.open.name, bad[i]));
        CHANGED(MSG_LEND, -EPROTO, strcpy(m.u.lend.name, bad[i]));
        CHANGED(MSG_OPEN, -EPROTO, m.u.open.flags = OPEN_HIDDEN; strcpy(m.u.open.hidden, bad[i]));
        CHANGED(MSG_REMOVE, -EPROTO, strcpy(m.u.change.name, bad[i]));
        CHANGED(MSG_RENAME, -EPROTO, strcpy(m.u.change.name, bad[i]));
        CHANGED(MSG_RENAME, -EPROTO, strcpy(m.u.change.to, bad[i]));
    }
    for (size_t i = 0; i < ARRAY_LEN(fine); i++) {
        CHANGED(MSG_OPEN, 0, strcpy(m.u.open.name, fine[i]));
        CHANGED(MSG_LEND, 0, strcpy(m.u.lend.name, fine[i]));
        CHANGED(MSG_OPEN, 0, m.u.open.flags = OPEN_HIDDEN; strcpy(m.u.open.hidden, fine[i]));
    }
    CHANGED(MSG_OPEN, -EPROTO, memset(m.u.open.name, 'a', NAME_CAP));
    CHANGED(MSG_OPEN, 0, memset(m.u.open.name, 'a', NAME_CAP - 1));
    CHANGED(MSG_OPEN, -EPROTO, memset(m.u.open.hidden, 'a', NAME_CAP));
    CHANGED(MSG_OPEN, -EPROTO, memset(m.u.open.where, 'a', sizeof m.u.open.where));
    CHANGED(MSG_OPEN, -EPROTO, m.u.open.flags = 8);
    CHANGED(MSG_OPEN, 0, m.u.open.flags = OPEN_FOLLOWED | OPEN_REPLACES);
    CHANGED(MSG_LEND, -EPROTO, memset(m.u.lend.name, 'a', NAME_CAP));
    CHANGED(MSG_LEND, -EPROTO, m.u.lend.flags = 4);
    CHANGED(MSG_LEND, 0, m.u.lend.flags = LEND_SETTLE | LEND_WRITE);
    CHANGED(MSG_REMOVE, 0, m.u.change.flags = REMOVE_DIR | REMOVE_EMPTY);
    CHANGED(MSG_REMOVE, -EPROTO, m.u.change.flags = 4);
    CHANGED(MSG_RENAME, -EPROTO, m.u.change.flags = REMOVE_DIR);
}

Test(protocol, hostile_chunks) {
    CHANGED(MSG_BORROW, -EPROTO, m.u.chunks.n = BORROW_MAX + 1);
    CHANGED(MSG_BORROW, -EPROTO, m.u.chunks.n = UINT32_MAX);
    CHANGED(MSG_RETURN, -EPROTO, m.u.chunks.chunk[BORROW_MAX - 1] = CHUNKS_MAX);
    CHANGED(MSG_RETURN, 0, m.u.chunks.n = 1; m.u.chunks.chunk[1] = UINT32_MAX);
    CHANGED(MSG_REFER, -EPROTO, m.u.refer.extent.len++);
    CHANGED(MSG_REFER, -EPROTO, m.u.refer.extent.len = 0);
    CHANGED(MSG_REFER, -EPROTO, m.u.refer.extent.off = UINT32_MAX);
    CHANGED(MSG_REFER, -EPROTO, m.u.refer.at = UINT64_MAX);
    CHANGED(MSG_REFER, -EPROTO, m.u.refer.index = UINT64_MAX);
    CHANGED(MSG_REFER, 0, m.u.refer.late = 1);
    CHANGED(MSG_REFER, -EPROTO, m.u.refer.late = 2);
    CHANGED(MSG_ARRIVED, 0, m.value = 7);
    CHANGED(MSG_ARRIVED, -EPROTO, m.value = UINT64_MAX);
    CHANGED(MSG_ARRIVED, -EPROTO, m.result = 1);
    CHANGED(MSG_ARENA, -EPROTO, m.value = CHUNKS_MAX + 1);
    CHANGED(MSG_HAND_OVER, -EPROTO, m.u.hand_over.chunk = CHUNKS_MAX);
    CHANGED(MSG_HAND_OVER, 0, m.u.hand_over.chunk = CHUNKS_MAX - 1);
    CHANGED(MSG_HAND_OVER, -EPROTO, m.u.hand_over.n = 0);
    CHANGED(MSG_HAND_OVER, -EPROTO, m.u.hand_over.n = EXTENTS_MAX + 1);
    CHANGED(MSG_HAND_OVER, -EPROTO, m.u.hand_over.n = UINT32_MAX);
    CHANGED(MSG_HAND_OVER, -EPROTO, m.u.hand_over.n = 3);
    CHANGED(MSG_HAND_OVER, -EPROTO, m.u.hand_over.index = INT64_MAX / CHUNK_SIZE);
    CHANGED(MSG_HAND_OVER, -EPROTO, m.u.hand_over.index = UINT64_MAX);
    CHANGED(MSG_HAND_OVER, 0, m.u.hand_over.index = INT64_MAX / CHUNK_SIZE - 1);
    struct extent wide[] = {{0, 0},
                            {0, CHUNK_SIZE + 1},
                            {CHUNK_SIZE, 1},
                            {1, CHUNK_SIZE},
                            {UINT32_MAX, 2},
                            {2, UINT32_MAX},
                            {CHUNK_SIZE, 0},
                            {CHUNK_SIZE - 1, UINT32_MAX},
                            {UINT32_MAX, UINT32_MAX}};
    for (size_t i = 0; i < ARRAY_LEN(wide); i++) {
        CHANGED(MSG_HAND_OVER, -EPROTO, m.u.hand_over.n = 1; m.u.hand_over.extent[0] = wide[i]);
    }
    CHANGED(MSG_HAND_OVER, 0, m.u.hand_over.n = 1; m.u.hand_over.extent[0] = ((struct extent){0, CHUNK_SIZE}));
    CHANGED(MSG_HAND_OVER, 0, m.u.hand_over.extent[1].off = 11);
    CHANGED(MSG_HAND_OVER, -EPROTO, m.u.hand_over.extent[1].off = 10); // touching
    CHANGED(MSG_HAND_OVER, -EPROTO, m.u.hand_over.extent[1].off = 9);  // overlapping
    CHANGED(MSG_HAND_OVER, -EPROTO, m.u.hand_over.extent[0].off = 30); // out of order
}

Test(protocol, hostile_close) {
    CHANGED(MSG_CLOSE, 0, m.u.close.flags = CLOSE_SPAWNED | CLOSE_TIMES | CLOSE_ABORT | CLOSE_KEEP);
    CHANGED(MSG_CLOSE, -EPROTO, m.u.close.flags = 16);
    CHANGED(MSG_CLOSE, 0, m.u.close.size = INT64_MAX);
    CHANGED(MSG_CLOSE, -EPROTO, m.u.close.size = 1ull << 63);
    CHANGED(MSG_CLOSE, -EPROTO, m.u.close.mtime.tv_nsec = 1000000000);
    CHANGED(MSG_CLOSE, -EPROTO, m.u.close.atime.tv_nsec = -1);
    CHANGED(MSG_CLOSE, 0, m.u.close.atime.tv_nsec = UTIME_OMIT);
    CHANGED(MSG_CLOSE, 0, m.u.close.mtime.tv_nsec = UTIME_NOW);
    CHANGED(MSG_CLOSE, 0, m.u.close.mtime.tv_sec = -1);
}

Test(protocol, noise_never_passes_the_head) {
    srand(7);
    for (int round = 0; round < 100000; round++) {
        struct msg m;
        for (size_t i = 0; i < sizeof m; i++) {
            ((unsigned char *)&m)[i] = (unsigned char)rand();
        }
        m.magic = MSG_MAGIC;
        m.type = (uint16_t)((unsigned)rand() % (MSG_TYPES + 2));
        cr_assert_eq(msg_check(&m, (size_t)rand() % (sizeof m + 1)), -EPROTO); // slot is beyond FILES_MAX, mostly
    }
}

static int s[2];

static void sockets(void) {
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s), 0);
}

static int open_fds(void) {
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

Test(protocol, descriptors_travel, .init = sockets) {
    int p[2], got[MSG_FDS_MAX], n;
    cr_assert_eq(pipe(p), 0);
    struct msg m = good(MSG_OPEN), in;
    m.number = 0x1234567890;
    int fds[3] = {p[0], p[1], s[0]};
    for (int count = 0; count <= 3; count++) {
        cr_assert_eq(msg_send(s[0], &m, fds, count, 0), 0);
        memset(&in, 0xee, sizeof in);
        int before = open_fds();
        cr_expect_eq(msg_recv(s[1], &in, got, &n, MSG_CMSG_CLOEXEC), (ssize_t)msg_bytes(MSG_OPEN));
        cr_expect_eq(n, count);
        cr_expect_eq(open_fds(), before + count);
        cr_expect_eq(memcmp(&m, &in, msg_bytes(MSG_OPEN)), 0);
        for (int i = 0; i < n; i++) {
            struct stat a, b;
            fstat(fds[i], &a);
            fstat(got[i], &b);
            cr_expect_eq(a.st_ino, b.st_ino, "in their order");
            cr_expect_eq(fcntl(got[i], F_GETFD), FD_CLOEXEC);
            close(got[i]);
        }
    }
}

Test(protocol, peek_gives_new_ones_and_consume_drops, .init = sockets) {
    int got[MSG_FDS_MAX], n;
    struct msg m = good(MSG_LEND), in;
    int fds[1] = {0};
    cr_assert_eq(msg_send(s[0], &m, fds, 1, 0), 0);
    m.number = 2;
    cr_assert_eq(msg_send(s[0], &m, NULL, 0, 0), 0);
    int before = open_fds();
    for (int i = 1; i <= 2; i++) {
        cr_expect_gt(msg_recv(s[1], &in, got, &n, MSG_PEEK | MSG_DONTWAIT), 0);
        cr_expect_eq(in.number, 1);
        cr_expect_eq(n, 1);
        cr_expect_eq(fcntl(got[0], F_GETFD), 0, "not close-on-exec unless asked");
        cr_expect_eq(open_fds(), before + i);
    }
    msg_consume(s[1]);
    cr_expect_eq(open_fds(), before + 2);
    cr_expect_gt(msg_recv(s[1], &in, got, &n, MSG_DONTWAIT), 0);
    cr_expect_eq(in.number, 2);
    msg_consume(s[1]); // nothing there: returns
    cr_expect_eq(msg_recv(s[1], &in, got, &n, MSG_DONTWAIT), -EAGAIN);
    cr_expect_eq(n, 0);
}

Test(protocol, ends, .init = sockets) {
    int got[MSG_FDS_MAX], n;
    struct msg m = good(MSG_SETTLE), in;
    int count = 0;
    while (msg_send(s[0], &m, NULL, 0, MSG_DONTWAIT) == 0) {
        count++;
    }
    cr_expect_gt(count, 1);
    cr_expect_eq(msg_send(s[0], &m, NULL, 0, MSG_DONTWAIT), -EAGAIN);
    close(s[0]);
    for (int i = 0; i < count; i++) {
        cr_assert_gt(msg_recv(s[1], &in, got, &n, 0), 0);
    }
    cr_expect_eq(msg_recv(s[1], &in, got, &n, 0), 0, "hang-up");
    cr_expect_eq(msg_send(s[1], &m, NULL, 0, 0), -EPIPE, "without a signal");
    cr_expect_eq(msg_send(-1, &m, NULL, 0, 0), -EBADF);
    cr_expect_eq(msg_recv(-1, &in, got, &n, 0), -EBADF);
}

// Sends `len` bytes with `nfds` descriptors, as no honest client would.
static void send_raw(size_t len, int nfds) {
    static char bytes[4096];
    static union {
        char buf[CMSG_SPACE(64 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {bytes, len};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
    if (nfds) {
        h.msg_control = control.buf;
        h.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        *c = (struct cmsghdr){CMSG_LEN((size_t)nfds * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memset(CMSG_DATA(c), 0, (size_t)nfds * sizeof(int));
    }
    cr_assert_eq(sendmsg(s[0], &h, 0), (ssize_t)len);
}

Test(protocol, hostile_datagrams_leave_no_descriptor, .init = sockets) {
    static const struct {
        size_t len;
        int nfds;
        ssize_t want;
    } rows[] = {
        {100, 4, -EPROTO},  {100, 5, -EPROTO}, {100, 64, -EPROTO}, {4096, 0, -EPROTO},
        {4096, 2, -EPROTO}, {0, 0, 0},         {0, 3, 0},          {1, 0, 1},
    };
    int got[MSG_FDS_MAX], n;
    struct msg in;
    int before = open_fds();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        send_raw(rows[i].len, rows[i].nfds);
        cr_expect_eq(msg_recv(s[1], &in, got, &n, 0), rows[i].want, "row %zu", i);
        cr_expect_eq(n, 0);
        cr_expect_eq(open_fds(), before, "row %zu", i);
    }
}

Test(protocol, no_room_for_descriptors_is_back_pressure, .init = sockets) {
    int got[MSG_FDS_MAX], n;
    struct msg m = good(MSG_OPEN), in;
    int fds[2] = {0, 0};
    cr_assert_eq(msg_send(s[0], &m, fds, 2, 0), 0);
    int before = open_fds();
    struct rlimit old, low;
    getrlimit(RLIMIT_NOFILE, &old);
    int next = dup(0);
    close(next);
    low = (struct rlimit){(rlim_t)next + 1, old.rlim_max}; // room for one
    setrlimit(RLIMIT_NOFILE, &low);
    ssize_t ret = msg_recv(s[1], &in, got, &n, MSG_PEEK);
    setrlimit(RLIMIT_NOFILE, &old);
    cr_expect_eq(ret, -EMFILE);
    cr_expect_eq(n, 0);
    cr_expect_eq(open_fds(), before);
    cr_expect_gt(msg_recv(s[1], &in, got, &n, 0), 0, "it is still there");
    cr_expect_eq(n, 2);
}

// Who is killed with an answer unread has sent its last words all the same.
Test(protocol, last_words_of_one_who_has_not_read_all, .init = sockets) {
    int got[MSG_FDS_MAX], n;
    struct msg answer = good(MSG_STATUS), first = good(MSG_HAND_OVER), last = good(MSG_CLOSE), in;
    cr_assert_eq(msg_send(s[1], &answer, NULL, 0, 0), 0);
    cr_assert_eq(msg_send(s[0], &first, NULL, 0, 0), 0);
    cr_assert_eq(msg_send(s[0], &last, NULL, 0, 0), 0);
    close(s[0]);
    cr_expect_eq(msg_recv(s[1], &in, got, &n, MSG_PEEK), (ssize_t)msg_bytes(MSG_HAND_OVER));
    msg_consume(s[1]);
    cr_expect_eq(msg_recv(s[1], &in, got, &n, 0), (ssize_t)msg_bytes(MSG_CLOSE));
    cr_expect_eq(msg_recv(s[1], &in, got, &n, 0), 0);
}

// The same between a look at a datagram and its removal.
Test(protocol, consume_removes_what_was_peeked_at, .init = sockets) {
    int got[MSG_FDS_MAX], n;
    struct msg answer = good(MSG_STATUS), first = good(MSG_HAND_OVER), last = good(MSG_CLOSE), in;
    cr_assert_eq(msg_send(s[0], &first, NULL, 0, 0), 0);
    cr_assert_eq(msg_send(s[0], &last, NULL, 0, 0), 0);
    cr_assert_eq(msg_recv(s[1], &in, got, &n, MSG_PEEK), (ssize_t)msg_bytes(MSG_HAND_OVER));
    cr_assert_eq(msg_send(s[1], &answer, NULL, 0, 0), 0);
    close(s[0]);
    msg_consume(s[1]);
    cr_expect_eq(msg_recv(s[1], &in, got, &n, 0), (ssize_t)msg_bytes(MSG_CLOSE));
}
