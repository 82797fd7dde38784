// SPDX-License-Identifier: MIT
//
// opens: saves a file in the way named by its first argument, in a function of that name, which the test expects to
// find in the line that reports the failure: a directory is put at its name, by a program without the shim. Ways:
// direct, stdio, stream, thread, handler (a signal's), onstack (on its own stack), child (forked while other threads
// save), many (threads at once). numbers: prints those of
// descriptors opened after saves.   opens HOW FILE

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <pthread.h>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#define OWN __attribute__((noinline, noclone))

static const char *path;
static char bytes[100];

static void block(const char *name) {
    const char *argv[] = {"mkdir", name, nullptr};
    char *none[] = {nullptr};
    pid_t pid;
    if (posix_spawn(&pid, "/bin/mkdir", nullptr, nullptr, const_cast<char **>(argv), none) == 0) {
        waitpid(pid, nullptr, 0);
    }
}

extern "C" {

OWN int direct(const char *name) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    block(name);
    ssize_t n = write(fd, bytes, sizeof bytes);
    return close(fd) + (n < 0);
}

OWN int stdio(const char *name) {
    FILE *f = fopen(name, "w");
    block(name);
    size_t n = fwrite(bytes, 1, sizeof bytes, f);
    return fclose(f) + (n == 0);
}

OWN int stream(const char *name) {
    std::ofstream f(name, std::ios::binary);
    block(name);
    f.write(bytes, sizeof bytes);
    f.close();
    return f.bad();
}

OWN void *thread(void *) {
    return direct(path) ? nullptr : bytes;
}

OWN void handler(int) {
    direct(path);
}

OWN void *many(void *arg) {
    for (int i = 0; i < 100; i++) {
        std::string name = std::string(path) + static_cast<const char *>(arg) + std::to_string(i);
        int fd = open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        close(fd);
    }
    return nullptr;
}
}

static void on_signal(bool own_stack) {
    struct sigaction sa = {};
    sa.sa_handler = handler;
    sa.sa_flags = own_stack ? SA_ONSTACK | SA_NODEFER : 0;
    stack_t stack = {};
    stack.ss_sp = malloc(1 << 20);
    stack.ss_size = 1 << 20;
    sigaltstack(&stack, nullptr);
    sigaction(SIGUSR1, &sa, nullptr);
    raise(SIGUSR1);
}

int main(int argc, char **argv) {
    const std::string how = argc > 2 ? argv[1] : "";
    path = argv[argc - 1];
    memset(bytes, 'x', sizeof bytes);
    pthread_t t[3];
    if (how == "direct") {
        direct(path);
    } else if (how == "stdio") {
        stdio(path);
    } else if (how == "stream") {
        stream(path);
    } else if (how == "thread") {
        pthread_create(&t[0], nullptr, thread, nullptr);
        pthread_join(t[0], nullptr);
    } else if (how == "numbers") {
        for (int i = 0; i < 2; i++) {
            direct((how + std::to_string(i)).c_str());
            printf("%d\n", open("/dev/null", O_RDONLY));
        }
    } else if (how == "handler" || how == "onstack") {
        on_signal(how == "onstack");
    } else if (how == "child" || how == "many") {
        const char *names[] = {"-a", "-b", "-c"};
        for (int i = 0; i < 3; i++) {
            pthread_create(&t[i], nullptr, many, const_cast<char *>(names[i]));
        }
        for (int i = 0; i < 20 && how == "child"; i++) {
            pid_t pid = fork();
            if (pid == 0) {
                direct(path);
                _exit(0);
            }
            waitpid(pid, nullptr, 0);
        }
        for (int i = 0; i < 3; i++) {
            pthread_join(t[i], nullptr);
        }
        if (how == "many") {
            direct(path);
        }
    } else {
        return 2;
    }
    puts("end");
    return 0;
}
