//! What the commands on snapshots and branches have in common: the open volume as the library has
//! it, in their own process or in the daemon of its mounts, their options, what they say, and their
//! failures.

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs::{RootInfo, Time};
use cairnfs_daemon::failure::{self, AnyError, Failure, io_text, show_bytes, shown};
use cairnfs_daemon::handover::frames::NamedMount;
use cairnfs_daemon::mounts::{Mounts, Shipping};
use cairnfs_daemon::raw_path;
use cairnfs_daemon::reference::{change_failure, name_of, root_failure};
use cairnfs_daemon::shell;
use cairnfs_disk::format::root::MAIN_NAME;
use serde::{Deserialize, Serialize};

use crate::output;
use crate::stage::Stage;
use crate::volume_by_path::{Access, Volume};

/// An open volume, for calls on whole roots.
pub struct Roots<'a> {
    path: PathBuf,
    library: cairnfs::Volume,
    place: Place<'a>,
    /// The branch or snapshot whose mount was named in place of the volume, and has ended.
    named: Option<String>,
    stage: &'a Stage,
}

/// Where a volume is open.
enum Place<'a> {
    /// In this process, for this command.
    Here(Volume),
    /// In this process, which is the daemon of its mounts; one of them was named in place of the volume.
    Mounted(&'a dyn Mounts, Option<NamedMount>),
}

impl<'a> Roots<'a> {
    /// Opens a volume that no daemon has open; `named` is the branch or snapshot whose mount was named,
    /// and has ended.
    pub fn open(
        path: &Path,
        named: Option<&str>,
        access: Access,
        stage: &'a Stage,
    ) -> cairnfs::Result<Self> {
        let opened = Volume::try_open(path, access)?;
        Ok(Self {
            path: path.to_path_buf(),
            library: cairnfs::Volume::from(opened.fs().clone()),
            place: Place::Here(opened),
            named: named.map(str::to_owned),
            stage,
        })
    }

    /// The open volume of a daemon, which the user calls `path`; that is `mount`, or the volume itself.
    pub fn of_daemon(
        path: &Path,
        fs: Arc<FileSystem>,
        (mounts, mount): (&'a dyn Mounts, Option<NamedMount>),
        stage: &'a Stage,
    ) -> Self {
        Self {
            path: path.to_path_buf(),
            library: cairnfs::Volume::from(fs),
            place: Place::Mounted(mounts, mount),
            named: None,
            stage,
        }
    }

    /// The calls.
    pub fn volume(&self) -> &cairnfs::Volume {
        &self.library
    }

    /// Where the command speaks.
    pub fn stage(&self) -> &'a Stage {
        self.stage
    }

