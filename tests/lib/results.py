# SPDX-License-Identifier: MIT
#
# results: what a system test says of its cases (ok / not ok / skip), and behind a failure what was going on: a failure
# that comes once in a thousand runs is not seen again. What there is to tell, its owners know (`witness`).

import contextlib
import os
import sys
import time
import traceback


class Skip(Exception):
    pass


_failed = 0
only = sys.argv[1:]  # names of cases, to run some of them by hand
_witnesses = []


def say(line):
    print(line, flush=True)


def ok(name):
    say("ok " + name)


def not_ok(name, reason):
    global _failed
    _failed += 1
    say("not ok %s: %s" % (name, " | ".join(str(reason).splitlines())[:1500]))


def skip(name, reason):
    say("skip %s: %s" % (name, reason))


def witness(fn):
    """fn(since) gives lines about what has happened since then (time.monotonic), to be printed behind a failure."""
    _witnesses.append(fn)
    return fn


def _testify(name, since):
    say("  about %s, %.1f s, load %.0f:" % (name, time.monotonic() - since, os.getloadavg()[0]))
    for fn in _witnesses:
        try:
            for line in fn(since):
                say("  " + line)
        except Exception as e:  # the failure counts, not what can be said about it
            say("  %s: %s" % (type(e).__name__, e))


@contextlib.contextmanager
def case(name):
    """One named result: ok unless something inside raises (AssertionError: the reason; Skip: skipped)."""
    since = time.monotonic()
    try:
        yield
    except Skip as e:
        skip(name, e)
    except AssertionError as e:
        where = traceback.extract_tb(e.__traceback__)[-1]
        not_ok(name, "%s (%s:%d)" % (e or where.line, os.path.basename(where.filename), where.lineno))
        _testify(name, since)
    except Exception as e:  # a broken test is a failed test
        where = traceback.extract_tb(e.__traceback__)[-1]
        not_ok(name, "%s: %s (%s:%d)" % (type(e).__name__, e, os.path.basename(where.filename), where.lineno))
        _testify(name, since)
    else:
        ok(name)


def wanted(name):
    return not only or any(o in name for o in only)


def run_cases(cases):
    """cases: (name, function) pairs; exits with 1 if one failed."""
    for name, fn in cases:
        if wanted(name):
            with case(name):
                fn()
    finish()


def finish():
    sys.exit(1 if _failed else 0)
