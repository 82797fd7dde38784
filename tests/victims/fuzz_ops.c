// SPDX-License-Identifier: MIT
//
// fuzz_ops: a program made of a script on stdin: one call a line, whose result it prints. tests/lib/callfuzz.py makes
// the scripts, runs them natively and under the shim, and compares what is printed.
//   @ DIR         begins a sequence, in a directory that is there; its end closes everything and prints all names
//   pre ...       is done by who starts this program
//   fork LINE     a child does the line, then _exit        thread LINE   a thread does it
//   others        see `table`: S is the number of a descriptor's slot, F of a FILE's
//   fuzz_ops -d DIR...  prints the names of each DIR     fuzz_ops -w SIZE SEED     writes to its stdout
// A slot keeps its number after close: what comes then is EBADF, or hits who has the number now, natively just so.

#include "fuzz_rig.h"

#include <dirent.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <wchar.h>

#define PIECES 64

extern char **environ;
static char *self = "/proc/self/exe";

static void run_line(char *line);

// ---- Descriptors

static void op_open(char **w) {
    int flags = flags_of(w[2]);
    if (!replaces_under_reader(w[4], flags)) {
        set_slot(w[1], open(w[4], flags, (mode_t)strtol(w[3], NULL, 8)),
                 (flags & O_ACCMODE) != O_RDONLY && !(flags & O_SYNC) && matched(w[4]));
    }
}

static void op_creat(char **w) {
    if (!replaces_under_reader(w[3], O_WRONLY | O_TRUNC)) {
        set_slot(w[1], creat(w[3], (mode_t)strtol(w[2], NULL, 8)), matched(w[3]));
    }
}

static void op_w(char **w) {
    result(write(fd_of(w[1]), bytes(num(w[2]), num(w[3])), (size_t)num(w[2])));
}

static void op_pw(char **w) {
    result(pwrite(fd_of(w[1]), bytes(num(w[3]), num(w[4])), (size_t)num(w[3]), num(w[2])));
}

static int pieces(struct iovec *iov, long n, long size, long seed) {
    for (int i = 0; i < n && i < PIECES; i++) {
        iov[i] = (struct iovec){bytes(size, seed + i), (size_t)size};
    }
    return (int)(n < PIECES ? n : PIECES);
}

static void op_wv(char **w) {
    struct iovec iov[PIECES];
    int n = pieces(iov, num(w[2]), num(w[3]), num(w[4]));
    result(writev(fd_of(w[1]), iov, n));
}

static void op_pwv(char **w) {
    struct iovec iov[PIECES];
    int n = pieces(iov, num(w[3]), num(w[4]), num(w[5]));
    result(pwritev(fd_of(w[1]), iov, n, num(w[2])));
}

static void op_seek(char **w) {
    result(lseek(fd_of(w[1]), num(w[2]), whence_of(w[3])));
}

static void op_r(char **w) {
    unsigned char *buf = malloc((size_t)num(w[2]) + 1);
    ssize_t n = read(fd_of(w[1]), buf, (size_t)num(w[2]));
    result(n);
    say(" %016lx", n > 0 ? (unsigned long)hash_add(1, buf, (size_t)n) : 0);
    free(buf);
}

static void op_pr(char **w) {
    unsigned char *buf = malloc((size_t)num(w[3]) + 1);
    ssize_t n = pread(fd_of(w[1]), buf, (size_t)num(w[3]), num(w[2]));
    result(n);
    say(" %016lx", n > 0 ? (unsigned long)hash_add(1, buf, (size_t)n) : 0);
    free(buf);
}

static void op_map(char **w) {
    struct stat st;
    int fd = fd_of(w[1]);
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0) {
        say(" = (nothing to map)");
        return;
    }
    void *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    result(at == MAP_FAILED ? -1 : 0);
    if (at != MAP_FAILED) {
        say(" %016lx", (unsigned long)hash_add(1, at, (size_t)st.st_size));
        munmap(at, (size_t)st.st_size);
    }
}

