// SPDX-License-Identifier: MIT
//
// Proves: whatever datagram a stranger sends, msg_check lets nothing through that leads out of bounds: names end within
//         their fields and are one component, extents lie within their chunk, in order, numbers within their tables.
// How:    libFuzzer (clang -fsanitize=fuzzer,address,undefined): the input is the datagram, and is sent over a socket
// too. Cannot see: what the engine does with a message that is well formed (tests/system/bad_engine.py).

#include "core/protocol.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void must(int ok) {
    if (!ok) {
        abort();
    }
}

static void check_name(const char *name) {
    must(memchr(name, '\0', NAME_CAP) != NULL && name[0] && !strchr(name, '/') && strcmp(name, ".") != 0 &&
         strcmp(name, "..") != 0);
}

static void check_body(const struct msg *m) {
    uint64_t end = 0;
    switch (m->type) {
    case MSG_OPEN:
        check_name(m->u.open.name);
        must(memchr(m->u.open.where, '\0', sizeof m->u.open.where) != NULL);
        must(!(m->u.open.flags & OPEN_HIDDEN) || memchr(m->u.open.hidden, '\0', NAME_CAP) != NULL);
        break;
    case MSG_LEND:
        check_name(m->u.lend.name);
        break;
    case MSG_HAND_OVER:
        must(m->u.hand_over.chunk < CHUNKS_MAX && m->u.hand_over.n >= 1 && m->u.hand_over.n <= EXTENTS_MAX);
        for (uint32_t i = 0; i < m->u.hand_over.n; i++) {
            const struct extent *e = &m->u.hand_over.extent[i];
            must(e->len > 0 && (i == 0 || e->off > end));
            end = (uint64_t)e->off + e->len;
            must(end <= CHUNK_SIZE);
        }
        must(m->u.hand_over.index <= (uint64_t)INT64_MAX / CHUNK_SIZE);
        break;
    case MSG_REFER:
        must(m->u.refer.extent.len > 0 && (uint64_t)m->u.refer.extent.off + m->u.refer.extent.len <= CHUNK_SIZE);
        must(m->u.refer.index <= (uint64_t)INT64_MAX / CHUNK_SIZE);
        break;
    case MSG_RETURN:
        for (uint32_t i = 0; i < m->u.chunks.n; i++) {
            must(m->u.chunks.chunk[i] < CHUNKS_MAX);
        }
        must(m->u.chunks.n <= BORROW_MAX);
        break;
    default:
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int pair[2];
    struct msg m = {0}, got = {0};
    if (pair[0] == 0) {
        must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    }
    // Most inputs get the magic and the length of their type, or nothing would ever pass the first two checks.
    memcpy(&m, data, size < sizeof m ? size : sizeof m);
    size_t len = size < sizeof m ? size : sizeof m;
    if (size > 4 && data[size - 1] % 8) {
        m.magic = MSG_MAGIC;
        m.type = m.type % (MSG_TYPES + 1);
        m.slot %= FILES_MAX + 1;
        len = msg_bytes(m.type) ? msg_bytes(m.type) : len;
    }
    if (msg_check(&m, len) == 0) {
        must(len == msg_bytes(m.type) && m.type < MSG_TYPES && m.slot < FILES_MAX);
        check_body(&m);
    }
    int fds[MSG_FDS_MAX], nfds = 0;
    if (len > 0 && send(pair[0], &m, len, MSG_DONTWAIT) == (ssize_t)len) {
        must(msg_recv(pair[1], &got, fds, &nfds, MSG_PEEK | MSG_DONTWAIT) == (ssize_t)len && nfds == 0);
        must(memcmp(&got, &m, len) == 0);
        msg_consume(pair[1]);
        must(msg_recv(pair[1], &got, fds, &nfds, MSG_DONTWAIT) < 0);
    }
    return 0;
}
