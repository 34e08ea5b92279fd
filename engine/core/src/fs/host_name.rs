//! The log message about a volume file that was moved, replaced or deleted while it is open.

use cairnfs_disk::device::HostFile;
use cairnfs_disk::sync::Mutex;

/// Logs each change of the volume file's name once, however often it is looked at.
#[derive(Default)]
pub(super) struct HostNameNotice {
    /// The last message logged; `None` while the file has its name.
    logged: Mutex<Option<String>>,
}

impl HostNameNotice {
    /// Logs when the file was displaced, and when it has its name again.
    pub fn note(&self, file: &HostFile) {
        if !self.is_new(file) {
            return;
        }
        match &file.displaced {
            Some(text) => tracing::warn!("{text}"),
            None => tracing::info!("the volume's file has its name again"),
        }
    }

    /// Whether the name's state differs from the last one; remembers it.
    fn is_new(&self, file: &HostFile) -> bool {
        let mut logged = self.logged.lock();
        let new = *logged != file.displaced;
        if new {
            logged.clone_from(&file.displaced);
        }
        new
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn each_change_of_name_is_logged_once() {
        let notice = HostNameNotice::default();
        let file = |displaced: Option<&str>| HostFile {
            dev: 1,
            ino: 2,
            path: None,
            displaced: displaced.map(str::to_owned),
        };
        let seen = [
            None,
            Some("moved"),
            Some("moved"),
            Some("deleted"),
            None,
            None,
        ];
        let new = seen.map(|displaced| notice.is_new(&file(displaced)));
        assert_eq!(new, [false, true, false, true, true, false]);
    }
}
