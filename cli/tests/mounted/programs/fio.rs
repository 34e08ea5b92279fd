//! fio: verifies all written data, with each I/O engine, in both write modes.

use std::process::Command;

use cairnfs_tier::size;

use crate::place::{Place, able, arg, succeed};

/// Runs one fio job that verifies all its writes, in both write modes.
fn fio(name: &str, options: &[&str]) {
    if !able(&["fio"]) {
        return;
    }
    for mode in ["write=through", "write=back"] {
        let place = Place::mounted("1G", mode);
        let mut command = Command::new("fio");
        command.current_dir(place.beside("")).args(options).args([
            &format!("--directory={}", arg(&place.dir())),
            &format!("--name={name}"),
            size::<&str>("--size=8m", "--size=32m"),
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
            "--randseed=7",
            "--output-format=terse",
        ]);
        succeed(&mut command);
        place.finish();
    }
}

#[test]
fn fio_verifies_random_buffered_writes() {
    fio(
        "buffered",
        &[
            "--rw=randwrite",
            "--ioengine=psync",
            "--bsrange=512-128k",
            "--bs_unaligned",
            "--numjobs=2",
        ],
    );
}

#[test]
fn fio_verifies_fsynced_overwrites() {
    fio(
        "fsync",
        &["--rw=randwrite", "--bs=4k", "--fsync=64", "--loops=2"],
    );
}

#[test]
fn fio_verifies_direct_writes() {
    let direct = [
        "--rw=randwrite",
        "--bs=16k",
        "--direct=1",
        "--ioengine=libaio",
        "--iodepth=8",
    ];
    fio("direct", &direct);
}

#[test]
fn fio_verifies_io_uring_writes() {
    let buffered = [
        "--rw=randrw",
        "--bsrange=4k-64k",
        "--ioengine=io_uring",
        "--iodepth=16",
        "--fsync=128",
        "--numjobs=2",
    ];
    fio("ring", &buffered);
    let direct = [
        "--rw=randwrite",
        "--bs=8k",
        "--direct=1",
        "--ioengine=io_uring",
        "--iodepth=16",
    ];
    fio("direct-ring", &direct);
}

#[test]
fn fio_verifies_memory_mapped_writes() {
    fio(
        "mapped",
        &[
            "--rw=randrw",
            "--bs=4k",
            "--ioengine=mmap",
            "--fsync=256",
            "--numjobs=2",
        ],
    );
}
