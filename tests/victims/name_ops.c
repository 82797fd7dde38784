// SPDX-License-Identifier: MIT
//
// name_ops: a program made of a script on stdin, as fuzz_ops is, whose calls are those that make, change, ask for and
// list names; by two processes. tests/lib/namefuzz.py makes the scripts and compares what is printed.
//   @ DIR         begins a sequence, in a directory that is there; its end closes everything and prints all names
//   pre ...       is done by who starts this program
//   B LINE        a second process, started before the first sequence, does the line; else this one
//   fork LINE     a child does the line, then _exit
//   others        see `table`: S is the number of a descriptor's slot; D one of a directory's, or "." (AT_FDCWD)
//   name_ops -d DIR...  prints all names of each DIR        name_ops -b FD   is the second process

#include "name_rig.h"

#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

static int dir_of(const char *w) {
    return w[0] == '.' ? AT_FDCWD : fd_of(w);
}

// ---- Descriptors

static void opened(char **w, int fd, int flags, const char *path) {
    bool writes = (flags & O_ACCMODE) != O_RDONLY && !(flags & O_SYNC) && matched(path);
    set_slot(w[1], fd, writes);
    if (fd >= 0) {
        note(w[1], writes);
    }
}

static void leave(const char *w) {
    if (fd_of(w) >= 0) {
        say(" [close");
        result(close(fd_of(w)));
        say("]");
        slot(w)->fd = -1;
        note(w, false);
    }
}

static void op_open(char **w) { // S FLAGS MODE PATH
    int flags = flags_of(w[2]) | (strchr(w[2], 'p') ? O_PATH : 0);
    leave(w[1]);
    if (!replaces(w[4], flags)) {
        opened(w, open(w[4], flags, (mode_t)strtol(w[3], NULL, 8)), flags, w[4]);
    }
}

static void op_openat(char **w) { // S D FLAGS MODE PATH
    int flags = flags_of(w[3]), dir = dir_of(w[2]);
    if (dir != AT_FDCWD && (flags & O_TRUNC)) {
        flags &= ~O_TRUNC; // `replaces` looks from the working directory
    }
    if (num(w[1]) == num(w[2]) && dir != AT_FDCWD) {
        say(" = (its own directory)");
        return;
    }
    leave(w[1]);
    if (!replaces(w[5], flags)) {
        opened(w, openat(dir, w[5], flags, (mode_t)strtol(w[4], NULL, 8)), flags, w[5]);
    }
}

static void op_w(char **w) { result(write(fd_of(w[1]), bytes(num(w[2]), num(w[3])), (size_t)num(w[2]))); }
static void op_fsync(char **w) { result(fsync(fd_of(w[1]))); }

static void op_close(char **w) {
    result(close(fd_of(w[1])));
    slot(w[1])->fd = -1;
    note(w[1], false);
}

static void op_fstat(char **w) {
    struct stat st;
    stat_result(fstat(fd_of(w[1]), &st), &st);
}

static void op_save(char **w) { // PATH SIZE SEED: open, write, close
    if (replaces(w[1], O_WRONLY | O_TRUNC)) {
        return;
    }
    int fd = open(w[1], O_WRONLY | O_CREAT | O_TRUNC, 0644);
    result(fd < 0 ? -1 : 0);
    if (fd >= 0) {
        result(write(fd, bytes(num(w[2]), num(w[3])), (size_t)num(w[2])));
        result(close(fd));
    }
}

static void op_fsave(char **w) { // MODE PATH SIZE SEED: the same by stdio
    if (w[1][0] == 'w' && replaces(w[2], O_WRONLY | O_TRUNC)) {
        return;
    }
    FILE *f = fopen(w[2], w[1]);
    result(f ? 0 : -1);
    if (f) {
        result((long)fwrite(bytes(num(w[3]), num(w[4])), 1, (size_t)num(w[3]), f));
        result(fclose(f));
    }
}

static void op_cat(char **w) {
    struct stat st;
    if (stat(w[1], &st) == 0 && others_write(st.st_dev, st.st_ino)) {
        say(" = (another is writing it)");
        return;
    }
    say_content(w[1]);
}

// A temporary file, whose name is chance, that gets a name.
static void op_mkstemp(char **w) { // DIR NAME SIZE
    char path[300];
    snprintf(path, sizeof path, "%s/tmpXXXXXX", w[1]);
    int fd = mkstemp(path);
    result(fd < 0 ? -1 : 0);
    if (fd >= 0) {
        result(write(fd, bytes(num(w[3]), 1), (size_t)num(w[3])));
        result(close(fd));
        result(rename(path, w[2]));
        unlink(path);
    }
}

// ---- Names

static void op_stat(char **w) {
    struct stat st;
    stat_result(stat(w[1], &st), &st);
}

static void op_lstat(char **w) {
    struct stat st;
    stat_result(lstat(w[1], &st), &st);
}

