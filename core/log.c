// SPDX-License-Identifier: MIT
//
// log: formatting a line into a buffer on the stack and sending it by one write. No malloc, no stdio, no locale: it
// runs in hooks, signal handlers and forked children. Nothing here may know what the lines are about.

#include "log.h"

#include "os.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define LINE_MAX_BYTES 1000

// Set once at start, before other threads; read without a lock.
static enum log_level current_level = LOG_INFO;
static int current_fd = 2;
static const char *current_prefix = "fastckpt";

void log_setup(enum log_level level, int fd, const char *prefix) {
    current_level = level;
    current_fd = fd;
    current_prefix = prefix;
}

enum log_level log_level(void) {
    return current_level;
}

int log_fd(void) {
    return current_fd;
}

struct out {
    char *buf;
    size_t cap;
    size_t len; // as if the buffer had no end
};

static void put(struct out *o, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++, o->len++) {
        if (o->len + 1 < o->cap) {
            o->buf[o->len] = s[i];
        }
    }
}

static void put_number(struct out *o, unsigned long long v, unsigned base, bool negative) {
    char digits[24];
    size_t at = sizeof digits;
    do {
        digits[--at] = "0123456789abcdef"[v % base];
        v /= base;
    } while (v > 0);
    if (negative) {
        digits[--at] = '-';
    }
    put(o, digits + at, sizeof digits - at);
}

enum width { W_INT, W_LONG, W_LLONG, W_SIZE };

static enum width parse_width(const char **p) {
    if (**p == 'z') {
        (*p)++;
        return W_SIZE;
    }
    int n = 0;
    for (; **p == 'l' && n < 2; n++) {
        (*p)++;
    }
    return (enum width)n;
}

// A va_list in a struct can be passed on by address whatever its type is.
struct args {
    va_list ap;
};

static long long next_signed(struct args *a, enum width w) {
    switch (w) {
    case W_LONG:
        return va_arg(a->ap, long);
    case W_LLONG:
        return va_arg(a->ap, long long);
    case W_SIZE:
        return va_arg(a->ap, ssize_t);
    default:
        return va_arg(a->ap, int);
    }
}

static unsigned long long next_unsigned(struct args *a, enum width w) {
    switch (w) {
    case W_LONG:
        return va_arg(a->ap, unsigned long);
    case W_LLONG:
        return va_arg(a->ap, unsigned long long);
    case W_SIZE:
        return va_arg(a->ap, size_t);
    default:
        return va_arg(a->ap, unsigned);
    }
}

// Formats one conversion; `*p` stands behind the '%'. False if it is none that we know.
static bool put_conversion(struct out *o, const char **p, struct args *a) {
    enum width w = parse_width(p);
    char c = **p;
    if (c == 's' && w == W_INT) {
        const char *s = va_arg(a->ap, const char *);
        s = s ? s : "(null)";
        put(o, s, strlen(s));
    } else if (c == 'c' && w == W_INT) {
        char ch = (char)va_arg(a->ap, int);
        put(o, &ch, 1);
    } else if (c == 'd' || c == 'i') {
        long long v = next_signed(a, w);
        put_number(o, v < 0 ? 0 - (unsigned long long)v : (unsigned long long)v, 10, v < 0);
    } else if (c == 'u' || c == 'x') {
        put_number(o, next_unsigned(a, w), c == 'x' ? 16 : 10, false);
    } else if (c == '%' && w == W_INT) {
        put(o, "%", 1);
    } else {
        return false;
    }
    (*p)++;
    return true;
}

int log_vformat(char *buf, size_t cap, const char *fmt, va_list ap) {
    struct out o = {.buf = buf, .cap = cap};
    struct args a;
    va_copy(a.ap, ap);
    const char *p = fmt;
    while (*p) {
        const char *start = p;
        if (*p != '%') {
            size_t n = strcspn(p, "%");
            put(&o, p, n);
            p += n;
            continue;
        }
        p++;
        if (!put_conversion(&o, &p, &a)) {
            put(&o, start, strlen(start)); // arguments can't be trusted behind an unknown one: the rest as it stands
            break;
        }
    }
    va_end(a.ap);
    if (cap > 0) {
        buf[o.len < cap ? o.len : cap - 1] = '\0';
    }
    return (int)o.len;
}

int log_format(char *buf, size_t cap, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = log_vformat(buf, cap, fmt, ap);
    va_end(ap);
    return n;
}

