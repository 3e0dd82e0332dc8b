//! dbench (Tridgell): processes that do to a directory what clients of a file server make it do. It works for a fixed
//! time, one client a core, and states a throughput.

use crate::SuiteError;
use crate::platform::{Finished, Job};
use crate::store::Store;
use crate::suite::{Prepared, Reading, Ready};
use muster_model::results::SuiteMeasure;

const NAME: &str = "dbench";
/// Seconds of a run at scale 1, and the fewest: it counts in whole seconds.
const FULL_SECONDS: f64 = 60.0;
const LEAST_SECONDS: u32 = 2;

/// dbench, for so long.
pub struct Dbench {
    seconds: u32,
}

impl Dbench {
    /// Ready where it is installed.
    pub fn prepare(scale: f64) -> Prepared {
        if let Some(why) = super::missing(&[(NAME, "dbench")]) {
            return Prepared::Missing(why);
        }
        Prepared::Ready(Box::new(Self { seconds: ((FULL_SECONDS * scale) as u32).max(LEAST_SECONDS) }))
    }
}

impl Ready for Dbench {
    fn measure(&self) -> SuiteMeasure {
        SuiteMeasure::MegabytesPerSecond
    }

    fn job(&self, store: &Store, cores: usize) -> Result<Job, SuiteError> {
        let dir = store.fresh_dir(NAME)?;
        let (seconds, clients) = (self.seconds.to_string(), cores.to_string());
        let argv = [NAME, "-t", &seconds, "-D", ".", &clients].map(Into::into).to_vec();
        let (program, packages) = (NAME.to_owned(), vec![NAME.to_owned()]);
        Ok(Job { program, argv, needs: vec![dir.clone()], dir, cores, packages, ..Job::default() })
    }

    fn read(&self, store: &Store, finished: &Finished) -> Result<Reading, SuiteError> {
        store.discard(&store.scratch(NAME))?;
        let found = || "an output of dbench without its throughput".to_owned();
        let value = throughput(&finished.stdout)
            .ok_or_else(|| SuiteError::Input { program: NAME.to_owned(), found: found() })?;
        Ok(Reading { value, checksum: None })
    }

    fn discard(&self, _: &Store) -> Result<(), SuiteError> {
        Ok(())
    }
}

/// The number of the line `Throughput 1573.54 MB/sec  2 clients ...`.
fn throughput(output: &str) -> Option<f64> {
    let line = output.lines().find_map(|line| line.strip_prefix("Throughput "))?;
    let value: f64 = line.split_once(" MB/sec")?.0.trim().parse().ok()?;
    (value > 0.0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_throughput_is_read_from_what_dbench_4_prints() {
        let output = " Operation      Count    AvgLat    MaxLat\n UnlockX          330     0.001     0.185\n\n\
                      Throughput 1573.54 MB/sec  2 clients  2 procs  max_latency=32.096 ms\n";
        assert_eq!(throughput(output), Some(1573.54));
        for output in ["", "Throughput", "Throughput x MB/sec", "Throughput 0 MB/sec  1 clients"] {
            assert_eq!(throughput(output), None, "{output}");
        }
    }
}
