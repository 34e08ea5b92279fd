"""What the scripts that measure share: commands, times, tables, and a loop device. Uses only the system;
a failed command ends the script with what it said, and what was made is undone."""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

GIB = 1 << 30
MIB = 1 << 20


def fail(message):
    sys.exit(f"{sys.argv[0]}: {message}")


def run(*args, cwd=None, out=subprocess.DEVNULL, env=None):
    """Runs a command; returns its output if `out` is a pipe."""
    words = [str(arg) for arg in args]
    done = subprocess.run(words, cwd=cwd, stdout=out, stderr=subprocess.PIPE, text=True, env=env)
    if done.returncode != 0:
        fail(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def timed(action):
    """Runs an action; returns the seconds that it took."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def median_ms(times):
    return statistics.median(times) * 1000


def shown(value):
    """A number with the digits that matter; nothing if there is none."""
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def table(head, rows):
    """Prints a table in Markdown, its numbers to the right."""
    print("| " + " | ".join(head) + " |")
    print("|---|" + "--:|" * (len(head) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def build():
    """Builds the command, and the benchmarks beside it; returns its path."""
    os.chdir(Path(__file__).resolve().parent.parent)
    packages = ["-p", "cairnfs-cli", "-p", "cairnfs-bench"]
    subprocess.run(["cargo", "build", "--release", *packages], check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target")).resolve()
    return target / "release" / "cairnfs"


def end_by_signals():
    """An end by a signal undoes what was made, too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))


@contextlib.contextmanager
def served(cairnfs, volume, at, options=""):
    """A volume that is mounted; gives the daemon."""
    option = ["-o", options] if options else []
    command = [cairnfs, "mount", "--foreground", *option, volume, at]
    daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        if "Ctrl-C" not in daemon.stderr.readline():
            fail(f"{volume} was not mounted")
        yield daemon
    finally:
        daemon.send_signal(signal.SIGINT)
        daemon.wait()


@contextlib.contextmanager
def device(image, size):
    """A loop device on an image file whose blocks are all written, so that the host allocates nothing
    meanwhile."""
    with open(image, "xb") as file:
        zeros = bytes(4 * MIB)
        for _ in range(size // len(zeros)):
            file.write(zeros)
        os.fsync(file.fileno())
    try:
        made = run("losetup", "--find", "--show", "--direct-io=on", image, out=subprocess.PIPE)
        loop = Path(made.strip())
        try:
            yield loop
        finally:
            run("losetup", "-d", loop)
    finally:
        image.unlink()
