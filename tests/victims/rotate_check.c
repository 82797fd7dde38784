// SPDX-License-Identifier: MIT
//
// rotate_check: is a directory, as a kill or a power cut left it, a state of the history of rotate.c? Every captured
// name whole or absent (P3); names in order, and nothing deleted before what was closed before it is there, so that the
// last `keep` saves are complete (P4). One line: "last N", the last complete save, or "bad REASON" and exit status 1.

#include "rotate.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum look { ABSENT, WHOLE, TORN };

static int bad(int k, const char *what, const char *path) {
    printf("bad save %d: %s %s\n", k, what, path);
    return 1;
}

static enum look look(const char *path, int k, int part) {
    struct stat st;
    struct head *h;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return ABSENT;
    }
    enum look l = TORN;
    char *buf = NULL;
    if (fstat(fd, &st) == 0 && st.st_size >= (off_t)sizeof *h && (buf = malloc((size_t)st.st_size))) {
        size_t size = (size_t)st.st_size;
        h = (void *)buf;
        if (read(fd, buf, size) == (ssize_t)size && h->magic == ROTATE_MAGIC && h->size == size &&
            h->save == (uint64_t)k && h->part == (uint64_t)part &&
            h->sum == sum_of((uint64_t *)(void *)(buf + sizeof *h), (size - sizeof *h) / 8)) {
            l = WHOLE;
        }
    }
    free(buf);
    close(fd);
    return l;
}

/** What `latest` says: 0 if there is none, -1 if it is torn. */
static int latest(void) {
    char text[64] = "";
    int k = 0, fd = open("latest", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    return n > 0 && text[n - 1] == '\n' && sscanf(text, "global_step%d\n", &k) == 1 ? k : -1;
}

/** The largest number in any name here. */
static int highest(void) {
    int high = 0;
    DIR *d = opendir(".");
    for (struct dirent *e; d && (e = readdir(d));) {
        const char *digits = strpbrk(e->d_name, "0123456789");
        int k = digits && e->d_name[0] != '.' ? atoi(digits) : 0;
        high = k > high ? k : high;
    }
    closedir(d);
    return high;
}

struct save {
    bool marked, any, any_captured;
    int lacks; // the first part that is not whole, or -1
};

/** Looks at all parts of save k. 0, or 1 if something is wrong with it whatever the others are. */
static int look_at(const struct options *o, int k, int says, struct save *s) {
    struct part parts[PARTS_MAX];
    char place[64];
    int n = parts_of(o, k, parts), seen[PARTS_MAX] = {0};
    place_of(o, k, place, sizeof place);
    *s = (struct save){.lacks = -1, .any = access(place, F_OK) == 0};
    for (int i = 0; i < n; i++) {
        enum look l = look(parts[i].path, k, i);
        seen[i] = l;
        if (l == TORN && parts[i].captured) {
            return bad(k, "torn", parts[i].path);
        }
        s->lacks = l != WHOLE && s->lacks < 0 ? i : s->lacks;
        s->any_captured |= l != ABSENT && parts[i].captured;
    }
    if (o->kind == ORBAX) {
        s->marked = s->any;
    } else if (o->kind == DEEPSPEED) {
        s->marked = k <= says;
    } else {
        s->marked = seen[n - 1] != ABSENT;
    }
    for (int i = 0; i < n && !s->marked; i++) { // each rank's in its order
        for (int j = 0; j < i && seen[i] != ABSENT && parts[i].captured && o->kind != ORBAX; j++) {
            if (parts[j].rank == parts[i].rank && seen[j] != WHOLE) {
                return -i - 1; // or it is being deleted: the caller knows
            }
        }
    }
    return 0;
}

static int judge(const struct options *o, int k, int last, const struct save *s, int order, bool late) {
    struct part parts[PARTS_MAX];
    parts_of(o, k, parts);
    if (k > last - o->keep && k <= last && s->lacks >= 0) {
        return bad(k, last == k ? "has its marker, and is not whole:" : "not whole, and there is a later one:",
                   parts[s->lacks].path);
    }
    if (k < last - o->keep && s->any && !late) {
        return bad(k, "still there", "");
    }
    if (k > last && order < 0) {
        return bad(k, "before what was closed earlier:", parts[-order - 1].path);
    }
    if (k > last + 1 && s->any_captured) {
        return bad(k, "is there, but the one before has no marker", "");
    }
    return 0;
}

int check(const struct options *o, int at_least, int exactly, bool late) {
    enum { MOST = 4096 };
    static struct save saves[MOST];
    static int order[MOST];
    int high = highest(), says = o->kind == DEEPSPEED ? latest() : 0, last = 0;
    if (says < 0 || high >= MOST) {
        return bad(high, "latest is torn", "");
    }
    for (int k = high; k >= 1; k--) {
        order[k] = look_at(o, k, says, &saves[k]);
        if (order[k] > 0) {
            return 1;
        }
        if (saves[k].marked && !last) {
            last = k;
        }
    }
    last = says > last ? says : last;
    for (int k = 1; k <= high || k <= last; k++) {
        if (judge(o, k, last, &saves[k], order[k], late)) {
            return 1;
        }
    }
    if (last < at_least) {
        printf("bad the last complete save is %d, not %d\n", last, at_least);
        return 1;
    }
    if (exactly && last != exactly) {
        printf("bad the last complete save is %d, the program ended with %d\n", last, exactly);
        return 1;
    }
    for (int k = 1; exactly && k <= exactly - o->keep; k++) {
        if (saves[k].any) {
            return bad(k, "still there at the end", "");
        }
    }
    printf("last %d\n", last);
    return 0;
}
