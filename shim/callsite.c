// SPDX-License-Identifier: MIT
//
// callsite: see callsite.h. The stack is walked by libunwind's remote form over our own accessors: its local form keeps
// a pipe to try addresses on, in numbers that are the program's, and asks the loader under its lock.
//
// libunwind is never linked (its exports would take over C++ exceptions) and need not be there: without it only the
// function that made the call is known.

#include "callsite.h"

#include "../core/log.h"
#include "../core/os.h"
#include "callsite_elf.h"
#include "callsite_text.h"
#include "guard.h"

#include <dlfcn.h>
#include <errno.h>
#include <libunwind.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

#define STEPS_MAX 16
#define SHOWN_MAX 3 // functions in the text
#define PAGE      4096u

// The loader finds them where there is an interpreter: a dlsym that finds nothing costs a process more than all else.
#define MAYBE __attribute__((weak, visibility("default")))
extern void *PyGILState_GetThisThreadState(void) MAYBE;
extern void _Py_DumpTraceback(int fd, void *state) MAYBE;
extern int _Py_IsFinalizing(void) MAYBE;

static struct {
    void *(*thread_state)(void);       // PyGILState_GetThisThreadState: this thread's, whether or not it has the lock
    void (*dump)(int fd, void *state); // _Py_DumpTraceback
    int (*ending)(void);               // _Py_IsFinalizing: the frames of daemon threads go, long after it says so
} python;

// ---- One address as text

// Looking at every symbol of a library is dear: each address once. Written once, never replaced: a library that is
// closed and another at its place would be named wrongly, in a line for people.
#define SITES_MAX 256
static struct site {
    _Atomic(uintptr_t) taken; // the address whose text it will have
    _Atomic bool ready;
    enum { SITE_SHOWN, SITE_PASSED, SITE_PYTHON } kind; // passed: the call came through it
    char text[112];
} sites[SITES_MAX];

static void look_up(uintptr_t address, struct site *s) {
    struct callsite_object o;
    char function[72];
    s->kind = SITE_SHOWN;
    if (!callsite_object(address - 1, &o)) { // the call, not what follows it
        log_format(s->text, sizeof s->text, "0x%lx", (unsigned long)address);
        return;
    }
    unsigned long offset = address - o.base;
    uintptr_t interpreter = (uintptr_t)python.dump;
    s->kind = interpreter >= o.start && interpreter < o.end ? SITE_PYTHON
              : callsite_is_passed(o.name)                  ? SITE_PASSED
                                                            : SITE_SHOWN;
    const char *symbol = s->kind == SITE_PASSED ? NULL : callsite_symbol(&o, address - 1);
    if (symbol == NULL) {
        log_format(s->text, sizeof s->text, "%s+0x%lx", o.name, offset);
    } else {
        callsite_demangle(symbol, function, sizeof function);
        log_format(s->text, sizeof s->text, "%s (%s+0x%lx)", function, o.name, offset);
    }
}

// The site of `address`: one that is kept, or `*own`.
static const struct site *site_of(uintptr_t address, struct site *own) {
    struct site *s = &sites[(address ^ address >> 8) % SITES_MAX];
    uintptr_t none = 0;
    if (atomic_load_explicit(&s->ready, memory_order_acquire) && s->taken == address) {
        return s;
    }
    look_up(address, own);
    if (address != 0 && atomic_compare_exchange_strong(&s->taken, &none, address)) {
        s->kind = own->kind;
        memcpy(s->text, own->text, sizeof s->text);
        atomic_store_explicit(&s->ready, true, memory_order_release);
    }
    return own;
}

// ---- libunwind

enum { UNWIND_UNKNOWN, UNWIND_LOADING, UNWIND_READY, UNWIND_NONE };
static _Atomic int unwind_state;
static _Atomic int walking; // threads inside libunwind, which has locks