    /// Calls `once` with the branch that is `given`, or meant if none is: that of the mount, or main. If
    /// that has got another name meanwhile and `once` fails, it is called again with that one. What it does
    /// is done wholly or not at all, so nothing is done twice.
    pub fn on_branch<T, E>(
        &self,
        given: Option<&str>,
        mut once: impl FnMut(&str) -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            let branch = given.map_or_else(|| self.branch(), str::to_owned);
            match once(&branch) {
                Err(_) if given.is_none() && self.branch() != branch => {}
                done => return done,
            }
        }
    }

    fn branch(&self) -> String {
        let named = match &self.place {
            Place::Mounted(mounts, mount) => mount.as_ref().and_then(|mount| mounts.name_of(mount)),
            Place::Here(_) => self.named.clone(),
        };
        named.unwrap_or_else(|| MAIN_NAME.to_owned())
    }

    /// The branch or snapshot of a reference.
    ///
    /// # Errors
    /// There is none.
    pub fn find(&self, reference: &str) -> Result<RootInfo, Failure> {
        let found = match self.stage.zone_name() {
            Some(zone) => self.library.find_root_in_zone(reference, zone),
            None => self.library.find_root(reference),
        };
        found.map_err(|e| root_failure(&self.path, reference, &e))
    }

    /// Finds the branch or snapshot of a reference, and makes sure that what programs have written to
    /// it through its mount has arrived.
    ///
    /// # Errors
    /// There is none, or the kernel cannot be asked for what it holds.
    pub fn find_whole(&self, reference: &str) -> Result<RootInfo, Failure> {
        let root = self.find(reference)?;
        self.fetch(&root)?;
        Ok(root)
    }

    /// Calls `once`, which finds and uses these references; again and again as long as it fails and one of
    /// them leads elsewhere than before: a publish, a restore, a renaming or a drop beside it has moved
    /// that. What it does is done wholly or not at all, so nothing is done twice.
    pub fn with<T, E>(
        &self,
        references: &[&str],
        mut once: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let meant = || -> Vec<_> {
            let found = references.iter().map(|reference| self.find(reference).ok());
            found
                .map(|root| root.map(|root| (root.id, root.writable, root.name)))
                .collect()
        };
        loop {
            let before = meant();
            match once() {
                Err(_) if meant() != before => {}
                done => return done,
            }
        }
    }

    /// Has what programs have written to all branches arrive. Warns of each branch whose mount cannot be
    /// asked for it: that must not stop what the caller does with the others.
    pub fn fetch_all(&self) {
        let roots = self.library.roots();
        let named = roots
            .iter()
            .filter(|root| root.writable && root.name.is_some());
        for root in named {
            if let Err(why) = self.fetch(root) {
                self.stage.tell(&why);
            }
        }
    }

    fn fetch(&self, root: &RootInfo) -> Result<(), Failure> {
        if let Place::Mounted(mounts, _) = &self.place
            && let Err(error) = mounts.fetch(name_of(root))
        {
            let what = format!("{}: {}", shown(&self.path), show_name(root));
            let why = "what programs have written to it may be missing";
            return Err(Failure::new(
                what,
                format_args!("{why}: {}", io_text(&error)),
            ));
        }
        Ok(())
    }

    /// Fails if a branch is mounted: it cannot be taken away from those who use it.
    ///
    /// # Errors
    /// Where it is mounted.
    pub fn check_unmounted(&self, root: &RootInfo) -> Result<(), Failure> {
        let Place::Mounted(mounts, _) = &self.place else {
            return Ok(());
        };
        match mounts.mounted_on(root.id) {
            Some(dir) => {
                let what = format!("{}: {}", shown(&self.path), show_name(root));
                let why = format!("is mounted on {}", shown(&dir));
                Err(Failure::new(what, why).hint(format_args!(
                    "unmount it first: cairnfs umount {}",
                    shell::word_of_path(&dir)
                )))
            }
            None => Ok(()),
        }
    }

    /// Calls `change`, which may give the name of a branch to another root; its mount shows that one
    /// then. If it cannot, that is told. `others` are the names that it takes away or gives besides:
    /// nothing is mounted of what they lead to before it has ended.
    pub fn replacing<T>(&self, root: &RootInfo, others: &[&str], change: impl Fn() -> T) -> T {
        let mut done = None;
        if let Place::Mounted(mounts, _) = &self.place {
            let mut change = || done = Some(change());
            let followed = mounts.replacing(name_of(root), others, &mut change);
            if let Err(why) = followed {
                let what = format!("{}: {}", shown(&self.path), show_name(root));
                let why = format!("the mount still shows its files of before: {why}");
                self.stage
                    .tell(&Failure::new(what, why).hint("unmount it, and mount it again"));
            }
        }
        done.unwrap_or_else(change)
    }

    /// Whether a mount with this device number is one of the volume.
    pub fn is_mounted_as(&self, device: &str) -> bool {
        match &self.place {
            Place::Mounted(mounts, _) => mounts.serves(device),
            Place::Here(_) => false,
        }
    }

    /// Waits until all that was done before is in the backup that the mounts ship to.
    ///
    /// # Errors
    /// The command was interrupted.
    pub fn ship(&self) -> Result<Shipping, Failure> {
        match &self.place {
            Place::Mounted(mounts, _) => mounts.ship(&|| self.stage.check()),
            Place::Here(_) => Ok(Shipping::No),
        }
    }

    /// The file or device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes all changes and closes the volume, unless others use it.
    ///
    /// # Errors
    /// The changes could not be written.
    pub fn close(self) -> Result<(), Failure> {
        match self.place {
            Place::Here(opened) => opened.close(),
            Place::Mounted(..) => Ok(()),
        }
    }
}

