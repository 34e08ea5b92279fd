//! The longer texts of `--help`: what the phases, columns and figures mean, and what the prepared
//! sets of tasks run.

/// For `fsmark`.
pub(crate) const FSMARK: &str = "\
Phases:
  create                all threads create their files, each in its own directories
  sync created          making these files durable
  create synced         both together: the cost of a file until it is durable
  walk                  listing every directory with the attributes of every file
  walk again            the same a second time: on a mount, from the kernel's cache
  reopen                closing and opening, or unmounting and mounting, with caches dropped
  walk cold             the walk with nothing in memory
  stat                  the attributes of every file by its path, one call at a time
  open + read + close   reading every file as a whole, one at a time
  unlink                removing every file
  sync                  making the removal durable
  close                 closing, or unmounting, including deferred work
  all, until synced     all phases except the sums; one operation is the whole life of a file

Examples:
  cairnfs-bench fsmark --threads 8 --files 50000
  cairnfs-bench fsmark --size 4K --sync --target /mnt";

/// For `compare`.
pub(crate) const COMPARE: &str = "\
Columns (--with):
  cairnfs               the library, by path; calls in the same process
  cairnfs-without-NAME  as cairnfs, with that mechanism left out
  cairnfs-mount         `cairnfs mount`; system calls, through FUSE
  cairnfs-run           the same, with programs run by `cairnfs run`; only in rows of programs
  noop                  a FUSE mount that answers every request and stores nothing: the upper bound
                        of a mount; it has no walks and no attributes to read back
  raw                   the device itself: a write and a flush, past the page cache; only in fsync,
                        and in mixed without its load
  xfs, ext4, btrfs      the kernel's file systems; system calls

What is done: The image is filled with zeros, attached as a loop device with direct I/O, and removed
at the end; it refuses discards. Each round runs every file system in turn, and begins with another
one. Each task gets a newly made file system, with the defaults of its mkfs, and no caches. Cold
means: unmounted or closed, caches dropped, mounted or opened again. CairnFS is synced as
`cairnfs sync` does it. After a signal or a failure no mount, loop device or image is left.

Tables: Speed has the median of the rounds, the least and the greatest value; phases without
operations show seconds. `How many times as fast` has medians of the ratios of each round; above 1
CairnFS is faster. Cost, from the block layer and /proc, medians:
  device writes per 1000    write requests that reached the device, after merging
  device bytes written each bytes of these requests per operation
  device reads per 1000     read requests that reached the device
  flushes per 1000          flushes of the device's cache; not counted on a partition
  log bytes each            bytes that CairnFS wrote to its log; in-process only
  CPU us each               time of the program, and of a FUSE daemon; no threads of the kernel
  daemon CPU us each        the daemon's part of it
  machine CPU us each       time of all processors that was not idle, with threads of the kernel;
                            in steps of 10 ms, so it says little of phases below a second
Rows of zeros are left out.

--external: `dbench` has 40 clients, and one operation is a megabyte. `fio` writes 64 KiB and fsyncs,
by 1, 4, 16 and 64 jobs, 256 MiB in all, and 4 KiB at random by 1 and 16, 16 MiB in all. `fs_mark`
creates 10,000 empty files in each of 8 processes. These and pgbench report their speed themselves.
The names of programs of --everyday run their rows alone.

--single-client runs each load with 1 and with 8 clients, which share the same number of files:
fsmark of empty files with --stat, fsmark of 4 KiB with --read; tar x of files of 3 KiB in the mean,
20 in a directory, and rm -rf; git clone, and git status ten times; and the workload neighbour.

--everyday:
  git      clone of a packed repository on another file system; status cold, and again ten times
  cargo    build of a generated workspace, offline; the same again without a change
  npm      ci --offline of generated packages of 25 files each
  tar      x of small files, grep -r cold and again, rm -rf
  SQLite   write-ahead log, synchronous=FULL: one insert a transaction; 1,000 inserts
  pgbench  its built-in transactions, scale 4, 4 clients, the server's default settings
  maildir  delivery by 1 and by 16 jobs
Inputs are generated from a fixed seed in TMPDIR, which must not be on the measured device, and are in
the page cache before the clock starts. `synced` includes a sync of the file system. Results are
checked. A program that is not installed is reported, and its rows are left out.

Examples:
  cairnfs-bench compare --device /var/tmp/image
  cairnfs-bench compare --device /var/tmp/image --with cairnfs-mount,ext4 'maildir --jobs 16' 'fsync --jobs 4'
  cairnfs-bench compare --device /var/tmp/image --threads 1,2,4,8,16,64 --json figures.json
  cairnfs-bench compare --device /var/tmp/image --mechanisms
  cairnfs-bench compare --device /var/tmp/image --single-client -o write=back
  cairnfs-bench compare --device /var/tmp/image --everyday --rounds 2 --require-programs
  cairnfs-bench compare --device /dev/sdX --force --external dbench,fio,fs_mark --markdown

Only root can do this. How to read the figures is in docs/benchmarks.md.";
