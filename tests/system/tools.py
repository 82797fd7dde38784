#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# run-as: both
# timeout: 200
#
# Proves that tools of daily life do the same with every file captured: compilers, git, pip, archives, databases,
# editors, make. How: scripts run in twin directories, natively and under FASTCKPT_PATHS='*'; output, errors, exit
# status, names, modes, sizes and bytes must agree. Cannot see what is random in them (such files are named below).

import fnmatch
import os
import re
import stat
import sys
import textwrap

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from fc import *  # noqa: E402,F403

box = Box("box", PATHS="*", STAGING="128M", REPORT="0")
ENV = dict(GIT_AUTHOR_DATE="1700000000 +0000", GIT_COMMITTER_DATE="1700000000 +0000", GIT_AUTHOR_NAME="a",
           GIT_AUTHOR_EMAIL="a@b", GIT_COMMITTER_NAME="a", GIT_COMMITTER_EMAIL="a@b", GIT_CONFIG_NOSYSTEM="1",
           SOURCE_DATE_EPOCH="1700000000", LC_ALL="C", PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1",
           PATH="/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin")


def content(path, top):
    with open(path, "rb") as f:
        data = f.read()
    return data.replace(top.encode(), b"@") if len(data) < MIB else data


def inventory(top, loose):
    """name -> what must be the same of it; of names that match `loose` only type and mode."""
    found = {}
    for folder, dirs, files in os.walk(top):
        for n in dirs + files:
            path = os.path.join(folder, n)
            name, st = os.path.relpath(path, top), os.lstat(path)
            what = [oct(st.st_mode), st.st_uid, st.st_gid]
            if any(fnmatch.fnmatch(name, g) for g in loose):
                name = re.sub(r"\d{3,}", "N", name)
            elif stat.S_ISLNK(st.st_mode):
                what.append(os.readlink(path).replace(top, "@"))
            elif stat.S_ISREG(st.st_mode):
                what += [st.st_nlink, content(path, top)]
            found[name] = what
    return found


def twice(name, script, loose=()):
    """Runs the script natively and under the shim."""
    seen = []
    for shim, base in ((False, box.native_d), (True, box.d)):
        top = os.path.join(base, name)
        os.makedirs(os.path.join(top, "tmp"))
        env = dict(ENV, HOME=top, TMPDIR=os.path.join(top, "tmp"))
        r = box.run(["bash", "-c", textwrap.dedent(script)], cwd=top, shim=shim, env=env, timeout=90)
        seen.append((r.rc, r.out.replace(top, "@"), r.err.replace(top, "@")))
        if shim:
            assert box.wait().rc == 0, "fastckpt wait"
        seen.append(inventory(top, loose))
    n, files, r, got = seen
    assert n == r, "status, output, errors %r, natively %r" % (r, n)
    assert n[0] == 0, "natively: %r" % (n,)
    odd = [x for x in sorted(set(files) | set(got)) if files.get(x) != got.get(x)]
    brief = ["%s: %.150r, natively %.150r" % (x, got.get(x), files.get(x)) for x in odd[:4]]
    assert not odd, "%d files differ: %s" % (len(odd), "; ".join(brief))


def tool(name, needs, loose=()):
    """The case of one script, which needs the programs named."""
    def run():
        for n in needs.split():
            if not shutil.which(n, path=ENV["PATH"]):
                raise Skip("needs " + n)
        twice(name, SCRIPTS[name], loose)
    return name, run