int UNW_OBJ(dwarf_search_unwind_table)(unw_addr_space_t, unw_word_t, unw_dyn_info_t *, unw_proc_info_t *, int, void *);
static struct {
    __typeof__(unw_create_addr_space) *create_addr_space;
    __typeof__(unw_set_caching_policy) *set_caching_policy;
    __typeof__(unw_init_remote) *init_remote;
    __typeof__(unw_step) *step;
    __typeof__(unw_get_reg) *get_reg;
    __typeof__(UNW_OBJ(dwarf_search_unwind_table)) *search;
    unw_addr_space_t space;
} unwind;

struct walk {
    ucontext_t at;
    uintptr_t good[2]; // pages that can be read
    unsigned next;
};

static int read_word(unw_addr_space_t as, unw_word_t address, unw_word_t *value, int write, void *arg) {
    (void)as;
    struct walk *w = arg;
    uintptr_t page = address / PAGE;
    if (write || address % sizeof *value != 0) {
        return -UNW_EINVAL;
    }
    if (page != w->good[0] && page != w->good[1]) {
        if (!guard_readable((const void *)address)) {
            return -UNW_EINVAL;
        }
        w->good[w->next++ % 2] = page;
    }
    memcpy(value, (const void *)address, sizeof *value);
    return 0;
}

static int read_register(unw_addr_space_t as, unw_regnum_t number, unw_word_t *value, int write, void *arg) {
    (void)as;
    const struct walk *w = arg;
#if defined(__x86_64__)
    static const int place[] = {[UNW_X86_64_RAX] = REG_RAX, [UNW_X86_64_RDX] = REG_RDX, [UNW_X86_64_RCX] = REG_RCX,
                                [UNW_X86_64_RBX] = REG_RBX, [UNW_X86_64_RSI] = REG_RSI, [UNW_X86_64_RDI] = REG_RDI,
                                [UNW_X86_64_RBP] = REG_RBP, [UNW_X86_64_RSP] = REG_RSP, [UNW_X86_64_R8] = REG_R8,
                                [UNW_X86_64_R9] = REG_R9,   [UNW_X86_64_R10] = REG_R10, [UNW_X86_64_R11] = REG_R11,
                                [UNW_X86_64_R12] = REG_R12, [UNW_X86_64_R13] = REG_R13, [UNW_X86_64_R14] = REG_R14,
                                [UNW_X86_64_R15] = REG_R15, [UNW_X86_64_RIP] = REG_RIP};
    if (write || number < 0 || (size_t)number >= sizeof place / sizeof *place) {
        return -UNW_EBADREG;
    }
    *value = (unw_word_t)w->at.uc_mcontext.gregs[place[number]];
    return 0;
#else
    const mcontext_t *m = &w->at.uc_mcontext;
    if (write || number < UNW_AARCH64_X0 || number > UNW_AARCH64_PC) {
        return -UNW_EBADREG;
    }
    *value = number == UNW_AARCH64_PC ? m->pc : number == UNW_AARCH64_SP ? m->sp : m->regs[number - UNW_AARCH64_X0];
    return 0;
#endif
}

static int read_float(unw_addr_space_t as, unw_regnum_t number, unw_fpreg_t *value, int write, void *arg) {
    (void)as, (void)number, (void)value, (void)write, (void)arg;
    return -UNW_EBADREG;
}

// The binary search table that the linker makes: version 1, 4-byte offsets from the header, the count before it.
static int find_proc(unw_addr_space_t as, unw_word_t ip, unw_proc_info_t *pi, int need, void *arg) {
    struct callsite_object o;
    if (!callsite_object(ip, &o) || o.frames == NULL) {
        return -UNW_ENOINFO;
    }
    const unsigned char *header = o.frames;
    uint32_t count;
    if (header[0] != 1 || header[2] != 0x03 || header[3] != 0x3b) {
        return -UNW_ENOINFO;
    }
    memcpy(&count, header + 8, sizeof count);
    unw_dyn_info_t di = {.start_ip = o.start, .end_ip = o.end, .format = UNW_INFO_FORMAT_REMOTE_TABLE};
    di.u.rti.segbase = (unw_word_t)header;
    di.u.rti.table_data = (unw_word_t)(header + 12);
    di.u.rti.table_len = count * 8ul / sizeof(unw_word_t);
    return unwind.search(as, ip, &di, pi, need, arg);
}

