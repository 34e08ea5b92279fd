//! A client process of the benchmark: makes files when it is told to, and prints its processor time.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use cairnfs_channel::Client;
use cairnfs_fuse::descriptors;
use rustix::fs::{Gid, Mode, Timespec, Timestamps, Uid, fchmod, fchown, futimens};

use super::answer::{CHMOD, CHOWN, CLOSE, CREATE, FINISH, UTIMENS, WRITE};
use crate::Result;
use crate::processor::process_cpu;

/// One client; its standard input is a socket.
#[derive(Debug, Clone, clap::Args)]
pub struct ClientArgs {
    /// Files to make.
    #[arg(long)]
    files: usize,

    /// Bytes of each.
    #[arg(long)]
    bytes: usize,

    /// Directory in which the files are made by system calls. Without it the client receives a channel
    /// over the socket.
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Whether what follows the create is sent with the close.
    #[arg(long)]
    at_close: bool,
}

impl ClientArgs {
    /// Says that it is ready, waits, makes the files, and prints its processor time in nanoseconds.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let contents = vec![7; self.bytes];
        let client = match &self.dir {
            Some(_) => None,
            None => Some(connect(&socket)?),
        };
        socket.write_all(b"r")?;
        socket.read_exact(&mut [0])?;
        let before = process_cpu();
        for number in 0..self.files {
            let name = format!("file-{number}");
            match (&self.dir, &client) {
                (Some(dir), _) => by_system(&dir.join(name), &contents)?,
                (None, Some(client)) => by_channel(client, &name, &contents, self.at_close)?,
                (None, None) => {}
            }
        }
        let used = process_cpu() - before;
        writeln!(out, "{}", used.as_nanos())?;
        Ok(())
    }
}

/// The channel that the socket brings.
fn connect(socket: &UnixStream) -> Result<Client> {
    let (_, fds) = descriptors::receive(socket, &mut [0])?;
    let [memory, doorbell] = <[_; 2]>::try_from(fds).map_err(|_| "no channel came")?;
    Ok(Client::new(memory, doorbell, socket.try_clone()?.into())?)
}

fn by_system(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file: File = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(contents)?;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    fchown(
        &file,
        Some(Uid::from_raw(uid.as_raw())),
        Some(Gid::from_raw(gid.as_raw())),
    )?;
    fchmod(&file, Mode::from_raw_mode(0o644))?;
    let time = Timespec {
        tv_sec: 1_000_000_000,
        tv_nsec: 0,
    };
    futimens(
        &file,
        &Timestamps {
            last_access: time,
            last_modification: time,
        },
    )?;
    Ok(())
}

fn by_channel(client: &Client, name: &str, contents: &[u8], at_close: bool) -> Result<()> {
    let mut reply = [0; 64];
    let create = [CREATE, name.len() as u64];
    client.call(&[&words(create), name.as_bytes()], &mut reply)?;
    let ino = reply
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let len = contents.len() as u64;
    if at_close {
        client.call(&[&words([FINISH, ino, len]), contents], &mut reply)?;
        return Ok(());
    }
    client.call(&[&words([WRITE, ino, len]), contents], &mut reply)?;
    for call in [CHOWN, CHMOD, UTIMENS, CLOSE] {
        client.call(&[&words([call, ino])], &mut reply)?;
    }
    Ok(())
}

/// The bytes of some words.
fn words<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}