static void op_trunc(char **w) { result(ftruncate(fd_of(w[1]), num(w[2]))); }
static void op_truncp(char **w) { result(truncate(w[1], num(w[2]))); }
static void op_falloc(char **w) { result(fallocate(fd_of(w[1]), (int)num(w[2]), num(w[3]), num(w[4]))); }
static void op_fsync(char **w) { result(fsync(fd_of(w[1]))); }
static void op_fdatasync(char **w) { result(fdatasync(fd_of(w[1]))); }
static void op_close(char **w) { result(close(fd_of(w[1]))); }
// Deviation, left out of both runs: O_NOFOLLOW cannot be passed on where an inode without a name is opened.
static void op_getfl(char **w) {
    int r = fcntl(fd_of(w[1]), F_GETFL);
    result(r < 0 ? r : r & ~O_NOFOLLOW);
}
static void op_setfl(char **w) { result(fcntl(fd_of(w[1]), F_SETFL, flags_of(w[2]) & O_APPEND)); }
// Deviation, left out of both runs (README, "What it does not catch"): a lock takes a save that replaces a file back to
// the older inode; who has opened the new one meanwhile stays with that.
static bool locks_under_reader(const char *w) {
    struct stat st;
    bool reader = slot(w)->writes && fstat(fd_of(w), &st) == 0 && has_stranger(&st);
    say("%s", reader ? " = (not done: a reader has it)" : "");
    return reader;
}

static void op_flock(char **w) {
    if (!locks_under_reader(w[1])) {
        result(flock(fd_of(w[1]), LOCK_EX | LOCK_NB));
    }
}

static void op_dup(char **w) { set_slot(w[2], dup(fd_of(w[1])), slot(w[1])->writes); }
static void op_dup2(char **w) { set_slot(w[2], dup2(fd_of(w[1]), fd_of(w[2])), slot(w[1])->writes); }
static void op_dupfd(char **w) { set_slot(w[2], fcntl(fd_of(w[1]), F_DUPFD, (int)num(w[3])), slot(w[1])->writes); }

static void op_lock(char **w) {
    struct flock l = {.l_type = (short)(num(w[2]) ? F_WRLCK : F_RDLCK), .l_whence = SEEK_SET};
    if (!locks_under_reader(w[1])) {
        result(fcntl(fd_of(w[1]), F_SETLK, &l));
    }
}

static void op_sendfile(char **w) { // OUT IN OFF LEN; OFF -1: at the offset of IN
    off_t off = num(w[3]);
    result(sendfile(fd_of(w[1]), fd_of(w[2]), off < 0 ? NULL : &off, (size_t)num(w[4])));
    say(" off=%ld", (long)off);
}

static void op_cfr(char **w) { // IN OFF OUT OFF LEN
    off_t from = num(w[2]), to = num(w[4]);
    result(copy_file_range(fd_of(w[1]), from < 0 ? NULL : &from, fd_of(w[3]), to < 0 ? NULL : &to, (size_t)num(w[5]),
                           0));
    say(" off=%ld,%ld", (long)from, (long)to);
}

// ---- Names

static void stat_result(int r, const struct stat *st) {
    result(r);
    if (r == 0) {
        say_stat(st);
    }
}

// Deviation by design, left out of both runs: a descriptor opened to be read, while its file waits for its name, says
// until then that it has no link.
static void op_fstat(char **w) {
    struct stat st;
    int r = fstat(fd_of(w[1]), &st);
    st.st_nlink = slot(w[1])->writes ? st.st_nlink : 99;
    stat_result(r, &st);
}

static void op_stat(char **w) {
    struct stat st;
    stat_result(stat(w[1], &st), &st);
}

static void op_lstat(char **w) {
    struct stat st;
    stat_result(lstat(w[1], &st), &st);
}

static void op_same(char **w) { // is the name this descriptor's file?
    struct stat st;
    int r = stat(w[2], &st);
    result(r == 0 ? is_of(fd_of(w[1]), &st) : r);
}

static void times_of(const char *w, struct timespec t[2]) {
    t[0] = t[1] = (struct timespec){num(w), 123456789};
}

static void op_futimens(char **w) {
    struct timespec t[2];
    times_of(w[2], t);
    result(futimens(fd_of(w[1]), t));
}

static void op_utimens(char **w) {
    struct timespec t[2];
    times_of(w[2], t);
    result(utimensat(AT_FDCWD, w[1], t, 0));
}

static void op_access(char **w) { result(access(w[1], (int)num(w[2]))); }
static void op_chmod(char **w) { result(chmod(w[1], (mode_t)strtol(w[2], NULL, 8))); }
static void op_fchmod(char **w) { result(fchmod(fd_of(w[1]), (mode_t)strtol(w[2], NULL, 8))); }
static void op_rename(char **w) { result(rename(w[1], w[2])); }
static void op_unlink(char **w) { result(unlink(w[1])); }
static void op_remove(char **w) { result(remove(w[1])); }
static void op_link(char **w) { result(link(w[1], w[2])); }
static void op_symlink(char **w) { result(symlink(w[1], w[2])); }
static void op_mkdir(char **w) { result(mkdir(w[1], 0755)); }
static void op_rmdir(char **w) { result(rmdir(w[1])); }
static void op_sleep(char **w) { usleep((useconds_t)num(w[1]) * 1000); }