static void put_info(unw_addr_space_t as, unw_proc_info_t *pi, void *arg) {
    (void)as, (void)pi, (void)arg;
}

static int no_list(unw_addr_space_t as, unw_word_t *address, void *arg) {
    (void)as, (void)address, (void)arg;
    return -UNW_ENOINFO;
}

static int no_resume(unw_addr_space_t as, unw_cursor_t *c, void *arg) {
    (void)as, (void)c, (void)arg;
    return -UNW_EINVAL;
}

static int no_name(unw_addr_space_t as, unw_word_t ip, char *buf, size_t cap, unw_word_t *offset, void *arg) {
    (void)as, (void)ip, (void)buf, (void)cap, (void)offset, (void)arg;
    return -UNW_ENOINFO;
}

// dlopen allocates and takes the loader's lock. Not in a signal handler, which may have interrupted either: one that is
// running has at least its own signal blocked, or its own stack. Not in a forked child, where a thread that is no more
// may have held either.
static bool may_load(void) {
    uint64_t blocked = ~0ull;
    stack_t stack = {.ss_flags = SS_ONSTACK};
    OS_CALL(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &blocked, sizeof blocked, 0, 0);
    OS_CALL(SYS_sigaltstack, NULL, &stack, 0, 0, 0, 0);
    return !shim.forked && blocked == 0 && !(stack.ss_flags & SS_ONSTACK);
}

#define STRING_OF(x) #x
#define STRING(x)    STRING_OF(x)
#define FIND(name)   find(h, STRING(UNW_OBJ(name)), &unwind.name)

static __thread bool loading __attribute__((tls_model("initial-exec")));

bool callsite_loading(void) {
    return loading;
}

static bool find(void *handle, const char *name, void *slot) {
    void *p = dlsym(handle, name);
    memcpy(slot, &p, sizeof p);
    return p != NULL;
}

static bool load(void) {
    static unw_accessors_t accessors = {.find_proc_info = find_proc,
                                        .put_unwind_info = put_info,
                                        .get_dyn_info_list_addr = no_list,
                                        .access_mem = read_word,
                                        .access_reg = read_register,
                                        .access_fpreg = read_float,
                                        .resume = no_resume,
                                        .get_proc_name = no_name};
    void *h = dlopen("libunwind-" STRING(UNW_TARGET) ".so.8", RTLD_NOW | RTLD_LOCAL);
    bool all = h != NULL && FIND(create_addr_space) && FIND(set_caching_policy) && FIND(init_remote) && FIND(step) &&
               FIND(get_reg) && find(h, STRING(UNW_OBJ(dwarf_search_unwind_table)), &unwind.search);
    unwind.space = all ? unwind.create_addr_space(&accessors, 0) : NULL;
    if (unwind.space == NULL) {
        dlerror(); // not the program's to read
        return false;
    }
    unwind.set_caching_policy(unwind.space, UNW_CACHE_GLOBAL); // initializes all of it
    return true;
}

static bool unwind_ready(void) {
    int unknown = UNWIND_UNKNOWN;
    if (atomic_load(&unwind_state) == UNWIND_UNKNOWN && may_load() &&
        atomic_compare_exchange_strong(&unwind_state, &unknown, UNWIND_LOADING)) {
        loading = true;
        bool ready = load();
        loading = false;
        atomic_store(&unwind_state, ready ? UNWIND_READY : UNWIND_NONE);
    }
    return atomic_load(&unwind_state) == UNWIND_READY;
}

void callsite_after_fork(void) {
    if (atomic_exchange(&walking, 0) > 0 || atomic_load(&unwind_state) == UNWIND_LOADING) {
        atomic_store(&unwind_state, UNWIND_NONE); // another thread was inside: its locks stay taken here
    }
}