static void op_fstatat(char **w) { // D PATH FOLLOW
    struct stat st;
    stat_result(fstatat(dir_of(w[1]), w[2], &st, num(w[3]) ? 0 : AT_SYMLINK_NOFOLLOW), &st);
}

static void op_statx(char **w) {
    struct statx x;
    int r = statx(AT_FDCWD, w[1], num(w[2]) ? 0 : AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &x);
    result(r);
    if (r == 0) {
        say(" %o", x.stx_mode);
        if (!S_ISDIR(x.stx_mode)) {
            dev_t dev = makedev(x.stx_dev_major, x.stx_dev_minor);
            say(" size=%ld", others_write(dev, x.stx_ino) ? 0 : (long)x.stx_size);
        }
    }
}

static void op_one(char **w) { // are two names one file?
    struct stat a, b;
    int r = stat(w[1], &a) < 0 ? -1 : stat(w[2], &b);
    result(r < 0 ? r : a.st_dev == b.st_dev && a.st_ino == b.st_ino);
}

static void op_access(char **w) { result(access(w[1], (int)num(w[2]))); }
static void op_faccessat(char **w) { result(faccessat(dir_of(w[1]), w[2], (int)num(w[3]), AT_EACCESS)); }
static void op_rename(char **w) { result(rename(w[1], w[2])); }
static void op_renameat(char **w) { result(renameat(dir_of(w[1]), w[2], dir_of(w[3]), w[4])); }
static void op_renamex(char **w) { result(renameat2(AT_FDCWD, w[1], AT_FDCWD, w[2], (unsigned)num(w[3]))); }
static void op_unlink(char **w) { result(unlink(w[1])); }
static void op_unlinkat(char **w) { result(unlinkat(dir_of(w[1]), w[2], num(w[3]) ? AT_REMOVEDIR : 0)); }
static void op_remove(char **w) { result(remove(w[1])); }
static void op_rmdir(char **w) { result(rmdir(w[1])); }
static void op_mkdir(char **w) { result(mkdir(w[1], 0755)); }
static void op_link(char **w) { result(link(w[1], w[2])); }
static void op_linkat(char **w) { result(linkat(AT_FDCWD, w[1], AT_FDCWD, w[2], AT_SYMLINK_FOLLOW)); }
static void op_symlink(char **w) { result(symlink(w[1], w[2])); }
static void op_chdir(char **w) { result(chdir(w[1])); }
static void op_fchdir(char **w) { result(fchdir(fd_of(w[1]))); }
static void op_truncate(char **w) { result(truncate(w[1], num(w[2]))); }
static void op_chmod(char **w) { result(chmod(w[1], (mode_t)strtol(w[2], NULL, 8))); }
static void op_setx(char **w) { result(setxattr(w[1], "user.n", w[2], strlen(w[2]), 0)); }
static void op_home(char **w) { (void)w, result(chdir(top)); }
static void op_sleep(char **w) { usleep((useconds_t)num(w[1]) * 1000); }

static void op_getx(char **w) {
    char value[64];
    ssize_t n = getxattr(w[1], "user.n", value, sizeof value);
    result(n);
    say(" %.*s", n > 0 ? (int)n : 0, value);
}

static void op_utimens(char **w) {
    struct timespec t[2] = {{num(w[2]), 5}, {num(w[2]), 5}};
    result(utimensat(AT_FDCWD, w[1], t, 0));
}

static void op_readlink(char **w) { say_target(w[1]); }

static void op_realpath(char **w) {
    char *found = realpath(w[1], NULL);
    result(found ? 0 : -1);
    if (found) {
        say(" %s", strncmp(found, top, strlen(top)) ? "outside" : found + strlen(top));
    }
    free(found);
}

// ---- Listings

static void op_list(char **w) {
    char path[4300];
    DIR *d = opendir(w[1]);
    result(d ? 0 : -1);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", w[1], e->d_name);
        find(path, e->d_name);
    }
    say_found();
    if (d) {
        closedir(d);
    }
}

static void op_scandir(char **w) {
    char path[4300];
    struct dirent **list;
    int n = scandir(w[1], &list, NULL, alphasort);
    result(n < 0 ? n : 0);
    for (int i = 0; i < n; free(list[i++])) {
        snprintf(path, sizeof path, "%s/%s", w[1], list[i]->d_name);
        find(path, list[i]->d_name);
    }
    if (n >= 0) {
        free(list);
    }
    say_found();
}

static void op_glob(char **w) {
    glob_t g;
    glob(w[1], 0, NULL, &g);
    for (size_t i = 0; i < g.gl_pathc; i++) {
        find(g.gl_pathv[i], g.gl_pathv[i]);
    }
    globfree(&g);
    say_found();
}

static int visit(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    find(path, path);
    return 0;
}

