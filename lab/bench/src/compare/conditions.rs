//! The conditions of a measurement, without which its figures mean nothing.

use std::io::{self, Write};

use super::system::System;
use super::table::Form;

/// The machine and the command.
#[derive(Debug, Clone)]
pub struct Conditions {
    /// The command line.
    pub command: String,
    /// The kernel's version.
    pub kernel: String,
    /// Number of processors that this process may use.
    pub cpus: usize,
    /// Model name of the processors.
    pub cpu: String,
    /// Bytes of memory.
    pub memory: u64,
    /// The device.
    pub device: String,
    /// Number of rounds.
    pub rounds: usize,
}

impl Conditions {
    /// Collects the conditions of this process.
    pub fn new(device: &str, rounds: usize) -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let args: Vec<String> = std::env::args().map(|arg| quoted(&arg)).collect();
        Self {
            command: args.join(" "),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: field(&read("/proc/cpuinfo"), "model name").to_owned(),
            memory: memory(&read("/proc/meminfo")),
            device: device.to_owned(),
            rounds,
        }
    }

    /// Prints them as text, above the tables of a task.
    pub fn print(
        &self,
        title: &str,
        systems: &[System],
        form: Form,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let named = |inside: bool| {
            let of = systems
                .iter()
                .filter(|system| system.in_process() == inside);
            let of: Vec<_> = of
                .map(|system| format!("{system} ({})", system.interface()))
                .collect();
            of.join("; ")
        };
        match form {
            Form::Text => writeln!(out, "== {title}\n")?,
            Form::Markdown => writeln!(out, "### {title}\n")?,
        }
        let mut lines = Vec::new();
        for (how, inside) in [
            ("In-process, calls of the library", true),
            ("Through system calls", false),
        ] {
            let named = named(inside);
            if !named.is_empty() {
                lines.push(format!("{how}: {named}."));
            }
        }
        lines.push(self.machine());
        lines.push(format!("Device: {}.", self.device));
        lines.push(match form {
            Form::Text => format!("Command: {}", self.command),
            Form::Markdown => format!("Command: `{}`", self.command),
        });
        let indent = match form {
            Form::Text => "  ",
            Form::Markdown => "- ",
        };
        for line in lines {
            writeln!(out, "{indent}{line}")?;
        }
        writeln!(out)
    }

    /// Returns them in two lines, for plots.
    pub fn short(&self) -> [String; 2] {
        [self.machine(), format!("Device: {}.", self.device)]
    }

    fn machine(&self) -> String {
        let rounds = match self.rounds {
            1 => "1 round".to_owned(),
            more => format!("{more} rounds, interleaved"),
        };
        format!(
            "Linux {}, {} x {}, {} MiB of memory; {rounds}.",
            self.kernel,
            self.cpus,
            self.cpu,
            self.memory >> 20
        )
    }
}

/// Quotes an argument for a shell.
fn quoted(arg: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./,:=+@%".contains(c);
    if !arg.is_empty() && arg.chars().all(plain) {
        arg.to_owned()
    } else {
        format!("'{}'", arg.replace('\'', r"'\''"))
    }
}

fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let mut lines = text.lines();
    lines
        .find_map(|line| line.strip_prefix(name)?.split_once(':'))
        .map_or("processors", |(_, value)| value.trim())
}

fn memory(meminfo: &str) -> u64 {
    let kib = field(meminfo, "MemTotal").trim_end_matches(" kB");
    kib.parse::<u64>().unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_words_are_quoted() {
        assert_eq!(quoted("--with=xfs,ext4"), "--with=xfs,ext4");
        assert_eq!(quoted("fsmark --threads 8"), "'fsmark --threads 8'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn machine_is_read_from_proc() {
        assert_eq!(memory("MemTotal:       1024 kB\nMemFree: 1 kB\n"), 1 << 20);
        let cpuinfo = "processor\t: 0\nmodel name\t: A CPU: fast\n";
        assert_eq!(field(cpuinfo, "model name"), "A CPU: fast");
    }

    #[test]
    fn conditions_name_in_process_systems() {
        let conditions = Conditions::new("/dev/x", 3);
        let mut out = Vec::new();
        let systems = [System::Cairnfs, System::Xfs];
        conditions
            .print("fsmark", &systems, Form::Text, &mut out)
            .unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("In-process, calls of the library: cairnfs ("),
            "{text}"
        );
        assert!(text.contains("Through system calls: xfs ("), "{text}");
        assert!(
            text.contains("3 rounds") && text.contains("/dev/x"),
            "{text}"
        );
        assert!(text.contains(&conditions.kernel) && text.contains("Command: "));
    }
}