// Return addresses of this thread from `caller` on, innermost first, until `show` of them are worth showing. How many.
static __attribute__((noinline)) unsigned walk_from(struct walk *w, uintptr_t caller, uintptr_t *out, unsigned show) {
    struct site own;
    unw_cursor_t c;
    unw_word_t ip;
    unsigned n = 0;
    bool ours = true;
    atomic_fetch_add(&walking, 1);
    if (unwind.init_remote(&c, unwind.space, w) == 0) {
        for (unsigned i = 0; i < STEPS_MAX && show > 0 && unwind.step(&c) > 0; i++) {
            if (unwind.get_reg(&c, UNW_REG_IP, &ip) < 0 || ip == 0) {
                break;
            }
            ours = ours && ip != caller;
            if (!ours) {
                out[n++] = ip;
                show -= site_of(ip, &own)->kind == SITE_SHOWN;
            }
        }
    }
    atomic_fetch_sub(&walking, 1);
    return n;
}

static __attribute__((noinline)) unsigned walk_stack(uintptr_t caller, uintptr_t *out, unsigned show) {
    struct walk w = {0};
    getcontext(&w.at); // of this frame, which must last
    return walk_from(&w, caller, out, show);
}

// ---- Python

static __thread struct callsite_frames *frames __attribute__((tls_model("initial-exec")));

ssize_t callsite_take(const void *buf, size_t len) {
    if (frames == NULL) {
        return -EBADF;
    }
    callsite_frames_add(frames, buf, len);
    return (ssize_t)len;
}

static bool python_frames(struct callsite_frames *f) {
    void *state = python.dump != NULL && !python.ending() ? python.thread_state() : NULL;
    f->len = 0;
    f->inner[0] = f->outer[0] = '\0';
    if (state != NULL) {
        frames = f;
        python.dump(CALLSITE_FD, state);
        frames = NULL;
    }
    return f->inner[0] != '\0';
}

void callsite_start(void) {
    if (PyGILState_GetThisThreadState && _Py_DumpTraceback && _Py_IsFinalizing) {
        python.thread_state = PyGILState_GetThisThreadState;
        python.dump = _Py_DumpTraceback;
        python.ending = _Py_IsFinalizing;
    }
    callsite_elf_start();
    dlerror(); // not the program's to read
}

// ---- All of it

static size_t add(char *buf, size_t cap, size_t n, const char *between, const char *text) {
    if (n + 4 < cap) {
        n += (size_t)log_format(buf + n, cap - n, "%s%s", n > 0 ? between : "", text);
    }
    return n < cap ? n : cap - 1;
}

void callsite_describe(const void *caller, char *buf, size_t cap) {
    int saved = errno;
    struct callsite_frames py;
    struct site own;
    uintptr_t stack[STEPS_MAX] = {(uintptr_t)caller};
    const struct site *s = site_of(stack[0], &own);
    char pid[24];
    size_t room = cap - (size_t)log_format(pid, sizeof pid, " (pid %d)", shim.pid);
    size_t n = 0;
    unsigned shown = 0, depth = 1;
    bool is_python = python_frames(&py);
    unsigned show = is_python ? 1 : SHOWN_MAX;
    if (is_python) {
        n = add(buf, room, n, "", py.inner);
        n = py.outer[0] != '\0' ? add(buf, room, n, " <- ", py.outer) : n;
    }
    // The interpreter's own function says nothing that its frames do not.
    if (caller != NULL && (s->kind == SITE_PASSED || !is_python) && unwind_ready()) {
        depth = walk_stack(stack[0], stack, show);
        depth = depth > 0 ? depth : 1;
    }
    for (unsigned i = 0; i < depth && shown < show; i++) {
        s = site_of(stack[i], &own);
        if (s->kind == SITE_SHOWN || (s->kind == SITE_PYTHON && !is_python) || (depth == 1 && !is_python)) {
            n = add(buf, room, n, shown == 0 && is_python ? ", by " : " <- ", s->text);
            shown++;
        }
    }
    if (n == 0) {
        n = add(buf, room, n, "", site_of((uintptr_t)caller, &own)->text);
    }
    log_format(buf + n, cap - n, "%s", pid);
    errno = saved;
}
