// SPDX-License-Identifier: MIT
//
// engine: the process that serves the clients: one event loop that never blocks on a disk. Split by what happens to an
// entry:
//   intake.c   sockets → entries: peek, record, consume; passes
//   entries.c  what each entry does when its turn has come, and when a waiting one is answered
//   changes.c  the entries that delete or rename
//   chunks.c   the entries by which chunks change hands
//   views.c    the entries that look behind a name
//   waits.c    the entries that wait for others
//   files.c    the slots of files, deletions and renames
//   clients.c  hello, death, leaving
//   engine.c   the loop, start and restart, the crash handler
// Below it: lend (chunks), writer (bytes), commit (names). Above it: keeper, which makes it and makes it again.

#ifndef FASTCKPT_ENGINE_H
#define FASTCKPT_ENGINE_H

#include "commit.h"
#include "drain.h"
#include "lend.h"
#include "refer.h"
#include "safe.h"
#include "sums.h"

#define IDLE_LEAVE_NS  (10ll * 1000000000)  // without clients and work, the pair leaves after this
#define IDLE_UNTOLD_NS (600ll * 1000000000) // ... and after this if nobody has been told of a failure; the log has it

struct engine {
    struct pair p;
    struct io *io;
    struct lend lend;
    struct commit commit;
    struct writer writer;
    struct drain drain;
    struct refer refer;
    struct safe safe;
    struct sums_syncing sums;
    int epoll;
    uint64_t pass; // full looks over all sockets so far
    bool starved;  // no descriptor was free for what a socket holds
    int spare;     // a descriptor to be given up for the moment in which somebody is turned away; negative: none
    unsigned n_inbox, n_waiting, n_free_entries;
    uint32_t inbox[ENTRIES_MAX];   // entries whose turn has not come, by number
    uint64_t read_in[ENTRIES_MAX]; // pass in which an entry was read
    uint32_t waiting[ENTRIES_MAX]; // entries whose answer is due later
    uint32_t free_entries[ENTRIES_MAX];
    unsigned n_free_files, files_high, clients_high; // slots below the high marks have been used by this engine
    uint32_t free_files[FILES_MAX];
    unsigned n_releasing;
    uint32_t releasing[FILES_MAX]; // slots that go as soon as nothing of theirs is in flight
    unsigned n_closing;            // jobs in hand that close the last descriptor of a deleted inode
    uint64_t dying[CLIENTS_MAX];   // pass after which a dead client's last words are all read; 0: alive
    int64_t idle_since_ns;
    bool progress;           // something changed: waiting entries are looked at
    volatile int leave_soon; // a signal asked to end when the work is done
};

extern _Atomic uint64_t engine_serving; // number of the entry that the loop carries out: for the crash handler's blame

/** Runs the engine on the pair's memory; `resumed`: an engine was here before. Returns the exit status: 0 when the pair
 *  may leave. */
int engine_run(int fd_state);

// intake.c
/** Begins to watch what the state has. 0 or an error: nothing would ever be heard. */
int intake_start(struct engine *e);
int intake_watch(struct engine *e, int fd, unsigned kind, unsigned index);
/** Waits for events at most `timeout_ms` and reads what is there. */
void intake_turn(struct engine *e, int timeout_ms);
enum { WATCH_LISTEN, WATCH_CONN, WATCH_CLIENT, WATCH_KEEPER, WATCH_IO };
void intake_drop_conn(struct engine *e, unsigned conn);

// entries.c
/** A recorded entry takes its place in the inbox. */
void entries_enter(struct engine *e, unsigned index);
/** Carries out, in the order of numbers, every entry whose full pass is over. */
void entries_turn(struct engine *e);
/** Answers what can be answered. */
void entries_answer(struct engine *e);
void entries_free(struct engine *e, unsigned index);
void entries_reply(struct engine *e, unsigned conn, struct msg *m, int result, const int *fds, int nfds);
void entries_forget_client(struct engine *e, unsigned client);
void entries_rebuild(struct engine *e);

enum verdict { DONE, WAIT };
/** Answers an entry: what it says goes back in en->msg. DONE. */
enum verdict entries_say(struct engine *e, struct entry *en, int result);
/** The same with descriptors. */
enum verdict entries_answer_fds(struct engine *e, struct entry *en, int result, const int *fds, int nfds);
/** Descriptors pass from the entry to a slot: both record them for a moment, none is closed. */
void entries_keep_fds(struct entry *en, const struct file_slot *f);