static void op_readlink(char **w) {
    char buf[256];
    ssize_t n = readlink(w[1], buf, sizeof buf - 1);
    result(n);
    say(" %.*s", n > 0 ? (int)n : 0, buf);
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

// A name whose file is open here gets a '?': fuzz.py says why.
static void op_list(char **w) {
    DIR *d = opendir(w[1]);
    char *found[64], path[600];
    size_t n = 0;
    result(d ? 0 : -1);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", w[1], e->d_name);
        bool open = stat(path, &st) == 0 && S_ISREG(st.st_mode) && has_open(&st);
        if (e->d_name[0] != '.' && n < 64 && asprintf(&found[n], "%s%s", e->d_name, open ? "?" : "") > 0) {
            n++;
        }
    }
    qsort(found, n, sizeof *found, by_name);
    for (size_t i = 0; i < n; i++) {
        say(" %s", found[i]);
        free(found[i]);
    }
    if (d) {
        closedir(d);
    }
}

// ---- FILEs

static FILE **file(const char *w) {
    return &files[w ? atoi(w) % SLOTS : 0];
}

static bool no_file(const char *w) {
    if (*file(w) == NULL) {
        say(" = (no file)");
    }
    return *file(w) == NULL;
}

static void op_fopen(char **w) { // F MODE NAME
    if (*file(w[1]) != NULL) {
        say(" = (in use)");
    } else if (!replaces_under_reader(w[3], w[2][0] == 'w' ? O_WRONLY | O_TRUNC : 0)) {
        FILE *f = fopen(w[3], w[2]);
        result(f ? fileno(f) : -1);
        *file(w[1]) = f;
        file_writes[num(w[1]) % SLOTS] = matched(w[3]) && strcmp(w[2], "r");
    }
}

static void op_freopen(char **w) {
    if (!no_file(w[1]) && !replaces_under_reader(w[3], w[2][0] == 'w' ? O_WRONLY | O_TRUNC : 0)) {
        *file(w[1]) = freopen(w[3], w[2], *file(w[1]));
        result(*file(w[1]) ? fileno(*file(w[1])) : -1);
        file_writes[num(w[1]) % SLOTS] = matched(w[3]) && strcmp(w[2], "r");
    }
}

static void op_fdopen(char **w) { // F S MODE: of a duplicate, so that closing is nobody's twice
    if (*file(w[1]) != NULL) {
        say(" = (in use)");
        return;
    }
    int fd = dup(fd_of(w[2]));
    FILE *f = fd < 0 ? NULL : fdopen(fd, w[3]);
    result(f ? fileno(f) : -1);
    if (f == NULL && fd >= 0) {
        close(fd);
    }
    *file(w[1]) = f;
    file_writes[num(w[1]) % SLOTS] = slot(w[2])->writes;
}

#define FILE_OP(name, expression)                                                                                      \
    static void op_##name(char **w) {                                                                                  \
        if (!no_file(w[1])) {                                                                                          \
            FILE *f = *file(w[1]);                                                                                     \
            result((long)(expression));                                                                                \
        }                                                                                                              \
    }
FILE_OP(fwrite, fwrite(bytes(num(w[2]), num(w[3])), 1, (size_t)num(w[2]), f))
FILE_OP(fwu, fwrite_unlocked(bytes(num(w[2]), num(w[3])), 1, (size_t)num(w[2]), f))
FILE_OP(fwn, fwrite(bytes(num(w[2]) * num(w[3]), num(w[4])), (size_t)num(w[2]), (size_t)num(w[3]), f))
FILE_OP(ffalloc, fallocate(fileno(f), FALLOC_FL_KEEP_SIZE, num(w[2]), num(w[3])))
FILE_OP(ferror, ferror(f))
FILE_OP(fwide, fwide(f, (int)num(w[2])))
FILE_OP(fputs, fputs(w[2], f) < 0 ? -1 : 0)
FILE_OP(fprintf, fprintf(f, "%s %*ld\n", w[2], 20, num(w[3])))
FILE_OP(fseek, fseek(f, num(w[2]), whence_of(w[3])))
FILE_OP(ftell, ftell(f))
FILE_OP(fflush, fflush(f))
FILE_OP(fnw, write(fileno(f), bytes(num(w[2]), num(w[3])), (size_t)num(w[2])))
FILE_OP(fnseek, lseek(fileno(f), num(w[2]), whence_of(w[3])))
FILE_OP(setvbuf, setvbuf(f, NULL, w[2][0] == 'n' ? _IONBF : w[2][0] == 'l' ? _IOLBF : _IOFBF, (size_t)num(w[3])))
FILE_OP(rewind, (rewind(f), 0))

