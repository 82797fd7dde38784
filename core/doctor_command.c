// SPDX-License-Identifier: MIT
//
// doctor_command: which CUDA runtime a command's program uses, read from files: what the program's ELF file needs or
// contains, and for Python what the PyTorch beside the interpreter needs. Runs nothing.

#include "doctor_inside.h"
#include "log.h"
#include "os.h"
#include "staging.h"
#include "tool_text.h"
#include "util.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SCRIPTS_MAX 4 // a script's interpreter may be a script

enum runtime { RUNTIME_NO_FILE, RUNTIME_NOT_ELF, RUNTIME_NONE, RUNTIME_DYNAMIC, RUNTIME_STATIC };

struct image {
    const char *at;
    size_t size;
};

static bool image_open(struct image *m, const char *path) {
    struct stat st;
    int fd = os_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    void *at = MAP_FAILED;
    if (fd >= 0 && os_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
        at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    if (fd >= 0) {
        os_close(fd);
    }
    *m = (struct image){at, at == MAP_FAILED ? 0 : (size_t)st.st_size};
    return m->size > 0;
}

/** The `len` bytes at `off`, or NULL where the file is shorter. */
static const void *part(const struct image *m, uint64_t off, uint64_t len) {
    return off <= m->size && len <= m->size - off ? m->at + off : NULL;
}

/** Copies: nothing in a file need be aligned. */
static bool header(const struct image *m, uint64_t table, uint64_t i, Elf64_Phdr *ret) {
    uint64_t off;
    const void *p = NULL;
    if (!__builtin_add_overflow(table, i * sizeof *ret, &off) && (p = part(m, off, sizeof *ret))) {
        memcpy(ret, p, sizeof *ret);
    }
    return p;
}

static uint64_t file_offset(const struct image *m, const Elf64_Ehdr *e, uint64_t address) {
    Elf64_Phdr h;
    for (unsigned i = 0; i < e->e_phnum && header(m, e->e_phoff, i, &h); i++) {
        if (h.p_type == PT_LOAD && address >= h.p_vaddr && address - h.p_vaddr < h.p_filesz) {
            return address - h.p_vaddr + h.p_offset;
        }
    }
    return UINT64_MAX;
}

/** The name that the dynamic section [off, off + len) needs and that begins with `prefix`. */
static bool needed(const struct image *m, const Elf64_Ehdr *e, uint64_t off, uint64_t len, const char *prefix,
                   char *buf, size_t cap) {
    const char *p = part(m, off, len);
    uint64_t strings = UINT64_MAX;
    Elf64_Dyn d;
    for (int pass = 0; p && pass < 2; pass++) { // the strings' address may come last
        for (uint64_t i = 0; i + sizeof d <= len; i += sizeof d) {
            memcpy(&d, p + i, sizeof d);
            if (d.d_tag == DT_STRTAB) {
                strings = file_offset(m, e, d.d_un.d_ptr);
            }
            if (pass == 0 || d.d_tag != DT_NEEDED || strings >= m->size || d.d_un.d_val >= m->size - strings) {
                continue;
            }
            const char *name = m->at + strings + d.d_un.d_val;
            size_t most = m->size - (size_t)(name - m->at);
            if (strnlen(name, most) < most && strncmp(name, prefix, strlen(prefix)) == 0) {
                snprintf(buf, cap, "%s", name);
                return true;
            }
        }
    }
    return false;
}

static enum runtime elf_runtime(const struct image *m, char *name, size_t cap) {
    Elf64_Ehdr e;
    const void *p = part(m, 0, sizeof e);
    if (!p || memcmp(p, ELFMAG, SELFMAG) != 0 || m->at[EI_CLASS] != ELFCLASS64) {
        return RUNTIME_NOT_ELF;
    }
    memcpy(&e, p, sizeof e);
    Elf64_Phdr h;
    for (unsigned i = 0; i < e.e_phnum && header(m, e.e_phoff, i, &h); i++) {
        if (h.p_type == PT_DYNAMIC && needed(m, &e, h.p_offset, h.p_filesz, "libcudart.so", name, cap)) {
            return RUNTIME_DYNAMIC;
        }
    }
    // The runtime itself has the names of its errors in it; a program that is only linked with it does not.
    static const char inside[] = "cudaErrorCudartUnloading";
    return memmem(m->at, m->size, inside, sizeof inside) ? RUNTIME_STATIC : RUNTIME_NONE;
}

static enum runtime file_runtime(const char *path, char *name, size_t cap) {
    struct image m;
    if (!image_open(&m, path)) {
        return RUNTIME_NO_FILE;
    }
    enum runtime r = elf_runtime(&m, name, cap);
    munmap((void *)m.at, m.size);
    return r;
}

/** As execvp finds it. */
static bool find_program(const char *name, char *buf, size_t cap) {
    if (strchr(name, '/')) {
        snprintf(buf, cap, "%s", name);
        return access(buf, X_OK) == 0;
    }
    const char *p = getenv("PATH");
    for (p = p ? p : "/bin:/usr/bin"; *p;) {
        size_t n = strcspn(p, ":");
        snprintf(buf, cap, "%.*s/%s", n ? (int)n : 1, n ? p : ".", name);
        if (access(buf, X_OK) == 0) {
            return true;
        }
        p += n + (p[n] == ':');
    }
    return false;
}

/** "#!/usr/bin/env python3" or "#!/opt/venv/bin/python": the interpreter takes the place of the script in `path`. */
static bool interpreter(char *path, size_t cap) {
    char text[512], first[256] = "", second[256] = "";
    if (os_read_file(path, text, sizeof text) <= 2 || text[0] != '#' || text[1] != '!') {
        return false;
    }
    text[strcspn(text, "\n")] = '\0';
    sscanf(text + 2, "%255s %255s", first, second);
    const char *slash = strrchr(first, '/');
    bool env = slash && strcmp(slash, "/env") == 0;
    return find_program(env ? second : first, path, cap);
}

/** How many bytes of ".../prefix/bin/python3" are the prefix, its '/' included. */
static int prefix_length(const char *python) {
    int n = (int)strlen(python);
    for (int slashes = 0; n > 0 && slashes < 2; n--) {
        slashes += python[n - 1] == '/';
        if (slashes == 2) {
            break;
        }
    }
    return n;
}

/** The library `file` of the PyTorch below the interpreter's prefix. */
static bool find_torch(const char *python, const char *file, char *buf, size_t cap) {
    char real[PATH_MAX], pattern[2 * PATH_MAX];
    // A virtual environment's interpreter is a symlink: as it is called, then where it is.
    const char *interpreters[] = {python, realpath(python, real) ? real : python, "/usr/local/bin/python3"};
    for (size_t i = 0; i < ARRAY_LEN(interpreters); i++) {
        glob_t g;
        snprintf(pattern, sizeof pattern, "%.*slib/python3*/*-packages/torch/lib/%s", prefix_length(interpreters[i]),
                 interpreters[i], file);
        bool found = glob(pattern, 0, NULL, &g) == 0;
        if (found) {
            snprintf(buf, cap, "%s", g.gl_pathv[0]);
        }
        globfree(&g);
        if (found) {
            return true;
        }
    }
    return false;
}

/** Can memory be guarded whose bytes come later? For this user, as the program will ask it. */
static void say_deferred(struct doctor *d) {
    static const char what[] = "deferred copies";
    static const char remedy[] = "sysctl vm.unprivileged_userfaultfd=1, or give the user /dev/userfaultfd";
    int fd = os_userfaultfd();
    if (fd >= 0) {
        char size[24];
        text_size(d->c->cuda_scratch, size, sizeof size);
        os_close(fd);
        doctor_say(d, FOUND_OK, NULL, what, NULL, "not waited for, by way of %s of the device's memory", size);
    } else if (fd == -EPERM) {
        doctor_say(d, FOUND_WARN, NULL, what, remedy,
                   "waited for: no userfaultfd that serves the kernel, too, for this user");
    } else {
        doctor_say(d, FOUND_WARN, NULL, what, "Linux 6.6 or later, and a container that allows userfaultfd",
                   "waited for: no userfaultfd that serves the kernel, too: %s", log_errno(-fd));
    }
}

/** Can copies be adopted? By what is configured: what else it takes is a matter of each copy. */
static void say_copies(struct doctor *d) {
    uint64_t most = align_down(staging_budget(d->c->staging) / 2, STAGING_STEP);
    char size[24];
    text_size(most, size, sizeof size);
    if (d->c->cuda == CUDA_DEFER && most > 0) {
        say_deferred(d);
    }
    if (d->c->cuda == CUDA_BOUNCE) {
        doctor_say(d, FOUND_NOTE, NULL, "device copies", "unset FASTCKPT_CUDA", "through slots: FASTCKPT_CUDA=bounce");
    } else if (most == 0) {
        doctor_say(d, FOUND_WARN, NULL, "device copies", "FASTCKPT_STAGING=128M or more",
                   "through slots: half of what staging may have is less than 64 MiB");
    } else {
        doctor_say(d, FOUND_OK, NULL, "device copies", NULL, "up to %s straight to where they stay", size);
    }
}

static void say_runtime(struct doctor *d, const char *path, enum runtime r, const char *name) {
    static const char what[] = "CUDA runtime";
    static const char remedy[] = "link with -cudart shared";
    switch (r) {
    case RUNTIME_DYNAMIC:
        if (d->c->cuda == CUDA_OFF) {
            doctor_say(d, FOUND_NOTE, NULL, what, "unset FASTCKPT_CUDA",
                       "dynamic: %s needs %s; its copies are as they would be natively: FASTCKPT_CUDA=off", path, name);
        } else {
            doctor_say(d, FOUND_OK, NULL, what, NULL, "dynamic: %s needs %s", path, name);
            say_copies(d);
        }
        break;
    case RUNTIME_STATIC:
        doctor_say(d, FOUND_NOTE, NULL, what, remedy, "static: it is inside %s, out of reach of a preloaded library",
                   path);
        break;
    case RUNTIME_NONE:
        doctor_say(d, FOUND_OK, NULL, what, NULL, "none in %s; what it loads later is not seen here", path);
        break;
    default:
        doctor_say(d, FOUND_UNKNOWN, NULL, what, NULL, "%s is no program of 64 bits that can be read", path);
    }
}

void doctor_command(struct doctor *d, char *const *command) {
    char path[4096], name[256] = "", torch[4400];
    if (!find_program(command[0], path, sizeof path)) {
        doctor_say(d, FOUND_BAD, NULL, "command", "its path", "%s: no such program", command[0]);
        return;
    }
    for (int i = 0; i < SCRIPTS_MAX && interpreter(path, sizeof path); i++) {
    }
    enum runtime r = file_runtime(path, name, sizeof name);
    const char *base = strrchr(path, '/');
    if (r != RUNTIME_NONE || strncmp(base ? base + 1 : path, "python", 6) != 0) {
        say_runtime(d, path, r, name);
    } else if (find_torch(path, "libc10_cuda.so", torch, sizeof torch)) {
        say_runtime(d, torch, file_runtime(torch, name, sizeof name), name);
    } else if (find_torch(path, "libc10.so", torch, sizeof torch)) {
        doctor_say(d, FOUND_OK, NULL, "CUDA runtime", NULL, "none: %s is a PyTorch without CUDA", torch);
    } else {
        doctor_say(d, FOUND_UNKNOWN, NULL, "CUDA runtime", NULL, "no PyTorch was found beside %s", path);
    }
}