void log_line(enum log_level level, const char *fmt, ...) {
    if (level > current_level) {
        return;
    }
    char line[LINE_MAX_BYTES + 1];
    int prefix = log_format(line, LINE_MAX_BYTES, "%s: ", current_prefix);
    size_t len = min_u64((uint64_t)prefix, LINE_MAX_BYTES - 1);
    va_list ap;
    va_start(ap, fmt);
    int text = log_vformat(line + len, LINE_MAX_BYTES - len, fmt, ap);
    va_end(ap);
    len = min_u64(len + (uint64_t)text, LINE_MAX_BYTES - 1);
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f) {
            line[i] = '?'; // a file name must not be able to forge a second line
        }
    }
    line[len++] = '\n';
    while (os_write(current_fd, line, len) == -EINTR) {
    }
}

// glibc's strerrordesc_np would do, but only since 2.32, and the library must load in older images.
static const struct {
    int err;
    const char *text;
} errors[] = {
    {0, "Success"},
    {EPERM, "Operation not permitted"},
    {ENOENT, "No such file or directory"},
    {ESRCH, "No such process"},
    {EINTR, "Interrupted system call"},
    {EIO, "Input/output error"},
    {ENXIO, "No such device or address"},
    {E2BIG, "Argument list too long"},
    {ENOEXEC, "Exec format error"},
    {EBADF, "Bad file descriptor"},
    {ECHILD, "No child processes"},
    {EAGAIN, "Resource temporarily unavailable"},
    {ENOMEM, "Cannot allocate memory"},
    {EACCES, "Permission denied"},
    {EFAULT, "Bad address"},
    {EBUSY, "Device or resource busy"},
    {EEXIST, "File exists"},
    {EXDEV, "Invalid cross-device link"},
    {ENODEV, "No such device"},
    {ENOTDIR, "Not a directory"},
    {EISDIR, "Is a directory"},
    {EINVAL, "Invalid argument"},
    {ENFILE, "Too many open files in system"},
    {EMFILE, "Too many open files"},
    {ENOTTY, "Inappropriate ioctl for device"},
    {ETXTBSY, "Text file busy"},
    {EFBIG, "File too large"},
    {ENOSPC, "No space left on device"},
    {ESPIPE, "Illegal seek"},
    {EROFS, "Read-only file system"},
    {EMLINK, "Too many links"},
    {EPIPE, "Broken pipe"},
    {ERANGE, "Numerical result out of range"},
    {EDEADLK, "Resource deadlock avoided"},
    {ENAMETOOLONG, "File name too long"},
    {ENOSYS, "Function not implemented"},
    {ENOTEMPTY, "Directory not empty"},
    {ELOOP, "Too many levels of symbolic links"},
    {ENODATA, "No data available"},
    {EBADE, "Invalid exchange"},
    {EREMOTEIO, "Remote I/O error"},
    {ENOLINK, "Link has been severed"},
    {EILSEQ, "Invalid or incomplete multibyte or wide character"},
    {EUCLEAN, "Structure needs cleaning"},
    {EBADMSG, "Bad message"},
    {EHOSTDOWN, "Host is down"},
    {EPROTO, "Protocol error"},
    {EOVERFLOW, "Value too large for defined data type"},
    {EMSGSIZE, "Message too long"},
    {EOPNOTSUPP, "Operation not supported"},
    {EADDRINUSE, "Address already in use"},
    {ECONNRESET, "Connection reset by peer"},
    {ENOTCONN, "Transport endpoint is not connected"},
    {ETOOMANYREFS, "Too many references: cannot splice"},
    {ETIMEDOUT, "Connection timed out"},
    {ECONNREFUSED, "Connection refused"},
    {ESTALE, "Stale file handle"},
    {EDQUOT, "Disk quota exceeded"},
    {ECANCELED, "Operation canceled"},
};

const char *log_errno(int err) {
    for (size_t i = 0; i < ARRAY_LEN(errors); i++) {
        if (errors[i].err == err) {
            return errors[i].text;
        }
    }
    return "Unknown error";
}

void log_directory(int fd, char *buf, size_t cap) {
    char link[32], path[4096];
    log_format(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = os_readlinkat(AT_FDCWD, link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    bool fits = n + 2 <= (ssize_t)cap;
    log_format(buf, cap, "%s%s%s", fits ? "" : "...", path + (fits ? 0 : n + 5 - (ssize_t)cap), n > 0 ? "/" : "");
}