static void op_nftw(char **w) {
    result(nftw(w[1], visit, 8, FTW_PHYS));
    say_found();
}

static void op_fts(char **w) {
    char *paths[] = {w[1], NULL};
    FTS *t = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    for (FTSENT *e; t && (e = fts_read(t)) != NULL;) {
        if (e->fts_info != FTS_DP) {
            find(e->fts_path, e->fts_path);
        }
    }
    if (t) {
        fts_close(t);
    }
    say_found();
}

// Waits for whatever is queued anywhere, as every walk inside libc does: natively nothing is.
static void op_drain(char **w) {
    (void)w;
    nftw("/none", visit, 8, FTW_PHYS);
}

static const struct op table[] = {
    OP(open, 4), OP(openat, 5), OP(w, 3), OP(close, 1), OP(fsync, 1), OP(fstat, 1), OP(save, 3), OP(fsave, 4),
    OP(cat, 1), OP(mkstemp, 3), OP(stat, 1), OP(lstat, 1), OP(fstatat, 3), OP(statx, 2), OP(one, 2), OP(access, 2),
    OP(faccessat, 3), OP(rename, 2), OP(renameat, 4), OP(renamex, 3), OP(unlink, 1), OP(unlinkat, 3), OP(remove, 1),
    OP(rmdir, 1), OP(mkdir, 1), OP(link, 2), OP(linkat, 2), OP(symlink, 2), OP(chdir, 1), OP(fchdir, 1),
    OP(truncate, 2), OP(chmod, 2), OP(setx, 2), OP(getx, 1), OP(home, 0), OP(sleep, 1), OP(utimens, 2),
    OP(readlink, 1), OP(realpath, 1), OP(list, 1), OP(scandir, 1), OP(glob, 1), OP(nftw, 1), OP(fts, 1), OP(drain, 0),
};

// ---- Sequences

static void close_and_note(void) {
    close_all();
    for (int i = 0; i < SLOTS; i++) {
        seen[(second ? SLOTS : 0) + i].open = false;
    }
}

static void begin(void) {
    if (!getcwd(top, sizeof top)) {
        _exit(95);
    }
    if (!second) {
        dprintf(PIPES + 1, "@%s\n", top);
    }
}

static void end_sequence(void) {
    static const char *const all[] = {"a.ck", "b.ck", "l.ck", "x.tx", "d", "d/a.ck", "d/b.ck", "d/e", "d/e/a.ck",
                                      "f.ck", "f.ck/a.ck", "ld", "g", "g/a.ck"};
    tell("end");
    close_and_note();
    if (chdir(top) < 0) {
        _exit(95);
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        say_link(all[i]);
    }
    say_tree(".", "."); // as it will be
    op_drain(NULL);
    say_tree(".", "."); // as it is
    trace_flush();
}

static void run_line(char *line) {
    if (!strncmp(line, "fork ", 5)) {
        run_forked(line + 5, run_line);
    } else {
        say("%s%.60s", second ? "B " : "", line);
        run_op(line, table, sizeof table / sizeof *table);
    }
}

static void run_whole(char *line) {
    if (!strncmp(line, "B ", 2)) {
        tell(line + 2);
    } else {
        run_line(line);
        say("\n");
    }
}

// A process looks for an engine once: a save finds one, or starts one.
static void find_engine(const char *name) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd >= 0) {
        close(fd);
    }
    unlink(name);
}

// The second process: a line is answered by what it says and a zero byte.
static void serve(void) {
    static char line[4096];
    second = true;
    find_engine("second.ck");
    for (FILE *in = fdopen(PIPES, "r"); fgets(line, sizeof line, in);) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '@') {
            if (chdir(line + 1) < 0) {
                _exit(96);
            }
            begin();
            continue;
        }
        if (!strcmp(line, "end")) {
            close_and_note();
        } else {
            run_whole(line);
        }
        say("%c", '\0');
        trace_flush();
    }
}

int main(int argc, char **argv) {
    bool is_second = argc == 2 && !strcmp(argv[1], "-b");
    int shared = is_second ? PIPES + 2 : memfd_create("seen", MFD_CLOEXEC);
    fill_pool();
    umask(022);
    for (int i = 0; i < SLOTS; i++) {
        slots[i].fd = -1;
    }
    if (shared < 0 || (!is_second && ftruncate(shared, 4096) < 0) ||
        (seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0)) == MAP_FAILED) {
        return 91;
    }
    if (is_second) {
        serve();
        return 0;
    }
    for (int i = 2; argc > 2 && i < argc; i++) {
        say("@ %s\n", argv[i]);
        if (chdir(argv[i]) == 0) {
            say_tree(".", ".");
        }
    }
    if (argc > 2) {
        trace_flush();
        return 0;
    }
    find_engine("first.ck");
    start_second(shared);
    run_script(begin, run_whole, end_sequence);
    return 0;
}
