"""Random calls of four programs on the same names, two of them run by a command (`cairnfs run --`), compared
with the same calls on another file system. Arguments: the worker, the seed, the number of calls, the directory
of the mount, the one to compare with, and the command."""

import json
import os
import random
import shutil
import subprocess
import sys

worker, seed, steps, mounted, other, *command = sys.argv[1:]
choose = random.Random(int(seed))
places = [os.path.join(place, f"sequence-{seed}") for place in (mounted, other)]
for place in places:
    os.mkdir(place)


def start(place, before):
    words = [*before, sys.executable, worker, place]
    pipe = subprocess.PIPE
    program = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
    program.stdout.readline()
    return program


def ask(program, call):
    program.stdin.write(json.dumps(call) + "\n")
    program.stdin.flush()
    return json.loads(program.stdout.readline())


programs = [[start(places[0], before) for before in (command, command, [], [])]]
programs.append([start(places[1], []) for _ in range(4)])

# What exists, as far as this is known; and the open files of each program.
dirs, files, opened = ["."], [], [[] for _ in range(4)]
made = 0


def new():
    global made
    made += 1
    name = f"n{made}" if choose.random() < 0.8 else choose.choice("abc")
    return f"{choose.choice(dirs[-6:] + dirs[:1])}/{name}"


def old():
    return choose.choice(files[-10:]) if files else "a"


def dir():
    return choose.choice(dirs[-6:])


def any_path():
    return choose.choice([old, old, dir, new])()


def text():
    return "".join(choose.choices("abcdefgh", k=choose.choice([1, 3, 10, 100, 5000, 20000])))


def time():
    return choose.randrange(99) * 10**9 + 5


CREATE = os.O_CREAT | os.O_RDWR
FLAGS = [CREATE, CREATE | os.O_EXCL, CREATE | os.O_TRUNC, os.O_RDWR, os.O_RDONLY]
FLAGS.append(os.O_CREAT | os.O_WRONLY | os.O_APPEND)

# How often each call is made, and its arguments; those of open files get the file besides.
BY_PATH = {
    "open": (30, lambda: [choose.randrange(3), choose.choice([new, new, old])(), choose.choice(FLAGS), choose.choice([0o644, 0o600, 0o444, 0])]),
    "mkdir": (14, lambda: [new(), 0o755]),
    "rmdir": (6, lambda: [dir()]),
    "unlink": (12, lambda: [old()]),
    "rename": (16, lambda: [any_path(), any_path()]),
    "link": (2, lambda: [old(), new()]),
    "symlink": (3, lambda: ["target", new()]),
    "chmod": (6, lambda: [any_path(), choose.choice([0o600, 0o755, 0])]),
    "chown": (3, lambda: [any_path(), choose.choice([0, 1000, -1]), choose.choice([0, 1000])]),
    "utime": (5, lambda: [any_path(), time(), time()]),
    "stat": (8, lambda: [any_path()]),
    "follow": (4, lambda: [any_path()]),
    "statx": (4, lambda: [any_path(), choose.choice([0, 0x100]), choose.choice([0x7FF, 0xFFF, 0x17FF])]),
    "access": (4, lambda: [any_path(), choose.randrange(8)]),
    "list": (1, lambda: [dir()]),
    "read": (6, lambda: [old()]),
    "append": (1, lambda: [any_path(), text()]),
}
BY_FILE = {
    "write": (20, lambda: [text()]),
    "writev": (4, lambda: [text(), text(), text()]),
    "pwrite": (6, lambda: [text(), choose.randrange(9000)]),
    "pread": (6, lambda: [choose.randrange(30000), choose.randrange(100)]),
    "seek": (6, lambda: [choose.randrange(-50, 9000), choose.randrange(3)]),
    "truncate": (6, lambda: [choose.choice([0, 5, 5000, 30000])]),
    "fstat": (6, lambda: []),
    "fchmod": (5, lambda: [choose.choice([0o600, 0o4755, 0])]),
    "fchown": (3, lambda: [choose.choice([0, 1000, -1]), choose.choice([0, 1000])]),
    "futimens": (5, lambda: [time(), time()]),
    "close": (8, lambda: []),
    "dup": (1, lambda: [choose.randrange(3)]),
    "dup2": (1, lambda: [choose.randrange(3)]),
    "mmap": (1, lambda: []),
    "map": (3, lambda: []),
    "fsync": (1, lambda: []),
    "fdatasync": (1, lambda: []),
    "fork": (1, lambda: ["forked"]),
    "inherit": (1, lambda: ["inherited"]),
}
def below():
    path = choose.choice(files[-10:] + dirs[-6:])
    return path.rsplit("/", 1)[-1]