/// The next step for a path that is not there.
pub const ROOTED: &str =
    "a PATH begins at the root of the volume, whatever the working directory is";

/// How a command that changes roots tells what it did.
#[derive(Debug, clap::Args, Serialize, Deserialize)]
pub struct Telling {
    /// Print nothing except errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

impl Telling {
    /// Tells what was done, as JSON or as lines of text.
    ///
    /// # Errors
    /// Standard output failed; what was done stays.
    pub fn tell(
        &self,
        stage: &Stage,
        json: &impl Serialize,
        lines: &[impl Display],
    ) -> Result<(), AnyError> {
        failure::told(self.print(stage, json, lines))
    }

    /// Prints a result as JSON, or as lines of text.
    pub fn print(
        &self,
        stage: &Stage,
        json: &impl Serialize,
        lines: &[impl Display],
    ) -> Result<(), AnyError> {
        if self.json {
            return stage.json(json);
        }
        let mut out = stage.out();
        for line in lines.iter().filter(|_| !self.quiet) {
            writeln!(out, "{line}")?;
        }
        Ok(out.flush()?)
    }
}

/// Arguments of a command that makes a snapshot or branch.
#[derive(Debug, clap::Args, Serialize, Deserialize)]
pub struct NewRoot {
    /// The volume, or where it is mounted
    #[serde(with = "raw_path")]
    pub volume: PathBuf,
    /// Its name
    // What begins like an option is refused with the rules for names.
    #[arg(allow_hyphen_values = true)]
    name: String,
    #[command(flatten)]
    telling: Telling,
}

impl NewRoot {
    /// Makes it of the root of the reference `from`, or else of the branch that is meant, by `make`, which
    /// gets the name of that root and the new one.
    ///
    /// # Errors
    /// There is no such root, or nothing can be made of it.
    pub fn make(
        &self,
        roots: &Roots<'_>,
        from: Option<&str>,
        make: impl Fn(&cairnfs::Volume, &str, &str) -> cairnfs::Result<RootInfo>,
    ) -> Result<u8, AnyError> {
        let once = |from: &str| {
            let from = roots.find_whole(from)?;
            let made = make(roots.volume(), name_of(&from), &self.name);
            made.map_err(|e| change_failure(roots.path(), &self.name, &e))
        };
        let made = roots.on_branch(from, |from| roots.with(&[from], || once(from)))?;
        let line = format!("Made the {} {}", kind(&made), show_name(&made));
        self.telling
            .tell(roots.stage(), &JsonRoot::from(&made), &[line])?;
        Ok(0)
    }
}

/// A root as JSON.
#[derive(Serialize)]
pub struct JsonRoot {
    id: u32,
    name: Option<String>,
    kind: &'static str,
    parent: Option<u32>,
    /// When it was made; of the main branch of a volume without snapshots unknown.
    created: Option<String>,
}

impl From<&RootInfo> for JsonRoot {
    fn from(root: &RootInfo) -> Self {
        Self {
            id: root.id,
            name: root.name.clone(),
            kind: kind(root),
            parent: root.parent,
            created: created(root).map(output::utc_time),
        }
    }
}

/// What a root is, in a word or two.
pub fn kind(root: &RootInfo) -> &'static str {
    match (root.writable, &root.name) {
        (true, Some(_)) => "branch",
        // A branch without a name is what was prepared and not finished; the next opening drops it.
        (true, None) => "unfinished",
        (false, Some(_)) => "snapshot",
        (false, None) if root.being_dropped => "being dropped",
        (false, None) => "fork point",
    }
}

/// When a root was made, if that is known.
pub fn created(root: &RootInfo) -> Option<Time> {
    Some(root.created).filter(|time| *time != Time::default())
}

/// The name of a root for people.
pub fn show_name(root: &RootInfo) -> String {
    match &root.name {
        Some(name) => show_bytes(name.as_bytes()),
        None => "-".to_owned(),
    }
}