// chunks.c
enum verdict chunks_borrow(struct engine *e, struct entry *en);
enum verdict chunks_return(struct engine *e, struct entry *en);
enum verdict chunks_hand_over(struct engine *e, struct entry *en);
enum verdict chunks_arena(struct engine *e, struct entry *en);
enum verdict chunks_refer(struct engine *e, struct entry *en);
enum verdict chunks_arrived(struct engine *e, struct entry *en);

// views.c
enum verdict views_lend(struct engine *e, struct entry *en);
enum verdict views_list(struct engine *e, struct entry *en);
/** More than its chunks may change its bytes from here on: they are no way to have it back, and prove nothing. */
void views_expose(struct engine *e, unsigned slot);
/** Is what was handed over before `number` in the kernel's file? If not, it is hurried there. */
bool views_settled(struct engine *e, unsigned slot, uint64_t number);
/** Another process than its client's looks at the file: all that was written to it comes into the kernel's file, also
 *  what is in its client's hands, and nothing of it is staged any more. False: not all of it is there yet. */
bool views_look(struct engine *e, unsigned slot);

// waits.c
/** What the sender closed before that is still to be published. */
unsigned waits_own(const struct engine *e, const struct entry *en);
enum verdict waits_for(struct engine *e, struct entry *en);
enum verdict waits_leave(struct engine *e, struct entry *en);

// changes.c
enum verdict changes_remove(struct engine *e, struct entry *en);
enum verdict changes_rename(struct engine *e, struct entry *en);
/** Deletions and replacements before `number` that have not freed their space yet. */
unsigned changes_before(const struct engine *e, uint64_t number);

// clients.c
/** Is there a failure that neither its process nor the fastckpt command has been told? */
bool clients_untold(const struct state *st);
/** Handles what has no place in the order: hello, status, failures. True when `m` was one of these: then it has taken
 *  the descriptors, too. */
bool clients_at_once(struct engine *e, unsigned conn, const struct msg *m, int *fds, int nfds);
void clients_hello(struct engine *e, unsigned conn, const struct msg *m, int *fds, int nfds);
void clients_status(struct engine *e, struct status *s, unsigned device);
void clients_gone(struct engine *e, unsigned client);
void clients_turn(struct engine *e);
/** The process of `client` is about to end: what an earlier image of it (before an exec) left open is closed as entry
 *  `number`, and counts as this client's. */
void clients_adopt(struct engine *e, unsigned client, uint64_t number);
void clients_rebuild(struct engine *e);
unsigned clients_count(const struct engine *e);

// files.c
/** The file's end: slot, descriptors, name. Happens when nothing of it is in flight. */
void files_release(struct engine *e, unsigned slot);
void files_release_turn(struct engine *e);
/** Slots that are done, and whose descriptors are not all closed. */
unsigned files_leaving(const struct engine *e);
/** The name of an open file was deleted (`dropped`, `unnamed`): its program goes on with an inode that has none. */
void files_unname(struct engine *e, unsigned slot);
/** commit has finished with a file. */
void files_done(struct engine *e, unsigned slot);
/** Closes the file in the order of numbers as the close message says. */
void files_close(struct engine *e, unsigned slot, const struct msg *m);
/** True when the descriptor table is so full that a further file must wait, or be native. */
bool files_crowded(const struct entry *en);
/** The same, where `fd` has just come. */
bool files_crowded_at(int fd);
int files_open(struct engine *e, const struct entry *en);
/** The slot that the entry with this number has made, or -ENOENT. */
int files_made_before(const struct engine *e, uint64_t number);
/** A free slot, cleared for the entry's client and number, or -ENFILE. It is taken by files_take, once it is filled. */
int files_free_slot(const struct engine *e, const struct entry *en);
void files_take(struct engine *e, unsigned slot, unsigned state);
/** Counts it among its client's pending ones. */
void files_count(struct engine *e, struct file_slot *f);
struct file_slot *files_find(struct engine *e, const struct msg *m);
/** The open file whose inode `fd` is of, or NULL. */
struct file_slot *files_of_inode(const struct engine *e, int fd);
bool files_any(const struct engine *e);
/** The free slots; before the first client is heard. */
void files_rebuild(struct engine *e);

// engine_fd.c
/** Our own description of the inode: a write error is told once per description, and direct writes need O_DIRECT.
 *  `*ret_ours`: it is one, and not the program's. */
int files_description(const struct config *c, int fd, bool followed, uint32_t *direct, bool *ret_ours);
/** A lock lasts as long as any descriptor of its description: the program's becomes one of ours, under the same number,
 *  which jobs may be using. */
void files_part_from_program(struct engine *e, const struct file_slot *f);

#endif
