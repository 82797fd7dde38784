#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: root
#
# Proves that a process of root's which has become somebody else (setfsuid, seteuid) may do what the kernel says and no
# more, while its files are on their way: in a sticky directory, with files there, pending and open, and with an
# engine that runs as another uid than the process has by then. How: a program prints what each call said, natively and
# under the shim; all must be equal, and so must the files. Cannot see security modules, and protected_regular and
# protected_hardlinks only as far as this machine has them on.

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import fc  # noqa: E402


def both(box, kind):
    args = [fc.victim("switch"), kind]
    n, r = box.native(args), box.run(args)
    assert n.rc == 0 and n.out, n
    assert (r.rc, r.lines()) == (0, n.lines()), "\n".join(
        "%s, natively %s" % (b, a) for a, b in zip(n.lines(), r.lines()) if a != b) or r
    box.wait()
    fc.compare_trees(box.native_d, box.d)
    assert not box.leftovers() and not r.failures(), r.err
    return r


def sticky(kind):
    fc.need_root()
    box = fc.Box("identity-" + kind)
    for d in (box.d, box.native_d):
        os.chmod(d, 0o1777)
    r = both(box, kind)
    assert r.classes()[0] >= 6, "staged, captured, followed: %s" % (r.classes(),)


def engine_of_another():
    fc.need_root()
    box = fc.Box("identity-back")
    os.chown(box.rt, fc.USER, fc.USER)
    for d in (box.d, box.native_d):
        os.chmod(d, 0o777)
        os.mkdir(d + "/roots", 0o700)
        fc.write_file(d + "/roots/old", 3 * fc.MIB)
    r = both(box, "back")
    assert r.classes()[0] == 2, "the user's own are staged: %s" % r


fc.run_cases([("identity-fs", lambda: sticky("fs")), ("identity-eff", lambda: sticky("eff")),
              ("identity-back", engine_of_another)])