SCRIPTS = {
    "gcc": r"""
        cat > a.c <<'E'
        #include <stdio.h>
        int f(int); int main(void) { return printf("%d\n", f(20)) < 0; }
        E
        printf 'int f(int x) { return x + 1; }\n' > b.c
        gcc -O2 -MMD -c a.c; gcc -O2 -fPIC -c b.c; ar rcsD libb.a b.o; gcc -o p a.o -L. -lb; ./p
        gcc -shared -o libb.so b.o
        gcc -O1 -save-temps -o q a.c b.c && ./q; gcc -E a.c | wc -l; gcc -S -o - b.c | head -3; strip -o s p; ./s
        echo 'int main( {' > bad.c; gcc bad.c; echo $?; ls bad* a.out; gcc -flto -o l a.c b.c; ./l
        objcopy -O binary p p.bin
        """,
    "nvcc": r"""
        printf '__global__ void k(int *p) { *p = 1; }\nint main() { k<<<1, 1>>>(0); return 0; }\n' > k.cu
        nvcc -arch=sm_80 -ptx -o k.ptx k.cu; echo $?; grep -c entry k.ptx; ls
        """,
    "git": r"""
        git init -q -b main r && cd r && for i in 1 2 3 4 5; do seq $i 3000 > f$i; mkdir -p d$i; seq $i > d$i/g; done
        head -c 3M /dev/zero | tr '\0' x > big; git add . && git commit -qm one; echo x >> f1; git rm -q f2
        git mv f3 f6
        git commit -qam two; git status --short; git checkout -q -b side HEAD~1; echo y > f5; git commit -qam three
        git checkout -q main; git merge -q -m merged side; git log --oneline --stat; git tag -a -m t v1; echo z > f4
        git stash -q
        git stash pop -q; git diff --stat; git gc -q; git fsck; cd ..; git clone -q r c; git clone -q --bare r b.git
        cd c; git log --oneline | wc -l; echo w > new; git add new; git commit -qm four
        git push -q origin HEAD:refs/heads/up
        git rebase -q HEAD~1; git worktree add -q ../w side; git archive -o ../a.tar HEAD; git status --short
        git repack -adq
        git reset -q --hard HEAD~1; git clean -fdq; git fetch -q; git branch -a; git bundle create -q ../x.bundle main
        """,
    "pip": r"""
        mkdir -p p/pkg && cd p; printf 'x = 1\n' > pkg/__init__.py; head -c 2000000 /dev/zero > pkg/data.bin
        printf '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n' > pyproject.toml
        cat > setup.py <<'E'
        from setuptools import setup
        setup(name="pkg", version="1", packages=["pkg"], package_data={"": ["*.bin"]})
        E
        /usr/bin/python3 -m pip install -q --no-cache-dir --no-build-isolation --no-deps --no-compile -t ../t . 2>&1
        cd ..; rm -rf p; ls t t/*; PYTHONPATH=t /usr/bin/python3 -c 'import pkg; print(pkg.x, pkg.__file__)'
        """,
    "archives": r"""
        mkdir -p d/e; for i in 1 2 3; do seq 200000 > d/$i; done; head -c 4M /dev/zero > d/e/big; ln d/1 d/hard
        ln -s 1 d/soft
        chmod 600 d/2; chmod 2755 d/e; find d -exec touch -hd @1700000000 {} +
        tar cf a.tar d; tar czf a.tgz d; tar tvf a.tar | wc -l; mkdir x y z; tar xf a.tar -C x; tar xzpf a.tgz -C y
        diff -r x y
        tar rf a.tar --mtime=@1700000000 d/1; tar tf a.tar | tail -1; tar --delete -f a.tar d/2
        tar cf - d | tar xf - -C z
        find z -newermt 2024-01-01 -type f; zip -qrX a.zip d; zip -q -d a.zip d/3; rm -rf d/3; unzip -qo a.zip -d u
        diff -r x/d/e u/d/e
        gzip -nk d/2; gzip -t d/2.gz; gunzip -f d/2.gz; bzip2 -k d/2; xz -k d/2; xz -dc d/2.xz | cmp - d/2
        stat -c %Y d/2.xz x/d/1
        split -n 4 d/2 part.; cat part.* | cmp - d/2
        find d | cpio -o --quiet -H newc --reproducible | cpio -it --quiet | sort
        """,
    "rsync": r"""
        mkdir s; for i in 1 2 3; do seq $i 300000 > s/$i; done; ln s/1 s/h; ln -s 1 s/l
        find s -exec touch -hd @1700000000 {} +
        rsync -aH s/ t/; rsync -aHi s/ t/; echo more >> s/2; rsync -a --inplace s/ t/; seq 5 >> s/3
        rsync -ac --backup s/ t/
        rm s/1 s/l; rsync -a --delete --partial s/ t/; rsync -a --append s/2 t/2; diff -r s t; ls t
        stat -c '%n %Y %a' t/h
        rsync -a --link-dest=$PWD/t s/ u/; stat -c %h u/2; rsync -aW --sparse s/ v/; diff -r s v
        """,
    "sqlite": r"""
        cat > q.py <<'E'
        import sqlite3, dbm, shelve, os
        for mode in ("delete", "wal", "truncate", "persist"):
            db = sqlite3.connect(mode + ".db", isolation_level=None)
            print(db.execute("pragma journal_mode=" + mode).fetchall())
            db.execute("create table t(a integer primary key, b blob)")
            for k in range(20):
                db.execute("begin")
                db.executemany("insert into t(b) values(zeroblob(?))", [(3000 + i,) for i in range(20)])
                db.execute("rollback" if k % 5 == 4 else "commit")
            other = sqlite3.connect(mode + ".db")
            print(other.execute("select count(*), sum(length(b)) from t").fetchall(), sorted(os.listdir(".")))
            other.close()
            db.execute("delete from t where a % 2"), db.execute("vacuum")
            print(db.execute("pragma integrity_check").fetchall())
            copy = sqlite3.connect(mode + ".copy")
            db.backup(copy), copy.close(), db.close()
        with shelve.open("shelf") as s:
            s["a"] = b"x" * 100000
        with shelve.open("shelf") as s:
            print(len(s["a"]))
        print(sorted(os.listdir(".")))
        E
        /usr/bin/python3 q.py
        """,
    "ssh-keygen": r"""
        ssh-keygen -q -t ed25519 -N '' -C c -f k; ssh-keygen -y -f k | cmp - k.pub; ssh-keygen -q -p -N abcdef -f k
        stat -c %a k k.pub
        ssh-keygen -lf k.pub | wc -w; echo data > f; ssh-keygen -q -p -P abcdef -N '' -f k
        ssh-keygen -Y sign -n x -f k f 2>&1; ls
        """,
    "editors": r"""
        seq 1000 > a; vim.tiny -es -u NONE -i NONE -c '%s/9/nine/g' -c 'w' -c 'w b' -c 'set backup' -c '1d' -c 'wq' a
        wc -l a b; ls
        ln -s a l; vim.tiny -es -u NONE -i NONE -c 'norm Ox' -c wq l; readlink l; head -1 a; chmod 600 b
        vim.tiny -es -u NONE -i NONE -c '$d' -c x b; stat -c %a b; echo '/nine/d' > s; sed -i -f s a; sed -i.bak 1d a
        sed -n -i 1,5p b
        perl -pi -e 's/n/N/' a; awk '{ print > "w" NR % 3 }' a; ed -s a <<< $'1d\nw\nq' 2> /dev/null; sort -ro a a
        sort a b -o c; head -3 c
        cp a o; echo new >> a; diff -u o a > p; patch -s o p; cmp o a; patch -sR o p; patch -s --dry-run o p; echo $?
        tac a > t
        uniq c u; comm --nocheck-order a b > m; tee x y < a | md5sum; tee -a x < b > /dev/null; ls
        printf 'a\nb\n' | sponge a 2> /dev/null; rmdir tmp; wc -l *
        """,
    "make": r"""
        printf 'all: $(addprefix o/,1 2 3 4 5 6 7 8 9) all.txt\no/%%: i/%%\n\t@mkdir -p o; sort $< > $@
        echo made $@\n' > Makefile
        printf 'all.txt: $(addprefix o/,1 2 3 4 5 6 7 8 9)\n\tcat $^ > $@\n' >> Makefile; mkdir i
        for i in 1 2 3 4 5 6 7 8 9; do seq $i 60000 > i/$i; done; make -s -j4 | sort; make -j4; sleep 0.02; touch i/3
        make -s -j4
        make -q && echo done; sleep 0.02; echo 1 > i/4; make -s -j4; make -q; echo $?; rm o/5; make -n | head -3
        """,
    "node": r"""
        cat > f.js <<'E'
        const fs = require('fs'), p = require('path');
        fs.writeFileSync('a', Buffer.alloc(5e6, 'a')); fs.appendFileSync('a', 'tail')
        console.log(fs.statSync('a').size);
        fs.copyFileSync('a', 'b'); fs.renameSync('b', 'c')
        console.log(fs.readFileSync('c').length, fs.existsSync('b'));
        const fd = fs.openSync('d', 'w+'); fs.writeSync(fd, 'x'.repeat(3e6)); fs.writeSync(fd, 'y', 10)
        fs.ftruncateSync(fd, 2e6);
        fs.fsyncSync(fd); console.log(fs.fstatSync(fd).size); fs.closeSync(fd)
        fs.mkdirSync('m/n/o', {recursive: true});
        fs.writeFileSync('m/n/o/f', '1'); fs.cpSync('m', 'k', {recursive: true}); fs.rmSync('m', {recursive: true});
        fs.utimesSync('c', 5, 6); console.log(fs.statSync('c').mtimeMs); fs.symlinkSync('c', 's')
        fs.linkSync('c', 'h');
        (async () => { const w = fs.createWriteStream('w')
          for (let i = 0; i < 50; i++) w.write(Buffer.alloc(70000, 48 + i));
          await new Promise(r => w.end(r)); console.log(fs.statSync('w').size);
          await Promise.all([...Array(40).keys()].map(i => fs.promises.writeFile('z' + i, 'z'.repeat(i * 40000))));
          await fs.promises.rename('w', 'z0'); console.log(fs.readdirSync('.').join()); fs.truncateSync('z9', 9);
          try { fs.writeFileSync('no/x', ''); } catch (e) { console.log(e.code); }
          try { fs.writeFileSync('k', ''); } catch (e) { console.log(e.code); } })();
        E
        node f.js
        """,
    "files": r"""
        head -c 3M /dev/zero | tr '\0' q > a; cp a b; cp -a a c; cp --reflink=auto a d; cp -l a e; cp -s a f
        cp -u a b; cp -n a b; cp -b a b
        install -m 640 a g; install -d i; mv g i/; mv i j; mv -n a c; mv -T c k
        dd if=a of=k bs=1M seek=1 conv=notrunc status=none
        dd if=a of=l bs=64k count=30 conv=fsync,sync status=none
        dd if=/dev/zero of=l bs=1 count=9 oflag=append conv=notrunc status=none
        dd if=a of=m bs=1M oflag=direct count=1 status=none; truncate -s 100 d; truncate -s +5M d; fallocate -l 2M n
        fallocate -p -o 0 -l 1M a
        touch -d @5 o; touch -r o p; stat -c '%Y %s %b' o p; stat -c '%s %b' l; stat -c '%s %h %a' *; ls -1; ln -f o q
        ln -sf q r; rm -f q; mktemp -u x.XXX | wc -c
        (set -C; echo x > o) 2> /dev/null; echo $?; for i in 1 2 3 4; do echo $i >> s; echo $i > t; cat t s | wc -c
        done; chmod 000 t; chmod 644 t
        flock s sh -c 'echo locked >> s'; exec 9> u; flock 9; echo nine >&9; cat u; exec 9>&-; find . -size +1M | sort
        find . -newer o | wc -l
        mkdir v; rmdir v; mkdir v; echo w > v/w; rmdir v 2>&1; rm -r v; csplit -s s 3; shred -u xx00
        printf 'a%.0s' {1..2000000} > big; wc -c < big
        cat big big > big2; wc -c big2; cat < big > big3; head -c 1500000 big > big4; tail -c 1500000 big > big5
        cmp big4 big5; md5sum big?
        { echo one; sleep 0.1; echo two; } > slow & wait; cat slow; sync big; sync -f big; cp big o; cat o | wc -c
        df . > /dev/null; du -k big
        """,
    "venv": r"""
        /usr/bin/python3 -m venv --without-pip v; v/bin/python -c 'import sys; print(sys.prefix)'
        /usr/bin/python3 -m compileall -q v
        v/bin/python - <<'E'
        import logging.handlers, pickle, tarfile, zipfile, shutil, tempfile, os, json, csv
        h = logging.handlers.RotatingFileHandler('log', maxBytes=5000, backupCount=3)
        log = logging.getLogger(); log.addHandler(h)
        for i in range(400): log.warning('line %d', i)
        with zipfile.ZipFile('z.zip', 'w') as z: z.writestr(zipfile.ZipInfo('a'), b'x' * 3000000)
        with zipfile.ZipFile('z.zip', 'a') as z: z.writestr(zipfile.ZipInfo('b'), b'y' * 3000)
        print(zipfile.ZipFile('z.zip').testzip(), os.path.getsize('z.zip'))
        with tempfile.NamedTemporaryFile('w', dir='.', delete=False) as f: json.dump(list(range(300000)), f)
        os.replace(f.name, 'j.json'); print(len(json.load(open('j.json'))), sorted(os.listdir('.')))
        shutil.copytree('v', 'w', symlinks=True); shutil.rmtree('w'); shutil.move('j.json', 'k.json')
        with open('c', 'w+') as f: f.write('a' * 2000000); f.seek(5); f.write('b'); f.seek(0); print(len(f.read()))
        with open('c', 'r+b') as f: f.truncate(1500000); f.seek(0, 2); f.write(b'end'); print(f.tell())
        E
        tail -1 log
        """,
}


def used():
    """All that went by the engine, not past it."""
    status = box.status()
    assert status and status["published_files"] > 100, status


CASES = [tool("gcc", "gcc"), tool("git", "git", ("r/.git/index", "c/.git/index", "*/worktrees/*/index", "*.git/index")),
         tool("pip", "", ("*/RECORD",)), tool("archives", "tar zip unzip gzip bzip2 xz cpio"), tool("rsync", "rsync"),
         tool("sqlite", "", ("persist.db-journal", "shelf*")),
         tool("editors", "vim.tiny perl patch", ("p",)), tool("make", "make"), tool("files", "flock"), tool("venv", "")]
CASES += [tool("ssh-keygen", "ssh-keygen", ("k", "k.pub", "f.sig"))] * IS_ROOT  # it wants an account
CASES += [tool(n, n) for n in ("nvcc", "node") if shutil.which(n, path=ENV["PATH"])]
run_cases(CASES + [("used", used)])