BY_DIR = {
    "opendir": (12, lambda: [choose.randrange(2), dir()]),
    "openbelow": (8, lambda: [choose.randrange(2), below(), choose.randrange(2)]),
    "listdir": (8, lambda: [choose.randrange(2)]),
    "statat": (8, lambda: [choose.randrange(2), below()]),
    "fstatdir": (4, lambda: [choose.randrange(2)]),
    "removeat": (10, lambda: [choose.randrange(2), below()]),
    "mkdirat": (4, lambda: [choose.randrange(2), below()]),
    "createat": (8, lambda: [choose.randrange(2), choose.choice("abc"), text()]),
    "renameat": (4, lambda: [choose.randrange(2), below(), choose.choice("abc")]),
    "readat": (1, lambda: [choose.randrange(2), below()]),
    "enter": (1, lambda: [choose.randrange(2)]),
    "dupdir": (2, lambda: [choose.randrange(2)]),
}
ALL = BY_PATH | BY_FILE | BY_DIR


def next_call(program):
    name = choose.choices(list(ALL), [often for often, _ in ALL.values()])[0]
    args = ALL[name][1]()
    if name in BY_FILE:
        args.insert(0, choose.choice(opened[program][-2:] or [0]))
        if name == "dup" and args[0] == args[1]:
            name, args = "fstat", args[:1]
    return [name, *args]


def moved(path, old, new):
    is_below = path == old or path.startswith(old + "/")
    return new + path[len(old) :] if is_below else path


def note(program, call):
    name, *args = call
    if name == "open":
        opened[program].append(args[0])
        files.append(args[1])
    elif name == "mkdir":
        dirs.append(args[0])
    elif name == "rename":
        files[:] = [moved(path, *args) for path in files]
        dirs[:] = [moved(path, *args) for path in dirs]
    elif name == "unlink":
        files[:] = [path for path in files if path != args[0]]
    elif name == "rmdir" and args[0] in dirs:
        dirs.remove(args[0])


log = []
for step in range(int(steps)):
    # A walk through the tree makes it known to the kernel, so it is rare.
    is_walk = step % 150 == 149 or step == int(steps) - 1
    program = choose.choice([2, 3] if is_walk else [0, 0, 0, 0, 1, 1, 1, 2, 3])
    call = ["tree"] if is_walk else next_call(program)
    results = [ask(of[program], call) for of in programs]
    log.append([program, call, results[0]])
    if results[0] != results[1]:
        print(f"seed {seed}, call {step}: it is the first result, and should be the second")
        for entry in log[-40:]:
            print(str(entry)[:200])
        if is_walk:
            results = [[e for e in a if e not in b] for a, b in (results, results[::-1])]
        print(*(str(result)[:1000] for result in results), sep="\n")
        sys.exit(1)
    if results[0] is None:
        note(program, call)
    if step % 60 == 59:
        # The kernel forgets what nobody uses, so that the library has it again.
        with open("/proc/sys/vm/drop_caches", "w") as caches:
            caches.write("2")
for program in programs[0] + programs[1]:
    program.stdin.close()
    program.wait()
for place in places:
    shutil.rmtree(place)