static void op_fread(char **w) {
    if (!no_file(w[1])) {
        unsigned char *buf = malloc((size_t)num(w[2]) + 1);
        size_t n = fread(buf, 1, (size_t)num(w[2]), *file(w[1]));
        say(" = %zu%s %016lx", n, ferror(*file(w[1])) ? " error" : "", (unsigned long)hash_add(1, buf, n));
        free(buf);
    }
}

static void op_fclose(char **w) {
    if (!no_file(w[1])) {
        result(fclose(*file(w[1])));
        *file(w[1]) = NULL;
    }
}

// ---- Processes and threads

static void spawn_writer(char **w, char **env) { // S SIZE SEED
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status = 0;
    if (fd_of(w[1]) < 0) {
        say(" = (no descriptor)");
        return;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd_of(w[1]), 1);
    errno = posix_spawn(&pid, self, &actions, NULL, (char *[]){self, "-w", w[2], w[3], NULL}, env);
    posix_spawn_file_actions_destroy(&actions);
    if (errno != 0) {
        result(-1);
        return;
    }
    waitpid(pid, &status, 0);
    say_status(status);
}

static void op_spawn(char **w) { spawn_writer(w, environ); }
static void op_spawnx(char **w) { spawn_writer(w, (char *[]){NULL}); } // without the shim

static void op_exec(char **w) {
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        if (dup2(fd_of(w[1]), 1) < 0) {
            _exit(95);
        }
        execv(self, (char *[]){self, "-w", w[2], w[3], NULL});
        _exit(97);
    }
    waitpid(pid, &status, 0);
    say_status(status);
}

static const struct op table[] = {
    OP(open, 4), OP(creat, 3), OP(w, 3), OP(pw, 4), OP(wv, 4), OP(pwv, 5), OP(seek, 3), OP(r, 2), OP(pr, 3), OP(map, 1),
    OP(trunc, 2), OP(truncp, 2), OP(falloc, 4), OP(fstat, 1), OP(stat, 1), OP(lstat, 1), OP(access, 2), OP(same, 2),
    OP(dup, 2), OP(dup2, 2), OP(dupfd, 3), OP(getfl, 1), OP(setfl, 2), OP(fsync, 1), OP(fdatasync, 1), OP(close, 1),
    OP(flock, 1), OP(lock, 2), OP(rename, 2), OP(unlink, 1), OP(remove, 1), OP(link, 2), OP(symlink, 2), OP(mkdir, 1),
    OP(rmdir, 1), OP(readlink, 1), OP(list, 1), OP(chmod, 2), OP(fchmod, 2), OP(futimens, 2), OP(utimens, 2),
    OP(fopen, 3), OP(freopen, 3), OP(fdopen, 3), OP(fwrite, 3), OP(fwu, 3), OP(fwn, 4),
    OP(ffalloc, 3), OP(ferror, 1), OP(fwide, 2), OP(fputs, 2), OP(fprintf, 3), OP(fseek, 3),
    OP(ftell, 1), OP(fflush, 1), OP(fclose, 1), OP(fnw, 3), OP(fnseek, 3), OP(fread, 2), OP(rewind, 1), OP(setvbuf, 3),
    OP(sendfile, 4), OP(cfr, 5), OP(spawn, 3), OP(spawnx, 3), OP(exec, 3), OP(sleep, 1),
};

static void *run_thread(void *line) {
    run_line(line);
    return NULL;
}

static void run_line(char *line) {
    if (!strncmp(line, "fork ", 5)) {
        run_forked(line + 5, run_line);
    } else if (!strncmp(line, "thread ", 7)) {
        pthread_t t;
        pthread_create(&t, NULL, run_thread, line + 7);
        pthread_join(t, NULL);
    } else {
        say("%s", line);
        run_op(line, table, sizeof table / sizeof *table);
    }
}

static void run_whole(char *line) {
    run_line(line);
    say("\n");
}

static void end_sequence(void) {
    close_all();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        say_name(names[i]);
    }
    trace_flush();
}

int main(int argc, char **argv) {
    fill_pool();
    umask(022);
    if (argc == 4 && !strcmp(argv[1], "-w")) {
        return write(1, bytes(num(argv[2]), num(argv[3])), (size_t)num(argv[2])) == num(argv[2]) ? 0 : errno;
    }
    for (int i = 0; i < SLOTS; i++) {
        slots[i].fd = -1;
    }
    for (int i = 2; argc > 2 && !strcmp(argv[1], "-d"); i++) {
        if (i == argc) {
            return 0;
        }
        say("@ %s\n", argv[i]);
        if (chdir(argv[i]) == 0) {
            end_sequence();
        }
    }
    run_script(NULL, run_whole, end_sequence);
    return 0;
}
