//! The `cairnfs-bench` command: parses the arguments, runs a benchmark, and prints its failure.

use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use cairnfs_bench::Args;
use clap::Parser;

/// Exit code if the reader of the figures has closed the pipe: that of a process killed by SIGPIPE.
const BROKEN_PIPE: u8 = 141;

/// Measure a volume or any mounted directory
#[derive(Debug, Parser)]
#[command(name = "cairnfs-bench", version)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    cairnfs_allocator::set_up();
    // By a handler, a write beyond the file size limit fails with `EFBIG`; programs that are started
    // here do not inherit that.
    let handled = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let done = match handled {
        Ok(_) => cairnfs_bench::run(Cli::parse().args),
        Err(error) => Err(error.into()),
    };
    done.unwrap_or_else(|error| {
        if is_broken_pipe(error.as_ref()) {
            return ExitCode::from(BROKEN_PIPE);
        }
        eprintln!("cairnfs-bench: {error}");
        ExitCode::FAILURE
    })
}

/// Whether the error only means that the reader closed the pipe.
fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let json = error.downcast_ref::<serde_json::Error>();
    let kind = json.and_then(serde_json::Error::io_error_kind);
    let kind = kind.or_else(|| error.downcast_ref::<io::Error>().map(io::Error::kind));
    kind == Some(io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn argument_declarations_are_valid() {
        Cli::command().debug_assert();
    }
}