/// The line that says how to take a change of `branch` back, which has kept a snapshot.
pub fn take_back(volume: &Path, kept: &str, branch: &str) -> String {
    let volume = shell::word_of_path(volume);
    let (kept, branch) = (shell::word(kept), shell::word(branch));
    format!("To take this back: cairnfs restore {volume} {kept} --branch {branch}")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;

    use clap::Parser;

    use super::*;
    use crate::verbs::Verb;

    /// Mounts in which something happens as soon as a replacement has begun, or is about to be looked at.
    struct Meanwhile<F> {
        happens: F,
        looks: Cell<u32>,
    }

    impl<F: Fn(u32) -> Option<String>> Mounts for Meanwhile<F> {
        fn fetch(&self, _branch: &str) -> io::Result<()> {
            Ok(())
        }

        fn replacing(
            &self,
            _branch: &str,
            _others: &[&str],
            change: &mut dyn FnMut(),
        ) -> cairnfs::Result<()> {
            self.looks.set(self.looks.get() + 1);
            change();
            Ok(())
        }

        fn name_of(&self, _mount: &NamedMount) -> Option<String> {
            self.looks.set(self.looks.get() + 1);
            (self.happens)(self.looks.get())
        }

        fn serves(&self, _device: &str) -> bool {
            true
        }

        fn mounted_on(&self, _root: u32) -> Option<PathBuf> {
            (self.happens)(self.looks.get()).map(PathBuf::from)
        }

        fn ship(&self, _check: &dyn Fn() -> Result<(), Failure>) -> Result<Shipping, Failure> {
            Ok(Shipping::No)
        }
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(subcommand)]
        verb: Verb,
    }

    /// Performs a command on a volume with mounts to which something happens.
    fn perform(
        volume: &cairnfs::Volume,
        happens: impl Fn(u32) -> Option<String>,
        words: &[&str],
    ) -> Result<u8, String> {
        let stage = Stage::on_errors().unwrap();
        let mounts = Meanwhile {
            happens,
            looks: Cell::new(0),
        };
        let mount = NamedMount {
            device: "0:1".into(),
            name: None,
        };
        let fs = Arc::clone(volume.file_system());
        let roots = Roots::of_daemon(Path::new("v"), fs, (&mounts, Some(mount)), &stage);
        let words = ["cairnfs"].iter().chain(words);
        let verb = Line::try_parse_from(words).unwrap().verb;
        verb.perform(&roots).map_err(|error| error.to_string())
    }

    /// A branch is mounted between the look at its mounts and the moment from which on it gets none.
    #[test]
    fn branch_that_is_mounted_meanwhile_is_not_published() {
        let volume = cairnfs::Volume::in_memory(64 << 20).unwrap();
        drop(volume.branch("work").unwrap());
        let mounted = |begun: u32| (begun > 0).then(|| "/mnt".to_owned());
        let refused = perform(&volume, mounted, &["publish", "-q", "v", "work"]);
        assert_eq!(refused, Err("v: work: is mounted on /mnt".into()));
        assert!(volume.find_root("work").is_ok());
        assert_eq!(
            perform(&volume, |_| None, &["publish", "-q", "v", "work"]),
            Ok(0)
        );
    }

    /// The mounted branch is renamed when a command has just asked for its name.
    #[test]
    fn mounted_branch_is_followed_to_its_new_name() {
        let words: [&[&str]; 4] = [
            &["snapshot", "-q", "v", "s"],
            &["branch", "-q", "v", "b"],
            &["restore", "-q", "v", "first"],
            &["diff", "-q", "v", "first"],
        ];
        for words in words {
            let volume = cairnfs::Volume::in_memory(64 << 20).unwrap();
            volume.snapshot("first").unwrap();
            drop(volume.branch("old").unwrap());
            let renamed = |look: u32| {
                if look > 1 {
                    return Some("new".to_owned());
                }
                volume.rename_root("old", "new").unwrap();
                Some("old".to_owned())
            };
            assert_eq!(perform(&volume, renamed, words), Ok(0), "{words:?}");
        }
    }
}
