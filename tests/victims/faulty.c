// SPDX-License-Identifier: MIT
//
// faulty: a FUSE file system with one file, "image", kept in BACKING. A loop device over it is a disk that fails on
// demand. CONTROL holds "ERRNO MS": until the monotonic clock shows MS, or CONTROL says otherwise, nothing is written;
// and with an ERRNO, a write to a block that is in FREE (lines "FIRST COUNT", of 4 KiB) and was not written yet fails
// with it. All other blocks go on working, and so do writes below 16 KiB: they may be metadata, whose loss makes the
// file system read-only.
//   faulty MOUNTPOINT BACKING CONTROL FREE      (runs until it is unmounted)

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define BUF   (2 << 20)
#define SMALL 16384

static int dev, backing, control;
static unsigned char *unwritten; // one a block
static size_t blocks;

static void answer(const struct fuse_in_header *in, int err, const void *body, size_t len) {
    struct fuse_out_header out = {(unsigned)(sizeof out + len), err, in->unique};
    struct iovec iov[2] = {{&out, sizeof out}, {(void *)body, len}};
    if (writev(dev, iov, 2) < 0 && errno != ENOENT) {
        perror("faulty: answer");
    }
}

static void attributes(struct fuse_attr *a, unsigned long long ino) {
    struct stat st;
    memset(a, 0, sizeof *a);
    fstat(backing, &st);
    a->ino = ino;
    a->mode = ino == 1 ? S_IFDIR | 0755 : S_IFREG | 0644;
    a->nlink = 1;
    a->size = ino == 1 ? 0 : (unsigned long long)st.st_size;
    a->blksize = 4096;
}

static int fault(unsigned long long off, size_t len) {
    char text[64];
    int err = 0;
    struct timespec now, nap = {0, 2000000};
    long long until = 0, ms = 0;
    do {
        ssize_t n = pread(control, text, sizeof text - 1, 0);
        if (n > 0) {
            text[n] = '\0';
            char *end;
            err = (int)strtol(text, &end, 10);
            until = strtoll(end, NULL, 10);
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        ms = now.tv_sec * 1000LL + now.tv_nsec / 1000000;
    } while (ms < until && nanosleep(&nap, NULL) == 0);
    if (len < SMALL) {
        return 0; // may be metadata
    }
    for (size_t b = off / 4096; err && b < blocks && b * 4096 < off + len; b++) {
        if (unwritten[b]) {
            return err;
        }
    }
    return 0;
}

static void do_write(const struct fuse_in_header *in, const struct fuse_write_in *w) {
    int err = fault(w->offset, w->size);
    struct fuse_write_out out = {w->size, 0};
    if (!err && pwrite(backing, w + 1, w->size, (off_t)w->offset) != (ssize_t)w->size) {
        err = errno;
    }
    for (size_t b = w->offset / 4096; !err && b < blocks && b * 4096 < w->offset + w->size; b++) {
        unwritten[b] = 0;
    }
    answer(in, -err, &out, err ? 0 : sizeof out);
}

static void do_read(const struct fuse_in_header *in, const struct fuse_read_in *r) {
    static char data[BUF];
    size_t want = r->size < BUF ? r->size : BUF;
    ssize_t n = pread(backing, data, want, (off_t)r->offset);
    answer(in, n < 0 ? -errno : 0, data, n < 0 ? 0 : (size_t)n);
}

static void do_init(const struct fuse_in_header *in, const struct fuse_init_in *i) {
    struct fuse_init_out out = {0};
    out.major = FUSE_KERNEL_VERSION;
    out.minor = i->minor < FUSE_KERNEL_MINOR_VERSION ? i->minor : FUSE_KERNEL_MINOR_VERSION;
    out.max_readahead = i->max_readahead;
    out.flags = FUSE_BIG_WRITES | FUSE_MAX_PAGES;
    out.max_write = 1 << 20;
    out.max_pages = 256;
    out.max_background = 16;
    out.congestion_threshold = 12;
    answer(in, 0, &out, sizeof out);
}

static void serve(const struct fuse_in_header *in) {
    const void *body = in + 1;
    struct fuse_entry_out entry = {0};
    struct fuse_attr_out attr = {0};
    struct fuse_open_out open_out = {.fh = 1, .open_flags = FOPEN_KEEP_CACHE};
    struct fuse_statfs_out st = {0};
    switch (in->opcode) {
    case FUSE_INIT:
        do_init(in, body);
        return;
    case FUSE_LOOKUP:
        if (in->nodeid != 1 || strcmp(body, "image") != 0) {
            answer(in, -ENOENT, NULL, 0);
            return;
        }
        entry.nodeid = 2;
        entry.attr_valid = entry.entry_valid = 3600;
        attributes(&entry.attr, 2);
        answer(in, 0, &entry, sizeof entry);
        return;
    case FUSE_GETATTR:
    case FUSE_SETATTR:
        attr.attr_valid = 3600;
        attributes(&attr.attr, in->nodeid);
        answer(in, 0, &attr, sizeof attr);
        return;
    case FUSE_OPEN:
    case FUSE_OPENDIR:
        answer(in, 0, &open_out, sizeof open_out);
        return;
    case FUSE_READ:
        do_read(in, body);
        return;
    case FUSE_WRITE:
        do_write(in, body);
        return;
    case FUSE_STATFS:
        answer(in, 0, &st, sizeof st);
        return;
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
    case FUSE_FLUSH:
    case FUSE_FSYNC:
        answer(in, 0, NULL, 0);
        return;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        return;
    default:
        answer(in, -ENOSYS, NULL, 0);
    }
}

static void read_free(const char *path) {
    struct stat st;
    size_t first, count;
    FILE *f = fopen(path, "r");
    fstat(backing, &st);
    blocks = (size_t)st.st_size / 4096;
    unwritten = calloc(blocks, 1);
    while (f && fscanf(f, "%zu %zu", &first, &count) == 2 && first + count <= blocks) {
        memset(unwritten + first, 1, count);
    }
    if (f) {
        fclose(f);
    }
}

int main(int argc, char **argv) {
    static char buf[BUF] __attribute__((aligned(16)));
    char text[128];
    if (argc < 5) {
        return 2;
    }
    dev = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    backing = open(argv[2], O_RDWR | O_CLOEXEC);
    control = open(argv[3], O_RDONLY | O_CLOEXEC);
    snprintf(text, sizeof text, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", dev);
    if (dev < 0 || backing < 0 || control < 0 || mount("faulty", argv[1], "fuse", 0, text) != 0) {
        perror("faulty");
        return 77;
    }
    read_free(argv[4]);
    while (1) {
        ssize_t n = read(dev, buf, sizeof buf);
        if (n < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) {
            continue;
        }
        if (n <= 0) {
            return 0; // unmounted
        }
        serve((struct fuse_in_header *)(void *)buf);
    }
}
